//! The unified hierarchy: one directory per sandbox, into which its first process is cloned.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{CPU_PERIOD_US, Limits};

/// Where this process moves in a delegated cgroup.
const LEAF: &str = "fanfare-daemon";
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// This instance's directory.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    base: PathBuf,
    enabled: Vec<&'static str>,
}

impl Tree {
    /// Makes our directory and turns the controllers on for its children: at the root of the hierarchy where that
    /// may be written, else below the cgroup that this process is in (delegated to its user, or to a container).
    /// Also returns what cannot be used and why.
    pub(super) fn open(mount: &Path, below: &Path) -> io::Result<(Self, Vec<(&'static str, String)>)> {
        match Tree::open_at(mount, below) {
            Ok(opened) => Ok(opened),
            Err(at_root) => {
                let own = own_cgroup().ok_or(at_root)?;
                let start = mount.join(own.trim_matches('/'));
                Tree::open_in_own(&start, below).map_err(|e| not_ours(&own, &e))
            }
        }
    }

    fn open_in_own(start: &Path, below: &Path) -> io::Result<(Self, Vec<(&'static str, String)>)> {
        // A cgroup with processes of its own cannot have controllers in its children: make room.
        let leaf = start.join(LEAF);
        let moved = patiently(|| {
            fs::create_dir_all(&leaf)?;
            enter(&leaf)
        });
        moved.and_then(|()| Tree::open_at(start, below)).inspect_err(|_| leave(start))
    }

    fn open_at(start: &Path, below: &Path) -> io::Result<(Self, Vec<(&'static str, String)>)> {
        let base = start.join(below);
        let on_the_way: Vec<_> = base.ancestors().take_while(|dir| dir.starts_with(start)).collect();
        let mut missing = Vec::new();
        let mut enabled = Vec::new();
        for controller in CONTROLLERS {
            let turned_on = patiently(|| {
                fs::create_dir_all(&base)?;
                on_the_way.iter().rev().try_for_each(|dir| enable(dir, controller))
            });
            match turned_on {
                Ok(()) => enabled.push(controller),
                Err(e) => {
                    missing.push((controller, format!("cgroup v2: {}", in_words(start, controller, &e))));
                }
            }
        }
        if enabled.is_empty() {
            // The last is the root, or the cgroup that we are in.
            on_the_way.iter().take(on_the_way.len() - 1).for_each(|dir| {
                let _ = fs::remove_dir(dir);
            });
            return Err(io::Error::other(missing.pop().map(|(_, why)| why).unwrap_or_default()));
        }
        Ok((Tree { base: base.clone(), enabled }, missing))
    }

    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    pub(super) fn create(&self, name: &str, limits: Limits) -> io::Result<()> {
        let dir = self.base.join(name);
        fs::create_dir(&dir)?;
        if self.enabled.contains(&"memory") {
            fs::write(dir.join("memory.max"), limits.memory_bytes.to_string())?;
            match fs::write(dir.join("memory.swap.max"), "0") {
                Err(e)
                    if e.kind() != io::ErrorKind::NotFound && e.kind() != io::ErrorKind::PermissionDenied =>
                {
                    return Err(e);
                }
                _ => {}
            }
        }
        if self.enabled.contains(&"pids") {
            fs::write(dir.join("pids.max"), limits.pids.to_string())?;
        }
        if self.enabled.contains(&"cpu") && limits.cpu_milli > 0 {
            fs::write(dir.join("cpu.max"), format!("{} {CPU_PERIOD_US}", limits.quota_us()))?;
        }
        Ok(())
    }
}

/// Raises the limits of a cgroup that is in use. A file is absent where its controller is not enabled.
pub(super) fn raise(dir: &Path, limits: Limits) {
    let _ = fs::write(dir.join("memory.max"), limits.memory_bytes.to_string());
    let _ = fs::write(dir.join("pids.max"), limits.pids.to_string());
}

fn enable(dir: &Path, controller: &str) -> io::Result<()> {
    fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"))
}

/// Moves this process, with all its threads.
fn enter(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.procs"), "0")
}

/// Undoes what made room in the cgroup at `start`, where nothing needs it any more.
fn leave(start: &Path) {
    // Fails while another daemon's children have it.
    for controller in CONTROLLERS {
        let _ = fs::write(start.join("cgroup.subtree_control"), format!("-{controller}"));
    }
    let _ = enter(start);
    // Not empty: the daemon whose launcher this is has yet to leave, or another one stays.
    let _ = fs::remove_dir(start.join(LEAF));
}

/// To be called when the directory below `mount` of an instance has gone, by each process of the daemon that ends.
pub(super) fn close(mount: &Path) {
    let Some(own) = own_cgroup_with_leaf().filter(|own| own.ends_with(LEAF)) else { return };
    let start = mount.join(own.trim_end_matches(LEAF).trim_matches('/'));
    if !start.join(super::PARENT).exists() {
        leave(&start);
    }
}

/// Does it again where another daemon, which ended meanwhile, has removed what both need.
fn patiently<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    super::again(|e| e.kind() == io::ErrorKind::NotFound, work)
}

/// Why a controller cannot be turned on below `start`.
fn in_words(start: &Path, controller: &str, error: &io::Error) -> String {
    let there = fs::read_to_string(start.join("cgroup.controllers")).unwrap_or_default();
    let has = there.split_ascii_whitespace().any(|name| name == controller);
    match error.raw_os_error() {
        Some(libc::EBUSY) => format!("{error}: other processes are in {}", start.display()),
        Some(libc::ENOENT) if !has => {
            format!("{} does not have it, only: {}", start.display(), there.trim())
        }
        _ => error.to_string(),
    }
}

fn not_ours(own: &str, error: &io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("the cgroup {own} is not delegated to this user ({error})")
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), why)
}

