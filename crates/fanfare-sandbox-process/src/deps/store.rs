//! What has been installed, within a limit: what has not been used for longest makes way, but never what a revision has
//! that this node runs.
//!
//! What is there is known from memory, so that the lock is held for no longer than renaming takes: sizes are taken
//! before, and what made way is removed after.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fanfare_types::{RevisionId, StartFailure};
use parking_lot::Mutex;

use crate::deps::size::size;
use crate::revision::node_failure;

/// Installations below one directory, each in one of its own that is named by its key.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    bytes_max: u64,
    /// How the names of what is being installed or removed begin: with a dot and the runtime's name.
    passing: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Which installation a revision has.
    users: BTreeMap<RevisionId, String>,
    known: BTreeMap<String, Known>,
    /// Uses and removals so far.
    turn: u64,
}

#[derive(Debug)]
struct Known {
    /// `None` until it matters.
    bytes: Option<u64>,
    /// The turn of its last use.
    used: u64,
}

impl Store {
    /// The store at `dir`, which need not exist, of the runtime that is named `instance`.
    pub(crate) fn new(dir: PathBuf, bytes_max: u64, instance: &str) -> Self {
        let mut state = State::default();
        match list(&dir) {
            Ok(mut found) => {
                found.sort();
                for (_, key) in found {
                    let used = state.next_turn();
                    state.known.insert(key, Known { bytes: None, used });
                }
            }
            Err(error) => {
                tracing::error!(dir = %dir.display(), %error, "installed dependencies cannot be listed");
            }
        }
        Store { dir, bytes_max, passing: passing(instance), state: Mutex::new(state) }
    }

    /// Removes what an earlier incarnation of this runtime was installing or removing when it ended. Blocks.
    pub(crate) fn sweep(dir: &Path, instance: &str) {
        let begin = passing(instance);
        for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(&begin)) {
                remove(&entry.path());
            }
        }
    }

    /// Where something of this name, which no other has, is installed before it is published.
    pub(crate) fn place(&self, name: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.dir)?;
        Ok(self.dir.join(format!("{}{name}", self.passing)))
    }

    /// The installation with this key, if it is there; kept for the revision from then on.
    pub(crate) fn claim(&self, revision: RevisionId, key: &str) -> Option<PathBuf> {
        if !self.state.lock().is_used(revision, key) {
            return None;
        }
        let path = self.dir.join(key);
        // Somebody may have tidied up.
        if !path.is_dir() {
            let mut state = self.state.lock();
            state.known.remove(key);
            state.users.remove(&revision);
            return None;
        }
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
    /// What is in use leaves no room for it; then nothing else makes way either.
    pub(crate) fn publish(
        &self,
        revision: RevisionId,
        out: &Path,
        key: &str,
    ) -> Result<PathBuf, StartFailure> {
        let path = self.dir.join(key);
        let bytes = size(out);
        self.measure();
        let evicted = self.put(revision, out, key, bytes)?;
        evicted.iter().for_each(|old| remove(old));
        // Where someone else was faster with the same list.
        if fs::symlink_metadata(out).is_ok() {
            remove(out);
        }
        touch(&path);
        Ok(path)
    }

    /// Renames what makes way, whose places are given, and what was installed.
    fn put(
        &self,
        revision: RevisionId,
        out: &Path,
        key: &str,
        bytes: u64,
    ) -> Result<Vec<PathBuf>, StartFailure> {
        let mut state = self.state.lock();
        if state.is_used(revision, key) {
            return Ok(Vec::new());
        }
        let victims = state.make_room(bytes, self.bytes_max)?;
        let mut evicted = Vec::new();
        for key in victims {
            let place = self.dir.join(format!("{}old-{}", self.passing, state.next_turn()));
            match fs::rename(self.dir.join(&key), &place) {
                Ok(()) => evicted.push(place),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::error!(key, %error, "dependencies cannot be removed");
                    continue;
                }
            }
            tracing::info!(key, "dependencies that no function here uses made way for others");
            state.known.remove(&key);
        }
        let path = self.dir.join(key);
        match fs::rename(out, &path) {
            // Another runtime that has the same directory was faster.
            Err(_) if path.is_dir() => {}
            other => other.map_err(|e| node_failure("dependencies", e))?,
        }
        tracing::debug!(key, bytes, evicted = evicted.len(), "dependencies are installed");
        state.known.insert(key.to_owned(), Known { bytes: Some(bytes), used: 0 });
        state.is_used(revision, key);
        Ok(evicted)
    }

    /// Takes the sizes that are not known yet.
    fn measure(&self) {
        let unknown: Vec<String> = {
            let state = self.state.lock();
            let unknown = state.known.iter().filter(|(_, known)| known.bytes.is_none());
            unknown.map(|(key, _)| key.clone()).collect()
        };
        for key in unknown {
            let bytes = size(&self.dir.join(&key));
            if let Some(known) = self.state.lock().known.get_mut(&key) {
                known.bytes = Some(bytes);
            }
        }
    }
}

