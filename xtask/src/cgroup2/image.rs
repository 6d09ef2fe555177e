//! What the guest boots with: a read-only disk of this machine's Python, Node.js and shell, and the few modules that are
//! needed to mount it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::kernel::Kernel;
use crate::root;

/// Packages that the guest has, with all that they depend on.
const PACKAGES: &[&str] = &[
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "dash",
    "diffutils",
    "findutils",
    "grep",
    "iproute2",
    "libc-bin",
    "mount",
    "nodejs",
    "npm",
    "procps",
    "python3",
    "python3-pip",
    "sed",
    "util-linux",
];
/// What of them the guest does not need.
const LEFT_OUT: &[&str] =
    &["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/include"];
/// What installing them has made.
const MADE: &[&str] =
    &["etc/ld.so.cache", "etc/alternatives", "etc/passwd", "etc/group", "usr/bin/sh", "usr/lib/node_modules"];
/// Modules by which the disk is mounted, each after those that it needs. A kernel may have any of them built in.
const MODULES: &[&str] = &[
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "squashfs",
];

/// Makes the disk, with `work` beside the packages' files.
pub(super) fn disk(dir: &Path) -> Result<PathBuf, String> {
    let list = dir.join("files");
    let mut text = files()?.into_iter().collect::<Vec<_>>().join("\n");
    text.push('\n');
    fs::write(&list, text).map_err(|e| format!("{}: {e}", list.display()))?;
    let disk = dir.join("disk");
    let mut tar = Command::new("tar")
        .args([
            "--create",
            "--file",
            "-",
            "--directory",
            "/",
            "--no-recursion",
            "--verbatim-files-from",
            "--files-from",
        ])
        .arg(&list)
        .arg("--recursion")
        .arg("--directory")
        .arg(dir)
        .arg("work")
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("tar: {error}"))?;
    let archive = tar.stdout.take().ok_or("tar has no output")?;
    // Uncompressed: an emulated processor is slower than any disk.
    let made = Command::new("sqfstar")
        .args(["-noI", "-noD", "-noF", "-noX", "-quiet", "-no-progress"])
        .arg(&disk)
        .stdin(archive)
        .status();
    let packed = tar.wait().map_err(|error| format!("tar: {error}"))?;
    let made = made.map_err(|error| format!("sqfstar: {error}"))?;
    match packed.success() && made.success() {
        true => Ok(disk),
        false => Err(format!("the guest's disk could not be made: tar {packed}, sqfstar {made}")),
    }
}

/// Files of the packages, below the root, by the names that they have without links.
fn files() -> Result<BTreeSet<String>, String> {
    let mut depends = Command::new("apt-cache");
    depends.args(["depends", "--recurse", "--important", "--installed"]).args(PACKAGES);
    let packages: BTreeSet<String> = output(&mut depends)?
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphanumeric()))
        .map(str::to_owned)
        .collect();
    let installed =
        Command::new("dpkg-query").arg("--listfiles").args(&packages).stderr(Stdio::null()).output();
    // It fails where one of them is virtual, and lists the others.
    let installed = installed.map_err(|error| format!("dpkg-query: {error}"))?;
    let text = String::from_utf8_lossy(&installed.stdout).into_owned();
    let mut files: BTreeSet<String> = text.lines().filter_map(|line| real(Path::new(line))).collect();
    for made in MADE {
        with_all_below(&Path::new("/").join(made), &mut files);
    }
    Ok(files)
}

/// The name of a file with no link on the way to it; `None` where it is not there, or not for the guest.
fn real(path: &Path) -> Option<String> {
    fs::symlink_metadata(path).ok()?;
    let parent = path.parent()?.canonicalize().ok()?;
    let name = parent.join(path.file_name()?).strip_prefix("/").ok()?.to_str()?.to_owned();
    let wanted = ["usr", "etc"].iter().any(|top| Path::new(&name).starts_with(top));
    let left_out = LEFT_OUT.iter().any(|dir| Path::new(&name).starts_with(dir));
    (wanted && !left_out).then_some(name)
}

fn with_all_below(path: &Path, files: &mut BTreeSet<String>) {
    files.extend(real(path));
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) {
        let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
        entries.for_each(|entry| with_all_below(&entry.path(), files));
    }
}

/// Makes the first file system: busybox, the modules, and the script that mounts the disk.
pub(super) fn initrd(dir: &Path, kernel: &Kernel) -> Result<PathBuf, String> {
    let staged = dir.join("initrd.d");
    let at = |e: std::io::Error| format!("{}: {e}", staged.display());
    for name in ["bin", "dev", "proc", "sys", "new", "modules"] {
        fs::create_dir_all(staged.join(name)).map_err(at)?;
    }
    fs::copy("/bin/busybox", staged.join("bin/busybox")).map_err(at)?;
    let init = staged.join("init");
    fs::copy(root().join("xtask/cgroup2/init.sh"), &init).map_err(at)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(at)?;
    let mut names = String::new();
    for name in MODULES {
        let Some(path) = module(&kernel.modules, name) else { continue };
        let plain = match path.extension().is_some_and(|e| e == "xz") {
            true => {
                Command::new("xz").args(["--decompress", "--stdout"]).arg(&path).output().map_err(at)?.stdout
            }
            false => fs::read(&path).map_err(at)?,
        };
        fs::write(staged.join("modules").join(name), plain).map_err(at)?;
        names.push_str(name);
        names.push('\n');
    }
    fs::write(staged.join("modules/order"), names).map_err(at)?;
    let mut find = Command::new("find");
    let listed = output(find.arg(".").current_dir(&staged))?;
    let archive = dir.join("initrd");
    let mut cpio = Command::new("/bin/busybox")
        .args(["cpio", "-o", "-H", "newc"])
        .current_dir(&staged)
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&archive).map_err(at)?)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("busybox: {error}"))?;
    // Dropped here, which ends the list.
    cpio.stdin.take().ok_or("cpio takes no list")?.write_all(listed.as_bytes()).map_err(at)?;
    match cpio.wait().map_err(at)? {
        status if status.success() => Ok(archive),
        status => Err(format!("cpio ended with {status}")),
    }
}

/// The file of a module, which may be compressed.
fn module(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.filter_map(Result::ok);
    for path in entries.map(|entry| entry.path()) {
        let found = match path.is_dir() {
            true => module(&path, name),
            false => {
                let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
                [".ko", ".ko.xz"].iter().any(|end| file.strip_suffix(end) == Some(name)).then_some(path)
            }
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

fn output(command: &mut Command) -> Result<String, String> {
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?} ended with {}", output.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_without_links_and_what_is_not_there_is_left_out() {
        let shell = real(Path::new("/bin/sh")).unwrap();
        assert!(shell == "usr/bin/sh", "{shell}");
        for no in ["/usr/no/such/file", "/usr/share/doc/bash/copyright", "/var/lib", "/"] {
            assert_eq!(real(Path::new(no)), None, "{no}");
        }
    }
}
