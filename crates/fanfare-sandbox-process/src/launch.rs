//! From a sandbox with its cgroup and listener to one that is ready.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Instant;

use fanfare_types::{Sizing, StartFailure, StartFailureKind};
use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::body::{Body, Forked};
use crate::cgroup::Cgroup;
use crate::gate::{Gate, GateWord};
use crate::launcher::protocol::{CgroupJoin, SpawnSpec, Step, Watch};
use crate::notify::{self, Expect, Reached};
use crate::process::{Event, Process};
use crate::procfs::{self, Namespaces};
use crate::revision::{
    GATE_FD, LISTENER_FD, Language, PORT, Prepared, Revision, Serving, failure, meddled, node_failure, unread,
};
use crate::root::{FUNCTION_DIR, PRIVATE_DIRS, SHM_BYTES};
use crate::shared::Shared;
use crate::zygote::{Template, Zygote};

/// Open files of one sandbox process.
pub(crate) const NOFILE: u64 = 16_384;
/// Sandboxes are what a machine without memory should kill first.
pub(crate) const OOM_SCORE_ADJ: i32 = 500;

/// Templates that may be replaced between being given and being used, in a row.
const TEMPLATE_ATTEMPTS_MAX: u32 = 8;

/// See [`data_bytes`].
const DATA_FACTOR: u64 = 2;
const DATA_BYTES: u64 = 256 << 20;

/// What is needed to start one sandbox.
pub(crate) struct Launch<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) name: &'a str,
    pub(crate) revision: &'a Arc<Revision>,
    pub(crate) prepared: &'a Arc<Prepared>,
    pub(crate) cgroup: &'a Cgroup,
    pub(crate) listener: Option<UnixListener>,
    pub(crate) outputs: (OwnedFd, OwnedFd),
    /// When it was ordered.
    pub(crate) ordered: Instant,
    /// Whether a program with an inherited listener is watched until it reaches it.
    pub(crate) prove: bool,
}

/// What the start of a cloned sandbox is followed by.
#[derive(Debug, Default)]
pub(crate) struct Cloned {
    gate: Option<Gate>,
    expect: Option<Expect>,
    /// Ready as soon as it runs.
    ready_when_running: bool,
    /// A process whose own word it is that it is in the cgroup, and apart from its template.
    apart: Option<Apart>,
    /// When it began to be made by its zygote, and when it was there; of others the time of the clone counts.
    pub(crate) forked: Option<(Instant, Instant)>,
    what: &'static str,
}

/// A forked sandbox, and what it must have left.
#[derive(Debug)]
struct Apart {
    pid: i32,
    template: Namespaces,
}

/// A ready sandbox.
#[derive(Debug)]
pub(crate) struct Up {
    /// When the program was executed, if that is seen.
    pub(crate) running: Option<Instant>,
    /// Where it listens in its own network namespace.
    pub(crate) address: Option<SocketAddr>,
}

/// Why a sandbox did not become ready.
#[derive(Debug)]
pub(crate) enum NotReady {
    /// It ended, with this wait status if it is known.
    Ended(Option<i32>),
    /// Something else.
    Failed(StartFailure),
}

/// A spawn request with what all sandbox processes have in common.
pub(crate) fn base_spec(name: &str, uid: Option<u32>) -> SpawnSpec {
    SpawnSpec {
        name: name.to_owned(),
        uid,
        argv: Vec::new(),
        env: Zeroizing::default(),
        cwd: FUNCTION_DIR.to_owned(),
        fds: Vec::new(),
        cgroup: CgroupJoin::None,
        binds: Vec::new(),
        tmp_bytes: 0,
        template: false,
        watch: Watch::Nothing,
        nofile: NOFILE,
        data_bytes: None,
        oom_score_adj: OOM_SCORE_ADJ,
    }
}

/// What stands in for the limit of a sandbox's memory where no cgroup enforces it: a limit of each process's private
/// memory. It counts what is asked for and not what is used, so it is wide: an interpreter asks for more than it uses.
pub(crate) fn data_bytes(shared: &Shared, sizing: &Sizing) -> Option<u64> {
    let wide = sizing.limit.memory_bytes.saturating_mul(DATA_FACTOR).saturating_add(DATA_BYTES);
    shared.cgroups.why_missing("memory").map(|_| wide)
}

/// Has the sandbox's body made, in `slot` from the moment there is something to release.
pub(crate) async fn launch(launch: Launch<'_>, slot: &mut Option<Body>) -> Result<Cloned, StartFailure> {
    if launch.prepared.serving == Serving::Shim(Language::Python) {
        let zygotes = &launch.revision.zygotes;
        for _ in 0..TEMPLATE_ATTEMPTS_MAX {
            match zygotes.get(launch.shared, launch.revision, launch.prepared, launch.ordered).await? {
                Template::Fresh => return spawn(launch, slot).await,
                Template::Zygote(zygote) => {
                    // Otherwise it was replaced meanwhile, and has ended.
                    if let Some(_claim) = zygote.claim() {
                        return fork(launch, &zygote, slot).await;
                    }
                }
            }
        }
        return Err(node_failure("template", "it was replaced again and again"));
    }
    spawn(launch, slot).await
}

