//! The root directory of every sandbox: assembled once in the launcher's mount namespace, copied with it into each
//! sandbox, where code, `/tmp` and `/proc` are added.
//!
//! The root is a small read-only file system in memory with binds of the host's `/usr` (and of `/bin`, `/lib*`,
//! `/sbin` where these are no links into it), device nodes that hold nothing, and an `/etc` made of what programs
//! need to start: no users, keys, mounts or services of the host.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, makedev, mknodat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use crate::launcher::protocol::{Bind, Powers};
use crate::sys;

/// Where a sandbox finds its code.
pub(crate) const FUNCTION_DIR: &str = "/function";
/// Where a sandbox finds installed dependencies.
pub(crate) const DEPS_DIR: &str = "/deps";
/// Where a sandbox finds installed JavaScript modules.
pub(crate) const MODULES_DIR: &str = "/node_modules";
/// Where a sandbox finds the language shims.
pub(crate) const SHIM_DIR: &str = "/shim";
/// Where a build writes.
pub(crate) const OUT_DIR: &str = "/out";

/// Where a build finds a local directory of packages.
pub(crate) const WHEELS_DIR: &str = "/wheels";

/// Directories in memory that each sandbox has for itself.
pub(crate) const PRIVATE_DIRS: [&str; 2] = ["/tmp", "/dev/shm"];

/// Device nodes: name and minor number; the major number of all is 1.
const DEVICES: [(&str, u32); 5] = [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)];
/// Largest file of the host's `/etc` that is copied.
const ETC_FILE_BYTES_MAX: u64 = 4 << 20;
/// Largest directory of the host's `/etc` that is copied, in files.
const ETC_FILES_MAX: usize = 64;
/// Size of the template's own file system.
const TEMPLATE_OPTIONS: &str = "mode=0755,size=16m,nr_inodes=1024";
/// Size of `/dev/shm`; its pages count against the sandbox's memory.
pub(crate) const SHM_BYTES: u64 = 16 << 20;
/// The kernel takes a size of 0 for "no limit".
const TMP_BYTES_MIN: u64 = 4096;
/// Files in a sandbox's `/tmp`. An inode takes about a kilobyte of kernel memory.
const TMP_INODES: u64 = 32_768;

/// Bytes of all secrets and configuration files of a node.
const GIVEN_BYTES: u64 = 1 << 30;
/// Files and directories of them.
const GIVEN_INODES: u64 = 1 << 20;

/// Copied from the host where present.
const ETC_FILES: [&str; 7] =
    ["ld.so.cache", "localtime", "mime.types", "services", "protocols", "ssl/openssl.cnf", "gai.conf"];
const PASSWD: &str = "root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n";

fn at<T>(what: &str, path: &Path, result: Result<T, impl Into<io::Error>>) -> io::Result<T> {
    result.map_err(|e| {
        let e: io::Error = e.into();
        io::Error::new(e.kind(), format!("{what} {}: {e}", path.display()))
    })
}

/// Builds the template at `root`, an existing directory. Mounts are made in the caller's mount namespace, which must
/// be private.
pub(crate) fn build(root: &Path) -> io::Result<Powers> {
    let options = c_string(TEMPLATE_OPTIONS)?;
    at(
        "mount a file system on",
        root,
        rustix::mount::mount("fanfare", root, "tmpfs", MountFlags::NOSUID, options.as_c_str()),
    )?;
    for dir in [
        "usr",
        "function",
        "deps",
        "node_modules",
        "shim",
        "out",
        "wheels",
        "tmp",
        "proc",
        "dev/shm",
        "etc/ssl",
        "run/secrets",
        "run/config",
        "var",
    ] {
        let path = root.join(dir);
        at("make", &path, fs::create_dir_all(&path))?;
    }
    symlink("/tmp", root.join("var/tmp"))?;
    system_directories(root)?;
    let devices_bound = devices(root)?;
    let certificates = etc(root)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
    at("make read-only", root, rustix::mount::mount_remount(root, flags, c""))?;
    Ok(Powers { devices_bound, certificates, landlock: sys::landlock_version() })
}

