//! The supervisor of one sandbox: a task that owns everything of it from its order to its end.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfare_sandbox::{LogStream, SandboxExit, Started};
use fanfare_types::{
    ExitCause, HumanDuration, SandboxId, Stages, StartFailure, StartFailureKind, StopMode, limits,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::body::Body;
use crate::cgroup::{Cgroup, Limits};
use crate::journal::Kind;
use crate::launch::{self, Launch};
use crate::logs::{Log, Outputs};
use crate::prepare;
use crate::process::Event;
use crate::procfs;
use crate::revision::{PORT, Prepared, Revision, Serving, failure, node_failure};
use crate::shared::{Handle, Shared, UsageMeter};

/// Requests for sockets of one sandbox that may wait for its first process.
const SOCKET_REQUESTS_MAX: usize = 64;

type SocketReply = oneshot::Sender<io::Result<(OwnedFd, SocketAddr)>>;

/// Why a sandbox is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To serve.
    Serve,
    /// To prove that the revision starts: programs with an inherited listener are watched until they reach it.
    Prove,
}

/// One sandbox and what it owns.
#[derive(Debug)]
pub(crate) struct Sandbox {
    shared: Arc<Shared>,
    id: SandboxId,
    name: String,
    revision: Arc<Revision>,
    purpose: Purpose,
    log: Log,
    stop: watch::Receiver<Option<StopMode>>,
    sockets: mpsc::Receiver<SocketReply>,
    usage: Arc<Mutex<UsageMeter>>,
    ordered: Instant,
    cgroup: Option<Arc<Cgroup>>,
    listener: Option<UnixListener>,
    outputs: Option<Outputs>,
    body: Option<Body>,
    address: Option<SocketAddr>,
    /// Wait status that the body reported.
    status: Option<i32>,
}

/// Registers a sandbox and starts its supervisor. Fails when the id is in use or the runtime is shut down.
pub(crate) fn begin(
    shared: &Arc<Shared>,
    id: SandboxId,
    revision: Arc<Revision>,
    purpose: Purpose,
) -> Result<oneshot::Receiver<Result<Started, StartFailure>>, StartFailure> {
    let (stop_sender, stop) = watch::channel(None);
    let (gone_sender, gone) = watch::channel(false);
    let (socket_sender, sockets) = mpsc::channel(SOCKET_REQUESTS_MAX);
    let usage = Arc::<Mutex<UsageMeter>>::default();
    let handle = Handle {
        revision: revision.spec.id,
        stop: Arc::new(stop_sender),
        gone,
        sockets: socket_sender,
        usage: usage.clone(),
    };
    {
        let mut sandboxes = shared.sandboxes.lock();
        // Under the lock, so that `shutdown` either sees the sandbox or keeps it from being made.
        shared.open()?;
        if sandboxes.contains_key(&id) {
            return Err(failure(StartFailureKind::Node, format!("sandbox {id} exists")));
        }
        sandboxes.insert(id, handle);
    }
    let log = Log::new(shared.outlets.logs.clone(), revision.spec.id.function, Some(id));
    let sandbox = Sandbox {
        shared: shared.clone(),
        id,
        name: id.to_string(),
        revision,
        purpose,
        log,
        stop,
        sockets,
        usage,
        ordered: Instant::now(),
        cgroup: None,
        listener: None,
        outputs: None,
        body: None,
        address: None,
        status: None,
    };
    let (reply, answer) = oneshot::channel();
    tokio::spawn(sandbox.supervise(reply, gone_sender));
    Ok(answer)
}

impl Sandbox {
    async fn supervise(
        mut self,
        reply: oneshot::Sender<Result<Started, StartFailure>>,
        gone: watch::Sender<bool>,
    ) {
        let exit = match self.start().await {
            Ok(started) => match reply.send(Ok(started)) {
                Ok(()) => {
                    let cause = self.serve().await;
                    self.release().await;
                    Some(SandboxExit { sandbox: self.id, cause, log_tail: self.log.tail() })
                }
                // Nobody learned of it.
                Err(_) => {
                    self.release().await;
                    None
                }
            },
            Err(mut failure) => {
                self.release().await;
                // A template's failure brings its own.
                if failure.log_tail.is_empty() {
                    failure.log_tail = self.log.tail();
                }
                self.shared.sandboxes.lock().remove(&self.id);
                let _ = reply.send(Err(self.shared.explained(failure)));
                None
            }
        };
        self.shared.sandboxes.lock().remove(&self.id);
        if let (Some(exit), Purpose::Serve) = (exit, self.purpose) {
            (self.shared.outlets.exits)(exit);
        }
        gone.send_replace(true);
    }

