//! What revisions are given beside their code: secrets and configuration files.
//!
//! They are files in a file system in memory that is mounted in the launcher's mount namespace alone: no path on the
//! machine leads there, it ends with the launcher, and each sandbox is shown its revision's directories, read-only. The
//! daemon writes there through a descriptor. A file is replaced by renaming another one over it, so whoever opens it
//! finds a whole value, the old or the new one.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfare_types::{
    RevisionId, SecretName, SecretPlace, SecretValue, StartFailure, StartFailureKind, limits,
};
use parking_lot::Mutex;

use crate::link::Link;
use crate::revision::{Revision, failure, node_failure};
use crate::shared::Shared;

/// The directory in the run directory on which the launcher mounts it.
pub(crate) const GIVEN_DIR: &str = "given";
/// Where a sandbox finds the files of its secrets.
pub(crate) const SECRETS_DIR: &str = "/run/secrets";
/// Where a sandbox finds its configuration files.
pub(crate) const CONFIG_DIR: &str = "/run/config";

/// Values of secrets by variable.
pub(crate) type SecretEnv = Vec<(String, SecretValue)>;

/// What the secrets of each revision hold, as the node was told last.
#[derive(Debug, Default)]
pub(crate) struct Values(Mutex<BTreeMap<RevisionId, Arc<BTreeMap<SecretName, SecretValue>>>>);

/// The file system of one launcher.
#[derive(Debug)]
pub(crate) struct Given {
    root: OwnedFd,
    placed: Mutex<BTreeMap<RevisionId, Arc<Placed>>>,
}

/// The directories of one revision.
#[derive(Debug)]
struct Placed {
    revision: Arc<Revision>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    made: bool,
    /// What each file of a secret holds.
    secrets: BTreeMap<String, SecretValue>,
}

/// The directory that sandboxes of a revision are shown at [`SECRETS_DIR`] or [`CONFIG_DIR`], as the launcher sees it.
pub(crate) fn source(run_dir: &Path, revision: RevisionId, inside: &str) -> PathBuf {
    run_dir.join(GIVEN_DIR).join(revision.to_string()).join(part(inside))
}

fn part(inside: &str) -> &str {
    inside.rsplit('/').next().unwrap_or(inside)
}

impl Values {
    /// Keeps what was told, or forgets it when that is nothing.
    pub(crate) fn set(&self, revision: RevisionId, values: Vec<(SecretName, SecretValue)>) {
        let mut all = self.0.lock();
        match values.is_empty() {
            true => drop(all.remove(&revision)),
            false => drop(all.insert(revision, Arc::new(values.into_iter().collect()))),
        }
    }

    /// What the secrets that a revision uses hold, under their places.
    fn of<'a>(&self, revision: &'a Revision) -> Result<Vec<(&'a SecretPlace, SecretValue)>, StartFailure> {
        let given = &revision.spec.given;
        if given.secrets.is_empty() {
            return Ok(Vec::new());
        }
        let known = self.0.lock().get(&revision.spec.id).cloned().unwrap_or_default();
        let mut values = Vec::with_capacity(given.secrets.len());
        for used in &given.secrets {
            let Some(value) = known.get(&used.secret) else {
                let detail = format!(
                    "the secret {:?}, which it has as {}, does not exist any more",
                    used.secret.as_str(),
                    used.place.name()
                );
                return Err(failure(StartFailureKind::SecretMissing, detail));
            };
            values.push((&used.place, value.clone()));
        }
        Ok(values)
    }

    /// The variables that hold secrets. Fails when any secret is missing that the revision uses.
    pub(crate) fn env(&self, revision: &Revision) -> Result<SecretEnv, StartFailure> {
        let mut env = Vec::new();
        for (place, value) in self.of(revision)? {
            if let SecretPlace::Env(name) = place {
                env.push((name.clone(), value));
            }
        }
        Ok(env)
    }
}

impl Given {
    /// `root` is the file system's own directory.
    pub(crate) fn new(root: OwnedFd) -> Self {
        Given { root, placed: Mutex::default() }
    }

    fn directory(&self, revision: RevisionId) -> PathBuf {
        // Leads to where no other path does.
        PathBuf::from(format!("/proc/self/fd/{}/{revision}", self.root.as_raw_fd()))
    }

    /// Whether the revision has files here.
    fn has(&self, revision: RevisionId) -> bool {
        self.placed.lock().contains_key(&revision)
    }

