//! Limits and accounting of sandboxes, through whichever cgroup hierarchy the machine has.

mod v1;
mod v2;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fanfare_types::Sizing;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::launcher::protocol::CgroupJoin;
use crate::procfs;

/// Name of the cgroup that all cgroups of this runtime are below.
const PARENT: &str = "fanfare";
/// Rounds of killing before giving up on a cgroup that is never empty.
const KILL_ROUNDS_MAX: usize = 64;
/// Attempts to make directories that another instance may be removing.
const MAKE_ATTEMPTS: usize = 8;
/// Period of the CPU limit, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

/// Which hierarchies hold the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One unified hierarchy.
    V2,
    /// The old hierarchies hold the controllers, beside a unified one without them.
    Hybrid,
    /// The old hierarchies alone.
    V1,
    /// None that this user may write: nothing is limited.
    None,
}

impl fmt::Display for CgroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CgroupVersion::V2 => "v2",
            CgroupVersion::Hybrid => "hybrid (v1 controllers)",
            CgroupVersion::V1 => "v1",
            CgroupVersion::None => "none",
        })
    }
}

/// What one sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
    /// 0 is no limit.
    pub(crate) cpu_milli: u64,
    pub(crate) pids: u32,
}

impl Limits {
    pub(crate) fn of(sizing: &Sizing) -> Self {
        Limits {
            memory_bytes: sizing.limit.memory_bytes,
            cpu_milli: sizing.limit.cpu_milli,
            pids: sizing.pids_limit,
        }
    }

    /// CPU time per period, in microseconds; at least the kernel's minimum of 1 ms.
    fn quota_us(self) -> u64 {
        (self.cpu_milli.saturating_mul(CPU_PERIOD_US) / 1_000).max(1_000)
    }
}

/// The machine's cgroups, as far as this runtime may use them.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    version: CgroupVersion,
    tree: Tree,
    /// Controllers that are missing, and why.
    missing: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
enum Tree {
    V1(v1::Tree),
    V2(v2::Tree),
    None,
}

impl Cgroups {
    /// Finds out what there is and makes the directory of this `instance` in it.
    pub(crate) fn detect(instance: &str) -> Self {
        let mounts = mounts();
        let below = Path::new(PARENT).join(instance);
        let unified = mounts.iter().find(|m| m.v2);
        let memory_v1 = mounts.iter().any(|m| !m.v2 && m.controllers.iter().any(|c| c == "memory"));
        if memory_v1 {
            let version = if unified.is_some() { CgroupVersion::Hybrid } else { CgroupVersion::V1 };
            return match v1::Tree::open(&mounts, &below) {
                Ok((tree, missing)) => Cgroups { version, tree: Tree::V1(tree), missing },
                Err(e) => Cgroups::none(&format!("{version}: {e}")),
            };
        }
        match unified {
            Some(mount) => match v2::Tree::open(&mount.path, &below) {
                Ok((tree, missing)) => Cgroups { version: CgroupVersion::V2, tree: Tree::V2(tree), missing },
                Err(e) => Cgroups::none(&format!("v2: {e}")),
            },
            None => Cgroups::none("no cgroup file system is mounted"),
        }
    }

    fn none(why: &str) -> Self {
        let missing = ["memory", "pids", "cpu", "cpuacct"].map(|c| (c, why.to_owned()));
        Cgroups { version: CgroupVersion::None, tree: Tree::None, missing: missing.to_vec() }
    }

    /// Directories of an instance that exist, whether or not this process may make any.
    pub(crate) fn existing(instance: &str) -> Vec<PathBuf> {
        let mounts = mounts();
        let below = Path::new(PARENT).join(instance);
        let own = v2::own_cgroup().unwrap_or_default();
        let places = mounts.iter().flat_map(|m| {
            let delegated = m.v2.then(|| m.path.join(own.trim_start_matches('/')).join(&below));
            [Some(m.path.join(&below)), delegated]
        });
        places.flatten().filter(|path| path.is_dir()).collect()
    }

    /// Which hierarchies are used.
    pub(crate) fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Why a controller is not used; `None` when it is.
    pub(crate) fn why_missing(&self, controller: &str) -> Option<&str> {
        self.missing.iter().find(|(c, _)| *c == controller).map(|(_, why)| why.as_str())
    }

    /// Directories below which all of this instance's cgroups are.
    pub(crate) fn bases(&self) -> Vec<PathBuf> {
        match &self.tree {
            Tree::V1(tree) => tree.bases(),
            Tree::V2(tree) => vec![tree.base().to_owned()],
            Tree::None => Vec::new(),
        }
    }

    /// Directories that [`Cgroups::create`] will make for this name.
    pub(crate) fn paths(&self, name: &str) -> Vec<PathBuf> {
        self.bases().into_iter().map(|base| base.join(name)).collect()
    }

