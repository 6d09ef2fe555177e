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

/// Sockets and journals; on a file system in memory where root has one.
pub(crate) fn run_dir() -> PathBuf {
    choose(roots_run_dir(is_in_memory), &[("XDG_RUNTIME_DIR", "fanfare")], "run")
}

/// `/run` is on a disk in many containers, where each start would wait for it. Only for root: what an ordinary user
/// has in `/dev/shm` is removed when the last session ends (`RemoveIPC` of systemd).
fn roots_run_dir(is_in_memory: impl Fn(&str) -> bool) -> &'static str {
    match ["/run", "/dev/shm"].into_iter().find(|dir| is_in_memory(dir)) {
        Some("/dev/shm") => "/dev/shm/fanfare",
        _ => "/run/fanfare",
    }
}

fn is_in_memory(dir: &str) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::statfs(dir).is_ok_and(|found| found.f_type == TMPFS)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_directory_is_in_memory_where_there_is_one() {
        for (in_memory, want) in [
            (&["/run", "/dev/shm"][..], "/run/fanfare"),
            (&["/dev/shm"], "/dev/shm/fanfare"),
            (&["/run"], "/run/fanfare"),
            (&[], "/run/fanfare"),
        ] {
            assert_eq!(roots_run_dir(|dir| in_memory.contains(&dir)), want);
        }
    }
}