async fn spawn(launch: Launch<'_>, slot: &mut Option<Body>) -> Result<Cloned, StartFailure> {
    let Launch { shared, name, revision, prepared, cgroup, listener, outputs, prove, .. } = launch;
    let io = |what: &'static str| move |e: std::io::Error| node_failure(what, e);
    let link = shared.links.get().map_err(io("launcher"))?;
    let secrets = shared.place_given(&link, revision).await?;
    let mut spec = base_spec(name, revision.uid);
    spec.argv = prepared.argv.clone();
    spec.env = prepared.env(Some(name), &secrets)?.into();
    spec.binds = prepared.binds.clone();
    spec.tmp_bytes = revision.spec.sizing.tmp_limit_bytes;
    spec.data_bytes = data_bytes(shared, &revision.spec.sizing);
    let mut cloned = Cloned { what: "program", ..Cloned::default() };
    let mut fds: Vec<OwnedFd> = Vec::new();
    if let Some(listener) = listener {
        if prove && prepared.serving == Serving::Listener {
            cloned.expect = Some(Expect::Accept(
                rustix::fs::fstat(&listener).map_err(|e| node_failure("listener", e))?.st_ino,
            ));
        }
        spec.fds.push(LISTENER_FD);
        fds.push(listener.into());
    }
    match prepared.serving {
        Serving::Listener => {
            spec.watch = if prove { Watch::Accept } else { Watch::Nothing };
            cloned.ready_when_running = !prove;
        }
        Serving::Port => {
            spec.watch = Watch::Listen;
            cloned.expect = Some(Expect::Port(PORT));
        }
        Serving::Shim(language) => {
            if language == Language::Python {
                spec.argv.push("serve".into());
            }
            let (gate, theirs) = Gate::new().map_err(io("gate"))?;
            gate.go(&[], &[], &[]).map_err(io("gate"))?;
            spec.fds.push(GATE_FD);
            fds.push(theirs);
            cloned.gate = Some(gate);
            cloned.what = "interpreter";
        }
    }
    let process = Process::start(&link, spec, outputs, fds, cgroup).await.map_err(io("launcher"))?;
    shared.journal.add_process(name, process.pid()).map_err(io("journal"))?;
    *slot = Some(Body::Own(process));
    Ok(cloned)
}

async fn fork(
    launch: Launch<'_>,
    zygote: &Arc<Zygote>,
    slot: &mut Option<Body>,
) -> Result<Cloned, StartFailure> {
    let Launch { shared, name, revision, cgroup, listener, outputs, .. } = launch;
    let io = |what: &'static str| move |e: std::io::Error| node_failure(what, e);
    let listener = listener.ok_or_else(|| node_failure("fork", "no listener"))?;
    *slot = Some(Body::Forked(Forked::new(zygote.clone())));
    let link = shared.links.get().map_err(io("launcher"))?;
    let sizes = vec![revision.spec.sizing.tmp_limit_bytes, SHM_BYTES];
    let (gate, theirs) = Gate::new().map_err(io("gate"))?;
    let join = cgroup.joining_files().map_err(io("cgroup"))?;
    let fds = vec![listener.into(), outputs.0, outputs.1, theirs];
    let begun = Instant::now();
    // While the zygote forks; the child loads nothing before it is let through.
    let let_through = async {
        let mounts = link.make_tmp(sizes, revision.uid).await.map_err(io("temporary directory"))?;
        gate.go(&join, &mounts, &PRIVATE_DIRS).map_err(io("gate"))
    };
    let birth = async {
        let status = zygote.fork(name, revision.spec.sizing.handler_processes, fds).await?;
        match gate.word().await.map_err(|e| unread("sandbox", &e))? {
            Some((GateWord::Hello, Some(pid))) if pid > 0 => Ok((status, pid)),
            None => Err(node_failure("zygote's child", "it ended before it said hello")),
            Some((GateWord::Failed(why), _)) => Err(why.into_failure()),
            Some(_) => Err(meddled("has spoken out of turn on the sandbox's socket")),
        }
    };
    let born = birth.inspect(|born| zygote.count(born.is_ok()));
    let ((), (status, pid)) = tokio::try_join!(let_through, born)?;
    let pidfd = procfs::descendant(pid, zygote.pid());
    let pidfd = pidfd.ok_or_else(|| node_failure("zygote's child", "it has ended, or is not one"))?;
    if let Some(Body::Forked(forked)) = slot {
        forked.born(pid, pidfd, status).map_err(io("zygote's child"))?;
    }
    // Not journalled: the first process of its template is, and takes it along.
    Ok(Cloned {
        gate: Some(gate),
        apart: Some(Apart { pid, template: zygote.namespaces().clone() }),
        forked: Some((begun, Instant::now())),
        ..Cloned::default()
    })
}

