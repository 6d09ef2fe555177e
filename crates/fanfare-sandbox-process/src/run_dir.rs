//! The run directory: making it, holding it, and noticing that someone has removed it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use tokio::sync::oneshot;

use crate::given::GIVEN_DIR;
use crate::recover;

/// How long the previous owner of a run directory may take to clean up.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Directories in it: of listeners' sockets, the template of root directories, the journal, and where the launcher has
/// what revisions are given.
const DIRECTORIES: [&str; 4] = ["s", "root", "journal", GIVEN_DIR];

/// Makes the directories in it.
pub(crate) fn make(run_dir: &Path) -> io::Result<()> {
    DIRECTORIES.iter().try_for_each(|dir| std::fs::create_dir_all(run_dir.join(dir)))
}

/// Whether all that it was made with is there.
pub(crate) fn is_whole(run_dir: &Path) -> bool {
    DIRECTORIES.iter().all(|dir| run_dir.join(dir).is_dir()) && run_dir.join(recover::LOCK).is_file()
}

/// Makes anew what was removed of it, and holds it, unless another runtime already does. `held` is the lock as it was
/// taken; the new one, when that was removed, too.
pub(crate) fn renew(run_dir: &Path, held: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let file = open_lock(run_dir)?;
    let (there, ours) = (rustix::fs::fstat(&file)?, rustix::fs::fstat(held)?);
    if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) {
        return make(run_dir).map(|()| None);
    }
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(in_use(run_dir));
    }
    make(run_dir)?;
    Ok(Some(file))
}

/// Each start makes and removes files in the run directory. A disk's file system takes long to find a place for one
/// when many were removed lately. Nothing is wrong for that, and an ordinary user has no other place: it is told to
/// whoever looks for why starts take long.
pub(crate) fn note_a_disk(run_dir: &Path) {
    const TMPFS: i64 = 0x0102_1994;
    if rustix::fs::statfs(run_dir).is_ok_and(|found| found.f_type != TMPFS) {
        tracing::info!(
            run_dir = %run_dir.display(),
            "the run directory is not in memory (tmpfs): with many starts and ends each takes a millisecond longer"
        );
    }
}

/// Makes the directory, for this user only, and its lock file.
fn open_lock(run_dir: &Path) -> io::Result<OwnedFd> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(run_dir)?;
    // Whoever owns it could put links in the way of all that is done there.
    let found = std::fs::symlink_metadata(run_dir)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        let why = format!("{} must be a directory of this user's own, and no link", run_dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    std::fs::set_permissions(run_dir, std::fs::Permissions::from_mode(0o700))?;
    let open = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(run_dir.join(recover::LOCK))?;
    Ok(open.into())
}

fn in_use(run_dir: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, format!("{} is in use by another runtime", run_dir.display()))
}

/// Makes the run directory, for this user only, and takes its lock, waiting for a predecessor's launcher to clean up.
pub(crate) async fn lock(run_dir: &Path) -> io::Result<OwnedFd> {
    let file = open_lock(run_dir)?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        return Ok(file);
    }
    // On a thread of its own, not of the runtime's: if the lock never comes, nobody waits for the thread.
    let (sender, locked) = oneshot::channel();
    std::thread::Builder::new().name("run-dir-lock".into()).spawn(move || {
        let result = rustix::fs::flock(&file, FlockOperation::LockExclusive).map(|()| file);
        let _ = sender.send(result);
    })?;
    match tokio::time::timeout(LOCK_TIMEOUT, locked).await {
        Ok(Ok(result)) => Ok(result?),
        Ok(Err(e)) => Err(io::Error::other(e)),
        Err(_) => Err(in_use(run_dir)),
    }
}
