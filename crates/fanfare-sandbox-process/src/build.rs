//! One-off processes that prepare something: installing dependencies, compiling a shim.
//!
//! Isolated like a sandbox, except that it may write one directory and be given a way out.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fanfare_sandbox::LogStream;
use fanfare_types::{FunctionId, StartFailure, StartFailureKind, limits};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::cgroup::Limits;
use crate::egress::{self, Policy};
use crate::journal::Kind;
use crate::launch::base_spec;
use crate::launcher::protocol::Bind;
use crate::logs::{Log, Outputs};
use crate::process::{Event, Process};
use crate::revision::{failure, node_failure, text};
use crate::root::OUT_DIR;
use crate::shared::Shared;

const LIMITS: Limits = Limits { memory_bytes: 2 << 30, cpu_milli: 0, pids: 256 };
const TMP_BYTES: u64 = 1 << 30;
/// How often the size of what it has written is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What to run.
#[derive(Debug)]
pub(crate) struct Build {
    /// For names: `deps`, `shim`.
    pub(crate) what: &'static str,
    /// For messages: what its user would call it, `pip install`.
    pub(crate) program: &'static str,
    /// Whose log its output goes to.
    pub(crate) function: FunctionId,
    pub(crate) uid: Option<u32>,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<String>,
    /// What its log begins with.
    pub(crate) note: Option<&'static str>,
    /// Its working directory, inside.
    pub(crate) cwd: &'static str,
    pub(crate) binds: Vec<Bind>,
    /// Where it may connect to; nowhere without.
    pub(crate) egress: Option<Arc<Policy>>,
    /// The directory that becomes `/out`, made and owned by the build's user; removed again on failure.
    pub(crate) out: PathBuf,
    pub(crate) timeout: Duration,
    /// Files that it finds in `/out`.
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
}

