//! What can go wrong, and what to do about it.

use std::path::PathBuf;
use std::sync::Arc;

/// Why a store could not be opened, read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A precondition does not hold; nothing was changed.
    #[error("precondition {precondition} does not hold")]
    Conflict {
        /// Its place in [`crate::Txn::require`].
        precondition: usize,
    },
    /// Another process has taken the leader's key; nothing was changed.
    #[error("another control plane has become the leader")]
    Deposed,
    /// Over one of the limits of [`crate`].
    #[error("{value} {what}; the limit is {limit}")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// How much was given.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// A key must have at least one byte.
    #[error("the empty key is reserved")]
    EmptyKey,
    /// The file is damaged. It was not changed.
    #[error(
        "the store {} is damaged ({detail}); it was left as it is. Restore it from a backup, or move it away to begin \
         with an empty store", path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The file was written by a later version of this program. It was not changed.
    #[error(
        "the store {} has format {found}, and this version knows formats up to {known}; it was left as it is. Start \
         the version that wrote it, or a later one", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this version can read.
        known: u32,
    },
    /// Another process has it open.
    #[error(
        "the store {} is in use by {}; stop it first, or choose another data directory", path.display(),
        match pid { Some(pid) => format!("process {pid}"), None => "another process".to_owned() }
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Which process, where the system tells.
        pid: Option<u32>,
    },
    /// The operating system refused. A transaction that ends so may or may not have been applied.
    #[error("the store {}: {operation}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        operation: &'static str,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// It was closed, or its writer has ended.
    #[error("the store is closed")]
    Closed,
}