impl State {
    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// Keeps an installation for a revision; `false` when it is not there.
    fn is_used(&mut self, revision: RevisionId, key: &str) -> bool {
        let turn = self.next_turn();
        let Some(known) = self.known.get_mut(key) else { return false };
        known.used = turn;
        self.users.insert(revision, key.to_owned());
        true
    }

    /// Which installations make way so that `bytes` more fit, those that have not been used for longest.
    fn make_room(&self, bytes: u64, bytes_max: u64) -> Result<Vec<String>, StartFailure> {
        let in_use: BTreeSet<&String> = self.users.values().collect();
        let sum = |used: bool| {
            let those = self.known.iter().filter(|(key, _)| in_use.contains(key) == used);
            those.fold(0_u64, |sum, (_, known)| sum.saturating_add(known.bytes.unwrap_or(0)))
        };
        let kept = bytes.saturating_add(sum(true));
        if kept > bytes_max {
            return Err(node_failure(
                "dependencies",
                format!(
                    "those of this function, of {} MiB, do not fit beside those of the other functions here: this node's \
                     limit is {} MiB (--deps-max)",
                    bytes.div_ceil(1 << 20),
                    bytes_max >> 20
                ),
            ));
        }
        let mut unused: Vec<_> = self.known.iter().filter(|(key, _)| !in_use.contains(key)).collect();
        unused.sort_by_key(|(_, known)| known.used);
        let mut used = kept.saturating_add(sum(false));
        let mut victims = Vec::new();
        for (key, known) in unused {
            if used <= bytes_max {
                break;
            }
            used = used.saturating_sub(known.bytes.unwrap_or(0));
            victims.push(key.clone());
        }
        Ok(victims)
    }
}

fn passing(instance: &str) -> String {
    format!(".{instance}-")
}

/// Installations by when they were last used. What is being installed or removed has a name that begins with a dot.
fn list(dir: &Path) -> io::Result<Vec<(SystemTime, String)>> {
    let mut all = Vec::new();
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(all),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        match entry.file_name().into_string() {
            Ok(name) if !name.starts_with('.') => all.push((entry.metadata()?.modified()?, name)),
            _ => {}
        }
    }
    Ok(all)
}

fn remove(dir: &Path) {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!(dir = %dir.display(), %error, "dependencies cannot be removed");
        }
        _ => {}
    }
}

/// Notes that it is used, for whoever reads it after a restart.
fn touch(path: &Path) {
    let touched = fs::File::open(path).and_then(|dir| dir.set_modified(SystemTime::now()));
    if let Err(error) = touched {
        tracing::warn!(path = %path.display(), %error, "the use of dependencies is not noted");
    }
}

#[cfg(test)]
mod tests {
    use fanfare_types::{FunctionId, StartFailureKind};

