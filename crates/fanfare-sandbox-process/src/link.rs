//! The daemon's side of the conversation with its launcher.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::fdmsg;
use crate::given::Given;
use crate::launcher::protocol::{self, Config, PACKET_BYTES_MAX, Powers, Reply, Request, SpawnSpec};
use crate::options::LauncherCommand;
use crate::run_dir;
use crate::sys;

/// How long a launcher may take to get ready.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// First pause before a launcher that died is replaced; doubles to the maximum.
const RESTART_MIN: Duration = Duration::from_millis(50);
const RESTART_MAX: Duration = Duration::from_secs(5);

type Answer = (Reply, Vec<OwnedFd>);

/// A running launcher.
#[derive(Debug)]
pub(crate) struct Link {
    socket: AsyncFd<OwnedFd>,
    /// `None` once the launcher has ended.
    pending: Mutex<Option<BTreeMap<u64, oneshot::Sender<Answer>>>>,
    next: AtomicU64,
    /// What revisions are given, as long as it lives.
    pub(crate) given: Given,
}

/// What is needed to start a launcher.
#[derive(Debug)]
pub(crate) struct LinkOptions {
    pub(crate) command: LauncherCommand,
    pub(crate) config: Config,
    /// Shared with the launcher, which goes on holding it while it cleans up after a daemon that was killed.
    pub(crate) lock: OwnedFd,
}

/// The current launcher, for as long as there is one; replaced when it dies.
#[derive(Debug)]
pub(crate) struct Links {
    current: watch::Receiver<Option<Arc<Link>>>,
    close: Arc<Notify>,
    renew: Arc<Notify>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl Links {
    /// Starts a launcher and a task that keeps one running while `Links` exist.
    pub(crate) async fn start(options: LinkOptions) -> io::Result<(Self, Powers)> {
        let (link, child, powers) = Link::start(&options).await?;
        let link = Arc::new(link);
        let (sender, receiver) = watch::channel(Some(link.clone()));
        let (close, renew) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let keeping = keep(options, link, child, sender, (close.clone(), renew.clone()));
        let keeper = Mutex::new(Some(tokio::spawn(keeping)));
        Ok((Links { current: receiver, close, renew, keeper }, powers))
    }

    /// Ends the launcher and waits until it has cleaned up.
    pub(crate) async fn close(&self) {
        self.close.notify_one();
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            let _ = keeper.await;
        }
    }

    /// Something in the run directory is missing: if so, the launcher, whose mounts were there, is replaced.
    pub(crate) fn renew(&self) {
        self.renew.notify_one();
    }

    /// The launcher as it comes and goes.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<Arc<Link>>> {
        self.current.clone()
    }

    /// The launcher.
    pub(crate) fn get(&self) -> io::Result<Arc<Link>> {
        self.current
            .borrow()
            .clone()
            .ok_or_else(|| io::Error::other("the launcher has ended and is being replaced"))
    }
}

/// Reads answers; replaces the launcher when it has ended.
async fn keep(
    mut options: LinkOptions,
    mut link: Arc<Link>,
    mut child: Child,
    current: watch::Sender<Option<Arc<Link>>>,
    (close, renew): (Arc<Notify>, Arc<Notify>),
) {
    let run_dir = PathBuf::from(&options.config.run_dir);
    loop {
        let closed = loop {
            tokio::select! {
                () = link.read() => break false,
                () = current.closed() => break true,
                () = close.notified() => break true,
                () = renew.notified() => if !run_dir::is_whole(&run_dir) {
                    tracing::error!(run_dir = %run_dir.display(), "the run directory was removed: it is made anew");
                    // Not by its socket: it would remove the cgroups' parent, too.
                    let _ = child.start_kill();
                    break false;
                },
            }
        };
        current.send_replace(None);
        link.pending.lock().take();
        // Others may still hold the link.
        let _ = rustix::net::shutdown(link.socket.get_ref(), rustix::net::Shutdown::Both);
        drop(link);
        // It ends with its socket, once all it started has ended.
        let status = child.wait().await;
        if closed {
            return;
        }
        tracing::error!(?status, "the launcher has ended, and with it all sandboxes");
        let mut pause = RESTART_MIN;
        (link, child) = loop {
            if !run_dir::is_whole(&run_dir) {
                match run_dir::renew(&run_dir, &options.lock) {
                    Ok(Some(lock)) => options.lock = lock,
                    Ok(None) => {}
                    Err(error) => tracing::error!(%error, "the run directory cannot be made anew"),
                }
            }
            let start = async {
                match Link::start(&options).await {
                    Ok((link, child, _)) => return Some((Arc::new(link), child)),
                    Err(error) => tracing::error!(%error, "the launcher cannot be started"),
                }
                tokio::time::sleep(pause).await;
                None
            };
            let started = tokio::select! {
                started = start => started,
                // A launcher on its way ends with its socket.
                () = current.closed() => return,
                () = close.notified() => return,
            };
            if let Some(started) = started {
                break started;
            }
            pause = (pause * 2).min(RESTART_MAX);
        };
        current.send_replace(Some(link.clone()));
    }
}

