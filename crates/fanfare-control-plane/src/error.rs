//! Why a control plane does not start, or stops.

use std::net::SocketAddr;
use std::path::PathBuf;

use fanfare_api::StoredError;
use fanfare_store::StoreError;

use crate::KeyError;

/// Why a control plane does not start, or stops by itself.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another control plane has taken the leader's key.
    #[error("another control plane has become the leader")]
    Deposed,
    /// What the store holds under a key is not what this version writes.
    #[error("the store's entry {key} cannot be read: {detail}")]
    Entry {
        /// The key.
        key: String,
        /// What is wrong.
        detail: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The data directory cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    DataDirectory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The key of secrets cannot be used. Nothing was changed.
    #[error("the key of secrets, {}, cannot be used: {why}. The store was left as it is", path.display())]
    SecretsKey {
        /// The key's file.
        path: PathBuf,
        /// Why.
        why: KeyError,
    },
    /// The table of images cannot be made.
    #[error("the images cannot be offered: {0}")]
    Image(String),
    /// A thread could not be started.
    #[error("cannot start the engine's thread: {0}")]
    Thread(std::io::Error),
    /// The listener for nodes and data planes failed.
    #[error("the listener for nodes and data planes failed: {0}")]
    Link(String),
    /// The engine ended though nobody asked it to.
    #[error("the engine has stopped")]
    EngineStopped,
}

impl ControlPlaneError {
    pub(crate) fn stored(key: &str, error: &StoredError) -> Self {
        ControlPlaneError::Entry { key: key.to_owned(), detail: error.to_string() }
    }
}