fn c_string(text: &str) -> io::Result<std::ffi::CString> {
    std::ffi::CString::new(text).map_err(io::Error::other)
}

fn system_directories(root: &Path) -> io::Result<()> {
    bind(&Path::new("/usr").canonicalize()?, &root.join("usr"))?;
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let host = Path::new("/").join(name);
        let inside = root.join(name);
        match fs::symlink_metadata(&host) {
            Ok(meta) if meta.is_symlink() => symlink(fs::read_link(&host)?, &inside)?,
            Ok(meta) if meta.is_dir() => {
                fs::create_dir(&inside)?;
                bind(&host, &inside)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes device nodes, or binds the host's where the kernel forbids making them (in a user namespace); then says why.
fn devices(root: &Path) -> io::Result<Option<String>> {
    let dev = root.join("dev");
    let mut why = None;
    for (name, minor) in DEVICES {
        let node = dev.join(name);
        let mode = Mode::from_raw_mode(0o666);
        let made = match why {
            None => mknodat(rustix::fs::CWD, &node, FileType::CharacterDevice, mode, makedev(1, minor)),
            Some(_) => Err(rustix::io::Errno::PERM),
        };
        match made {
            Ok(()) => fs::set_permissions(&node, fs::Permissions::from_mode(0o666))?,
            Err(e) => {
                why = Some(format!("mknod: {e}"));
                fs::write(&node, "")?;
                at("bind", &node, rustix::mount::mount_bind(Path::new("/dev").join(name), &node))?;
            }
        }
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, dev.join(name))?;
    }
    Ok(why)
}

/// Fills `/etc`; returns whether there are certificates.
fn etc(root: &Path) -> io::Result<bool> {
    let (host, etc) = (Path::new("/etc"), root.join("etc"));
    for (name, text) in [("passwd", PASSWD), ("group", GROUP), ("hosts", HOSTS), ("nsswitch.conf", NSSWITCH)]
    {
        fs::write(etc.join(name), text)?;
    }
    // Empty; an installation's sandbox has the host's settings for pip in this place.
    for name in ["resolv.conf", "pip.conf"] {
        fs::write(etc.join(name), "")?;
    }
    for name in ETC_FILES {
        copy_file(&host.join(name), &etc.join(name))?;
    }
    for entry in fs::read_dir(host)?.filter_map(Result::ok) {
        let name = entry.file_name();
        if name.to_str().is_some_and(|n| n.starts_with("python3")) && entry.path().is_dir() {
            copy_directory(&entry.path(), &etc.join(&name))?;
        }
    }
    let mut certificates = false;
    for (name, holds_certificates) in [("ssl/certs", true), ("alternatives", false)] {
        // What it leads to, where the host has a link there.
        let Ok(from) = host.join(name).canonicalize() else { continue };
        if from.is_dir() {
            let to = etc.join(name);
            fs::create_dir_all(&to)?;
            bind(&from, &to)?;
            certificates |= holds_certificates;
        }
    }
    Ok(certificates)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    match fs::metadata(from) {
        Ok(meta) if meta.is_file() && meta.len() <= ETC_FILE_BYTES_MAX => {
            at("copy", from, fs::copy(from, to))?;
            fs::set_permissions(to, fs::Permissions::from_mode(0o644))
        }
        _ => Ok(()),
    }
}

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?.filter_map(Result::ok).take(ETC_FILES_MAX) {
        copy_file(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// [`show`] with words for an error.
fn bind(from: &Path, to: &Path) -> io::Result<()> {
    at("bind", from, show(from, to, false))
}

/// Shows `from` at `to`, without set-user-id programs and device nodes, and read-only unless `writable`. `from` must not
/// be a link: whoever could put one there would choose what of the host is shown.
fn show(from: &Path, to: &Path, writable: bool) -> rustix::io::Result<()> {
    attach(from, to)?;
    let access = if writable { MountFlags::empty() } else { MountFlags::RDONLY };
    let flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | access;
    match rustix::mount::mount_remount(to, flags, c"") {
        // In a user namespace the host's own flags are locked, and must be repeated: these are the common ones.
        Err(rustix::io::Errno::PERM) => {
            let locked = flags | MountFlags::NOEXEC | MountFlags::RELATIME;
            rustix::mount::mount_remount(to, locked, c"")
        }
        other => other,
    }
}

fn attach(from: &Path, to: &Path) -> rustix::io::Result<()> {
    let copy = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = rustix::mount::open_tree(rustix::fs::CWD, from, copy)?;
    // The same that will be shown: nothing can change what the descriptor means.
    if FileType::from_raw_mode(rustix::fs::fstat(&tree)?.st_mode) == FileType::Symlink {
        return Err(rustix::io::Errno::LOOP);
    }
    let by_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&tree, c"", rustix::fs::CWD, to, by_descriptor)
}

/// Makes a file system in memory that is mounted nowhere yet.
pub(crate) fn make_tmp(bytes: u64, uid: Option<u32>) -> rustix::io::Result<OwnedFd> {
    let making = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| rustix::mount::fsconfig_set_string(making.as_fd(), key, value);
    set("mode", "0700")?;
    set("size", &bytes.max(TMP_BYTES_MIN).to_string())?;
    set("nr_inodes", &TMP_INODES.to_string())?;
    if let Some(id) = uid.map(|id| id.to_string()) {
        set("uid", &id)?;
        set("gid", &id)?;
    }
    rustix::mount::fsconfig_create(making.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(making.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Mounts a file system in memory.
fn mount_tmp(path: &Path, bytes: u64, uid: Option<u32>) -> rustix::io::Result<()> {
    let owner = uid.map(|id| format!(",uid={id},gid={id}")).unwrap_or_default();
    let bytes = bytes.max(TMP_BYTES_MIN);
    let options = c_string(&format!("mode=0700,size={bytes},nr_inodes={TMP_INODES}{owner}"))
        .map_err(|_| rustix::io::Errno::INVAL)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmp", path, "tmpfs", flags, options.as_c_str())
}

/// Mounts the file system for what revisions are given, and opens it. Its pages are not written to swap where the kernel
/// can keep them from it (Linux 6.4).
pub(crate) fn mount_given(path: &Path) -> io::Result<OwnedFd> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mount = |more: &str| {
        let options = c_string(&format!("mode=0700,size={GIVEN_BYTES},nr_inodes={GIVEN_INODES}{more}"))?;
        rustix::mount::mount("given", path, "tmpfs", flags, options.as_c_str()).map_err(io::Error::from)
    };
    at("mount a file system on", path, mount(",noswap").or_else(|_| mount("")))?;
    let open = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    at("open", path, rustix::fs::open(path, open, Mode::empty()))
}

/// Where the pieces of one sandbox go, relative to the template.
#[derive(Debug)]
pub(crate) struct Layout<'a> {
    root: &'a Path,
}

impl<'a> Layout<'a> {
    /// In this template, as seen in the caller's own copy of the mount namespace.
    pub(crate) fn new(root: &'a Path) -> Self {
        Layout { root }
    }

    fn inside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Shows code and other directories.
    pub(crate) fn binds(&self, binds: &[Bind]) -> rustix::io::Result<()> {
        binds.iter().try_for_each(|b| show(Path::new(&b.from), &self.inside(&b.to), b.writable))
    }

    /// Gives it `/tmp` and `/dev/shm`.
    pub(crate) fn tmp(&self, bytes: u64, uid: Option<u32>) -> rustix::io::Result<()> {
        let mount = |dir: &str, bytes| mount_tmp(&self.inside(dir), bytes, uid);
        PRIVATE_DIRS.into_iter().zip([bytes, SHM_BYTES]).try_for_each(|(dir, bytes)| mount(dir, bytes))
    }

    /// Gives it `/proc`, in which users see only processes of their own.
    pub(crate) fn proc(&self) -> rustix::io::Result<()> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("proc", self.inside("/proc"), "proc", flags, c"hidepid=invisible")
    }

    /// Makes the template the root and lets go of everything else.
    pub(crate) fn enter(&self) -> rustix::io::Result<()> {
        rustix::process::chdir(self.root)?;
        // Both at the same place: the old root ends up mounted over the new one, and is then detached.
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    }
}
