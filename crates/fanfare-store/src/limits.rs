//! Limits of every engine, chosen so that etcd's defaults (128 operations, 1.5 MiB a request) hold them all.

/// Bytes of one key.
pub const KEY_BYTES_MAX: usize = 512;
/// Bytes of one value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Preconditions and operations of one transaction together.
pub const TXN_OPS_MAX: usize = 128;
/// Bytes of all keys and values of one transaction.
pub const TXN_BYTES_MAX: usize = VALUE_BYTES_MAX + (64 << 10);
/// Entries that one scan returns; ask again after the last key for more.
pub const SCAN_ENTRIES_MAX: usize = 10_000;
/// Transactions that may wait for the writer; the next one waits to be queued.
pub const COMMIT_QUEUE_MAX: usize = 1_024;
/// Transactions that share one fsync.
pub const COMMIT_BATCH_MAX: usize = 1_024;
/// Bytes of transactions that share one fsync (the last one may exceed it).
pub const COMMIT_BATCH_BYTES_MAX: usize = 16 << 20;
