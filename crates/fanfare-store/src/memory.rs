//! The rules without a disk.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::limits::SCAN_ENTRIES_MAX;
use crate::{Committed, Entry, Op, Page, Revision, Scan, Store, StoreError, Txn};

/// Keeps everything in memory; clones share it. For tests and simulation: nothing outlives the process.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    revision: Revision,
    closed: bool,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// A new handle to the same entries, open even if this one was closed: what reopening a file is elsewhere.
    #[must_use]
    pub fn reopen(&self) -> Self {
        let state = self.state.lock();
        let state = State { entries: state.entries.clone(), revision: state.revision, closed: false };
        MemoryStore { state: Arc::new(Mutex::new(state)) }
    }
}

impl Store for MemoryStore {
    fn commit(&self, txn: Txn) -> BoxFuture<'static, Result<Committed, StoreError>> {
        let result = txn.check().and_then(|()| self.state.lock().commit(txn));
        Box::pin(async move { result })
    }

    fn get(&self, key: String) -> BoxFuture<'static, Result<Option<Entry>, StoreError>> {
        let state = self.state.lock();
        let result =
            if state.closed { Err(StoreError::Closed) } else { Ok(state.entries.get(&key).cloned()) };
        Box::pin(async move { result })
    }

    fn scan(&self, scan: Scan) -> BoxFuture<'static, Result<Page, StoreError>> {
        let state = self.state.lock();
        let result = if state.closed { Err(StoreError::Closed) } else { Ok(state.scan(&scan)) };
        Box::pin(async move { result })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.state.lock().closed = true;
        Box::pin(async {})
    }
}

impl State {
    fn commit(&mut self, txn: Txn) -> Result<Committed, StoreError> {
        if self.closed {
            return Err(StoreError::Closed);
        }
        txn.verdict(|key| Ok::<_, StoreError>(self.entries.get(key).map(|entry| entry.revision)))??;
        self.revision.0 += 1;
        let revision = self.revision;
        for op in txn.ops {
            match op {
                Op::Put(key, value) => drop(self.entries.insert(key, Entry { value, revision })),
                Op::Delete(key) => drop(self.entries.remove(&key)),
            }
        }
        Ok(Committed { revision })
    }

    fn scan(&self, scan: &Scan) -> Page {
        let limit = scan.limit.min(SCAN_ENTRIES_MAX);
        let start = match &scan.after {
            Some(after) if *after >= scan.prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(scan.prefix.as_str()),
        };
        let mut found = self
            .entries
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(&scan.prefix));
        let entries: Vec<_> = found.by_ref().take(limit).map(|(k, e)| (k.clone(), e.clone())).collect();
        Page { entries, more: found.next().is_some() }
    }
}
