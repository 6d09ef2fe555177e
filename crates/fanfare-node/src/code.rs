//! The code of revisions, unpacked, shared by all sandboxes of the node.
//!
//! Each blob is fetched once however many ask for it, verified while it arrives, unpacked into a directory that only
//! root may change, and moved into place in one step. The total is bounded: what was not used for the longest goes
//! first, if whoever evicts agrees that nothing uses it.

mod fetch;
mod unpack;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use fanfare_link::Dialer;
use fanfare_sandbox::CodeStore;
use fanfare_types::{CodeDigest, StartFailure, StartFailureKind};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;

/// Asked before a directory is removed. `true`: nothing uses it, and nothing will without asking for it anew.
pub(crate) type MayEvict = Arc<dyn Fn(CodeDigest) -> BoxFuture<'static, bool> + Send + Sync>;

/// For fuzzing.
pub(crate) fn fuzz_unpack(archive: &Path, tree: &Path) -> Option<u64> {
    unpack::unpack(archive, tree).ok()
}

/// Code directories of a node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Code {
    inner: Arc<Inner>,
}

struct Inner {
    /// `DIR/DIGEST` for each code, `DIR/.incoming` for what is on its way.
    dir: PathBuf,
    dialer: Dialer,
    bytes_max: u64,
    /// Directories kept, beside those in use; the longest unused goes.
    codes_max: usize,
    may_evict: MayEvict,
    state: Mutex<State>,
}

type Coming = Shared<BoxFuture<'static, Result<PathBuf, StartFailure>>>;

