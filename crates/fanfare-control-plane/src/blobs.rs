//! Functions' code: files named by the SHA-256 of their content.
//!
//! One task changes the directory, so that taking a blob in and throwing it out cannot cross. Ages are counted on this
//! process's own clock: after a restart every blob is young again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fanfare_link::{BlobError, BlobReader};
use fanfare_types::CodeDigest;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::limits::{API_BODY_TIMEOUT, BLOB_CHUNK_BYTES, UPLOAD_TIMEOUT, UPLOAD_WAIT, UPLOADS_MAX};

/// The blobs of this control plane; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Blobs {
    directory: Arc<Path>,
    bytes_max: u64,
    /// What is there, and when it was last asked for or referred to.
    used: Arc<Mutex<HashMap<CodeDigest, Instant>>>,
    uploads: Arc<Semaphore>,
    keeper: mpsc::Sender<Job>,
    drafts: Arc<std::sync::atomic::AtomicU64>,
}

/// Why an upload was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the bytes have the digest {found}")]
    Mismatch { found: CodeDigest },
    #[error("the code has more than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the upload broke off: {0}")]
    Interrupted(String),
    #[error("{UPLOADS_MAX} uploads are under way, and none of them ended in time")]
    Busy,
    #[error("the code cannot be kept: {0}")]
    Disk(#[from] io::Error),
}

#[derive(Debug)]
enum Job {
    /// Give a complete and durable draft its name.
    Take { draft: PathBuf, digest: CodeDigest, answer: oneshot::Sender<io::Result<()>> },
    /// Remove what is not in use and has not been for longer than the grace.
    Collect { in_use: HashSet<CodeDigest>, grace: Duration, answer: oneshot::Sender<Vec<CodeDigest>> },
}

impl Blobs {
    /// Opens the directory, making it if need be; removes what an interrupted upload left.
    pub(crate) fn open(directory: &Path, bytes_max: u64) -> io::Result<Blobs> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // What is acknowledged must not hang on names that a power cut takes: the directory's, and its parent's.
        for parent in directory.ancestors().skip(1).take(2) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            std::fs::File::open(parent)?.sync_all()?;
        }
        let mut used = HashMap::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            match name.to_str().and_then(|name| name.parse().ok()) {
                Some(digest) => drop(used.insert(digest, Instant::now())),
                None if name.as_encoded_bytes().starts_with(DRAFT.as_bytes()) => {
                    std::fs::remove_file(entry.path())?;
                }
                None => tracing::warn!(file = %entry.path().display(), "not a blob; left alone"),
            }
        }
        let (keeper, jobs) = mpsc::channel(UPLOADS_MAX);
        let blobs = Blobs {
            directory: directory.into(),
            bytes_max,
            used: Arc::new(Mutex::new(used)),
            uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
            keeper,
            drafts: Arc::default(),
        };
        tokio::spawn(keep(blobs.directory.clone(), blobs.used.clone(), jobs));
        Ok(blobs)
    }

    /// Whether a blob is there; if so it stays for at least the grace from now on.
    pub(crate) fn touch(&self, digest: CodeDigest) -> bool {
        self.used.lock().get_mut(&digest).map(|used| *used = Instant::now()).is_some()
    }

    /// Its length.
    pub(crate) async fn size_bytes(&self, digest: CodeDigest) -> io::Result<u64> {
        Ok(tokio::fs::metadata(self.path(digest)).await?.len())
    }

    /// Takes in a blob, durably; returns its length. Nothing of a failed upload is left.
    pub(crate) async fn upload<E: std::fmt::Display>(
        &self,
        digest: CodeDigest,
        chunks: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<u64, UploadError> {
        let turn = tokio::time::timeout(UPLOAD_WAIT, self.uploads.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or(UploadError::Busy)?;
        let number = self.drafts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = self.directory.join(format!("{DRAFT}{number}"));
        let (draft, file) = blocking(move || Draft::create(path)).await?;
        let written = tokio::time::timeout(UPLOAD_TIMEOUT, write(file, chunks, self.bytes_max)).await;
        let too_long = |_| UploadError::Interrupted(format!("it took more than {UPLOAD_TIMEOUT:?}"));
        let (found, size_bytes) = written.map_err(too_long)??;
        if found != digest {
            return Err(UploadError::Mismatch { found });
        }
        let (answer, answered) = oneshot::channel();
        let stopping = |_| io::Error::other("the control plane is stopping");
        let job = Job::Take { draft: draft.0.clone(), digest, answer };
        self.keeper.send(job).await.map_err(|_| stopping(()))?;
        answered.await.map_err(|_| stopping(()))??;
        Ok(size_bytes)
    }

    /// Opens a blob for a node.
    pub(crate) async fn read(&self, digest: CodeDigest) -> Result<BlobReader, BlobError> {
        let unavailable = |error: &io::Error| BlobError::Unavailable(error.to_string());
        let file = tokio::fs::File::open(self.path(digest)).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => BlobError::NotFound(digest),
            _ => unavailable(&error),
        })?;
        self.touch(digest);
        let chunks = futures_util::stream::try_unfold(file, move |mut file| async move {
            let mut chunk = Vec::with_capacity(BLOB_CHUNK_BYTES);
            (&mut file)
                .take(BLOB_CHUNK_BYTES as u64)
                .read_to_end(&mut chunk)
                .await
                .map_err(|e| unavailable(&e))?;
            Ok((!chunk.is_empty()).then(|| (Bytes::from(chunk), file)))
        });
        Ok(chunks.boxed())
    }

    /// Removes blobs that nothing in `in_use` names and that nobody has asked for within the grace.
    pub(crate) async fn collect(&self, in_use: HashSet<CodeDigest>, grace: Duration) -> Vec<CodeDigest> {
        let (answer, answered) = oneshot::channel();
        // Without a keeper the control plane is stopping, and there is nothing to collect.
        if self.keeper.send(Job::Collect { in_use, grace, answer }).await.is_err() {
            return Vec::new();
        }
        answered.await.unwrap_or_default()
    }

    fn path(&self, digest: CodeDigest) -> PathBuf {
        self.directory.join(digest.to_string())
    }
}

