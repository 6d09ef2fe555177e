//! What all parts of the runtime share.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fanfare_sandbox::Outlets;
use fanfare_types::{RevisionId, RevisionSpec, SandboxId, StartFailure, StartFailureKind, StopMode};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinError;

use crate::broker::SocketRequests;
use crate::cgroup::{Cgroup, Cgroups, Limits};
use crate::deps::Store;
use crate::given::Values;
use crate::journal::{Item, Journal, Kind};
use crate::link::Links;
use crate::options::ProcessOptions;
use crate::recover;
use crate::revision::{Revision, failure, node_failure};
use crate::run_dir;

/// Attempts to remove a cgroup whose last process is still ending; the pauses between them double from 1 ms, to about
/// four seconds together.
const CGROUP_REMOVE_ATTEMPTS: u32 = 12;

/// Pieces of file work at once. More would wait for each other's locks, and the kernel waits by spinning.
const FILE_WORK_MAX: usize = 2;

/// A running or starting sandbox, as the rest of the runtime reaches its supervisor.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) revision: RevisionId,
    /// The strictest order so far.
    pub(crate) stop: Arc<watch::Sender<Option<StopMode>>>,
    /// True once nothing is left.
    pub(crate) gone: watch::Receiver<bool>,
    pub(crate) sockets: SocketRequests,
    /// What its use of CPU is read from.
    pub(crate) usage: Arc<Mutex<UsageMeter>>,
}

/// CPU time of one sandbox, read in turns.
#[derive(Debug, Default)]
pub(crate) struct UsageMeter {
    pub(crate) cgroup: Option<Arc<Cgroup>>,
    pub(crate) last: Option<(Instant, Duration)>,
}

/// State and means of one runtime.
pub(crate) struct Shared {
    pub(crate) options: ProcessOptions,
    pub(crate) outlets: Outlets,
    pub(crate) root: bool,
    pub(crate) cgroups: Cgroups,
    pub(crate) journal: Journal,
    pub(crate) links: Links,
    pub(crate) shims: crate::shims::Shims,
    pub(crate) sandboxes: Mutex<BTreeMap<SandboxId, Handle>>,
    revisions: Mutex<Revisions>,
    pub(crate) closing: AtomicBool,
    pub(crate) deps: Store,
    /// What secrets hold.
    pub(crate) values: Values,
    file_work: Semaphore,
    counter: AtomicU64,
    /// Owners of journal entries that are not sandboxes.
    others: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("run_dir", &self.options.run_dir).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Revisions {
    known: BTreeMap<RevisionId, Arc<Revision>>,
    uids_used: BTreeSet<u32>,
    uid_next: u32,
}

impl Shared {
    pub(crate) fn new(
        options: ProcessOptions,
        outlets: Outlets,
        root: bool,
        cgroups: Cgroups,
        links: Links,
        shims: crate::shims::Shims,
    ) -> Self {
        Shared {
            journal: Journal::new(&options.run_dir),
            deps: Store::new(
                options.data_dir.join("deps"),
                options.deps_bytes_max,
                &recover::instance(&options.run_dir),
            ),
            options,
            outlets,
            root,
            cgroups,
            links,
            shims,
            sandboxes: Mutex::default(),
            revisions: Mutex::default(),
            closing: AtomicBool::new(false),
            values: Values::default(),
            file_work: Semaphore::new(FILE_WORK_MAX),
            counter: AtomicU64::new(0),
            others: Mutex::default(),
        }
    }

    /// Refuses when the runtime is shut down.
    pub(crate) fn open(&self) -> Result<(), StartFailure> {
        match self.closing.load(Ordering::Acquire) {
            true => Err(failure(StartFailureKind::Node, "the runtime is shut down")),
            false => Ok(()),
        }
    }

    /// The state of a revision, made at its first use.
    pub(crate) fn revision(&self, spec: Arc<RevisionSpec>) -> Result<Arc<Revision>, StartFailure> {
        let mut revisions = self.revisions.lock();
        if let Some(known) = revisions.known.get(&spec.id) {
            return Ok(known.clone());
        }
        let uid = match self.root {
            true => Some(revisions.take_uid(&self.options.uids).ok_or_else(|| {
                failure(
                    StartFailureKind::Node,
                    format!("all of {:?} user numbers are in use", self.options.uids),
                )
            })?),
            false => None,
        };
        let id = spec.id;
        let revision = Arc::new(Revision::new(spec, uid));
        revisions.known.insert(id, revision.clone());
        Ok(revision)
    }

    /// A revision that is known here.
    pub(crate) fn known_revision(&self, id: RevisionId) -> Option<Arc<Revision>> {
        self.revisions.lock().known.get(&id).cloned()
    }

    /// Takes a revision out, so that its next use begins anew.
    pub(crate) fn take_revision(&self, id: RevisionId) -> Option<Arc<Revision>> {
        self.revisions.lock().known.remove(&id)
    }

    /// Every revision, taken out.
    pub(crate) fn take_revisions(&self) -> Vec<Arc<Revision>> {
        std::mem::take(&mut self.revisions.lock().known).into_values().collect()
    }

    /// Lets go of the dependencies of a revision that was taken out, unless it is in use again, with a claim of its own.
    pub(crate) fn release_deps(&self, id: RevisionId) {
        let revisions = self.revisions.lock();
        if !revisions.known.contains_key(&id) {
            self.deps.release(id);
        }
    }