impl Build {
    /// Runs it to its end. `kind` is the failure when it does not end with status 0 for a reason of its own: whatever
    /// another try could be without is the node's.
    pub(crate) async fn run(
        mut self,
        shared: &Arc<Shared>,
        kind: StartFailureKind,
    ) -> Result<(), StartFailure> {
        shared.open()?;
        let name = shared.other_name(self.what);
        let owner = shared.own(&name);
        let cgroup = Arc::new(shared.make(&name, LIMITS, &[(Kind::File, self.out.clone())])?);
        let log = Log::new(shared.outlets.logs.clone(), self.function, None);
        if let Some(note) = self.note {
            log.line(LogStream::Platform, note.to_owned());
        }
        let result = self.attempt(shared, &name, &cgroup, &log).await;
        cgroup.kill();
        let result = result.and_then(|ended| match ended {
            Ended::Status(Some(0)) => Ok(()),
            Ended::Status(_) if cgroup.oom_kills() > 0 => Err(failure(
                kind,
                format!("{}: killed, out of memory ({} MiB)", self.program, LIMITS.memory_bytes >> 20),
            )),
            Ended::Status(Some(status)) => {
                let status =
                    <std::process::ExitStatus as std::os::unix::process::ExitStatusExt>::from_raw(status);
                Err(match self.egress.as_ref().and_then(|policy| policy.trouble()) {
                    // Another try may find the network better.
                    Some(trouble) => node_failure(self.program, format!("{status}, after {trouble}")),
                    None => failure(kind, format!("{} failed: {status}", self.program)),
                })
            }
            Ended::Status(None) => Err(node_failure(self.program, "killed")),
            Ended::TooLarge => Err(failure(
                kind,
                format!("{}: more than {} MiB, the limit of one", self.program, limits::DEPS_BYTES_MAX >> 20),
            )),
            Ended::Late => {
                Err(node_failure(self.program, format!("not done after {} s", self.timeout.as_secs())))
            }
        });
        if result.is_err() {
            let out = std::mem::take(&mut self.out);
            let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(out)).await;
        }
        shared.unmake(&name, &cgroup).await;
        drop(owner);
        result.map_err(|failure| StartFailure { log_tail: log.tail(), ..failure })
    }

    async fn attempt(
        &mut self,
        shared: &Arc<Shared>,
        name: &str,
        cgroup: &crate::cgroup::Cgroup,
        log: &Log,
    ) -> Result<Ended, StartFailure> {
        self.make_out().map_err(|e| node_failure("build directory", e))?;
        let (mut outputs, stdout, stderr) =
            Outputs::open(log, self.uid).map_err(|e| node_failure("pipes", e))?;
        let mut spec = base_spec(name, self.uid);
        spec.argv = std::mem::take(&mut self.argv);
        spec.env = std::mem::take(&mut self.env).into();
        spec.cwd = self.cwd.to_owned();
        spec.tmp_bytes = TMP_BYTES;
        spec.binds = std::mem::take(&mut self.binds);
        spec.binds.push(Bind { from: text(&self.out)?, to: OUT_DIR.to_owned(), writable: true });
        let link = shared.links.get().map_err(|e| node_failure("launcher", e))?;
        let started = Process::start(&link, spec, (stdout, stderr), Vec::new(), cgroup).await;
        let mut process = started.map_err(|e| node_failure("launcher", e))?;
        shared.journal.add_process(name, process.pid()).map_err(|e| node_failure("journal", e))?;
        if self.egress.is_some() {
            process.ask_socket(libc::AF_INET);
        }
        let ended = tokio::time::timeout(self.timeout, self.ended(&mut process, log)).await;
        process.end(&mut outputs).await;
        ended.unwrap_or(Ok(Ended::Late))
    }

    /// Makes the directory that it writes to, with the files that it finds there. Never one that is there already: an
    /// earlier build's user may have put links in it.
    fn make_out(&self) -> io::Result<()> {
        match std::fs::create_dir(&self.out) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_dir_all(&self.out)?;
                std::fs::create_dir(&self.out)?;
            }
            other => other?,
        }
        for (name, content) in &self.files {
            std::fs::File::create_new(self.out.join(name))?.write_all(content)?;
        }
        match self.uid {
            Some(uid) => std::os::unix::fs::chown(&self.out, Some(uid), Some(uid)),
            None => Ok(()),
        }
    }

    /// Resolves when what it has written is over the limit.
    async fn grown(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let out = self.out.clone();
            let bytes = tokio::task::spawn_blocking(move || crate::deps::size(&out)).await;
            if bytes.is_ok_and(|bytes| bytes > limits::DEPS_BYTES_MAX) {
                return;
            }
        }
    }

    async fn ended(&self, process: &mut Process, log: &Log) -> Result<Ended, StartFailure> {
        let mut status = None;
        // Ends with this.
        let mut proxy = JoinSet::new();
        let grown = self.grown();
        tokio::pin!(grown);
        loop {
            let event = tokio::select! {
                event = process.event() => event,
                () = &mut grown => return Ok(Ended::TooLarge),
            };
            match event {
                Event::Exited(s) => status = Some(s),
                Event::Ended => return Ok(Ended::Status(status)),
                Event::SetupFailed { step, errno } => {
                    return Err(crate::launch::setup_failure(step, errno, "interpreter"));
                }
                Event::Socket(socket) => {
                    let listener = socket.and_then(listener).map_err(|e| node_failure("proxy", e))?;
                    if let Some(policy) = &self.egress {
                        proxy.spawn(egress::serve(listener, policy.clone(), log.clone()));
                    }
                }
                Event::Running | Event::Notifications(_) => {}
            }
        }
    }
}

enum Ended {
    Status(Option<i32>),
    Late,
    TooLarge,
}

/// A socket of the build's network namespace, as a listener there.
fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, egress::PORT)))?;
    rustix::net::listen(&socket, 128)?;
    TcpListener::from_std(std::net::TcpListener::from(socket))
}