    /// Makes a cgroup with limits. On failure nothing of it is left.
    pub(crate) fn create(&self, name: &str, limits: Limits) -> io::Result<Cgroup> {
        let cgroup = Cgroup { paths: self.paths(name), tree: self.tree.clone() };
        let made = match &self.tree {
            Tree::V1(tree) => tree.create(name, limits),
            Tree::V2(tree) => tree.create(name, limits),
            Tree::None => Ok(()),
        };
        if made.is_err() {
            cgroup.paths.iter().for_each(|path| {
                let _ = fs::remove_dir(path);
            });
        }
        made.map(|()| cgroup)
    }

    /// Removes the empty directories of an instance, and the last instance what all are below. Each process of a daemon
    /// that ends calls this.
    pub(crate) fn close(instance: &str) {
        for base in Cgroups::existing(instance) {
            remove_base(&base);
        }
        let unified = mounts().into_iter().find(|m| m.v2);
        if let Some(mount) = unified {
            v2::close(&mount.path);
        }
    }
}

/// One sandbox's cgroup.
#[derive(Debug)]
pub(crate) struct Cgroup {
    paths: Vec<PathBuf>,
    tree: Tree,
}

impl Cgroup {
    /// How a new process joins, and the descriptors that takes.
    pub(crate) fn join(&self) -> io::Result<(CgroupJoin, Vec<OwnedFd>)> {
        match &self.tree {
            Tree::V1(_) => {
                let fds = v1::tasks(&self.paths)?;
                Ok((CgroupJoin::V1(fds.len()), fds))
            }
            Tree::V2(_) => Ok((CgroupJoin::V2, vec![fs::File::open(&self.paths[0])?.into()])),
            Tree::None => Ok((CgroupJoin::None, Vec::new())),
        }
    }

    /// Files through which a process moves itself, by writing `0` to each. Only that form, a thread moving itself by
    /// `tasks`, does without the lock that all forks of the machine take.
    pub(crate) fn joining_files(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |file: PathBuf| fs::OpenOptions::new().write(true).open(file).map(OwnedFd::from);
        match &self.tree {
            Tree::V1(_) => v1::tasks(&self.paths),
            Tree::V2(_) => Ok(vec![open(self.paths[0].join("cgroup.procs"))?]),
            Tree::None => Ok(Vec::new()),
        }
    }

    /// Whether a process is in it.
    pub(crate) fn contains(&self, pid: i32) -> bool {
        // If there is nothing to be in, everyone is.
        self.paths.first().is_none_or(|path| hierarchies_with(pid, path) >= self.paths.len())
    }

    /// Raises the limits; what cannot be raised stays.
    pub(crate) fn raise(&self, limits: Limits) {
        for path in &self.paths {
            match &self.tree {
                Tree::V1(_) => v1::raise(path, limits),
                Tree::V2(_) => v2::raise(path, limits),
                Tree::None => {}
            }
        }
    }

    /// Processes killed for want of memory so far.
    pub(crate) fn oom_kills(&self) -> u64 {
        let file = match &self.tree {
            Tree::V1(tree) => {
                tree.controller(&self.paths, "memory").map(|path| path.join("memory.oom_control"))
            }
            Tree::V2(_) => Some(self.paths[0].join("memory.events")),
            Tree::None => None,
        };
        file.and_then(|file| fs::read_to_string(file).ok())
            .and_then(|text| keyed(&text, "oom_kill"))
            .unwrap_or(0)
    }

    /// Bytes that are charged to it though none of its processes is left, and that the kernel cannot reclaim: shared
    /// memory, and what the kernel itself keeps.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let dir = match &self.tree {
            Tree::V1(tree) => tree.controller(&self.paths, "memory"),
            Tree::V2(_) => self.paths.first().cloned(),
            Tree::None => None,
        };
        let Some(dir) = dir else { return 0 };
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let of = |key: &str| keyed(&stat, key).unwrap_or(0);
        let kernel = match &self.tree {
            Tree::V1(_) => fs::read_to_string(dir.join("memory.kmem.usage_in_bytes"))
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0),
            _ => of("kernel").saturating_sub(of("slab_reclaimable")),
        };
        of("shmem") + kernel
    }

    /// CPU time used so far.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        match &self.tree {
            Tree::V1(tree) => {
                let path = tree.controller(&self.paths, "cpuacct")?.join("cpuacct.usage");
                fs::read_to_string(path).ok()?.trim().parse().ok().map(Duration::from_nanos)
            }
            Tree::V2(_) => {
                let text = fs::read_to_string(self.paths[0].join("cpu.stat")).ok()?;
                keyed(&text, "usage_usec").map(Duration::from_micros)
            }
            Tree::None => None,
        }
    }

    /// Kills every process inside, however fast they multiply.
    pub(crate) fn kill(&self) {
        kill_all(&self.paths);
    }

    /// Removes it. Fails with `EBUSY` while a process inside is still ending.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.paths.iter().try_for_each(|path| match fs::remove_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        })
    }
}

