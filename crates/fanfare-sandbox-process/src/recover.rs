//! Finding and removing what an earlier incarnation left behind, and saying what exists without an owner.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fanfare_sandbox::Orphan;
use rustix::event::Timespec;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::cgroup::{self, Cgroups};
use crate::given::GIVEN_DIR;
use crate::journal::{Item, Journal, Kind};
use crate::procfs;

/// How long the end of one process, or an empty cgroup, is waited for.
const WAIT_MS: i64 = 5_000;
/// Attempts to remove a cgroup whose last process is still ending, 10 ms apart.
const REMOVE_ATTEMPTS: usize = 200;

/// Name of the lock file in a run directory. Whoever holds the lock owns everything in the journal.
pub(crate) const LOCK: &str = "lock";

/// The name of a run directory's cgroup: a hash of its path (FNV-1a), so that two never share one.
pub(crate) fn instance(run_dir: &Path) -> String {
    let bytes = run_dir.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Removes everything that the journal of `run_dir` names, and what is in the directory besides. The caller holds the
/// lock, and has ended its own sandboxes.
pub(crate) fn sweep(run_dir: &Path) {
    let journal = Journal::new(run_dir);
    let entries = journal.entries().unwrap_or_default();
    for (owner, items) in &entries {
        items.iter().filter(|i| i.kind == Kind::Process).for_each(|i| end_process(&i.what));
        let left: Vec<_> = items.iter().filter(|item| !remove(item)).collect();
        // In a cgroup that was delegated to an earlier incarnation, and that this one is not in.
        let cgroups = items.iter().filter(|i| i.kind == Kind::Cgroup);
        cgroups.filter_map(|i| Path::new(&i.what).parent()).for_each(cgroup::remove_base);
        if left.is_empty() {
            let _ = journal.end(owner);
        }
    }
    let instance = instance(run_dir);
    // All in here is ours, even if the journal was deleted.
    for base in Cgroups::existing(&instance) {
        children(&base).filter(|path| path.is_dir()).for_each(|path| {
            remove_cgroup(&path);
        });
    }
    let _ = fs::remove_dir_all(run_dir.join("s"));
    let _ = fs::remove_file(run_dir.join("broker"));
    let _ = fs::remove_dir(run_dir.join("root"));
    let _ = fs::remove_dir(run_dir.join(GIVEN_DIR));
    Cgroups::close(&instance);
}

/// Removes one thing; whether it is gone.
fn remove(item: &Item) -> bool {
    let path = Path::new(&item.what);
    let gone = |result: io::Result<()>| match result {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    };
    match item.kind {
        Kind::Process => true,
        Kind::Socket => gone(fs::remove_file(path)),
        Kind::File if path.is_dir() => gone(fs::remove_dir_all(path)),
        Kind::File => gone(fs::remove_file(path)),
        Kind::Cgroup => remove_cgroup(path),
    }
}

fn remove_cgroup(path: &Path) -> bool {
    for _ in 0..REMOVE_ATTEMPTS {
        match fs::remove_dir(path) {
            Ok(()) => return true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return true,
            Err(_) => {}
        }
        cgroup::kill_all(&[path.to_owned()]);
        // The end of the last process is an event only for its parent, which may be anyone.
        let _ = rustix::event::poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
    }
    false
}

/// Kills a process that the journal names, if it is still the same, and waits for its end.
fn end_process(what: &str) {
    let Some((pid, pidfd)) = same_process(what) else { return };
    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
    let mut poll = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = Timespec { tv_sec: WAIT_MS / 1_000, tv_nsec: 0 };
    if !matches!(rustix::event::poll(&mut poll, Some(&limit)), Ok(1)) {
        tracing::warn!(pid, "a process of an earlier incarnation does not end");
    }
}

/// The process of a journal line, when it still runs.
fn same_process(what: &str) -> Option<(i32, std::os::fd::OwnedFd)> {
    let (pid, start) = what.split_once(' ')?;
    let pid: i32 = pid.parse().ok()?;
    let pidfd = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // After the descriptor is open: now the number cannot be given to another process unnoticed.
    procfs::stat(pid).is_some_and(|stat| stat.start_time == start).then_some((pid, pidfd))
}

/// Everything that exists in the name of the runtime at `run_dir` without an owner. May be called without a running
/// daemon. With one (it holds the lock), what its journal names is owned.
///
/// # Errors
/// The run directory cannot be read.
pub fn audit(run_dir: &Path) -> io::Result<Vec<Orphan>> {
    let owned = match fs::File::open(run_dir.join(LOCK)) {
        Ok(lock) => rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(e),
    };
    let entries = Journal::new(run_dir).entries()?;
    let owners = entries.iter().filter(|_| owned).map(|(owner, _)| owner.clone()).collect();
    orphans(run_dir, &owners)
}

/// What exists without belonging to one of the journal entries in `owners`.
pub(crate) fn orphans(run_dir: &Path, owners: &BTreeSet<String>) -> io::Result<Vec<Orphan>> {
    let entries = Journal::new(run_dir).entries()?;
    let (held, left): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(owner, _)| owners.contains(owner));
    let held: BTreeSet<Item> = held.into_iter().flat_map(|(_, items)| items).collect();
    let mut found: BTreeSet<Item> = left.into_iter().flat_map(|(_, items)| items).filter(exists).collect();
    found.extend(children(&run_dir.join("s")).map(|path| Item::path(Kind::Socket, &path)));
    for base in Cgroups::existing(&instance(run_dir)) {
        for path in children(&base).filter(|path| path.is_dir()) {
            let item = Item::path(Kind::Cgroup, &path);
            if !held.contains(&item) {
                let process =
                    |pid| Item { kind: Kind::Process, what: format!("{pid} in {}", path.display()) };
                found.extend(cgroup::processes(&path).into_iter().map(process));
            }
            found.insert(item);
        }
    }
    let unowned = found.into_iter().filter(|item| !held.contains(item));
    Ok(unowned.map(|item| Orphan { kind: item.kind.name(), what: item.what }).collect())
}

fn exists(item: &Item) -> bool {
    match item.kind {
        Kind::Process => same_process(&item.what).is_some(),
        Kind::Cgroup | Kind::Socket | Kind::File => Path::new(&item.what).symlink_metadata().is_ok(),
    }
}

fn children(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path())
}
