//! The start of a node daemon, and what can be asked of it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfare_link::Dialer;
use fanfare_sandbox::{Orphan, Outlets, Runtime};
use fanfare_types::limits::HEARTBEAT_INTERVAL;
use fanfare_types::{CodeDigest, RevisionId, SandboxRecord};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::code::{Code, MayEvict};
use crate::daemon::{Company, Daemon, Event, Parts};
use crate::revisions::Marks;
use crate::{LogLimits, LogStore, NodeOptions};

/// The node daemon.
#[derive(Debug)]
pub struct Node;

/// Why a node daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon works in these directories.
    #[error("another node daemon holds {0}")]
    Held(PathBuf),
    /// A directory could not be made or read.
    #[error("cannot use {0}: {1}")]
    Directory(PathBuf, io::Error),
    /// A runtime could not be made.
    #[error("cannot make the runtimes: {0}")]
    Runtimes(io::Error),
}

/// A running node daemon, or a running group of them.
#[derive(Debug)]
pub struct Handle {
    pub(crate) tasks: Vec<JoinHandle<()>>,
    pub(crate) logs: LogStore,
    pub(crate) runtimes: Runtimes,
    pub(crate) welcomed: watch::Receiver<usize>,
    pub(crate) _lock: File,
}

impl Node {
    /// Recovers what an earlier daemon left, then serves until `shutdown`; then ends every sandbox.
    ///
    /// # Errors
    /// [`StartError`]. That the control plane cannot be reached is none: the daemon goes on trying.
    pub async fn start(
        options: NodeOptions,
        dialer: Dialer,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Handle, StartError> {
        let lock = lock(&options.run_dir)?;
        let (events, events_rx) = mpsc::unbounded_channel();
        let (data_dir, log_limits) = (options.data_dir.clone(), options.logs);
        let code_limits = (options.code_bytes_max, options.codes_max);
        let (code_dialer, may_evict) = (dialer.clone(), may_evict(events.clone()));
        let (kept, code) = blocking(&options.data_dir, move || {
            let code_dir = data_dir.join("code");
            let code = Code::open(code_dir.clone(), code_dialer, code_limits, may_evict)
                .map_err(|error| StartError::Directory(code_dir, error))?;
            Ok((Kept::open(&data_dir, log_limits)?, code))
        })
        .await?;
        let Kept { logs, marks, marked } = kept;
        let exits = events.clone();
        let outlets = Outlets {
            // Nobody listens any more only after the daemon has ended.
            exits: Arc::new(move |exit| drop(exits.send(Event::Exit(exit)))),
            logs: logs.sink(),
            code: Arc::new(code),
        };
        let runtimes = Runtimes((options.runtimes)(outlets).await.map_err(StartError::Runtimes)?);
        let recovered = runtimes.recover().await;
        let (welcomed_tx, welcomed) = watch::channel(0);
        let mut daemon = Daemon::new(Parts {
            name: options.name,
            capacity: options.capacity,
            creations_max: options.creations_max,
            heartbeat_interval: HEARTBEAT_INTERVAL,
            runtimes: runtimes.clone(),
            dialer,
            logs: logs.clone(),
            marks,
            events,
            company: Company::alone(welcomed_tx),
        });
        daemon.adopt(recovered, marked);
        let task = tokio::spawn(daemon.run(events_rx, shutdown));
        Ok(Handle { tasks: vec![task], logs, runtimes, welcomed, _lock: lock })
    }
}

impl Handle {
    /// Resolves when a control plane has welcomed the daemon, each one of a group, since the start: what is registered
    /// from then on can be placed there.
    pub async fn welcomed(&self) {
        let all = self.tasks.len();
        // An error says that the daemons have ended: none will ever be welcomed.
        if self.welcomed.clone().wait_for(|count| *count >= all).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when the daemon, each one of a group, has ended after its shutdown.
    pub async fn join(self) {
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "the node daemon broke off");
            }
        }
    }

    /// The logs kept here.
    #[must_use]
    pub fn logs(&self) -> &LogStore {
        &self.logs
    }

    /// What exists on this machine in a runtime's name without an owner.
    pub async fn audit(&self) -> Vec<Orphan> {
        join_all(self.runtimes.0.iter().map(|runtime| runtime.audit())).await.concat()
    }
}

/// The runtimes of a node.
#[derive(Clone)]
pub(crate) struct Runtimes(pub(crate) Vec<Arc<dyn Runtime>>);

impl Runtimes {
    /// What each had, with its place.
    pub(crate) async fn recover(&self) -> Vec<(usize, SandboxRecord)> {
        let recovered = join_all(self.0.iter().map(|runtime| runtime.recover())).await;
        let with_place =
            |(place, records): (usize, Vec<_>)| records.into_iter().map(move |record| (place, record));
        recovered.into_iter().enumerate().flat_map(with_place).collect()
    }
}

impl std::fmt::Debug for Runtimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|runtime| runtime.name())).finish()
    }
}

/// Which code a revision uses, as remembered from before.
pub(crate) type Marked = HashMap<RevisionId, CodeDigest>;

/// What a daemon keeps on disk beside code.
pub(crate) struct Kept {
    pub(crate) logs: LogStore,
    pub(crate) marks: Marks,
    pub(crate) marked: Marked,
}

impl Kept {
    /// Reads directories: call it where blocking is fine.
    pub(crate) fn open(data_dir: &Path, limits: LogLimits) -> Result<Self, StartError> {
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |error| StartError::Directory(path, error)
        };
        let (logs_dir, marks_dir) = (data_dir.join("logs"), data_dir.join("revisions"));
        let logs = LogStore::open(logs_dir.clone(), limits).map_err(at(&logs_dir))?;
        let (marks, marked) = Marks::open(marks_dir.clone()).map_err(at(&marks_dir))?;
        Ok(Kept { logs, marks, marked })
    }
}

/// Runs what reads directories where blocking is fine.
pub(crate) async fn blocking<T: Send + 'static>(
    data_dir: &Path,
    open: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let broke_off = |error| StartError::Directory(data_dir.to_path_buf(), io::Error::other(error));
    tokio::task::spawn_blocking(open).await.map_err(broke_off)?
}

/// Two daemons in one place would each take the other's sandboxes for orphans.
pub(crate) fn lock(run_dir: &Path) -> Result<File, StartError> {
    let directory = |error| StartError::Directory(run_dir.to_path_buf(), error);
    fs::create_dir_all(run_dir).map_err(directory)?;
    let path = run_dir.join("node.lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(directory)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(StartError::Held(path)),
        Err(fs::TryLockError::Error(error)) => Err(directory(error)),
    }
}

/// The daemon knows what is in use.
fn may_evict(events: mpsc::UnboundedSender<Event>) -> MayEvict {
    Arc::new(move |code| {
        let (reply, answer) = oneshot::channel();
        let asked = events.send(Event::Evict { code, reply }).is_ok();
        async move { asked && answer.await.unwrap_or(false) }.boxed()
    })
}
