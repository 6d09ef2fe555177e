//! The start of a node daemon, and what can be asked of it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfare_link::Dialer;
use fanfare_sandbox::{Orphan, Outlets, Runtime};
use fanfare_types::{CodeDigest, RevisionId, SandboxRecord};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::code::{Code, MayEvict};
use crate::daemon::{Daemon, Event};
use crate::revisions::Marks;
use crate::{LogStore, NodeOptions};

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

/// A running node daemon.
#[derive(Debug)]
pub struct Handle {
    task: JoinHandle<()>,
    logs: LogStore,
    runtimes: Runtimes,
    _lock: File,
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
        let opened = {
            let (data_dir, log_limits, code_bytes_max) =
                (options.data_dir.clone(), options.logs, options.code_bytes_max);
            let (dialer, may_evict) = (dialer.clone(), may_evict(events.clone()));
            tokio::task::spawn_blocking(move || {
                let at = |dir: &'static str, data_dir: &Path| {
                    let path = data_dir.join(dir);
                    move |error| StartError::Directory(path, error)
                };
                let logs =
                    LogStore::open(data_dir.join("logs"), log_limits).map_err(at("logs", &data_dir))?;
                let code = Code::open(data_dir.join("code"), dialer, code_bytes_max, may_evict)
                    .map_err(at("code", &data_dir))?;
                let marks = Marks::open(data_dir.join("revisions")).map_err(at("revisions", &data_dir))?;
                Ok::<_, StartError>((logs, code, marks))
            })
            .await
        };
        let broke_off = |error| StartError::Directory(options.data_dir.clone(), io::Error::other(error));
        let (logs, code, (marks, marked)) = opened.map_err(broke_off)??;
        let exits = events.clone();
        let outlets = Outlets {
            // Nobody listens any more only after the daemon has ended.
            exits: Arc::new(move |exit| drop(exits.send(Event::Exit(exit)))),
            logs: logs.sink(),
            code: Arc::new(code),
        };
        let runtimes = Runtimes((options.runtimes)(outlets).await.map_err(StartError::Runtimes)?);
        let recovered = runtimes.recover().await;
        let mut daemon = Daemon::new(
            options.name,
            options.capacity,
            options.creations_max,
            runtimes.clone(),
            dialer,
            logs.clone(),
            marks,
            events,
        );
        daemon.adopt(recovered, marked);
        let task = tokio::spawn(daemon.run(events_rx, shutdown));
        Ok(Handle { task, logs, runtimes, _lock: lock })
    }
}

impl Handle {
    /// Resolves when the daemon has ended after its shutdown.
    pub async fn join(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the node daemon broke off");
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
    /// The place of the runtime of this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|runtime| runtime.name() == name)
    }

    /// What each had, with its place.
    async fn recover(&self) -> Vec<(usize, SandboxRecord)> {
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

/// Two daemons in one place would each take the other's sandboxes for orphans.
fn lock(run_dir: &Path) -> Result<File, StartError> {
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