    async fn start(&mut self) -> Result<Started, StartFailure> {
        let deadline = self.ordered + self.revision.spec.timeouts.start;
        let preparing = prepare::prepared(&self.shared, &self.revision, self.ordered);
        let prepared = self.within(deadline, preparing).await?;
        self.make(&prepared).await?;
        let (stop, limit) = (self.stop.clone(), self.revision.spec.timeouts.start);
        tokio::select! {
            biased;
            () = stopped(stop) => Err(failure(StartFailureKind::Exited(ExitCause::Stopped), "stopped while it started")),
            result = self.launch(prepared) => result,
            () = tokio::time::sleep_until(deadline.into()) => Err(self.timed_out(limit)),
        }
    }

    /// Not ready in time; when that was for its template, with what the import wrote.
    fn timed_out(&self, limit: Duration) -> StartFailure {
        let limit = HumanDuration(limit);
        match self.revision.zygotes.importing() {
            Some(log) if self.body.is_none() => StartFailure {
                log_tail: log.tail(),
                ..failure(
                    StartFailureKind::Timeout,
                    format!("not ready after {limit}: the import has not ended"),
                )
            },
            _ => match self.what_is_wanting() {
                Some(wanting) => {
                    failure(StartFailureKind::NotListening, format!("not ready after {limit}: {wanting}"))
                }
                None => failure(StartFailureKind::Timeout, format!("not ready after {limit}")),
            },
        }
    }

    /// What a program that runs and is not ready has not done, as far as that is to be seen.
    fn what_is_wanting(&self) -> Option<String> {
        let serving = self.revision.prepared.get().map(|prepared| prepared.serving);
        let (Some(Serving::Port), Some(Body::Own(process))) = (serving, &self.body) else {
            return None;
        };
        match procfs::listening(process.pid()).as_slice() {
            [] => Some(format!("it listens on no TCP port, where $PORT, which is {PORT}, is expected")),
            // Just now.
            ports if ports.contains(&PORT) => None,
            others => {
                let others: Vec<_> = others.iter().map(u16::to_string).collect();
                let others = others.join(", ");
                Some(format!("it listens on port {others}, where $PORT, which is {PORT}, is expected"))
            }
        }
    }

