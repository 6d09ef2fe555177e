//! What machine the numbers are from.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

/// A machine, its load and the build that was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    pub(crate) system: String,
    /// Of the file system that data is written to.
    pub(crate) filesystem: String,
    /// Runnable processes when the benches began, averaged over a minute: others' work disturbs these numbers.
    pub(crate) load_average: String,
    pub(crate) profile: &'static str,
    pub(crate) commit: String,
}

impl Machine {
    /// This one, with data below `dir`.
    pub(crate) fn here(dir: &Path) -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let unknown = || "unknown".to_owned();
        Machine {
            cpu: value_of(&cpuinfo, "model name", ':').unwrap_or_else(unknown),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_mib: value_of(&read("/proc/meminfo"), "MemTotal", ':')
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib / 1024),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: value_of(&read("/etc/os-release"), "PRETTY_NAME", '=')
                .unwrap_or_else(unknown)
                .replace('"', ""),
            filesystem: filesystem(&read("/proc/self/mountinfo"), dir).unwrap_or_else(unknown),
            load_average: read("/proc/loadavg").split_whitespace().next().unwrap_or_default().to_owned(),
            profile: if cfg!(debug_assertions) { "debug: these numbers mean nothing" } else { "release" },
            commit: commit().unwrap_or_else(unknown),
        }
    }

    /// One line.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} × {}, {} MiB, {}, kernel {}, data on {}, load {}, build {} of {}",
            self.cpus,
            self.cpu,
            self.memory_mib,
            self.system,
            self.kernel,
            self.filesystem,
            self.load_average,
            self.profile,
            self.commit
        )
    }
}

fn value_of(text: &str, key: &str, separator: char) -> Option<String> {
    let fields = text.lines().filter_map(|line| line.split_once(separator));
    fields.into_iter().find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}

/// Kind of the file system that holds `dir`: of the longest mount point that is a prefix of it.
fn filesystem(mountinfo: &str, dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        Some((mount.split_whitespace().nth(4)?, kind.split_whitespace().next()?))
    });
    let over = mounts.filter(|(point, _)| dir.starts_with(point));
    over.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind.to_owned())
}

fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if changed { format!("{head} with changes") } else { head })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::here(Path::new("/"));
        assert!(machine.cpus > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty(), "{machine:?}");
        assert!(machine.describe().contains(&machine.kernel));
    }

    #[test]
    fn the_nearest_mount_holds_a_directory() {
        let mounts = "1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / /proc rw - proc proc rw\n3 1 0:3 / /pro rw - tmpfs t rw\n";
        assert_eq!(filesystem(mounts, Path::new("/proc/self")).as_deref(), Some("proc"));
        assert_eq!(filesystem(mounts, Path::new("/")).as_deref(), Some("ext4"));
        assert_eq!(filesystem(mounts, Path::new("/no/such/place")), None);
    }
}
