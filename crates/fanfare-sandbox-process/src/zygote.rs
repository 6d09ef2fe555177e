//! Templates of Python revisions: a process that has imported the handler's module, from which sandboxes are forked.
//!
//! It runs user code, so it is isolated exactly like a sandbox. Its children share its namespaces; each has a cgroup,
//! a temporary directory, a listener and a process group of its own. The protocol is `shims/PROTOCOL.md`, section 2.2;
//! after `imported` nothing that it says is trusted beyond its own revision.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fanfare_sandbox::LogStream;
use fanfare_types::{ExitCause, StartFailure, StartFailureKind};
use parking_lot::Mutex;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, OnceCell, oneshot, watch};

use crate::cgroup::{Cgroup, Limits};
use crate::fdmsg;
use crate::gate::{MESSAGE_BYTES_MAX, ShimFailure};
use crate::journal::Kind;
use crate::launch::{base_spec, setup_failure};
use crate::launcher::protocol::{Tmp, TmpMount};
use crate::link::Link;
use crate::logs::{Log, Outputs};
use crate::process::{Event, Process};
use crate::revision::{Prepared, Revision, failure, node_failure};
use crate::shared::{Owner, Shared};
use crate::sys;

/// The control socket's number in the zygote.
const CONTROL_FD: i32 = 4;
/// Children of one zygote at once.
const CHILDREN_MAX: usize = 10_000;
/// What a child may cost its zygote's cgroup: page tables and pages copied before it is moved to its own stay charged
/// where they were made.
const CHILD_MEMORY_BYTES: u64 = 4 << 20;
/// Children that room is made for at a time.
const CHILDREN_STEP: usize = 64;
/// Children of a zygote that may be on their way to their own cgroups.
const FORKS_MAX: u32 = 1_024;

/// How sandboxes of a revision are started.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    /// By forking this.
    Zygote(Arc<Zygote>),
    /// Each by itself: a copy of this revision's process would not work.
    Fresh,
}

/// The template of one revision, made at its first use and again when it has ended.
#[derive(Debug, Default)]
pub(crate) struct Zygotes {
    current: Mutex<Arc<Slot>>,
}

#[derive(Debug, Default)]
struct Slot {
    template: OnceCell<Template>,
    /// Ends the template, or its making.
    stop: Arc<Notify>,
}

impl Zygotes {
    /// The template.
    pub(crate) async fn get(
        &self,
        shared: &Arc<Shared>,
        revision: &Arc<Revision>,
        prepared: &Arc<Prepared>,
    ) -> Result<Template, StartFailure> {
        let slot = {
            let mut current = self.current.lock();
            if current.template.get().is_some_and(|t| matches!(t, Template::Zygote(z) if z.ended())) {
                *current = Arc::default();
            }
            current.clone()
        };
        let (shared, revision, prepared) = (shared.clone(), revision.clone(), prepared.clone());
        // A task of its own: a sandbox that gives up must not take the template that others wait for with it.
        let made = tokio::spawn(async move {
            let stop = slot.stop.clone();
            slot.template.get_or_try_init(|| start(shared, revision, prepared, stop)).await.cloned()
        });
        made.await.map_err(|e| node_failure("template", e))?
    }

    /// Ends it and waits until nothing of it is left.
    pub(crate) async fn close(&self) {
        let slot = std::mem::take(&mut *self.current.lock());
        slot.stop.notify_one();
        // Waits for a making that is under way, which has just been told to end.
        let made = slot.template.get_or_try_init(|| async { Err(()) }).await;
        if let Ok(Template::Zygote(zygote)) = made {
            let mut gone = zygote.gone.clone();
            let _ = gone.wait_for(|gone| *gone).await;
        }
    }
}

/// A running zygote.
#[derive(Debug)]
pub(crate) struct Zygote {
    control: AsyncFd<OwnedFd>,
    link: Arc<Link>,
    /// The shared temporary file system, in the launcher's view.
    tmp: String,
    children: Mutex<Children>,
    stop: Arc<Notify>,
    gone: watch::Receiver<bool>,
    cgroup: Arc<Cgroup>,
    /// What its cgroup allows the import itself.
    limits: Limits,
}

