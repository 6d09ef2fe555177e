//! The database: transactions in, entries out.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use redb::{Database, ReadableDatabase, ReadableTable, StorageError, Table, TableDefinition};

use super::backend::Backend;
use super::disk::Disk;
use super::format::io_error;
use super::note;
use crate::limits::SCAN_ENTRIES_MAX;
use crate::{Committed, Entry, Op, Page, Revision, Scan, StoreError, Txn};

/// Key to revision (8 bytes, little endian) and value. The empty key, which callers cannot use, holds the newest
/// revision.
const ENTRIES: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("entries");
const NEWEST: &str = "";
/// Pages kept in memory: the inner ones of a large tree. Whoever reads entries often keeps them itself, and memory per
/// registered function is budgeted.
const CACHE_BYTES: usize = 2 << 20;

/// The writer's side. There is one.
#[derive(Debug)]
pub(crate) struct Engine {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    database: Reader,
    newest: Revision,
    failed: bool,
}

/// The readers' side; clones share it.
#[derive(Clone)]
pub(crate) struct Reader {
    path: PathBuf,
    /// `None` once the engine is gone, and while a failed database is opened again.
    database: Arc<RwLock<Option<Arc<Database>>>>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Engine {
    /// Verifies and opens what is on `disk`.
    pub(crate) fn open(path: PathBuf, disk: Arc<dyn Disk>) -> Result<Engine, StoreError> {
        let (database, newest) = open_database(&path, &disk)?;
        let database =
            Reader { path: path.clone(), database: Arc::new(RwLock::new(Some(Arc::new(database)))) };
        Ok(Engine { path, disk, database, newest, failed: false })
    }

    pub(crate) fn reader(&self) -> Reader {
        self.database.clone()
    }

    /// Applies transactions one after another and makes them durable together; one verdict for each.
    ///
    /// # Errors
    /// The disk's, for all of them: then none was acknowledged, and the next call opens the database again first.
    pub(crate) fn apply<'a>(
        &mut self,
        txns: impl Iterator<Item = &'a Txn>,
    ) -> Result<Vec<Result<Committed, StoreError>>, StoreError> {
        if self.failed {
            self.open_again()?;
        }
        let applied = self.apply_to_database(txns);
        self.failed = applied.is_err();
        applied
    }

    fn apply_to_database<'a>(
        &mut self,
        txns: impl Iterator<Item = &'a Txn>,
    ) -> Result<Vec<Result<Committed, StoreError>>, StoreError> {
        let wrong = |error: redb::Error| storage_error(&self.path, "write it", error);
        let database = self.database.get_database()?;
        let write = database.begin_write().map_err(|e| wrong(e.into()))?;
        let mut newest = self.newest;
        let mut verdicts = Vec::new();
        {
            let mut table = write.open_table(ENTRIES).map_err(|e| wrong(e.into()))?;
            for txn in txns {
                let verdict = apply_one(&mut table, txn, newest).map_err(|e| wrong(e.into()))?;
                newest = verdict.as_ref().map_or(newest, |committed| committed.revision);
                verdicts.push(verdict);
            }
            if newest != self.newest {
                table.insert(NEWEST, newest.0.to_le_bytes().as_slice()).map_err(|e| wrong(e.into()))?;
            }
        }
        if newest == self.newest {
            write.abort().map_err(|e| wrong(e.into()))?;
        } else {
            write.commit().map_err(|e| wrong(e.into()))?;
            self.note(newest);
        }
        self.newest = newest;
        Ok(verdicts)
    }

    /// Without the note nothing is lost but a warning: what it would say later is what a damaged page has taken.
    fn note(&self, newest: Revision) {
        if let Err(error) = self.disk.acknowledge(newest.0) {
            tracing::warn!(path = %self.path.display(), %error, "cannot note how far the store has come");
        }
    }

    /// After a failed write the database refuses everything until it has read its file again.
    fn open_again(&mut self) -> Result<(), StoreError> {
        drop(self.database.database.write().take());
        let (database, newest) = open_database(&self.path, &self.disk)?;
        *self.database.database.write() = Some(Arc::new(database));
        self.newest = newest;
        tracing::info!(path = %self.path.display(), %newest, "store opened again after a failed write");
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.database.database.write().take());
    }
}