/// The cgroup in the unified hierarchy that this process was started in.
pub(super) fn own_cgroup() -> Option<String> {
    let path = own_cgroup_with_leaf()?;
    Some(path.strip_suffix(LEAF).map_or(path.as_str(), |start| start.trim_end_matches('/')).to_owned())
}

fn own_cgroup_with_leaf() -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{self, Cgroup, CgroupJoin};

    /// Files of the kernel's are made by the writes here: what is checked is which are written where, and with what.
    #[test]
    fn limits_go_where_the_kernel_has_them() {
        let mount = tempfile::tempdir().unwrap();
        let (tree, missing) = Tree::open(mount.path(), Path::new("fanfare/i")).unwrap();
        assert_eq!((missing.len(), tree.base()), (0, mount.path().join("fanfare/i").as_path()));
        let read = |file: &str| fs::read_to_string(mount.path().join(file)).unwrap();
        for dir in [".", "fanfare", "fanfare/i"] {
            assert_eq!(read(&format!("{dir}/cgroup.subtree_control")), "+cpu", "the last of three");
        }
        let limits = Limits { memory_bytes: 1 << 20, cpu_milli: 250, pids: 7 };
        tree.create("s1", limits).unwrap();
        let of_s1 = |file: &str| read(&format!("fanfare/i/s1/{file}"));
        assert_eq!((of_s1("memory.max"), of_s1("memory.swap.max")), ("1048576".into(), "0".into()));
        assert_eq!((of_s1("pids.max"), of_s1("cpu.max")), ("7".into(), "25000 100000".into()));
        raise(&mount.path().join("fanfare/i/s1"), Limits { memory_bytes: 2 << 20, pids: 9, ..limits });
        assert_eq!((of_s1("memory.max"), of_s1("pids.max")), ("2097152".into(), "9".into()));

        let dir = mount.path().join("fanfare/i/s1");
        let cgroup = Cgroup { paths: vec![dir.clone()], tree: cgroup::Tree::V2(tree) };
        let (join, fds) = cgroup.join().unwrap();
        assert_eq!((join, fds.len()), (CgroupJoin::V2, 1));
        for (file, text) in [
            ("cgroup.procs", ""),
            ("cpu.stat", "usage_usec 1500\nuser_usec 1\n"),
            ("memory.events", "oom 3\noom_kill 2\noom_group_kill 0\n"),
            ("memory.stat", "anon 5\nkernel 100\nkernel_stack 7\nshmem 40\nslab_reclaimable 30\n"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        assert_eq!(cgroup.joining_files().unwrap().len(), 1);
        assert_eq!(cgroup.cpu_time(), Some(std::time::Duration::from_micros(1_500)));
        assert_eq!((cgroup.oom_kills(), cgroup.pinned_bytes()), (2, 40 + 100 - 30));
        cgroup.kill();
        assert_eq!(of_s1("cgroup.kill"), "1");
    }

    #[test]
    fn controllers_that_cannot_be_had_are_named() {
        let mount = tempfile::tempdir().unwrap();
        // A directory in the file's place: every write fails.
        fs::create_dir_all(mount.path().join("fanfare/i/cgroup.subtree_control")).unwrap();
        let refused = Tree::open_at(mount.path(), Path::new("fanfare/i")).unwrap_err();
        assert!(refused.to_string().contains("cgroup v2"), "{refused}");
    }

    #[test]
    fn what_was_made_in_vain_is_removed() {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir(mount.path().join("cgroup.subtree_control")).unwrap();
        Tree::open_at(mount.path(), Path::new("fanfare/i")).unwrap_err();
        assert!(!mount.path().join("fanfare").exists());
    }

    #[test]
    fn why_a_controller_is_missing_is_said() {
        let start = tempfile::tempdir().unwrap();
        fs::write(start.path().join("cgroup.controllers"), "memory pids\n").unwrap();
        let said =
            |controller, errno| in_words(start.path(), controller, &io::Error::from_raw_os_error(errno));
        assert!(
            said("cpu", libc::ENOENT).ends_with("does not have it, only: memory pids"),
            "{}",
            said("cpu", 2)
        );
        assert!(said("pids", libc::EBUSY).contains("other processes are in /"));
        assert!(said("pids", libc::EACCES).starts_with("Permission denied"));
        let refused = not_ours("/user.slice/x", &io::Error::from_raw_os_error(libc::EACCES));
        assert!(refused.to_string().starts_with("the cgroup /user.slice/x is not delegated"), "{refused}");
    }
}
