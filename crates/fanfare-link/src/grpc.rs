//! The network transport: gRPC over TCP, one connection per link.

mod client;
mod server;
mod severable;
mod stream;

use std::time::Duration;

use fanfare_types::limits::{LINK_BATCH_BYTES_MAX, LIVENESS_TIMEOUT};

pub(crate) use client::Remote;
pub use server::serve;

/// Silence on a connection before a ping asks whether the peer lives.
const PING_AFTER: Duration = LIVENESS_TIMEOUT.checked_div(5).expect("5 is not zero").saturating_mul(2);
/// How long the answer to a ping may take: together they stay within `LIVENESS_TIMEOUT`.
const PING_TIMEOUT: Duration = PING_AFTER;
/// Bytes of one frame: a batch and what gRPC puts around it.
const FRAME_BYTES_MAX: usize = LINK_BATCH_BYTES_MAX + 1024;
/// Bytes of a blob in one message.
const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Log lines in one message.
const LOG_RECORDS_MAX: usize = 128;
/// Calls at once on one connection; ours make one.
const CALLS_PER_CONNECTION_MAX: u32 = 8;