#[derive(Default)]
struct State {
    here: HashMap<CodeDigest, Here>,
    coming: HashMap<CodeDigest, Coming>,
    /// Being removed; whoever asks meanwhile waits for that, then fetches anew.
    going: HashMap<CodeDigest, Shared<BoxFuture<'static, bool>>>,
    /// Bytes of all that is here, and of what has been promised to what is coming.
    bytes: u64,
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Here {
    bytes: u64,
    last_use: u64,
}

/// Directories that are offered to make room for one more by number; those in use go to the end of the line.
const CODES_OFFERED_MAX: usize = 8;

const INCOMING: &str = ".incoming";
/// Names the boot in which the directories were written. Nothing here is ever forced to disk, so after a crash of the
/// machine none of it is believed.
const BOOT: &str = ".boot";

impl Code {
    /// Opens the store with what is there from before. Reads the directory: call it where blocking is fine.
    pub(crate) fn open(
        dir: PathBuf,
        dialer: Dialer,
        (bytes_max, codes_max): (u64, usize),
        may_evict: MayEvict,
    ) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let same_boot =
            !boot.is_empty() && fs::read_to_string(dir.join(BOOT)).is_ok_and(|known| known == boot);
        let mut state = State::default();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let digest = entry.file_name().to_str().and_then(|name| name.parse::<CodeDigest>().ok());
            match digest {
                Some(digest) if same_boot => {
                    let bytes = tree_bytes(&entry.path())?;
                    state.bytes += bytes;
                    state.here.insert(digest, Here { bytes, last_use: 0 });
                }
                _ if entry.file_type()?.is_dir() => fs::remove_dir_all(entry.path())?,
                _ => fs::remove_file(entry.path())?,
            }
        }
        fs::create_dir(dir.join(INCOMING))?;
        fs::write(dir.join(BOOT), boot)?;
        Ok(Code {
            inner: Arc::new(Inner { dir, dialer, bytes_max, codes_max, may_evict, state: Mutex::new(state) }),
        })
    }

    async fn get(self, digest: CodeDigest) -> Result<PathBuf, StartFailure> {
        loop {
            let (coming, going) = {
                let mut state = self.inner.state.lock();
                if let Some(going) = state.going.get(&digest) {
                    (None, Some(going.clone()))
                } else if state.touch(digest) {
                    return Ok(self.inner.path(digest));
                } else {
                    let coming = state.coming.entry(digest).or_insert_with(|| self.clone().start(digest));
                    (Some(coming.clone()), None)
                }
            };
            if let Some(coming) = coming {
                return coming.await;
            }
            if let Some(going) = going {
                going.await;
            }
        }
    }

    /// The one attempt that all who ask meanwhile share. It goes on when they leave: the next one will ask again.
    fn start(self, digest: CodeDigest) -> Coming {
        let task = tokio::spawn(self.bring(digest));
        let result = async move {
            task.await.unwrap_or_else(|error| {
                Err(failure(format!("fetching the code {digest} broke off: {error}")))
            })
        };
        result.boxed().shared()
    }

    /// Fetches, unpacks and keeps a code.
    async fn bring(self, digest: CodeDigest) -> Result<PathBuf, StartFailure> {
        let inner = self.inner.clone();
        let _done = Defer(Some(move || {
            inner.state.lock().coming.remove(&digest);
        }));
        let incoming = fetch::Incoming::new(&self.inner.dir.join(INCOMING), digest);
        let archive_bytes = fetch::fetch(&self.inner.dialer, digest, &incoming).await?;
        // An archive holds its files plainly: unpacked they are no larger.
        self.make_room(archive_bytes).await?;
        let place = self.inner.path(digest);
        let unpacked = {
            let place = place.clone();
            tokio::task::spawn_blocking(move || {
                let bytes = unpack::unpack(&incoming.archive, &incoming.tree)?;
                fs::rename(&incoming.tree, &place)
                    .map_err(|error| unpack::UnpackError::Io("moving it into place", error))?;
                Ok::<_, unpack::UnpackError>(bytes)
            })
            .await
        };
        let mut state = self.inner.state.lock();
        state.bytes -= archive_bytes;
        match unpacked {
            Ok(Ok(bytes)) => {
                state.bytes += bytes;
                state.here.insert(digest, Here { bytes, last_use: 0 });
                state.touch(digest);
                Ok(place)
            }
            Ok(Err(error)) => Err(failure(format!("the code {digest} cannot be unpacked: {error}"))),
            Err(error) => Err(failure(format!("unpacking the code {digest} broke off: {error}"))),
        }
    }

    /// Promises `bytes` to the caller, evicting what was not used for the longest.
    async fn make_room(&self, bytes: u64) -> Result<(), StartFailure> {
        let mut refused = Vec::new();
        loop {
            let going = {
                let mut state = self.inner.state.lock();
                let fits = state.bytes + bytes <= self.inner.bytes_max;
                let few = state.here.len() < self.inner.codes_max;
                if fits && (few || refused.len() >= CODES_OFFERED_MAX) {
                    state.bytes += bytes;
                    return Ok(());
                }
                let candidates = state
                    .here
                    .iter()
                    .filter(|(digest, _)| !refused.contains(*digest) && !state.going.contains_key(*digest));
                let Some(oldest) =
                    candidates.min_by_key(|(_, here)| here.last_use).map(|(digest, _)| *digest)
                else {
                    if fits {
                        state.bytes += bytes;
                        return Ok(());
                    }
                    let max = self.inner.bytes_max;
                    return Err(failure(format!(
                        "no room for {bytes} bytes of code: the node keeps {max} bytes, and all of it is in use"
                    )));
                };
                let going = self.clone().evict(oldest).boxed().shared();
                state.going.insert(oldest, going.clone());
                (oldest, going)
            };
            if !going.1.await {
                self.inner.state.lock().touch(going.0);
                refused.push(going.0);
            }
        }
    }

    async fn evict(self, digest: CodeDigest) -> bool {
        let inner = self.inner.clone();
        let _done = Defer(Some(move || {
            inner.state.lock().going.remove(&digest);
        }));
        if !(self.inner.may_evict)(digest).await {
            return false;
        }
        let path = self.inner.path(digest);
        let removed = tokio::task::spawn_blocking(move || fs::remove_dir_all(path)).await;
        if let Err(error) = removed.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%digest, %error, "cannot remove a code directory");
            return false;
        }
        let mut state = self.inner.state.lock();
        if let Some(here) = state.here.remove(&digest) {
            state.bytes -= here.bytes;
        }
        true
    }
}

impl CodeStore for Code {
    fn directory(&self, code: CodeDigest) -> BoxFuture<'static, Result<PathBuf, StartFailure>> {
        self.clone().get(code).boxed()
    }
}

impl Inner {
    fn path(&self, digest: CodeDigest) -> PathBuf {
        self.dir.join(digest.to_string())
    }
}

impl State {
    /// Whether it is here; then it has been used just now.
    fn touch(&mut self, digest: CodeDigest) -> bool {
        self.uses += 1;
        let uses = self.uses;
        self.here.get_mut(&digest).map(|here| here.last_use = uses).is_some()
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Code").field("dir", &self.inner.dir).finish_non_exhaustive()
    }
}

/// Runs at the end of a scope, however it ends.
struct Defer<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Defer<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

fn failure(detail: String) -> StartFailure {
    crate::failure(StartFailureKind::Code, detail)
}

/// Bytes of the files beneath a directory; links are not followed.
fn tree_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    let mut pending = vec![dir.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                pending.push(entry.path());
            } else {
                bytes += metadata.len();
            }
        }
    }
    Ok(bytes)
}