    /// Gives a revision's user back; nothing of it may be left.
    pub(crate) fn release_uid(&self, revision: &Revision) {
        if let Some(uid) = revision.uid {
            self.revisions.lock().uids_used.remove(&uid);
        }
    }

    /// A name for an owner that is no sandbox.
    pub(crate) fn other_name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Journals and makes a cgroup (and announces files) for an owner.
    pub(crate) fn make(
        &self,
        owner: &str,
        limits: Limits,
        files: &[(Kind, PathBuf)],
    ) -> Result<Cgroup, StartFailure> {
        let mut items: Vec<Item> = files.iter().map(|(kind, path)| Item::path(*kind, path)).collect();
        items.extend(self.cgroups.paths(owner).iter().map(|path| Item::path(Kind::Cgroup, path)));
        self.journal.begin(owner, &items).map_err(|e| self.missing("journal", &e))?;
        self.cgroups.create(owner, limits).map_err(|e| {
            let _ = self.journal.end(owner);
            node_failure("cgroup", e)
        })
    }

    /// A failure in the run directory, which may have been removed.
    pub(crate) fn missing(&self, what: &str, error: &io::Error) -> StartFailure {
        if error.kind() != io::ErrorKind::NotFound {
            return node_failure(what, error);
        }
        self.removed()
    }

    /// A start's failure in the words of its cause, where that is something missing in the run directory.
    pub(crate) fn explained(&self, why: StartFailure) -> StartFailure {
        match why.kind == StartFailureKind::Node && !run_dir::is_whole(&self.options.run_dir) {
            true => self.removed(),
            false => why,
        }
    }

    fn removed(&self) -> StartFailure {
        self.links.renew();
        let run_dir = self.options.run_dir.display();
        let detail = format!(
            "{run_dir} was removed while the node ran, or a part of it: what ran here has ended, and it is being made \
             anew. Whatever cleans up there must leave it alone"
        );
        failure(StartFailureKind::Node, detail)
    }

    /// Removes a cgroup whose processes have been killed, and ends the owner's journal entry. What cannot be removed
    /// stays in the journal, where `audit` and the next `recover` find it.
    pub(crate) async fn unmake(&self, owner: &str, cgroup: &Arc<Cgroup>) {
        let mut pause = Duration::from_millis(1);
        for attempt in 1.. {
            let (cgroup, journal, name) = (cgroup.clone(), self.journal.clone(), owner.to_owned());
            let removed = self.blocking(move || {
                cgroup.remove().inspect_err(|_| cgroup.kill())?;
                journal.end(&name)
            });
            match removed.await.unwrap_or_else(|e| Err(io::Error::other(e))) {
                Ok(()) => return,
                Err(error) if attempt == CGROUP_REMOVE_ATTEMPTS => {
                    tracing::error!(owner, %error, "a cgroup, or its journal entry, cannot be removed");
                    return;
                }
                // The kernel has told of the last process's end a moment before it lets go of the cgroup.
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
    }

    /// Does file work off the threads that others need, a few pieces at a time: the kernel does most of it one by one,
    /// and hundreds of starts at once would have a thread made for each.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        // Never closed.
        let _turn = self.file_work.acquire().await.ok();
        tokio::task::spawn_blocking(work).await
    }

    /// Announces an owner that is no sandbox, for as long as the guard lives.
    pub(crate) fn own(self: &Arc<Self>, owner: &str) -> Owner {
        self.others.lock().insert(owner.to_owned());
        Owner { shared: self.clone(), name: owner.to_owned() }
    }

    /// Everyone who may have a journal entry.
    pub(crate) fn owners(&self) -> BTreeSet<String> {
        let mut owners = self.others.lock().clone();
        owners.extend(self.sandboxes.lock().keys().map(SandboxId::to_string));
        owners
    }

    /// The listener's path of a sandbox.
    pub(crate) fn socket_path(&self, sandbox: &str) -> PathBuf {
        self.options.run_dir.join("s").join(sandbox)
    }

    /// The broker's path.
    pub(crate) fn broker_path(&self) -> PathBuf {
        self.options.run_dir.join("broker")
    }
}

/// See [`Shared::own`].
#[derive(Debug)]
pub(crate) struct Owner {
    shared: Arc<Shared>,
    name: String,
}

impl Owner {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.others.lock().remove(&self.name);
    }
}

impl Revisions {
    /// A user number that is not in use; each is used as late as possible after it was given back.
    fn take_uid(&mut self, range: &std::ops::Range<u32>) -> Option<u32> {
        let count = range.end.checked_sub(range.start)?;
        for _ in 0..count {
            let uid = range.start + self.uid_next % count;
            self.uid_next = (self.uid_next + 1) % count;
            if self.uids_used.insert(uid) {
                return Some(uid);
            }
        }
        None
    }
}

/// Whether a program is there to be executed.
pub(crate) fn is_executable(path: &std::path::Path) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    let meta = std::fs::metadata(path)?;
    Ok(meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_numbers_are_unique_and_reused_last() {
        let mut revisions = Revisions::default();
        let range = 10..13;
        assert_eq!(revisions.take_uid(&range), Some(10));
        revisions.uids_used.remove(&10);
        assert_eq!([(); 4].map(|()| revisions.take_uid(&range)), [Some(11), Some(12), Some(10), None]);
        assert_eq!(revisions.take_uid(&(5..5)), None);
    }
}
