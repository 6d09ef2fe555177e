//! The file system of a bare sandbox: one template, to which each adds code, `/tmp`, `/dev/shm` and `/proc`.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, makedev, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};

use super::clone;

/// Where the code is inside.
pub(super) const CODE_DIR: &str = "/function";
const DEVICES: [(&str, u32); 5] = [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)];

/// Everything a sandbox mounts, its strings allocated ahead.
#[derive(Debug)]
pub(super) struct Root {
    root: PathBuf,
    code: PathBuf,
    places: [PathBuf; 4],
    tmp_options: [CString; 2],
}

/// Builds the template below `dir` in a mount namespace of this process's own.
pub(super) fn build(dir: &Path, code: &Path, uid: u32) -> io::Result<Root> {
    clone::unshare(libc::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let root = dir.join("root");
    fs::create_dir(&root)?;
    mount("bench", &root, "tmpfs", MountFlags::NOSUID, c"mode=0755,size=16m")?;
    for name in ["usr", "function", "tmp", "proc", "dev/shm", "etc"] {
        fs::create_dir_all(root.join(name))?;
    }
    bind(Path::new("/usr"), &root.join("usr"))?;
    for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
        let host = Path::new("/").join(name);
        match fs::symlink_metadata(&host) {
            Ok(meta) if meta.is_symlink() => symlink(fs::read_link(&host)?, root.join(name))?,
            Ok(meta) if meta.is_dir() => {
                fs::create_dir(root.join(name))?;
                bind(&host, &root.join(name))?;
            }
            _ => {}
        }
    }
    for (name, minor) in DEVICES {
        let node = root.join("dev").join(name);
        mknodat(
            rustix::fs::CWD,
            &node,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            makedev(1, minor),
        )?;
    }
    fs::copy("/etc/ld.so.cache", root.join("etc/ld.so.cache"))?;
    mount_remount(&root, MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID, c"")?;
    let options = |bytes: u32| {
        CString::new(format!("mode=0700,size={bytes},nr_inodes=32768,uid={uid},gid={uid}"))
            .map_err(io::Error::other)
    };
    Ok(Root {
        places: ["function", "tmp", "dev/shm", "proc"].map(|name| root.join(name)),
        root,
        code: code.to_owned(),
        tmp_options: [options(64 << 20)?, options(16 << 20)?],
    })
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount_bind(from, to)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount_remount(to, flags, c"")?)
}

impl Root {
    /// In the new process: mounts what is its own and makes the template its root.
    pub(super) fn enter(&self) -> io::Result<()> {
        let [function, tmp, shm, proc] = &self.places;
        bind(&self.code, function)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmp", tmp, "tmpfs", flags, self.tmp_options[0].as_c_str())?;
        mount("tmp", shm, "tmpfs", flags, self.tmp_options[1].as_c_str())?;
        mount("proc", proc, "proc", flags | MountFlags::NOEXEC, c"hidepid=invisible")?;
        rustix::process::chdir(&self.root)?;
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        Ok(rustix::process::chdir(CODE_DIR)?)
    }
}