    async fn within<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = Result<T, StartFailure>>,
    ) -> Result<T, StartFailure> {
        tokio::select! {
            biased;
            () = stopped(self.stop.clone()) => {
                Err(failure(StartFailureKind::Exited(ExitCause::Stopped), "stopped before it started"))
            }
            result = work => result,
            () = tokio::time::sleep_until(deadline.into()) => {
                let limit = HumanDuration(self.revision.spec.timeouts.start);
                let detail = format!("not ready after {limit}: its code and dependencies were still being made ready");
                Err(failure(StartFailureKind::Unprepared, detail))
            }
        }
    }

    /// Makes what the sandbox owns on the host. Never dropped half-way.
    async fn make(&mut self, prepared: &Prepared) -> Result<(), StartFailure> {
        let (shared, name) = (self.shared.clone(), self.name.clone());
        let limits = Limits::of(&self.revision.spec.sizing);
        let path = (prepared.serving != Serving::Port).then(|| shared.socket_path(&name));
        let made = self.shared.blocking(move || {
            let files: Vec<_> = path.iter().map(|path| (Kind::Socket, path.clone())).collect();
            let cgroup = shared.make(&name, limits, &files)?;
            let bind = |path| UnixListener::bind(path).map_err(|e| shared.missing("listener", &e));
            let listener = path.map(bind);
            Ok::<_, StartFailure>((cgroup, listener.transpose()))
        });
        let (cgroup, listener) = made.await.map_err(|e| node_failure("making", e))??;
        let cgroup = Arc::new(cgroup);
        self.usage.lock().cgroup = Some(cgroup.clone());
        self.cgroup = Some(cgroup);
        self.listener = listener?;
        Ok(())
    }

    async fn launch(&mut self, prepared: Arc<Prepared>) -> Result<Started, StartFailure> {
        let (Some(cgroup), listener) = (self.cgroup.clone(), self.listener.take()) else {
            return Err(node_failure("launch", "no cgroup"));
        };
        let (outputs, stdout, stderr) =
            Outputs::open(&self.log, self.revision.uid).map_err(|e| node_failure("pipes", e))?;
        self.outputs = Some(outputs);
        let launch = Launch {
            shared: &self.shared,
            name: &self.name,
            revision: &self.revision,
            prepared: &prepared,
            ordered: self.ordered,
            cgroup: &cgroup,
            listener,
            outputs: (stdout, stderr),
            prove: self.purpose == Purpose::Prove,
        };
        let cloned = launch::launch(launch, &mut self.body).await?;
        let created = cloned.forked.map_or_else(Instant::now, |(begun, _)| begun);
        let body = self.body.as_mut().ok_or_else(|| node_failure("launch", "nothing started"))?;
        let up = match launch::ready(body, &cgroup, cloned).await {
            Ok(up) => up,
            Err(launch::NotReady::Ended(status)) => {
                self.status = status;
                let cause = self.cause(None);
                return Err(failure(StartFailureKind::Exited(cause), format!("{cause} before it was ready")));
            }
            Err(launch::NotReady::Failed(failure)) => return Err(prepared.named_interpreter(failure)),
        };
        self.address = up.address;
        let now = Instant::now();
        let running = up.running.unwrap_or(created).max(created);
        let stages = Stages {
            create: created - self.ordered,
            start: running - created,
            ready: now - running,
            ..Stages::default()
        };
        let endpoint = match self.address {
            Some(_) => format!("broker:{}#{}", self.shared.broker_path().display(), self.name),
            None => format!("unix:{}", self.shared.socket_path(&self.name).display()),
        };
        Ok(Started { endpoint: endpoint.into(), stages })
    }

    /// Until the sandbox has ended, by itself or as ordered.
    async fn serve(&mut self) -> ExitCause {
        let mut ordered = None;
        let mut waiting: VecDeque<SocketReply> = VecDeque::new();
        let Some(body) = &mut self.body else { return ExitCause::NodeLost };
        let grace = tokio::time::sleep(Duration::MAX);
        tokio::pin!(grace);
        loop {
            tokio::select! {
                event = body.event() => match event {
                    Event::Exited(status) => self.status = Some(status),
                    Event::Ended => break,
                    Event::Socket(socket) => {
                        if let (Some(reply), Some(address)) = (waiting.pop_front(), self.address) {
                            let _ = reply.send(socket.map(|socket| (socket, address)));
                        }
                    }
                    Event::Notifications(_) | Event::Running | Event::SetupFailed { .. } => {}
                },
                Some(reply) = self.sockets.recv(), if waiting.len() < SOCKET_REQUESTS_MAX => {
                    if let Some(address) = self.address {
                        body.ask_socket(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
                        waiting.push_back(reply);
                    }
                },
                Ok(()) = self.stop.changed() => {
                    let mode = *self.stop.borrow_and_update();
                    match mode {
                        Some(StopMode::Kill) => body.kill(self.cgroup.as_deref()),
                        Some(StopMode::Graceful) if ordered.is_none() => {
                            body.terminate();
                            grace.as_mut().reset(tokio::time::Instant::now() + limits::STOP_GRACE);
                        }
                        _ => {}
                    }
                    // An end that was already under way keeps its own cause.
                    if self.status.is_none() {
                        ordered = mode;
                    }
                },
                () = &mut grace, if ordered.is_some() => {
                    body.kill(self.cgroup.as_deref());
                    grace.as_mut().reset(tokio::time::Instant::now() + limits::STOP_GRACE);
                },
            }
        }
        self.cause(ordered)
    }

    /// How it ended.
    fn cause(&self, ordered: Option<StopMode>) -> ExitCause {
        use std::os::unix::process::ExitStatusExt;
        let status = self.status.map(std::process::ExitStatus::from_raw);
        let killed =
            status.is_none_or(|s| s.signal() == Some(libc::SIGKILL) || s.code() == Some(128 + libc::SIGKILL));
        let cause = match status {
            _ if ordered.is_some() => ExitCause::Stopped,
            _ if killed && self.cgroup.as_ref().is_some_and(|c| c.oom_kills() > 0) => ExitCause::OutOfMemory,
            Some(status) => match status.signal() {
                Some(signal) => ExitCause::Signal(signal),
                None => ExitCause::Status(status.code().unwrap_or(0)),
            },
            None => ExitCause::Signal(libc::SIGKILL),
        };
        if cause == ExitCause::OutOfMemory {
            let limit = self.revision.spec.sizing.limit.memory_bytes >> 20;
            self.log.line(LogStream::Platform, format!(
                "killed: out of memory (limit {limit} MiB); lines before this one may be of earlier requests"
            ));
        }
        cause
    }

    /// Ends what runs and removes everything.
    async fn release(&mut self) {
        self.usage.lock().cgroup = None;
        let zygote = self.body.as_ref().and_then(Body::zygote);
        if let (Some(body), Some(mut outputs)) = (self.body.take(), self.outputs.take()) {
            body.end(self.cgroup.as_deref(), &mut outputs).await;
        }
        // Also what was cloned but never reported, because its start was given up.
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        if let Some(mut outputs) = self.outputs.take() {
            outputs.drain().await;
        }
        self.listener = None;
        let Some(cgroup) = self.cgroup.take() else { return };
        let path = self.shared.socket_path(&self.name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(path = %path.display(), %error, "a socket cannot be removed");
            }
            _ => {}
        }
        match zygote {
            Some(zygote) => zygote.bury(&self.shared, &self.name, cgroup, &self.log).await,
            None => self.shared.unmake(&self.name, &cgroup).await,
        }
    }
}

/// Resolves when a stop is ordered.
async fn stopped(mut stop: watch::Receiver<Option<StopMode>>) {
    if stop.wait_for(Option::is_some).await.is_err() {
        // The runtime dropped the handle without an order: it never does, and if it did there would be nobody to obey.
        std::future::pending::<()>().await;
    }
}