impl Link {
    async fn start(options: &LinkOptions) -> io::Result<(Self, Child, Powers)> {
        let (ours, theirs) = fdmsg::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let child = tokio::process::Command::new(&options.command.program)
            .args(&options.command.args)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|e| {
                io::Error::new(e.kind(), format!("starting {}: {e}", options.command.program.display()))
            })?;
        let socket = sys::async_fd(ours, Interest::READABLE | Interest::WRITABLE)?;
        send(&socket, &Request::Hello(options.config.clone()), &[options.lock.as_fd()]).await?;
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let greeting = tokio::time::timeout(START_TIMEOUT, receive(&socket, &mut buffer));
        match greeting.await.map_err(|_| io::Error::other("the launcher does not answer"))?? {
            Some((Reply::Ready(powers), mut fds)) => {
                let given = fds.pop().ok_or_else(|| io::Error::other("the launcher sent no directory"))?;
                let pending = Mutex::new(Some(BTreeMap::new()));
                let link = Link { socket, pending, next: AtomicU64::new(0), given: Given::new(given) };
                Ok((link, child, powers))
            }
            Some((Reply::Unable { why }, _)) => {
                Err(io::Error::other(format!("the launcher cannot work: {why}")))
            }
            _ => {
                Err(io::Error::other("the launcher ended at once: is it a program that calls launcher_main?"))
            }
        }
    }

    /// Starts a sandbox process; returns its pid and its pidfd.
    pub(crate) async fn spawn(&self, spec: SpawnSpec, fds: Vec<OwnedFd>) -> io::Result<(i32, OwnedFd)> {
        let request = |seq| Request::Spawn { seq, spec: Box::new(spec) };
        match self.call(request, fds).await? {
            (Reply::Spawned { pid, .. }, mut fds) => {
                let pidfd = fds.pop().ok_or_else(|| io::Error::other("the launcher sent no pidfd"))?;
                Ok((pid, pidfd))
            }
            (reply, _) => Err(refusal(reply)),
        }
    }

    /// Makes file systems in memory of these sizes, which are mounted nowhere.
    pub(crate) async fn make_tmp(&self, bytes: Vec<u64>, uid: Option<u32>) -> io::Result<Vec<OwnedFd>> {
        let count = bytes.len();
        match self.call(|seq| Request::MakeTmp { seq, bytes, uid }, Vec::new()).await? {
            (Reply::Made { .. }, fds) if fds.len() == count => Ok(fds),
            (Reply::Made { .. }, _) => Err(io::Error::other("the launcher sent too few descriptors")),
            (reply, _) => Err(refusal(reply)),
        }
    }

    async fn call(&self, request: impl FnOnce(u64) -> Request, fds: Vec<OwnedFd>) -> io::Result<Answer> {
        let gone = || io::Error::other("the launcher has ended");
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.pending.lock().as_mut().ok_or_else(gone)?.insert(seq, sender);
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if let Err(e) = send(&self.socket, &request(seq), &borrowed).await {
            if let Some(pending) = self.pending.lock().as_mut() {
                pending.remove(&seq);
            }
            return Err(e);
        }
        receiver.await.map_err(|_| gone())
    }

    /// Hands answers to those who wait, until the launcher ends.
    async fn read(&self) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        loop {
            let (reply, fds) = match receive(&self.socket, &mut buffer).await {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "the launcher's answer cannot be read");
                    return;
                }
            };
            let seq = match &reply {
                Reply::Spawned { seq, .. } | Reply::Made { seq } | Reply::Failed { seq, .. } => *seq,
                Reply::Ready(_) | Reply::Unable { .. } => continue,
            };
            // Whoever gave up waiting dropped what would have kept the sandbox alive.
            if let Some(waiting) = self.pending.lock().as_mut().and_then(|p| p.remove(&seq)) {
                let _ = waiting.send((reply, fds));
            }
        }
    }
}

async fn send(
    socket: &AsyncFd<OwnedFd>,
    request: &Request,
    fds: &[std::os::fd::BorrowedFd<'_>],
) -> io::Result<()> {
    let send = |socket: &OwnedFd| protocol::send(socket, request, fds, SendFlags::DONTWAIT);
    socket.async_io(Interest::WRITABLE, send).await
}

async fn receive(socket: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> io::Result<Option<Answer>> {
    let receive = |socket: &OwnedFd| protocol::receive(socket, buffer, RecvFlags::DONTWAIT);
    socket.async_io(Interest::READABLE, receive).await
}

fn refusal(reply: Reply) -> io::Error {
    match reply {
        Reply::Failed { step, .. } => io::Error::other(step),
        other => io::Error::other(format!("unexpected answer of the launcher: {other:?}")),
    }
}