    use super::*;

    fn revision(n: u32) -> RevisionId {
        RevisionId { function: FunctionId(n), number: 1 }
    }

    fn open(dir: &Path) -> Store {
        Store::new(dir.join("deps"), 3 << 20, "me")
    }

    /// Installs so many MiB.
    fn install(store: &Store, n: u32, key: &str, mib: usize) -> Result<(), StartFailure> {
        let out = store.place("install").unwrap();
        fs::create_dir_all(out.join("sub")).unwrap();
        fs::write(out.join("sub/file"), vec![1; mib << 20]).unwrap();
        let made = store.publish(revision(n), &out, key);
        if made.is_err() {
            fs::remove_dir_all(&out).unwrap();
        }
        made.map(|_| ())
    }

    fn there(store: &Store) -> String {
        let names = fs::read_dir(&store.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut all: Vec<_> = names.collect();
        all.sort();
        all.concat()
    }

    #[test]
    fn the_longest_unused_makes_way_and_never_what_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for (n, key) in [(1, "a"), (2, "b")] {
            install(&store, n, key, 1).unwrap();
        }
        let refused = install(&store, 3, "c", 2).unwrap_err();
        assert_eq!((refused.kind, there(&store).as_str()), (StartFailureKind::Node, "ab"));
        store.release(revision(1));
        store.release(revision(2));
        let refused = install(&store, 3, "c", 4).unwrap_err();
        assert!(refused.detail.contains("do not fit"), "{refused:?}");
        assert_eq!(there(&store), "ab", "what cannot fit has nothing removed");
        assert!(store.claim(revision(4), "a").is_some(), "used again");
        install(&store, 3, "c", 1).unwrap();
        assert_eq!(there(&store), "ac", "what nobody uses makes way");
        store.release(revision(3));
        store.release(revision(4));
        install(&store, 5, "d", 1).unwrap();
        assert_eq!(there(&store), "cd", "the longest unused goes first");
        install(&store, 6, "d", 1).unwrap();
        assert_eq!((there(&store).as_str(), store.claim(revision(7), "a")), ("cd", None));
    }

    #[test]
    fn what_is_there_is_known_after_a_restart_and_what_was_passing_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for (n, key, age) in [(1, "a", 10), (2, "b", 20)] {
            install(&store, n, key, 1).unwrap();
            let time = SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::open(store.dir.join(key)).unwrap().set_modified(time).unwrap();
        }
        for name in [".me-install", ".me-old-3", ".other-install"] {
            fs::create_dir_all(store.dir.join(name).join("sub")).unwrap();
        }
        Store::sweep(&store.dir, "me");
        assert_eq!(there(&store), ".other-installab");
        fs::remove_dir(store.dir.join(".other-install/sub")).unwrap();
        fs::remove_dir(store.dir.join(".other-install")).unwrap();
        let store = open(dir.path());
        install(&store, 3, "c", 1).unwrap();
        assert_eq!(there(&store), "ac", "by the times on disk");
        assert!(store.claim(revision(1), "a").is_some());
        fs::remove_dir_all(store.dir.join("a")).unwrap();
        assert_eq!(store.claim(revision(2), "a"), None, "somebody tidied up");
        install(&store, 1, "a", 1).unwrap();
        assert_eq!(there(&store), "ac");
    }

    #[test]
    fn what_is_as_large_as_can_be_fits_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        install(&store, 1, "a", 1).unwrap();
        store.release(revision(1));
        let out = store.place("deep").unwrap();
        let deep = out.join("d/".repeat(crate::deps::size::DEPTH_MAX + 2));
        fs::create_dir_all(&deep).unwrap();
        let refused = store.publish(revision(2), &out, "b").unwrap_err();
        assert!(refused.detail.contains("do not fit"), "{refused:?}");
        assert!(store.dir.join("a").is_dir());
    }
}