impl Reader {
    pub(crate) fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        if key.is_empty() {
            return Err(StoreError::EmptyKey);
        }
        let wrong = |error: redb::Error| storage_error(&self.path, "read it", error);
        let read = self.get_database()?.begin_read().map_err(|e| wrong(e.into()))?;
        let table = read.open_table(ENTRIES).map_err(|e| wrong(e.into()))?;
        let found = table.get(key).map_err(|e| wrong(e.into()))?;
        found.map(|bytes| decode(bytes.value()).ok_or_else(|| short_entry(&self.path, key))).transpose()
    }

    pub(crate) fn scan(&self, scan: &Scan) -> Result<Page, StoreError> {
        let wrong = |error: redb::Error| storage_error(&self.path, "read it", error);
        let limit = scan.limit.min(SCAN_ENTRIES_MAX);
        let start = match &scan.after {
            Some(after) if *after >= scan.prefix => Bound::Excluded(after.as_str()),
            _ if scan.prefix.is_empty() => Bound::Excluded(NEWEST),
            _ => Bound::Included(scan.prefix.as_str()),
        };
        let read = self.get_database()?.begin_read().map_err(|e| wrong(e.into()))?;
        let table = read.open_table(ENTRIES).map_err(|e| wrong(e.into()))?;
        let mut page = Page::default();
        for item in table.range::<&str>((start, Bound::Unbounded)).map_err(|e| wrong(e.into()))? {
            let (key, bytes) = item.map_err(|e| wrong(e.into()))?;
            let key = key.value();
            if !key.starts_with(&scan.prefix) {
                break;
            }
            if page.entries.len() == limit {
                page.more = true;
                break;
            }
            let entry = decode(bytes.value()).ok_or_else(|| short_entry(&self.path, key))?;
            page.entries.push((key.to_owned(), entry));
        }
        Ok(page)
    }

    fn get_database(&self) -> Result<Arc<Database>, StoreError> {
        self.database.read().clone().ok_or(StoreError::Closed)
    }
}

fn apply_one(
    table: &mut Table<'_, &'static str, &'static [u8]>,
    txn: &Txn,
    newest: Revision,
) -> Result<Result<Committed, StoreError>, StorageError> {
    let revision_of = |key: &str| -> Result<Option<Revision>, StorageError> {
        let Some(bytes) = table.get(key)? else { return Ok(None) };
        decode(bytes.value())
            .map(|entry| Some(entry.revision))
            .ok_or_else(|| StorageError::Corrupted(format!("the entry {key:?} is too short")))
    };
    if let Err(refused) = txn.verdict(revision_of)? {
        return Ok(Err(refused));
    }
    let revision = Revision(newest.0 + 1);
    let mut bytes = Vec::new();
    for op in &txn.ops {
        match op {
            Op::Put(key, value) => {
                bytes.clear();
                bytes.extend_from_slice(&revision.0.to_le_bytes());
                bytes.extend_from_slice(value);
                table.insert(key.as_str(), bytes.as_slice())?;
            }
            Op::Delete(key) => drop(table.remove(key.as_str())?),
        }
    }
    Ok(Ok(Committed { revision }))
}

fn decode(bytes: &[u8]) -> Option<Entry> {
    let (revision, value) = bytes.split_first_chunk::<8>()?;
    Some(Entry { value: Bytes::copy_from_slice(value), revision: Revision(u64::from_le_bytes(*revision)) })
}

/// Opens the database behind the header: verified page by page, and nothing written before that succeeded.
fn open_database(path: &Path, disk: &Arc<dyn Disk>) -> Result<(Database, Revision), StoreError> {
    let backend = Backend::holding(disk.clone()).map_err(|error| io_error(path, "read it", error))?;
    let held = backend.clone();
    // A damaged page can make the database panic where it trusts its own checks; that too is a damaged file.
    let opened = catch_unwind(AssertUnwindSafe(|| -> Result<_, redb::Error> {
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true)
            .create_with_backend(held)?;
        let newest = {
            let read = database.begin_read()?;
            match read.open_table(ENTRIES) {
                Ok(table) => table.get(NEWEST)?.and_then(|bytes| bytes.value().try_into().ok()),
                Err(redb::TableError::TableDoesNotExist(_)) => None,
                Err(error) => return Err(error.into()),
            }
        };
        if newest.is_none() {
            let write = database.begin_write()?;
            write.open_table(ENTRIES)?.insert(NEWEST, 0_u64.to_le_bytes().as_slice())?;
            write.commit()?;
        }
        Ok((database, Revision(newest.map_or(0, u64::from_le_bytes))))
    }));
    let corrupt = |detail: String| StoreError::Corrupt { path: path.to_owned(), detail };
    let (database, newest) = match opened {
        Ok(opened) => opened.map_err(|error| storage_error(path, "open it", error))?,
        Err(_) => return Err(corrupt("its pages contradict each other".to_owned())),
    };
    let acknowledged =
        disk.acknowledged().map_err(|error| io_error(path, "read the note beside it", error))?;
    if newest.0 < acknowledged {
        return Err(corrupt(format!(
            "a page of its newest state is, and the state before lacks what was acknowledged (revision {acknowledged}, \
             and it has {newest}); to go on from there all the same, remove {} beside it",
            note::FILE_NAME
        )));
    }
    backend.release().map_err(|error| io_error(path, "open it", error))?;
    Ok((database, newest))
}

fn short_entry(path: &Path, key: &str) -> StoreError {
    StoreError::Corrupt { path: path.to_owned(), detail: format!("the entry {key:?} is too short") }
}

fn storage_error(path: &Path, operation: &'static str, error: redb::Error) -> StoreError {
    let corrupt = |detail: String| StoreError::Corrupt { path: path.to_owned(), detail };
    match error {
        redb::Error::Io(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
            ) =>
        {
            corrupt(error.to_string())
        }
        redb::Error::Io(error) => io_error(path, operation, error),
        redb::Error::Corrupted(detail) => corrupt(detail),
        error @ (redb::Error::TableTypeMismatch { .. } | redb::Error::UpgradeRequired(_)) => {
            corrupt(error.to_string())
        }
        error => io_error(path, operation, std::io::Error::other(error.to_string())),
    }
}
