//! The interface.

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::limits::{KEY_BYTES_MAX, TXN_BYTES_MAX, TXN_OPS_MAX, VALUE_BYTES_MAX};
use crate::{Precondition as P, StoreError};

/// Position in the store's history: grows with every transaction that is applied, over restarts too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An ordered map of text keys to opaque values, changed by compare-and-swap transactions.
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// Applies all of a transaction or nothing of it. When it resolves with `Ok`, the change is durable.
    ///
    /// Transactions are applied one after another, in an order that each caller's own order agrees with if it waits
    /// for one before it sends the next. Dropping the future does not take the transaction back.
    ///
    /// # Errors
    /// [`StoreError::Deposed`] and [`StoreError::Conflict`] say that nothing was changed. [`StoreError::Io`] leaves
    /// open whether the change was made: read the key again before deciding anything.
    fn commit(&self, txn: Txn) -> BoxFuture<'static, Result<Committed, StoreError>>;

    /// The value of a key.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Closed`].
    fn get(&self, key: String) -> BoxFuture<'static, Result<Option<Entry>, StoreError>>;

    /// Entries in key order, as of one moment.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Closed`].
    fn scan(&self, scan: Scan) -> BoxFuture<'static, Result<Page, StoreError>>;

    /// Refuses new transactions, answers those already queued, and releases files, locks and connections.
    fn close(&self) -> BoxFuture<'static, ()>;
}

/// A change, and what must be true for it to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The leader's claim, checked first: a deposed leader's write changes nothing.
    pub fence: Option<Fence>,
    /// All must hold, else nothing is changed.
    pub require: Vec<Precondition>,
    /// Made in this order.
    pub ops: Vec<Op>,
}

/// Still holding a key: it has not been written since `revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The leader's key.
    pub key: String,
    /// Its revision when it was taken.
    pub revision: Revision,
}

/// What must be true of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// It does not exist.
    Absent(String),
    /// It exists.
    Present(String),
    /// It exists and was last written by this transaction.
    Unchanged(String, Revision),
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Write it, whether or not it exists.
    Put(String, Bytes),
    /// Remove it, if it exists.
    Delete(String),
}

/// A transaction that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The revision that every key it wrote now has.
    pub revision: Revision,
}

/// A value, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// The transaction that wrote it last.
    pub revision: Revision,
}

/// Which entries to return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Keys that begin with this.
    pub prefix: String,
    /// Only keys after this one.
    pub after: Option<String>,
    /// At most so many, and never more than [`crate::SCAN_ENTRIES_MAX`].
    pub limit: usize,
}

/// Answer to a [`Scan`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In key order.
    pub entries: Vec<(String, Entry)>,
    /// Whether more follow after the last one.
    pub more: bool,
}

impl Txn {
    /// Checks the limits that hold in every engine, before anything is queued.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] names the limit; [`StoreError::EmptyKey`].
    pub fn check(&self) -> Result<(), StoreError> {
        let too_large = |what, value, limit| Err(StoreError::TooLarge { what, value, limit });
        let count = self.require.len() + self.ops.len() + usize::from(self.fence.is_some());
        if count > TXN_OPS_MAX {
            return too_large("operations of one transaction", count, TXN_OPS_MAX);
        }
        for key in self.keys() {
            if key.is_empty() {
                return Err(StoreError::EmptyKey);
            }
            if key.len() > KEY_BYTES_MAX {
                return too_large("bytes of a key", key.len(), KEY_BYTES_MAX);
            }
        }
        for op in &self.ops {
            if let Op::Put(_, value) = op
                && value.len() > VALUE_BYTES_MAX
            {
                return too_large("bytes of a value", value.len(), VALUE_BYTES_MAX);
            }
        }
        let bytes = self.bytes();
        if bytes > TXN_BYTES_MAX {
            return too_large("bytes of a transaction", bytes, TXN_BYTES_MAX);
        }
        Ok(())
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let values = self.ops.iter().map(|op| match op {
            Op::Put(_, value) => value.len(),
            Op::Delete(_) => 0,
        });
        self.keys().map(str::len).sum::<usize>() + values.sum::<usize>()
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        let fence = self.fence.iter().map(|f| f.key.as_str());
        let require = self.require.iter().map(P::key);
        let ops = self.ops.iter().map(|op| match op {
            Op::Put(key, _) | Op::Delete(key) => key.as_str(),
        });
        fence.chain(require).chain(ops)
    }

    /// Decides whether the transaction applies, given the revision of a key (`None`: absent). Shared by the engines,
    /// so that they cannot disagree.
    pub(crate) fn verdict<E>(
        &self,
        mut revision_of: impl FnMut(&str) -> Result<Option<Revision>, E>,
    ) -> Result<Result<(), StoreError>, E> {
        if let Some(fence) = &self.fence
            && revision_of(&fence.key)? != Some(fence.revision)
        {
            return Ok(Err(StoreError::Deposed));
        }
        for (index, precondition) in self.require.iter().enumerate() {
            let found = revision_of(precondition.key())?;
            let holds = match precondition {
                P::Absent(_) => found.is_none(),
                P::Present(_) => found.is_some(),
                P::Unchanged(_, revision) => found == Some(*revision),
            };
            if !holds {
                return Ok(Err(StoreError::Conflict { precondition: index }));
            }
        }
        Ok(Ok(()))
    }
}

impl Precondition {
    /// The key it is about.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            P::Absent(key) | P::Present(key) | P::Unchanged(key, _) => key,
        }
    }
}
