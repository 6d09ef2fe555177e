//! What has been installed, within a limit: what has not been used for longest makes way, but never what a revision has
//! that this node runs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fanfare_types::{RevisionId, StartFailure, StartFailureKind};
use parking_lot::Mutex;

use crate::revision::{failure, node_failure};

/// How deep the size of a directory is looked into. A deeper one is none that an installer makes.
const DEPTH_MAX: usize = 64;

/// Installations below one directory, each in one of its own that is named by its key.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Which installation a revision has.
    users: BTreeMap<RevisionId, String>,
    /// Sizes that are known.
    sizes: BTreeMap<String, u64>,
}

impl Store {
    /// The store at `dir`, which need not exist.
    pub(crate) fn new(dir: PathBuf, bytes_max: u64) -> Self {
        Store { dir, bytes_max, state: Mutex::default() }
    }

    /// Where the installations are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The installation with this key, if it is there; kept for the revision from then on.
    pub(crate) fn claim(&self, revision: RevisionId, key: &str) -> Option<PathBuf> {
        let path = self.dir.join(key);
        let mut state = self.state.lock();
        if !path.is_dir() {
            return None;
        }
        state.users.insert(revision, key.to_owned());
        touch(&path);
        Some(path)
    }

    /// The revision is not run here any more.
    pub(crate) fn release(&self, revision: RevisionId) {
        self.state.lock().users.remove(&revision);
    }

    /// Makes what was installed at `out` the installation with this key, for the revision, and removes others until all
    /// are within the limit. Blocks.
    ///
    /// # Errors
    /// What is in use leaves no room for it.
    pub(crate) fn publish(
        &self,
        revision: RevisionId,
        out: &Path,
        key: &str,
    ) -> Result<PathBuf, StartFailure> {
        let path = self.dir.join(key);
        let bytes = size(out);
        let mut state = self.state.lock();
        // Someone else was faster with the same list.
        if !path.is_dir() {
            let evicted = self.make_room(&mut state, bytes)?;
            fs::rename(out, &path).map_err(|e| node_failure("dependencies", e))?;
            state.sizes.insert(key.to_owned(), bytes);
            tracing::debug!(key, bytes, evicted, "dependencies are installed");
        } else {
            let _ = fs::remove_dir_all(out);
        }
        state.users.insert(revision, key.to_owned());
        touch(&path);
        Ok(path)
    }

    /// Removes what has not been used for longest until `bytes` more fit; gives how many were removed.
    fn make_room(&self, state: &mut State, bytes: u64) -> Result<usize, StartFailure> {
        let mut known = self.list().map_err(|e| node_failure("dependencies", e))?;
        known.sort();
        let mut used = bytes;
        for (_, key) in &known {
            used += *state.sizes.entry(key.clone()).or_insert_with(|| size(&self.dir.join(key)));
        }
        let in_use: Vec<String> = state.users.values().cloned().collect();
        let mut evicted = 0;
        for (_, key) in known.into_iter().filter(|(_, key)| !in_use.contains(key)) {
            if used <= self.bytes_max {
                break;
            }
            match fs::remove_dir_all(self.dir.join(&key)) {
                Ok(()) => {
                    used -= state.sizes.remove(&key).unwrap_or(0);
                    evicted += 1;
                    tracing::info!(key, "dependencies that no function here uses made way for others");
                }
                Err(error) => tracing::error!(key, %error, "dependencies cannot be removed"),
            }
        }
        match used <= self.bytes_max {
            true => Ok(evicted),
            false => Err(failure(
                StartFailureKind::DependenciesFailed,
                format!(
                    "the dependencies, of {} MiB, do not fit beside those of the other functions here: this node's limit \
                     is {} MiB (--deps-max)",
                    bytes.div_ceil(1 << 20),
                    self.bytes_max >> 20
                ),
            )),
        }
    }

    /// Installations by when they were last used. What is being installed has a name that begins with a dot.
    fn list(&self) -> io::Result<Vec<(SystemTime, String)>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            match entry.file_name().into_string() {
                Ok(name) if !name.starts_with('.') => all.push((entry.metadata()?.modified()?, name)),
                _ => {}
            }
        }
        Ok(all)
    }
}

/// Notes that it is used, for whoever reads it after a restart.
fn touch(path: &Path) {
    let touched = fs::File::open(path).and_then(|dir| dir.set_modified(SystemTime::now()));
    if let Err(error) = touched {
        tracing::warn!(path = %path.display(), %error, "the use of dependencies is not noted");
    }
}

/// Bytes that a directory takes on disk, following no links. What cannot be read counts as nothing. Blocks.
pub(crate) fn size(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut left = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
            let Ok(meta) = entry.metadata() else { continue };
            bytes += 512 * meta.blocks();
            if meta.is_dir() && depth < DEPTH_MAX {
                left.push((entry.path(), depth + 1));
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use fanfare_types::FunctionId;

    use super::*;

    fn revision(n: u32) -> RevisionId {
        RevisionId { function: FunctionId(n), number: 1 }
    }

    #[test]
    fn the_longest_unused_makes_way_and_never_what_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("deps"), 3 << 20);
        fs::create_dir(store.dir()).unwrap();
        let install = |n: u32, key: &str, mib: usize| {
            let out = store.dir().join(".out");
            fs::create_dir_all(out.join("sub")).unwrap();
            fs::write(out.join("sub/file"), vec![1; mib << 20]).unwrap();
            let made = store.publish(revision(n), &out, key);
            if made.is_err() {
                fs::remove_dir_all(&out).unwrap();
            }
            made.map(|_| ())
        };
        let there = || {
            let mut all: Vec<_> = fs::read_dir(store.dir())
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            all.sort();
            all.concat()
        };
        let old = |key: &str, seconds| {
            let time = SystemTime::now() - std::time::Duration::from_secs(seconds);
            fs::File::open(store.dir().join(key)).unwrap().set_modified(time).unwrap();
        };
        for (n, key) in [(1, "a"), (2, "b")] {
            install(n, key, 1).unwrap();
        }
        old("a", 10);
        old("b", 20);
        let refused = install(3, "c", 2).unwrap_err();
        assert_eq!((refused.kind, there().as_str()), (StartFailureKind::DependenciesFailed, "ab"));
        store.release(revision(1));
        store.release(revision(2));
        assert!(store.claim(revision(4), "b").is_some(), "used again");
        install(3, "c", 1).unwrap();
        assert_eq!(there(), "bc", "what nobody uses makes way, however long the other has not been used");
        store.release(revision(3));
        store.release(revision(4));
        old("b", 20);
        old("c", 10);
        install(5, "d", 1).unwrap();
        assert_eq!(there(), "cd", "the longest unused goes first");
        install(6, "d", 1).unwrap();
        assert_eq!((there().as_str(), store.claim(revision(7), "a")), ("cd", None));
    }
}
