//! The limits of a bare sandbox: the same controllers in the same hierarchies as the `process` runtime uses.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::error::{Context, Result};

/// Controllers that a sandbox is in.
const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpuacct", "cpu"];
/// As a function's default.
const MEMORY_BYTES: u64 = 128 << 20;
const PIDS: u32 = 128;
/// Directory that all of these are in.
const PARENT: &str = "fanfare-bench";

/// Where cgroups are made.
#[derive(Debug)]
pub(super) struct Cgroups {
    /// One directory per hierarchy; with what is written into each sandbox's own.
    bases: Vec<(PathBuf, Vec<(&'static str, String)>)>,
    /// The file by which a process joins.
    join: &'static str,
}

impl Cgroups {
    pub(super) fn open() -> Result<Cgroups> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mounts")?;
        let found = hierarchies(&mounts);
        let join = if found.iter().any(|(_, v2, _)| *v2) { "cgroup.procs" } else { "tasks" };
        let mut bases = Vec::new();
        for (mount, v2, limits) in found {
            let base = mount.join(format!("{PARENT}-{}", std::process::id()));
            fs::create_dir_all(&base).context(base.display())?;
            if v2 {
                let control = base.join("cgroup.subtree_control");
                fs::write(&control, "+memory +pids").context(control.display())?;
            }
            bases.push((base, limits));
        }
        Ok(Cgroups { bases, join })
    }

    /// Makes a cgroup with limits, and opens the files by which a process joins it.
    pub(super) fn create(&self, name: &str) -> io::Result<(Cgroup, Vec<OwnedFd>)> {
        let mut cgroup = Cgroup(Vec::with_capacity(self.bases.len()));
        let mut joins = Vec::with_capacity(self.bases.len());
        for (base, limits) in &self.bases {
            let dir = base.join(name);
            fs::create_dir(&dir)?;
            cgroup.0.push(dir.clone());
            for (file, value) in limits {
                fs::write(dir.join(file), value)?;
            }
            joins.push(fs::OpenOptions::new().write(true).open(dir.join(self.join))?.into());
        }
        Ok((cgroup, joins))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for (base, _) in &self.bases {
            let _ = fs::remove_dir(base);
        }
    }
}

/// One sandbox's directories. They go when this is dropped, by when the sandbox must have ended.
#[derive(Debug)]
pub(super) struct Cgroup(Vec<PathBuf>);

impl Drop for Cgroup {
    fn drop(&mut self) {
        for dir in &self.0 {
            let _ = fs::remove_dir(dir);
        }
    }
}

type Hierarchy = (PathBuf, bool, Vec<(&'static str, String)>);

/// Mount points with what is limited there. The old hierarchies where they hold `memory`, else the unified one.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let mut old: Vec<Hierarchy> = Vec::new();
    let mut unified = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split_whitespace().nth(4).map(PathBuf::from) else { continue };
        let mut fields = file_system.split_whitespace();
        match (fields.next(), fields.nth(1)) {
            (Some("cgroup2"), _) => {
                let limits = vec![("memory.max", MEMORY_BYTES.to_string()), ("pids.max", PIDS.to_string())];
                unified.push((point, true, limits));
            }
            (Some("cgroup"), Some(options)) if CONTROLLERS.iter().any(|c| has(options, c)) => {
                let mut limits = Vec::new();
                if has(options, "memory") {
                    limits.push(("memory.limit_in_bytes", MEMORY_BYTES.to_string()));
                }
                if has(options, "pids") {
                    limits.push(("pids.max", PIDS.to_string()));
                }
                old.push((point, false, limits));
            }
            _ => {}
        }
    }
    let memory = old.iter().any(|(_, _, limits)| limits.iter().any(|(file, _)| file.starts_with("memory")));
    if memory { old } else { unified.into_iter().take(1).collect() }
}

fn has(options: &str, controller: &str) -> bool {
    options.split(',').any(|option| option == controller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_hierarchies_are_used_where_they_hold_memory() {
        let memory = "1 0 0:1 / /c/memory rw - cgroup cgroup rw,memory\n";
        let others = "2 0 0:2 / /c/cpu rw - cgroup cgroup rw,cpu,cpuacct\n3 0 0:3 / /c/blkio rw - cgroup cgroup rw,blkio\n";
        let unified = "4 0 0:4 / /c/unified rw - cgroup2 cgroup2 rw\n";
        let points = |text: &str| hierarchies(text).into_iter().map(|(p, _, _)| p).collect::<Vec<_>>();
        assert_eq!(points(&[memory, others, unified].concat()), ["/c/memory", "/c/cpu"].map(PathBuf::from));
        assert_eq!(points(&[others, unified].concat()), [PathBuf::from("/c/unified")]);
        assert!(points("").is_empty());
    }
}
