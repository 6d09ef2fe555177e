//! What is kept: one interface, an embedded durable engine, a conformance suite.
//!
//! [`Store`] is a small ordered map with compare-and-swap transactions. The control plane writes to it once per user
//! action and rebuilds everything else, so it needs durability and fencing, not speed of reads. The interface asks for
//! nothing that etcd's `Txn` (comparisons of modification revisions, then puts and deletes) or a Raft state machine
//! could not do as well.
//!
//! - [`RedbStore`]: one file, one writer thread, one fsync for all that waits.
//! - [`MemoryStore`]: the same rules without a disk, for tests and simulation.
//! - [`conformance`]: what every engine must do, as executable checks.

pub mod conformance;
mod error;
mod limits;
mod memory;
mod redb_store;
mod store;

pub use error::StoreError;
pub use limits::{
    COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_MAX, COMMIT_QUEUE_MAX, KEY_BYTES_MAX, SCAN_ENTRIES_MAX,
    TXN_BYTES_MAX, TXN_OPS_MAX, VALUE_BYTES_MAX,
};
pub use memory::MemoryStore;
pub use redb_store::{FORMAT_VERSION, RedbStore};
pub use store::{Committed, Entry, Fence, Op, Page, Precondition, Revision, Scan, Store, Txn};
