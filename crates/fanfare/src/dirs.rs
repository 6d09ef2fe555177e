//! Where a role keeps what it keeps.

use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::exit::Failure;

/// Whether this process may make cgroups and namespaces for others.
pub(crate) fn is_root() -> bool {
    geteuid().is_root()
}

/// What outlives a restart.
pub(crate) fn data_dir() -> PathBuf {
    choose("/var/lib/fanfare", &[("XDG_STATE_HOME", "fanfare"), ("HOME", ".local/state/fanfare")], "state")
}

/// Sockets and journals; best on a file system in memory.
pub(crate) fn run_dir() -> PathBuf {
    choose("/run/fanfare", &[("XDG_RUNTIME_DIR", "fanfare")], "run")
}

/// The directory given, or else the one chosen; absolute, since processes that work elsewhere are told of it.
pub(crate) fn absolute(
    given: Option<&Path>,
    flag: &str,
    choose: fn() -> PathBuf,
) -> Result<PathBuf, Failure> {
    let path = given.map_or_else(choose, Path::to_owned);
    std::path::absolute(&path)
        .map_err(|e| Failure::usage(format!("{flag}: {} cannot be made absolute: {e}", path.display())))
}

/// Root's place, else the first variable that is set, else a directory in `/tmp` named by the user's number.
fn choose(root: &str, variables: &[(&str, &str)], kind: &str) -> PathBuf {
    if is_root() {
        return root.into();
    }
    let named = variables.iter().find_map(|(variable, below)| {
        let base = std::env::var_os(variable).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(base).join(below))
    });
    named.unwrap_or_else(|| PathBuf::from(format!("/tmp/fanfare-{}/{kind}", geteuid().as_raw())))
}
