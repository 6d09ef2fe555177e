//! Making a template: cgroup, temporary file system, process, import; and releasing all of it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use fanfare_sandbox::LogStream;
use fanfare_types::{ExitCause, HumanDuration, StartFailure, StartFailureKind};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};

use crate::cgroup::{Cgroup, Limits};
use crate::fdmsg;
use crate::given::SecretEnv;
use crate::launch::{base_spec, data_bytes, setup_failure};
use crate::launcher::protocol::Step;
use crate::logs::{Log, Outputs};
use crate::process::{Event, Process};
use crate::procfs::{self, Namespaces};
use crate::revision::{Prepared, Revision, failure, meddled, node_failure, sentence, unread};
use crate::root::PRIVATE_DIRS;
use crate::shared::{Owner, Shared};
use crate::sys;
use crate::zygote::leftovers::Leftovers;
use crate::zygote::{CONTROL_FD, Template, Zygote, ZygoteWord, live, word};

/// Parts of a zygote that its task owns.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: Owner,
    pub(super) name: String,
    pub(super) cgroup: Arc<Cgroup>,
    pub(super) log: Log,
    pub(super) outputs: Option<Outputs>,
    pub(super) process: Option<Process>,
}

pub(super) async fn start(
    shared: Arc<Shared>,
    revision: Arc<Revision>,
    prepared: Arc<Prepared>,
    stop: Arc<Notify>,
) -> Result<Template, StartFailure> {
    shared.open()?;
    let name = shared.other_name(&revision.name());
    let owner = shared.own(&name);
    let limits = Limits::of(&revision.spec.sizing);
    let cgroup = Arc::new(shared.make(&name, limits, &[])?);
    let log = Log::new(shared.outlets.logs.clone(), revision.spec.id.function, None);
    let mut parts = Parts { shared, owner, name, cgroup, log, outputs: None, process: None };
    *revision.zygotes.importing.lock() = Some(parts.log.clone());
    let limit = revision.spec.timeouts.start;
    let mut secrets = SecretEnv::new();
    let made = tokio::select! {
        made = import(&mut parts, &revision, &prepared, &mut secrets) => made,
        () = tokio::time::sleep(limit) => {
            Err(failure(StartFailureKind::Timeout, format!("not ready after {}: the import has not ended", HumanDuration(limit))))
        }
        () = stop.notified() => Err(failure(StartFailureKind::Node, "the revision was removed while it was imported")),
    };
    // After one that failed it stays: a sandbox whose own time ran out at the same moment has nothing else to show.
    if made.is_ok() {
        revision.zygotes.importing.lock().take();
    }
    match made {
        Ok(Some((control, pid, namespaces))) => {
            let (gone_sender, gone) = watch::channel(false);
            let zygote = Arc::new(Zygote {
                control,
                pid,
                namespaces,
                children: Mutex::default(),
                stop: Arc::default(),
                asking: Notify::new(),
                retiring: Notify::new(),
                gone,
                fault: OnceLock::new(),
                cgroup: parts.cgroup.clone(),
                log: parts.log.clone(),
                limits,
                secrets,
                leftovers: Leftovers::default(),
                leftover_bytes_max: limits.memory_bytes,
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
    revision: &Arc<Revision>,
    prepared: &Prepared,
    secrets: &mut SecretEnv,
) -> Result<Option<(AsyncFd<OwnedFd>, i32, Namespaces)>, StartFailure> {
    let io = |what: &'static str| move |e: io::Error| node_failure(what, e);
    let link = parts.shared.links.get().map_err(io("launcher"))?;
    *secrets = parts.shared.place_given(&link, revision).await?;
    let (outputs, stdout, stderr) = Outputs::open(&parts.log, revision.uid).map_err(io("pipes"))?;
    parts.outputs = Some(outputs);
    let (control, theirs) = fdmsg::pair_with_user_code().map_err(io("control"))?;
    let control = sys::async_fd(control, Interest::READABLE | Interest::WRITABLE).map_err(io("control"))?;
    let mut spec = base_spec(&parts.name, revision.uid);
    spec.argv = prepared.argv.clone();
    spec.argv.push("zygote".into());
    spec.env = prepared.env(None, secrets)?.into();
    spec.env.push(format!("FANFARE_PRIVATE_DIRS={}", PRIVATE_DIRS.join(" ")));
    spec.binds = prepared.binds.clone();
    spec.tmp_bytes = revision.spec.sizing.tmp_limit_bytes;
    spec.data_bytes = data_bytes(&parts.shared, &revision.spec.sizing);
    spec.template = true;
    spec.fds = vec![CONTROL_FD];
    let process = Process::start(&link, spec, (stdout, stderr), vec![theirs], &parts.cgroup).await;
    let process = parts.process.insert(process.map_err(io("launcher"))?);
    let pid = process.pid();
    parts.shared.journal.add_process(&parts.name, pid).map_err(io("journal"))?;
    if !imported(process, &control, &parts.cgroup, &parts.log).await? {
        return Ok(None);
    }
    // Whoever has left its parent is not the shim's child, so only here it is seen.
    let left = match procfs::beside_program(pid) {
        Ok(0) => None,
        Ok(n) => Some(format!("the import left processes ({n}, running on without their parent)")),
        Err(error) => Some(format!("whether the import left processes cannot be told ({error})")),
    };
    if let Some(left) = left {
        parts.log.line(LogStream::Platform, format!("no template: {left}; each sandbox imports anew"));
        return Ok(None);
    }
    let namespaces = procfs::namespaces_of_program(pid).map_err(io("the template's namespaces"))?;
    Ok(Some((control, pid, namespaces)))
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
                Event::SetupFailed { step: Step::UserNamespace, errno } => {
                    let error = io::Error::from_raw_os_error(errno);
                    let text = format!(
                        "no template: this node allows it no user namespace ({error}; see the settings \
                         user.max_user_namespaces and kernel.unprivileged_userns_clone); each sandbox imports anew"
                    );
                    log.line(LogStream::Platform, text);
                    return Ok(false);
                }
                Event::SetupFailed { step, errno } => return Err(setup_failure(step, errno, "interpreter")),
                Event::Exited(s) => status = Some(s),
                Event::Ended => {
                    let cause = import_end(status, cgroup);
                    return Err(failure(StartFailureKind::Exited(cause), format!("{cause} during the import")));
                }
                Event::Running | Event::Notifications(_) | Event::Socket(_) => {}
            },
            word = word(control), if open => match word.map_err(|e| unread("template", &e))? {
                Some(ZygoteWord::Imported {}) => return Ok(true),
                Some(ZygoteWord::Unsafe { why, detail }) => {
                    let said = sentence(&format!("{why} ({detail})"));
                    let what = if why == "namespaces" { "there are no" } else { "the import left" };
                    let text = format!("no template: {what} {said}; each sandbox imports anew");
                    log.line(LogStream::Platform, text);
                    return Ok(false);
                }
                Some(ZygoteWord::Failed(why)) => return Err(why.into_failure()),
                Some(_) => {
                    return Err(meddled("has spoken of sandboxes that there are not, on the template's socket"));
                }
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

impl Parts {
    /// Ends what runs and removes everything.
    pub(super) async fn release(mut self) {
        if let (Some(process), Some(outputs)) = (self.process.take(), &mut self.outputs) {
            process.end(outputs).await;
        }
        self.cgroup.kill();
        self.shared.unmake(&self.name, &self.cgroup).await;
        drop(self.owner);
    }
}