const DRAFT: &str = "draft-";

/// An incomplete blob. Removed on drop unless it got its name, also when the uploader leaves and drops the upload.
struct Draft(PathBuf);

impl Draft {
    fn create(path: PathBuf) -> io::Result<(Draft, std::fs::File)> {
        let draft = Draft(path);
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft.0)?;
        Ok((draft, file))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a success there is no such file any more.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn write<E: std::fmt::Display>(
    file: std::fs::File,
    mut chunks: impl Stream<Item = Result<Bytes, E>> + Unpin,
    bytes_max: u64,
) -> Result<(CodeDigest, u64), UploadError> {
    let mut file = tokio::fs::File::from_std(file);
    let mut hash = Sha256::new();
    let mut size_bytes = 0;
    loop {
        let next = tokio::time::timeout(API_BODY_TIMEOUT, chunks.next()).await;
        let next =
            next.map_err(|_| UploadError::Interrupted(format!("no byte came for {API_BODY_TIMEOUT:?}")))?;
        let Some(chunk) = next else { break };
        let chunk = chunk.map_err(|error| UploadError::Interrupted(error.to_string()))?;
        size_bytes += chunk.len() as u64;
        if size_bytes > bytes_max {
            return Err(UploadError::TooLarge { limit: bytes_max });
        }
        hash.update(&chunk);
        file.write_all(&chunk).await?;
    }
    file.flush().await?;
    file.sync_all().await?;
    Ok((CodeDigest(hash.finalize().into()), size_bytes))
}

async fn keep(
    directory: Arc<Path>,
    used: Arc<Mutex<HashMap<CodeDigest, Instant>>>,
    mut jobs: mpsc::Receiver<Job>,
) {
    while let Some(job) = jobs.recv().await {
        match job {
            Job::Take { draft, digest, answer } => {
                let path = directory.join(digest.to_string());
                let parent = directory.clone();
                let taken = blocking(move || {
                    std::fs::rename(draft, path)?;
                    std::fs::File::open(parent)?.sync_all()
                });
                let taken = taken.await;
                if taken.is_ok() {
                    used.lock().insert(digest, Instant::now());
                }
                // An uploader that has left finds the blob when it tries again.
                let _ = answer.send(taken);
            }
            Job::Collect { in_use, grace, answer } => {
                let removed = collect(&directory, &used, &in_use, grace).await;
                let _ = answer.send(removed);
            }
        }
    }
}

async fn collect(
    directory: &Path,
    used: &Mutex<HashMap<CodeDigest, Instant>>,
    in_use: &HashSet<CodeDigest>,
    grace: Duration,
) -> Vec<CodeDigest> {
    let now = Instant::now();
    let mut condemned = Vec::new();
    used.lock().retain(|digest, used| {
        let referred_to = in_use.contains(digest);
        if referred_to {
            *used = now;
        }
        let keep = referred_to || now.duration_since(*used) < grace;
        if !keep {
            condemned.push(*digest);
        }
        keep
    });
    for digest in &condemned {
        let path = directory.join(digest.to_string());
        if let Err(error) = blocking(move || std::fs::remove_file(path)).await {
            tracing::warn!(%error, blob = %digest, "cannot remove unreferenced code");
        }
    }
    condemned
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;

    use super::*;

    fn digest_of(bytes: &[u8]) -> CodeDigest {
        CodeDigest(Sha256::digest(bytes).into())
    }

    fn chunks(bytes: &'static [u8]) -> impl Stream<Item = Result<Bytes, Infallible>> + Unpin {
        stream::iter(bytes.chunks(3).map(|chunk| Ok(Bytes::from_static(chunk))))
    }

    fn files(directory: &Path) -> usize {
        std::fs::read_dir(directory).unwrap().count()
    }

    async fn content(blobs: &Blobs, digest: CodeDigest) -> Vec<u8> {
        let mut reader = blobs.read(digest).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(chunk) = reader.next().await {
            bytes.extend_from_slice(&chunk.unwrap());
        }
        bytes
    }

    #[tokio::test]
    async fn what_is_taken_in_reads_back_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("blobs");
        let digest = digest_of(b"some code");
        let blobs = Blobs::open(&path, 100).unwrap();
        assert!(!blobs.touch(digest));
        assert!(matches!(blobs.read(digest).await, Err(BlobError::NotFound(_))));
        assert_eq!(blobs.upload(digest, chunks(b"some code")).await.unwrap(), 9);
        assert_eq!(blobs.upload(digest, chunks(b"some code")).await.unwrap(), 9, "twice is once");
        std::fs::write(path.join("draft-7"), b"half").unwrap();
        let blobs = Blobs::open(&path, 100).unwrap();
        assert!(blobs.touch(digest));
        assert_eq!(content(&blobs, digest).await, b"some code");
        assert_eq!(files(&path), 1, "what an interrupted upload left is gone");
    }

