//! What fuzzers drive; not part of the API.

use crate::{egress, logs};

/// The head of a request to the proxy.
pub fn egress_request(bytes: &[u8]) {
    egress::fuzz(bytes);
}

/// Output that comes in pieces of `piece` bytes.
pub fn log_lines(piece: usize, output: &[u8]) {
    logs::fuzz(piece, output);
}
