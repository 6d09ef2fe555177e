//! Control APIs by name, in a file of the user's own.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::args::{DEFAULT_API, GlobalArgs};
use crate::exit::{Exit, Failure};
use crate::suggest;

/// Bytes of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Contexts in it.
const CONTEXTS_MAX: usize = 1_000;
/// Characters of a name.
const NAME_CHARS_MAX: usize = 63;

/// The file: which contexts there are, and which one is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The one that is used unless told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

/// One control API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    pub(crate) api: String,
}

/// The control API that a command is for: by flag, else by environment, else by the current context.
///
/// # Errors
/// A context that does not exist, or a file that cannot be read though it is needed.
pub(crate) fn api(global: &GlobalArgs) -> Result<String, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(api) = &global.api {
        return Ok(api.clone());
    }
    if let Some(name) = &global.context {
        return Contexts::load()?.named(name, "--context");
    }
    if let Some(api) = variable("FANFARE_API") {
        return Ok(api);
    }
    if let Some(name) = variable("FANFARE_CONTEXT") {
        return Contexts::load()?.named(&name, "FANFARE_CONTEXT");
    }
    let contexts = Contexts::load()?;
    match &contexts.current {
        Some(name) => contexts.named(name, "the current context"),
        None => Ok(DEFAULT_API.to_owned()),
    }
}

impl Contexts {
    /// Reads the file; there are no contexts where there is none.
    pub(crate) fn load() -> Result<Self, Failure> {
        match path() {
            Some(path) => Self::load_from(&path),
            None => Ok(Contexts::default()),
        }
    }

    /// Writes the file, for its owner alone.
    pub(crate) fn store(&self) -> Result<(), Failure> {
        let path = path().ok_or_else(|| {
            Failure::usage("there is no place for contexts: neither HOME nor XDG_CONFIG_HOME is set")
                .next("name the file with FANFARE_CONFIG=FILE")
        })?;
        self.store_in(&path)
    }

    fn load_from(path: &Path) -> Result<Self, Failure> {
        let unreadable = |e: &dyn std::fmt::Display| {
            Failure::usage(format!("cannot read {}: {e}", path.display()))
                .next("mend or remove it, or say where the API is with --api URL")
        };
        match fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(e) => return Err(unreadable(&e)),
            Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
                return Err(unreadable(&format!("it is over {FILE_BYTES_MAX} bytes")));
            }
            Ok(_) => {}
        }
        let text = fs::read_to_string(path).map_err(|e| unreadable(&e))?;
        toml::from_str(&text).map_err(|e| unreadable(&e))
    }

    /// Replaces the file at once, so that nobody reads half of it.
    fn store_in(&self, path: &Path) -> Result<(), Failure> {
        let unwritable =
            |e: &dyn std::fmt::Display| Failure::platform(format!("cannot write {}: {e}", path.display()));
        let text = toml::to_string_pretty(self).map_err(|e| unwritable(&e))?;
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|e| unwritable(&e))?;
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let written = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&draft, path));
        written.map_err(|e| {
            // The draft may not be there; what went wrong is told anyway.
            let _ = fs::remove_file(&draft);
            unwritable(&e)
        })
    }

    /// Adds a context, or changes it; the first one becomes the current one.
    pub(crate) fn add(&mut self, name: &str, api: &str) -> Result<(), Failure> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(fits) {
            let limit = format!("give 1 to {NAME_CHARS_MAX} of the letters, the digits, and `- _ .`");
            return Err(Failure::usage(format!("a context cannot have the name {name:?}")).next(limit));
        }
        if self.contexts.len() >= CONTEXTS_MAX && !self.contexts.contains_key(name) {
            return Err(Failure::usage(format!("there are {CONTEXTS_MAX} contexts, which is the limit"))
                .next("remove one with `fanfare context remove NAME`"));
        }
        self.contexts.insert(name.to_owned(), Context { api: api.to_owned() });
        self.current.get_or_insert_with(|| name.to_owned());
        Ok(())
    }

    /// The API of a context.
    fn named(&self, name: &str, given_by: &str) -> Result<String, Failure> {
        let found = self.contexts.get(name).map(|context| context.api.clone());
        found.ok_or_else(|| self.unknown(name, given_by))
    }

    /// There is no such context.
    pub(crate) fn unknown(&self, name: &str, given_by: &str) -> Failure {
        let failure = Failure::new(Exit::NotFound, format!("there is no context {name:?} ({given_by})"));
        match suggest::closest(name, self.contexts.keys().map(String::as_str)) {
            Some(meant) => failure.next(format!("did you mean {meant}?")),
            None => failure
                .next("list them with `fanfare context list`, or add it with `fanfare context add NAME URL`"),
        }
    }
}

/// Where the file is; `None` when nothing says so.
fn path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("FANFARE_CONFIG")
        .or_else(|| variable("XDG_CONFIG_HOME").map(|base| base.join("fanfare/config.toml")))
        .or_else(|| variable("HOME").map(|home| home.join(".config/fanfare/config.toml")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_stored_is_read_again_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/config.toml");
        assert_eq!(Contexts::load_from(&path).unwrap(), Contexts::default());
        let mut contexts = Contexts::default();
        contexts.add("lab", "http://10.0.0.1:9091").unwrap();
        contexts.add("home", "http://127.0.0.1:9091").unwrap();
        assert_eq!(contexts.current.as_deref(), Some("lab"));
        contexts.store_in(&path).unwrap();
        assert_eq!(Contexts::load_from(&path).unwrap(), contexts);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        fs::write(&path, "contexts = 3").unwrap();
        assert!(Contexts::load_from(&path).unwrap_err().what.contains("config.toml"));
    }

    #[test]
    fn names_are_checked_and_corrected() {
        let mut contexts = Contexts::default();
        for bad in ["", "a b", "a/b", &"x".repeat(64)] {
            assert_eq!(contexts.add(bad, "http://h").unwrap_err().exit, Exit::Usage, "{bad}");
        }
        contexts.add("production", "http://h").unwrap();
        assert_eq!(contexts.named("production", "x").unwrap(), "http://h");
        let unknown = contexts.named("prodution", "--context").unwrap_err();
        assert_eq!(
            (unknown.exit, unknown.next.as_deref()),
            (Exit::NotFound, Some("did you mean production?"))
        );
    }
}