    /// Writes what is not as it should be. Blocks.
    fn place(&self, revision: &Arc<Revision>, values: &Values) -> Result<(), StartFailure> {
        let id = revision.spec.id;
        let placed = {
            let new = || Arc::new(Placed { revision: revision.clone(), state: Mutex::default() });
            self.placed.lock().entry(id).or_insert_with(new).clone()
        };
        // Read under the lock: whatever was told before this is written, by us or by who comes next.
        let mut state = placed.state.lock();
        let values = values.of(&placed.revision)?;
        let (directory, uid) = (self.directory(id), placed.revision.uid);
        let failed = |e: io::Error| node_failure("secrets and files", e);
        if !state.made {
            make(&directory, &placed.revision).map_err(failed)?;
            state.made = true;
        }
        for (place, value) in values {
            let SecretPlace::File(name) = place else { continue };
            if state.secrets.get(name) != Some(&value) {
                let secrets = directory.join(part(SECRETS_DIR));
                write(&secrets, name, value.expose(), 0o400, uid).map_err(failed)?;
                state.secrets.insert(name.clone(), value);
            }
        }
        Ok(())
    }

    /// Removes what a revision had; its sandboxes have ended. Blocks.
    fn remove(&self, revision: RevisionId) {
        let Some(placed) = self.placed.lock().remove(&revision) else { return };
        let _state = placed.state.lock();
        match fs::remove_dir_all(self.directory(revision)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(%revision, %error, "its secrets and files cannot be removed");
            }
            _ => {}
        }
    }
}

impl Shared {
    /// Takes what a revision's secrets hold from now on, and has it written where sandboxes have it in files.
    pub(crate) fn take_secrets(
        self: &Arc<Self>,
        revision: RevisionId,
        values: Vec<(SecretName, SecretValue)>,
    ) {
        let nothing = values.is_empty();
        self.values.set(revision, values);
        let Ok(link) = self.links.get() else { return };
        if nothing || !link.given.has(revision) {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            let (work, known) = (shared.clone(), shared.known_revision(revision));
            let Some(known) = known else { return };
            let written = shared.blocking(move || link.given.place(&known, &work.values)).await;
            match written.map_err(|e| node_failure("secrets", e)) {
                Ok(Ok(())) => tracing::info!(%revision, "its secrets have changed; files have them"),
                Ok(Err(error)) | Err(error) => {
                    tracing::error!(%revision, error = error.detail, "its secrets have changed and could not be written");
                }
            }
        });
    }

    /// Has everything written that a revision is given, before a process of it is started through `link`; gives the
    /// variables that hold secrets.
    pub(crate) async fn place_given(
        self: &Arc<Self>,
        link: &Arc<Link>,
        revision: &Arc<Revision>,
    ) -> Result<SecretEnv, StartFailure> {
        if revision.spec.given.is_empty() {
            return Ok(Vec::new());
        }
        let (shared, link, of) = (self.clone(), link.clone(), revision.clone());
        let placed = self.blocking(move || link.given.place(&of, &shared.values)).await;
        placed.map_err(|e| node_failure("secrets and files", e))??;
        self.values.env(revision)
    }

    /// Removes what a revision was given; nothing of it runs any more.
    pub(crate) async fn remove_given(self: &Arc<Self>, revision: &Revision) {
        let id = revision.spec.id;
        self.values.set(id, Vec::new());
        if let Ok(link) = self.links.get()
            && link.given.has(id)
        {
            // An error would mean that removing panicked; the file system ends with the launcher at the latest.
            let _ = self.blocking(move || link.given.remove(id)).await;
        }
    }
}

/// Makes a revision's directories and its configuration files.
fn make(directory: &Path, revision: &Revision) -> io::Result<()> {
    let (secrets, config) = (directory.join(part(SECRETS_DIR)), directory.join(part(CONFIG_DIR)));
    // What an attempt that failed has left.
    match fs::remove_dir_all(directory) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    for directory in [directory, &secrets, &config] {
        make_directory(directory)?;
    }
    fs::set_permissions(&secrets, Permissions::from_mode(0o700))?;
    if let Some(uid) = revision.uid {
        chown(&secrets, Some(uid), Some(uid))?;
    }
    for file in &revision.spec.given.files {
        let (parents, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let mut directory = config.clone();
        for parent in parents.split('/').filter(|parent| !parent.is_empty()).take(limits::FILE_PATH_PARTS_MAX)
        {
            directory.push(parent);
            if !directory.is_dir() {
                make_directory(&directory)?;
            }
        }
        write(&directory, name, &file.content, 0o444, None)?;
    }
    Ok(())
}

fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Puts a file in the place of the one that may be there, at once.
fn write(directory: &Path, name: &str, content: &[u8], mode: u32, uid: Option<u32>) -> io::Result<()> {
    // No name begins so.
    let new = directory.join("..new");
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(content)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    if let Some(uid) = uid {
        fchown(&file, Some(uid), Some(uid))?;
    }
    fs::rename(new, directory.join(name))
}