    #[tokio::test]
    async fn a_failed_upload_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(directory.path(), 100).unwrap();
        let wrong = blobs.upload(digest_of(b"this"), chunks(b"that")).await;
        assert!(
            matches!(wrong, Err(UploadError::Mismatch { found }) if found == digest_of(b"that")),
            "{wrong:?}"
        );
        let broken = stream::iter([Ok(Bytes::from_static(b"th")), Err("reset")]);
        let interrupted = blobs.upload(digest_of(b"this"), broken).await;
        assert!(matches!(interrupted, Err(UploadError::Interrupted(_))), "{interrupted:?}");
        let endless = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(b"and on ")));
        let large = blobs.upload(digest_of(b""), endless).await;
        assert!(matches!(large, Err(UploadError::TooLarge { limit: 100 })), "{large:?}");
        let begun = tokio::sync::Notify::new();
        let there = std::cell::Cell::new(0);
        let never =
            stream::iter([Bytes::from_static(b"th")]).map(Ok::<_, Infallible>).chain(stream::poll_fn(|_| {
                there.set(files(directory.path()));
                begun.notify_one();
                std::task::Poll::Pending
            }));
        tokio::select! {
            result = blobs.upload(digest_of(b"this"), never) => panic!("{result:?}"),
            () = begun.notified() => assert_eq!(there.get(), 1, "the uploader left in the middle"),
        }
        assert_eq!(files(directory.path()), 0);
    }

    #[tokio::test]
    async fn only_what_nobody_refers_to_is_removed_and_only_after_the_grace() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(directory.path(), 100).unwrap();
        let (used, unused) = (digest_of(b"used"), digest_of(b"unused"));
        blobs.upload(used, chunks(b"used")).await.unwrap();
        blobs.upload(unused, chunks(b"unused")).await.unwrap();
        let in_use = HashSet::from([used]);
        assert_eq!(blobs.collect(in_use.clone(), Duration::from_secs(60)).await, []);
        assert_eq!(blobs.collect(in_use.clone(), Duration::ZERO).await, [unused]);
        assert!(blobs.touch(used) && !blobs.touch(unused));
        assert_eq!(files(directory.path()), 1);
        blobs.upload(unused, chunks(b"unused")).await.unwrap();
        assert!(blobs.touch(unused), "it may come back");
    }
}