#[derive(Debug, Default)]
struct Children {
    ended: bool,
    /// So many children there is room for in the cgroup.
    room: usize,
    next: u64,
    waiting: BTreeMap<u64, Child>,
}

#[derive(Debug)]
struct Child {
    forked: Option<oneshot::Sender<Result<(), String>>>,
    exited: oneshot::Sender<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum ZygoteWord {
    Imported {},
    Unsafe { why: String, detail: String },
    Failed(ShimFailure),
    Forked { id: u64 },
    ForkFailed { id: u64, detail: String },
    Exited { id: u64, code: Option<i32>, signal: Option<i32> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum ToZygote<'a> {
    Fork { id: u64, processes: u32, env: BTreeMap<&'a str, &'a str> },
}

/// Parts of a zygote that its task owns.
#[derive(Debug)]
struct Parts {
    shared: Arc<Shared>,
    owner: Owner,
    name: String,
    cgroup: Arc<Cgroup>,
    link: Arc<Link>,
    tmp: String,
    log: Log,
    outputs: Option<Outputs>,
    process: Option<Process>,
}

async fn start(
    shared: Arc<Shared>,
    revision: Arc<Revision>,
    prepared: Arc<Prepared>,
    stop: Arc<Notify>,
) -> Result<Template, StartFailure> {
    shared.open()?;
    let name = shared.other_name(&revision.name());
    let owner = shared.own(&name);
    let tmp = shared.tmp_path(&name);
    let limits = Limits::of(&revision.spec.sizing);
    let cgroup = Arc::new(shared.make(&name, limits, &[(Kind::File, tmp.clone())])?);
    let link = match shared.links.get() {
        Ok(link) => link,
        Err(e) => {
            shared.unmake(&name, &cgroup).await;
            return Err(node_failure("launcher", e));
        }
    };
    let log = Log::new(shared.outlets.logs.clone(), revision.spec.id.function, None);
    let tmp = tmp.display().to_string();
    let mut parts = Parts { shared, owner, name, cgroup, link, tmp, log, outputs: None, process: None };
    let limit = revision.spec.timeouts.start;
    let made = tokio::select! {
        made = import(&mut parts, &revision, &prepared) => made,
        () = tokio::time::sleep(limit) => {
            Err(failure(StartFailureKind::Timeout, format!("not imported after {} ms", limit.as_millis())))
        }
        () = stop.notified() => Err(failure(StartFailureKind::Node, "the revision was removed while it was imported")),
    };
    match made {
        Ok(Some(control)) => {
            let (gone_sender, gone) = watch::channel(false);
            let zygote = Arc::new(Zygote {
                control,
                link: parts.link.clone(),
                tmp: parts.tmp.clone(),
                children: Mutex::default(),
                stop,
                gone,
                cgroup: parts.cgroup.clone(),
                limits,
            });
            tokio::spawn(live(parts, zygote.clone(), gone_sender));
            Ok(Template::Zygote(zygote))
        }
        Ok(None) => {
            parts.release().await;
            Ok(Template::Fresh)
        }
        Err(mut failure) => {
            let log = parts.log.clone();
            parts.release().await;
            failure.log_tail = log.tail();
            Err(failure)
        }
    }
}

/// Starts the process and waits for the import. `None`: sandboxes must start by themselves.
async fn import(
    parts: &mut Parts,
    revision: &Revision,
    prepared: &Prepared,
) -> Result<Option<AsyncFd<OwnedFd>>, StartFailure> {
    let io = |what: &'static str| move |e: io::Error| node_failure(what, e);
    let bytes = revision.spec.sizing.tmp_limit_bytes;
    let mount = TmpMount { path: parts.tmp.clone(), bytes, uid: revision.uid, shared: true };
    parts.link.mount_tmp(mount).await.map_err(io("temporary directory"))?;
    let (outputs, stdout, stderr) = Outputs::open(&parts.log).map_err(io("pipes"))?;
    parts.outputs = Some(outputs);
    let (control, theirs) = fdmsg::pair().map_err(io("control"))?;
    rustix::io::ioctl_fionbio(&control, true).map_err(|e| node_failure("control", e))?;
    let control = sys::async_fd(control, Interest::READABLE | Interest::WRITABLE).map_err(io("control"))?;
    let mut spec = base_spec(&parts.name, revision.uid);
    spec.argv = prepared.argv.clone();
    spec.argv.push("zygote".into());
    spec.env = prepared.env(None);
    spec.binds = prepared.binds.clone();
    spec.tmp = Tmp::Shared { path: parts.tmp.clone() };
    spec.fds = vec![CONTROL_FD];
    let process = Process::start(&parts.link, spec, (stdout, stderr), vec![theirs], &parts.cgroup).await;
    let process = parts.process.insert(process.map_err(io("launcher"))?);
    parts.shared.journal.add_process(&parts.name, process.pid()).map_err(io("journal"))?;
    Ok(imported(process, &control, &parts.cgroup, &parts.log).await?.then_some(control))
}

async fn imported(
    process: &mut Process,
    control: &AsyncFd<OwnedFd>,
    cgroup: &Cgroup,
    log: &Log,
) -> Result<bool, StartFailure> {
    let mut status = None;
    let mut open = true;
    loop {
        tokio::select! {
            event = process.event() => match event {
                Event::SetupFailed { step, errno } => return Err(setup_failure(step, errno, "interpreter")),
                Event::Exited(s) => status = Some(s),
                Event::Ended => {
                    let cause = import_end(status, cgroup);
                    return Err(failure(StartFailureKind::Exited(cause), format!("{cause} during the import")));
                }
                Event::Running | Event::Notifications(_) | Event::Socket(_) => {}
            },
            word = word(control), if open => match word.map_err(|e| node_failure("zygote", e))? {
                Some(ZygoteWord::Imported {}) => return Ok(true),
                Some(ZygoteWord::Unsafe { why, detail }) => {
                    let text = format!("no template: the import left {why} ({detail}); each sandbox imports anew");
                    log.line(LogStream::Platform, text);
                    return Ok(false);
                }
                Some(ZygoteWord::Failed(why)) => return Err(why.into_failure()),
                Some(_) => return Err(node_failure("zygote", "spoke of children that it does not have")),
                None => open = false,
            },
        }
    }
}

fn import_end(status: Option<i32>, cgroup: &Cgroup) -> ExitCause {
    use std::os::unix::process::ExitStatusExt;
    let status = status.map(std::process::ExitStatus::from_raw);
    match status.and_then(|s| s.code()) {
        Some(code) => ExitCause::Status(code),
        None if cgroup.oom_kills() > 0 => ExitCause::OutOfMemory,
        None => ExitCause::Signal(status.and_then(|s| s.signal()).unwrap_or(libc::SIGKILL)),
    }
}

async fn word(control: &AsyncFd<OwnedFd>) -> io::Result<Option<ZygoteWord>> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let receive = |fd: &OwnedFd| fdmsg::receive(fd, &mut buffer, RecvFlags::DONTWAIT);
    let packet = control.async_io(Interest::READABLE, receive).await?;
    match packet.len {
        0 => Ok(None),
        len => Ok(Some(serde_json::from_slice(&buffer[..len])?)),
    }
}

/// The zygote's task: hands its words on, until it has ended or must.
async fn live(mut parts: Parts, zygote: Arc<Zygote>, gone: watch::Sender<bool>) {
    let Some(mut process) = parts.process.take() else { return };
    loop {
        tokio::select! {
            event = process.event() => if let Event::Ended = event { break },
            () = zygote.stop.notified() => break,
            word = word(&zygote.control) => match word {
                Ok(Some(word)) => zygote.hear(word),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(zygote = parts.name, %error, "ended for what it said");
                    break;
                }
            },
        }
    }
    let children = {
        let mut children = zygote.children.lock();
        children.ended = true;
        std::mem::take(&mut children.waiting)
    };
    parts.process = Some(process);
    parts.release().await;
    // Its children have ended with it; whoever waits for their status learns that there is none.
    drop(children);
    gone.send_replace(true);
}