/// Waits until a cloned sandbox is ready.
pub(crate) async fn ready(body: &mut Body, cgroup: &Cgroup, cloned: Cloned) -> Result<Up, NotReady> {
    let mut up = Up { running: cloned.forked.map(|(_, there)| there), address: None };
    let mut status = None;
    let (reached_sender, mut reached) = oneshot::channel();
    let mut reached_sender = Some(reached_sender);
    let mut watching = true;
    let mut gate = cloned.gate.as_ref();
    let mut greeted = cloned.forked.is_some();
    loop {
        tokio::select! {
            event = body.event() => match event {
                Event::Running => {
                    up.running = Some(Instant::now());
                    if cloned.ready_when_running {
                        return Ok(up);
                    }
                }
                Event::Notifications(fd) => {
                    if let (Some(expect), Some(sender)) = (cloned.expect, reached_sender.take()) {
                        tokio::spawn(notify::watch(fd, expect, sender));
                    }
                }
                Event::SetupFailed { step, errno } => {
                    return Err(NotReady::Failed(setup_failure(step, errno, cloned.what)));
                }
                Event::Exited(s) => status = Some(s),
                Event::Ended => return Err(NotReady::Ended(status)),
                Event::Socket(_) => {}
            },
            how = &mut reached, if watching => match how {
                Ok(Reached::Tcp(address)) => return Ok(Up { address: Some(address), ..up }),
                Ok(Reached::Listener) => return Ok(up),
                // It has ended, of which the body tells more.
                Err(_) => watching = false,
            },
            word = next_word(gate) => match word {
                Ok(Some((GateWord::Ready, _))) => {
                    let apart = cloned.apart.as_ref().map_or(Ok(()), |apart| apart.check(cgroup));
                    return apart.map(|()| up).map_err(NotReady::Failed);
                }
                Ok(Some((GateWord::Failed(why), _))) => return Err(NotReady::Failed(why.into_failure())),
                Ok(Some((GateWord::Hello, _))) if !greeted => greeted = true,
                Ok(Some((GateWord::Hello, _))) => {
                    return Err(NotReady::Failed(meddled("has spoken out of turn on the sandbox's socket")));
                }
                // It has ended, of which the body tells more.
                Ok(None) => gate = None,
                Err(error) => return Err(NotReady::Failed(unread("sandbox", &error))),
            },
        }
    }
}

impl Apart {
    /// The import may have replaced what the shim does to separate a sandbox.
    fn check(&self, cgroup: &Cgroup) -> Result<(), StartFailure> {
        if !cgroup.contains(self.pid) {
            return Err(meddled("has kept the sandbox from joining its cgroup"));
        }
        let unknown = |e: std::io::Error| node_failure("whether the sandbox is apart from its siblings", e);
        let own = procfs::namespaces(self.pid).map_err(unknown)?;
        if own.mount == self.template.mount || own.ipc == self.template.ipc {
            return Err(meddled("has kept the sandbox in its template's namespaces"));
        }
        match procfs::has_capabilities(self.pid).map_err(unknown)? {
            true => Err(meddled("has kept its template's capabilities for the sandbox")),
            false => Ok(()),
        }
    }
}

async fn next_word(gate: Option<&Gate>) -> std::io::Result<Option<(GateWord, Option<i32>)>> {
    match gate {
        Some(gate) => gate.word().await,
        None => std::future::pending().await,
    }
}

/// What a failed step means to the function's owner.
pub(crate) fn setup_failure(step: Step, errno: i32, what: &str) -> StartFailure {
    let error = std::io::Error::from_raw_os_error(errno);
    let (kind, detail) = match (step, errno) {
        (Step::Exec, libc::ENOENT) if what == "interpreter" => {
            (StartFailureKind::InterpreterMissing, "the interpreter is not visible to sandboxes".to_owned())
        }
        (Step::Exec, libc::ENOENT) => (
            StartFailureKind::InterpreterMissing,
            "the program's interpreter (its first line names it, or its ELF header) is not there for sandboxes"
                .to_owned(),
        ),
        (Step::Exec, libc::EACCES) => {
            (StartFailureKind::HandlerNotFound, format!("the {what} is not executable by sandboxes"))
        }
        (Step::Exec, libc::ENOEXEC) => (
            StartFailureKind::HandlerNotFound,
            "the program is neither a binary for this machine nor a script with a `#!` line".to_owned(),
        ),
        _ => (StartFailureKind::Node, format!("{}: {error}", step.describe())),
    };
    failure(kind, detail)
}
