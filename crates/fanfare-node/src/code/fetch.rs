//! A blob on its way to this node.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use fanfare_link::Dialer;
use fanfare_types::limits::CODE_BYTES_MAX;
use fanfare_types::{CodeDigest, StartFailure};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::failure;

/// How long the next part of a blob may take.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a code is put together; gone when dropped.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) archive: PathBuf,
    pub(super) tree: PathBuf,
}

impl Incoming {
    pub(super) fn new(dir: &Path, digest: CodeDigest) -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        // An attempt whose caller has left may still be unpacking: no name is used twice.
        let attempt = COUNTER.fetch_add(1, Ordering::Relaxed);
        Incoming {
            archive: dir.join(format!("{digest}-{attempt}.tar")),
            tree: dir.join(format!("{digest}-{attempt}")),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        for removed in [fs::remove_file(&self.archive), fs::remove_dir_all(&self.tree)] {
            if let Err(error) = removed
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(archive = %self.archive.display(), %error, "cannot remove what a fetch left");
            }
        }
    }
}

/// Fetches a blob into the archive file, and proves that it is the one. Returns its length.
pub(super) async fn fetch(
    dialer: &Dialer,
    digest: CodeDigest,
    incoming: &Incoming,
) -> Result<u64, StartFailure> {
    let io = |error: io::Error| failure(format!("the code {digest} cannot be written: {error}"));
    let late = || failure(format!("the code {digest} did not arrive: nothing came for {STALL_TIMEOUT:?}"));
    let opened = tokio::time::timeout(STALL_TIMEOUT, dialer.fetch_blob(digest)).await.map_err(|_| late())?;
    let mut chunks = opened.map_err(|error| failure(format!("the code cannot be fetched: {error}")))?;
    let mut file = tokio::fs::File::create_new(&incoming.archive).await.map_err(io)?;
    let mut hash = Sha256::new();
    let mut len: u64 = 0;
    while let Some(chunk) = tokio::time::timeout(STALL_TIMEOUT, chunks.next()).await.map_err(|_| late())? {
        let chunk = chunk.map_err(|error| failure(format!("the code {digest} broke off: {error}")))?;
        len += chunk.len() as u64;
        if len > CODE_BYTES_MAX {
            return Err(failure(format!("the code {digest} has more than {CODE_BYTES_MAX} bytes")));
        }
        hash.update(&chunk);
        file.write_all(&chunk).await.map_err(io)?;
    }
    file.flush().await.map_err(io)?;
    let found = CodeDigest(hash.finalize().into());
    if found != digest {
        return Err(failure(format!("the code should be {digest}, but what came is {found}")));
    }
    Ok(len)
}
