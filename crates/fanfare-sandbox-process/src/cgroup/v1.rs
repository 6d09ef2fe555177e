//! The old hierarchies: one directory per sandbox in each of `memory`, `pids`, `cpu` and `cpuacct`.
//!
//! A process joins by writing `0` to `tasks`. Only that form, a thread moving itself, does without the lock that all
//! forks of the machine take, and whose writer may wait 10 ms and more for a grace period.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::{CPU_PERIOD_US, CgroupMount, Limits};

/// What sockets hold, of any protocol. Here it is no part of the memory that is limited, and without a limit of its own
/// only the machine's holds.
const SOCKETS: &str = "memory.kmem.tcp.limit_in_bytes";
/// They may have so much in addition: memory's limit divided by this.
const SOCKETS_PART: u64 = 4;
const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpuacct", "cpu"];

/// This instance's directories.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// Controllers of each hierarchy in use, and our directory in it.
    hierarchies: Vec<(Vec<&'static str>, PathBuf)>,
}

impl Tree {
    /// Makes a directory in each hierarchy with a controller that we use. Also returns what cannot be used and why.
    pub(super) fn open(
        mounts: &[CgroupMount],
        below: &Path,
    ) -> io::Result<(Self, Vec<(&'static str, String)>)> {
        let mut hierarchies: Vec<(Vec<&'static str>, PathBuf)> = Vec::new();
        let mut missing = Vec::new();
        for controller in CONTROLLERS {
            let has = |m: &&CgroupMount| !m.v2 && m.controllers.iter().any(|c| c == controller);
            let Some(mount) = mounts.iter().find(has) else {
                missing.push((controller, "not mounted".to_owned()));
                continue;
            };
            let dir = mount.path.join(below);
            if let Some((controllers, _)) = hierarchies.iter_mut().find(|(_, d)| *d == dir) {
                controllers.push(controller);
                continue;
            }
            match super::make_base(&dir) {
                Ok(()) => hierarchies.push((vec![controller], dir)),
                Err(e) => missing.push((controller, format!("mkdir {}: {e}", dir.display()))),
            }
        }
        match hierarchies.is_empty() {
            true => Err(io::Error::other(missing.pop().map(|(_, why)| why).unwrap_or_default())),
            false => Ok((Tree { hierarchies }, missing)),
        }
    }

    pub(super) fn bases(&self) -> Vec<PathBuf> {
        self.hierarchies.iter().map(|(_, dir)| dir.clone()).collect()
    }

    /// The directory among a sandbox's `paths` that holds this controller.
    pub(super) fn controller(&self, paths: &[PathBuf], controller: &str) -> Option<PathBuf> {
        let at = self.hierarchies.iter().position(|(controllers, _)| controllers.contains(&controller))?;
        paths.get(at).cloned()
    }

    pub(super) fn create(&self, name: &str, limits: Limits) -> io::Result<()> {
        for (controllers, base) in &self.hierarchies {
            let dir = base.join(name);
            fs::create_dir(&dir)?;
            for controller in controllers {
                set(&dir, controller, limits)?;
            }
        }
        Ok(())
    }
}

/// Raises the limits of a cgroup that is in use.
pub(super) fn raise(dir: &Path, limits: Limits) {
    // The larger of the two limits first: the kernel keeps them in order. A file is absent where its controller is.
    for file in ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"] {
        let _ = fs::write(dir.join(file), limits.memory_bytes.to_string());
    }
    let _ = fs::write(dir.join(SOCKETS), (limits.memory_bytes / SOCKETS_PART).to_string());
    let _ = fs::write(dir.join("pids.max"), limits.pids.to_string());
}

fn set(dir: &Path, controller: &str, limits: Limits) -> io::Result<()> {
    match controller {
        "memory" => {
            fs::write(dir.join("memory.limit_in_bytes"), limits.memory_bytes.to_string())?;
            // Memory and swap together; the file is absent where swap is not accounted.
            write_if_there(&dir.join("memory.memsw.limit_in_bytes"), limits.memory_bytes)?;
            write_if_there(&dir.join(SOCKETS), limits.memory_bytes / SOCKETS_PART)
        }
        "pids" => fs::write(dir.join("pids.max"), limits.pids.to_string()),
        "cpu" if limits.cpu_milli > 0 => {
            fs::write(dir.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
            fs::write(dir.join("cpu.cfs_quota_us"), limits.quota_us().to_string())
        }
        _ => Ok(()),
    }
}

/// Sets a limit that not every kernel has.
fn write_if_there(file: &Path, bytes: u64) -> io::Result<()> {
    match fs::write(file, bytes.to_string()) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(()),
        other => other,
    }
}

/// Opens the `tasks` files through which a process moves itself.
pub(super) fn tasks(paths: &[PathBuf]) -> io::Result<Vec<OwnedFd>> {
    let open =
        |path: &PathBuf| fs::OpenOptions::new().write(true).open(path.join("tasks")).map(OwnedFd::from);
    paths.iter().map(open).collect()
}
