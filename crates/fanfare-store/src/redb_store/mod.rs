//! Everything in one file of this machine.
//!
//! The file is a page of our own followed by a `redb` database, a copy-on-write B-tree whose pages are all checksummed.
//! Opening verifies all of them. A crash leaves the newest transaction whole or undone, told by its checksums;
//! damage to exactly those pages looks the same, and is told from it by a note of what was acknowledged ([`note`]).
//! One thread writes: it takes what has queued, applies each transaction in order within one database transaction, makes
//! that durable with one fsync and then answers all of them. Readers see the last durable state and never wait for the
//! writer.

mod backend;
mod committer;
mod disk;
mod engine;
mod format;
mod note;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

pub use format::FORMAT_VERSION;

use crate::limits::COMMIT_QUEUE_MAX;
use crate::{Committed, Entry, Page, Scan, Store, StoreError, Txn};
use committer::Job;
use engine::{Engine, Reader};

/// A durable store in a directory of its own.
///
/// The directory is made with mode 0700, the file with 0600; both belong to one process at a time. Use it within a
/// Tokio runtime: reads run on its blocking threads.
pub struct RedbStore {
    path: PathBuf,
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    reader: Reader,
    ended: watch::Receiver<bool>,
}

impl std::fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RedbStore {
    /// Opens the store in `directory`, or begins one there. Blocks while it verifies the whole file.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Corrupt`], [`StoreError::Newer`] or [`StoreError::Io`]. A file that cannot
    /// be opened is left as it was, byte for byte.
    pub fn open(directory: &Path) -> Result<RedbStore, StoreError> {
        let engine = |file: format::OpenFile| {
            let path = file.path.clone();
            Engine::open(path, Arc::new(disk::FileDisk::new(file)))
        };
        let file = format::open(directory, |draft| engine(draft).map(drop))?;
        let path = file.path.clone();
        RedbStore::start(engine(file)?, path)
    }

    fn start(engine: Engine, path: PathBuf) -> Result<RedbStore, StoreError> {
        let (queue, jobs) = mpsc::channel(COMMIT_QUEUE_MAX);
        let (ended_tx, ended) = watch::channel(false);
        let reader = engine.reader();
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                committer::run(engine, jobs);
                // The engine and with it the directory's lock are gone when this is seen.
                ended_tx.send_replace(true);
            })
            .map_err(|error| format::io_error(&path, "start its writer", error))?;
        Ok(RedbStore { path, queue: Mutex::new(Some(queue)), reader, ended })
    }

    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let reader = self.reader.clone();
        Box::pin(async move {
            let joined = tokio::task::spawn_blocking(move || read(&reader)).await;
            // The task fails only when the runtime is shutting down, or on a bug in the database.
            joined.unwrap_or(Err(StoreError::Closed))
        })
    }
}

impl Store for RedbStore {
    fn commit(&self, txn: Txn) -> BoxFuture<'static, Result<Committed, StoreError>> {
        let queue = self.queue.lock().clone();
        Box::pin(async move {
            txn.check()?;
            let (answer, answered) = oneshot::channel();
            let queue = queue.ok_or(StoreError::Closed)?;
            queue.send(Job { txn, answer }).await.map_err(|_| StoreError::Closed)?;
            answered.await.unwrap_or(Err(StoreError::Closed))
        })
    }

    fn get(&self, key: String) -> BoxFuture<'static, Result<Option<Entry>, StoreError>> {
        self.read(move |reader| reader.get(&key))
    }

    fn scan(&self, scan: Scan) -> BoxFuture<'static, Result<Page, StoreError>> {
        self.read(move |reader| reader.scan(&scan))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        drop(self.queue.lock().take());
        let mut ended = self.ended.clone();
        Box::pin(async move {
            // An error means that the writer's thread is gone, which is what is waited for.
            let _ = ended.wait_for(|ended| *ended).await;
        })
    }
}