/// Kills all processes of a cgroup of either version, which has a directory in each hierarchy. When this returns they
/// may still be ending.
pub(crate) fn kill_all(paths: &[PathBuf]) {
    if let [path] = paths
        && fs::write(path.join("cgroup.kill"), "1").is_ok()
    {
        return;
    }
    // Nothing can be forked any more, so each round finds fewer that are new.
    for path in paths {
        let _ = fs::write(path.join("pids.max"), "0");
    }
    let mut killed = BTreeSet::new();
    for _ in 0..KILL_ROUNDS_MAX {
        let mut found = false;
        for path in paths {
            for pid in processes(path) {
                if killed.insert(pid) {
                    kill_in(pid, path);
                    found = true;
                }
            }
        }
        if !found {
            return;
        }
    }
}

/// Kills a process if it is in the cgroup at `path`: since it was listed there its number may have become another's.
fn kill_in(pid: i32, path: &Path) {
    let Some(number) = Pid::from_raw(pid) else { return };
    let Ok(pidfd) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else { return };
    if hierarchies_with(pid, path) > 0 {
        let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
    }
}

/// In how many hierarchies a process is in the cgroup of the same name as the one at `path`.
fn hierarchies_with(pid: i32, path: &Path) -> usize {
    let end = path.iter().rev().take_while(|part| *part != PARENT).collect::<Vec<_>>();
    let end: PathBuf =
        [OsStr::new("/"), OsStr::new(PARENT)].into_iter().chain(end.into_iter().rev()).collect();
    let cgroups = procfs::read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    end.to_str().map_or(0, |end| cgroups.lines().filter(|line| line.ends_with(end)).count())
}

/// Removes the empty directory that an instance's cgroups were in, and the one that all instances' are in if it was the
/// last.
pub(crate) fn remove_base(base: &Path) {
    // Not empty: an owner is left, and `audit` names it.
    if fs::remove_dir(base).is_ok()
        && let Some(parent) = base.parent().filter(|parent| parent.ends_with(PARENT))
    {
        // Not empty: another instance is.
        let _ = fs::remove_dir(parent);
    }
}

/// Does something again while it fails in this way, a few times.
fn again<T>(retry: impl Fn(&io::Error) -> bool, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut result = work();
    for _ in 1..MAKE_ATTEMPTS {
        match &result {
            Err(e) if retry(e) => result = work(),
            _ => break,
        }
    }
    result
}

/// Makes the directory of an instance, though another one that ends may just remove what both are below.
fn make_base(dir: &Path) -> io::Result<()> {
    again(|e| e.kind() == io::ErrorKind::NotFound, || fs::create_dir_all(dir))
}

/// The cgroup hierarchies that are mounted.
fn mounts() -> Vec<CgroupMount> {
    fs::read_to_string("/proc/self/mountinfo").map(|text| parse_mounts(&text)).unwrap_or_default()
}

/// Processes in the cgroup at `path`, except those of other process namespaces (which read as 0).
pub(crate) fn processes(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
}

fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A mounted cgroup hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct CgroupMount {
    path: PathBuf,
    v2: bool,
    controllers: Vec<String>,
}

/// Reads `/proc/self/mountinfo`: fields up to ` - `, then type, source and the hierarchy's options.
fn parse_mounts(text: &str) -> Vec<CgroupMount> {
    let parse = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let path = before.split(' ').nth(4)?;
        let mut fields = after.split(' ');
        let (kind, _source, options) = (fields.next()?, fields.next()?, fields.next()?);
        let v2 = match kind {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        let controllers = if v2 { Vec::new() } else { options.split(',').map(str::to_owned).collect() };
        // The kernel writes a space in a path as \040.
        Some(CgroupMount { path: PathBuf::from(path.replace("\\040", " ")), v2, controllers })
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_told_apart() {
        let text = "\
            30 24 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            32 24 0:28 / /sys/fs/cgroup/uni\\040fied rw shared:9 - cgroup2 cgroup2 rw\n\
            33 24 0:29 / /proc rw - proc proc rw\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[1].controllers, ["rw", "cpu", "cpuacct"]);
        assert_eq!((mounts[2].v2, mounts[2].path.to_str().unwrap()), (true, "/sys/fs/cgroup/uni fied"));
    }

    #[test]
    fn a_process_is_told_by_the_cgroup_it_is_in() {
        let me = i32::try_from(std::process::id()).unwrap();
        let elsewhere = Path::new("/sys/fs/cgroup/memory/fanfare/0123/s1");
        assert_eq!(hierarchies_with(me, elsewhere), 0);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        kill_in(pid, elsewhere);
        assert!(child.try_wait().unwrap().is_none(), "it was listed there once");
        child.kill().unwrap();
        child.wait().unwrap();
        let cgroup = Cgroup { paths: Vec::new(), tree: Tree::None };
        assert!(cgroup.contains(me));
    }

    #[test]
    fn keyed_values_match_whole_keys() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(keyed(text, "oom_kill"), Some(3));
        assert_eq!(keyed(text, "oom"), None);
    }

    #[test]
    fn a_cpu_limit_is_a_share_of_the_period() {
        let quota = |cpu_milli| Limits { memory_bytes: 0, cpu_milli, pids: 0 }.quota_us();
        assert_eq!([quota(500), quota(2_000), quota(1)], [50_000, 200_000, 1_000]);
    }
}
