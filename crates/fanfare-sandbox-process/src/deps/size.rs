//! How much an untrusted directory takes on disk, while its owner may still change it.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// How deep a directory is looked into. A deeper one is none that an installer makes.
pub(crate) const DEPTH_MAX: usize = 64;
/// How many files are looked at.
const FILES_MAX: u64 = 4 << 20;

/// Bytes that a directory takes on disk, following no links, also where one takes the place of a directory meanwhile.
/// What is too deep, of too many files, or cannot be looked into has [`u64::MAX`]. Blocks.
pub(crate) fn size(dir: &Path) -> u64 {
    match open(rustix::fs::CWD, dir) {
        Ok(root) => beneath(root).unwrap_or(u64::MAX),
        Err(e) if is_gone(e) => 0,
        Err(_) => u64::MAX,
    }
}

fn open(at: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

/// Removed, or replaced by something that is no directory, since it was listed.
fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Each directory is reached from its parent's descriptor, of which so many are open as it is deep.
fn beneath(root: OwnedFd) -> Result<u64, Errno> {
    let (mut bytes, mut files) = (0_u64, 0);
    let mut open_ones = vec![Dir::new(root)?];
    while let Some(dir) = open_ones.last_mut() {
        let Some(entry) = dir.read() else {
            open_ones.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        files += 1;
        if files > FILES_MAX {
            return Err(Errno::NFILE);
        }
        let Some((size, inner)) = look(dir.fd()?, name)? else { continue };
        bytes = bytes.saturating_add(size);
        if let Some(inner) = inner {
            if open_ones.len() > DEPTH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            open_ones.push(Dir::new(inner)?);
        }
    }
    Ok(bytes)
}

/// What one entry takes, and its descriptor if it is a directory; `None` when it is gone.
fn look(parent: BorrowedFd<'_>, name: &CStr) -> Result<Option<(u64, Option<OwnedFd>)>, Errno> {
    let found = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(e) if is_gone(e) => return Ok(None),
        other => other?,
    };
    let size = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Ok(Some((size, None)));
    }
    match open(parent.as_fd(), name) {
        Ok(inner) => Ok(Some((size, Some(inner)))),
        Err(e) if is_gone(e) => Ok(Some((size, None))),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn all_depths_count_and_no_link_does() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        fs::create_dir(&large).unwrap();
        fs::write(large.join("file"), vec![1; 8 << 20]).unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        symlink(&large, tree.join("link")).unwrap();
        assert!(size(&tree) < 1 << 20, "what a link leads to is not here");
        assert_eq!(size(&tree.join("link")), 0, "a link in the place of the directory itself");
        assert_eq!(size(&dir.path().join("none")), 0);
        let deep = tree.join("d/".repeat(DEPTH_MAX));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), vec![1; 4 << 20]).unwrap();
        assert!((4 << 20..6 << 20).contains(&size(&tree)), "{}", size(&tree));
        fs::create_dir(deep.join("deeper")).unwrap();
        assert_eq!(size(&tree), u64::MAX);
    }
}