impl Parts {
    /// Ends what runs and removes everything.
    async fn release(mut self) {
        if let (Some(process), Some(outputs)) = (self.process.take(), &mut self.outputs) {
            process.end(outputs).await;
        }
        self.cgroup.kill();
        if let Err(error) = self.link.unmount_tmp(self.tmp.clone()).await {
            // The launcher has ended, and its mounts with it.
            tracing::debug!(%error, "a template's temporary directory was not unmounted");
        }
        let _ = std::fs::remove_dir_all(&self.tmp);
        self.shared.unmake(&self.name, &self.cgroup).await;
        drop(self.owner);
    }
}

impl Zygote {
    /// Whether it can fork no more.
    pub(crate) fn ended(&self) -> bool {
        self.children.lock().ended
    }

    /// The launcher that it was started by, whose mounts it sees.
    pub(crate) fn link(&self) -> Arc<Link> {
        self.link.clone()
    }

    /// Where a child's temporary directory is to be mounted, in the launcher's view.
    pub(crate) fn tmp_path(&self, sandbox: &str) -> String {
        format!("{}/{sandbox}", self.tmp)
    }

    /// Has a child forked that takes these descriptors: listener, stdout, stderr, gate. Returns where its wait status
    /// will arrive.
    pub(crate) async fn fork(
        &self,
        sandbox: &str,
        processes: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<oneshot::Receiver<i32>, StartFailure> {
        let (forked_sender, forked) = oneshot::channel();
        let (exited_sender, exited) = oneshot::channel();
        let id = {
            let mut children = self.children.lock();
            if children.ended || children.waiting.len() >= CHILDREN_MAX {
                return Err(node_failure("zygote", "it has ended, or has too many children"));
            }
            children.next += 1;
            let id = children.next;
            children.waiting.insert(id, Child { forked: Some(forked_sender), exited: exited_sender });
            if children.waiting.len() > children.room {
                children.room = children.waiting.len() + CHILDREN_STEP;
                self.cgroup.raise(Limits {
                    memory_bytes: self.limits.memory_bytes + CHILD_MEMORY_BYTES * children.room as u64,
                    pids: self.limits.pids + FORKS_MAX,
                    ..self.limits
                });
            }
            id
        };
        let tmp = format!("/tmp/{sandbox}");
        let env = BTreeMap::from([
            ("FANFARE_SANDBOX_ID", sandbox),
            ("TMPDIR", tmp.as_str()),
            ("HOME", tmp.as_str()),
        ]);
        let message = serde_json::to_vec(&ToZygote::Fork { id, processes, env });
        let message = message.map_err(|e| node_failure("zygote", e))?;
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let send = |fd: &OwnedFd| fdmsg::send(fd, &message, &borrowed, SendFlags::DONTWAIT);
        if let Err(e) = self.control.async_io(Interest::WRITABLE, send).await {
            self.children.lock().waiting.remove(&id);
            return Err(node_failure("zygote", e));
        }
        match forked.await {
            Ok(Ok(())) => Ok(exited),
            Ok(Err(detail)) => Err(node_failure("fork", detail)),
            Err(_) => Err(node_failure("zygote", "it ended")),
        }
    }

    fn hear(&self, word: ZygoteWord) {
        let mut children = self.children.lock();
        match word {
            ZygoteWord::Forked { id } => {
                if let Some(forked) = children.waiting.get_mut(&id).and_then(|c| c.forked.take()) {
                    let _ = forked.send(Ok(()));
                }
            }
            ZygoteWord::ForkFailed { id, detail } => {
                if let Some(forked) = children.waiting.remove(&id).and_then(|c| c.forked) {
                    let _ = forked.send(Err(detail));
                }
            }
            ZygoteWord::Exited { id, code, signal } => {
                if let Some(child) = children.waiting.remove(&id) {
                    // As `wait` would have given it.
                    let _ = child.exited.send(code.unwrap_or(0) << 8 | signal.unwrap_or(0) & 0x7f);
                }
            }
            ZygoteWord::Imported {} | ZygoteWord::Unsafe { .. } | ZygoteWord::Failed(_) => {}
        }
    }
}
