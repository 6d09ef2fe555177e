//! What fuzzers drive; not part of the API.

use std::path::Path;

/// Unpacks an archive into `dir/tree`. Returns the bytes of its files if it was accepted.
pub fn code_archive(archive: &Path, tree: &Path) -> Option<u64> {
    crate::code::fuzz_unpack(archive, tree)
}
