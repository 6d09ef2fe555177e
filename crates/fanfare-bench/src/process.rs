//! Programs that a bench starts, each of which it also ends.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::affinity;
use crate::error::{Context, Error, Result};
use crate::procfs;

/// Lines of a program's log that are shown when it fails.
const LOG_LINES: usize = 20;
/// How often a condition that has no event is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A running program. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    stopped: bool,
    with_children: bool,
}

impl Daemon {
    /// Starts it on these CPUs, with its output in `log`.
    pub(crate) fn start(
        name: &str,
        mut command: Command,
        log: &Path,
        cpus: Option<&[usize]>,
    ) -> Result<Daemon> {
        let out = File::create(log).context(log.display())?;
        let err = out.try_clone().context(log.display())?;
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = affinity::with(cpus, || command.spawn().context(format!("start {name}")))?;
        Ok(Daemon { name: name.to_owned(), child, log: log.to_owned(), stopped: false, with_children: false })
    }

    /// Where it is killed, so are those that it has started: it is one that leaves them behind.
    pub(crate) fn with_children(mut self) -> Daemon {
        self.with_children = true;
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The last lines that it wrote.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Looks again and again until `ready` gives something; fails when the program ends first or time is over.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(value) = ready() {
                return Ok(value);
            }
            // Waiting for the program's end is also the pause between two looks.
            if let Some(status) = self.wait(LOOK_INTERVAL)? {
                return Err(Error::new(format!("{} {status} before {what}\n{}", self.name, self.log_tail())));
            }
            if begun.elapsed() > limit {
                return Err(Error::new(format!(
                    "{}: {what} took over {limit:?}\n{}",
                    self.name,
                    self.log_tail()
                )));
            }
        }
    }

    /// Ends it by SIGTERM, and says how long that took. A program that ends otherwise than well is a failure.
    pub(crate) fn stop(self, limit: Duration) -> Result<Duration> {
        self.stop_by(Signal::TERM, limit)
    }

    /// Ends it by another signal that asks for a good end.
    pub(crate) fn stop_by(mut self, signal: Signal, limit: Duration) -> Result<Duration> {
        let begun = Instant::now();
        self.stopped = true;
        kill_process(self.raw_pid()?, signal).context(format!("stop {}", self.name))?;
        match self.wait(limit)? {
            Some(status) if status.success() => Ok(begun.elapsed()),
            Some(status) => {
                Err(Error::new(format!("{} {status} at {signal:?}\n{}", self.name, self.log_tail())))
            }
            None => Err(Error::new(format!(
                "{} runs on {limit:?} after {signal:?}\n{}",
                self.name,
                self.log_tail()
            ))),
        }
    }

    /// Ends it at once: for a program that has nothing to put in order.
    pub(crate) fn kill(mut self) {
        self.stopped = true;
    }

    fn raw_pid(&self) -> Result<Pid> {
        i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Error::new(format!("{} has no pid", self.name)))
    }

    /// Its status once it has ended; `None` when it has not within `limit`.
    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        if let Some(status) = self.child.try_wait().context(&self.name)? {
            return Ok(Some(status));
        }
        wait_for_end(self.raw_pid()?, limit).context(&self.name)?;
        self.child.try_wait().context(&self.name)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.stopped {
            // Whoever drops it has failed; what it wrote may say why. A standard error that is closed has no reader.
            let ended =
                self.child.try_wait().ok().flatten().map_or("was running".to_owned(), |s| s.to_string());
            let _ =
                writeln!(std::io::stderr(), "{} {ended}, and wrote last:\n{}", self.name, self.log_tail());
        }
        // While it lives they are known to be its own. It is ended first: it would start others in their place.
        let runs = self.with_children && matches!(self.child.try_wait(), Ok(None));
        let children = if runs { procfs::descendants(self.child.id()) } else { Default::default() };
        // Ended already, or ended now: nothing can be done about either failing.
        let _ = self.child.kill();
        for child in children.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(child, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Waits until a child has ended, at most for `limit`.
fn wait_for_end(pid: Pid, limit: Duration) -> rustix::io::Result<()> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, dir: &Path) -> Daemon {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Daemon::start("sh", command, &dir.join("log"), None).unwrap()
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_program_that_ends_well_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done", dir.path());
        let log = dir.path().join("log");
        daemon
            .until("up", LIMIT, || fs::read_to_string(&log).is_ok_and(|t| t == "up\n").then_some(()))
            .unwrap();
        assert!(daemon.stop(LIMIT).unwrap() < LIMIT);
    }

    #[test]
    fn a_program_that_ends_badly_is_told_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let error =
            shell("echo because; exit 3", dir.path()).until("ready", LIMIT, || None::<()>).unwrap_err();
        assert!(error.to_string().contains("because") && error.to_string().contains('3'), "{error}");
        let mut daemon = shell("echo up; sleep 62", dir.path());
        let log = dir.path().join("log");
        daemon
            .until("up", LIMIT, || fs::read_to_string(&log).is_ok_and(|t| t == "up\n").then_some(()))
            .unwrap();
        assert!(daemon.stop(LIMIT).is_err(), "ended by the signal, not by itself");
    }

    #[test]
    fn one_that_is_dropped_takes_its_children_along() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell("sleep 64 & echo up; wait", dir.path()).with_children();
        let pid = daemon.pid();
        let of = || procfs::descendants(pid).into_iter().collect::<Vec<_>>();
        let children = daemon.until("its child", LIMIT, || Some(of()).filter(|of| !of.is_empty())).unwrap();
        drop(daemon);
        let begun = Instant::now();
        let runs = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        while children.iter().any(runs) {
            assert!(begun.elapsed() < LIMIT, "{children:?} run on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn time_ends() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell("sleep 63", dir.path());
        assert!(daemon.until("never", Duration::from_millis(20), || None::<()>).is_err());
        let pid = daemon.pid();
        drop(daemon);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
