//! Archives of strangers, unpacked by root.
//!
//! Every path is taken apart and checked, never handed to the system as it came: the directories above an entry are
//! real ones made here, links cannot lead out, and only files, directories and links exist afterwards.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use fanfare_types::limits::CODE_BYTES_MAX;
use tar::{Archive, EntryType};

/// Entries of one archive, and directories made for them: those that a path passes through need no entry.
const ENTRIES_MAX: usize = 65_536;
/// Bytes of a path, and of a link's target.
const PATH_BYTES_MAX: usize = 4_096;
/// Bytes of one name in a path.
const NAME_BYTES_MAX: usize = 255;
/// Directories one within another.
const DEPTH_MAX: usize = 64;
/// Bytes of what the archive's reader says, before the end of the character that reaches it.
const SAID_BYTES_MAX: usize = 120;
/// Bytes of an entry that only describes the next one (long names, extended attributes).
const DESCRIPTION_BYTES_MAX: u64 = 64 * 1024;

/// Why an archive was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("it is not a tar archive: {}", printable(&.0.to_string()))]
    Archive(io::Error),
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
    #[error("it has more than {ENTRIES_MAX} entries")]
    TooManyEntries,
    #[error("unpacked it has more than {ENTRIES_MAX} directories")]
    TooManyDirectories,
    #[error("unpacked it has more than {CODE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the path {0:?} {1}")]
    Path(PathBuf, &'static str),
    #[error("{0:?} is {1}, which code cannot hold")]
    Kind(PathBuf, &'static str),
}

/// Unpacks `archive` into the new directory `tree`. Returns the bytes of its files.
pub(super) fn unpack(archive: &Path, tree: &Path) -> Result<u64, UnpackError> {
    let file = File::open(archive).map_err(|error| UnpackError::Io("opening it", error))?;
    check_descriptions(&file)?;
    let mut directories = 0;
    make_dir(tree, &mut directories)?;
    let mut bytes = 0;
    let mut archive = Archive::new(BufReader::new(&file));
    for (n, entry) in archive.entries().map_err(UnpackError::Archive)?.enumerate() {
        if n >= ENTRIES_MAX {
            return Err(UnpackError::TooManyEntries);
        }
        bytes += unpack_entry(entry.map_err(UnpackError::Archive)?, tree, bytes, &mut directories)?;
    }
    Ok(bytes)
}

/// Entries that describe others are read into memory: they must be small. Leaves the file at its beginning.
fn check_descriptions(mut file: &File) -> Result<(), UnpackError> {
    let mut archive = Archive::new(file);
    for (n, entry) in archive.entries_with_seek().map_err(UnpackError::Archive)?.raw(true).enumerate() {
        if n >= 3 * ENTRIES_MAX {
            return Err(UnpackError::TooManyEntries);
        }
        let entry = entry.map_err(UnpackError::Archive)?;
        let kind = entry.header().entry_type();
        let plain = kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_hard_link();
        if !plain && entry.size() > DESCRIPTION_BYTES_MAX {
            let path = PathBuf::from(format!("entry {n}"));
            return Err(UnpackError::Kind(path, "an overlong description of another entry"));
        }
    }
    io::Seek::rewind(&mut file).map_err(|error| UnpackError::Io("reading it", error))
}

fn unpack_entry<R: io::Read>(
    mut entry: tar::Entry<'_, R>,
    tree: &Path,
    so_far: u64,
    directories: &mut usize,
) -> Result<u64, UnpackError> {
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        return Ok(0);
    }
    let path = entry.path().map_err(UnpackError::Archive)?.into_owned();
    let parts = relative(&path)?;
    let Some((name, parents)) = parts.split_last() else {
        // The root itself, as `tar c .` begins: it is there already.
        return if kind.is_dir() { Ok(0) } else { Err(UnpackError::Path(path, "has no name")) };
    };
    let parent = make_parents(tree, parents, &path, directories)?;
    let place = parent.join(name);
    let io = |error| UnpackError::Io("writing its files", error);
    match kind {
        EntryType::Directory => {
            if !is_dir(&place)? {
                make_dir(&place, directories)?;
            }
            Ok(0)
        }
        EntryType::Regular | EntryType::Continuous => {
            let size = entry.size();
            if so_far + size > CODE_BYTES_MAX {
                return Err(UnpackError::TooLarge);
            }
            let executable = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
            let mode = if executable { 0o755 } else { 0o644 };
            let mut options = File::options();
            // Fails on whatever is there, links included.
            options.write(true).create_new(true).mode(mode);
            let mut file = options.open(&place).map_err(|error| taken(&path, error))?;
            let copied = io::copy(&mut io::Read::take(&mut entry, size), &mut file).map_err(io)?;
            if copied != size {
                return Err(UnpackError::Archive(io::ErrorKind::UnexpectedEof.into()));
            }
            // Whatever the umask took away.
            file.set_permissions(fs::Permissions::from_mode(mode)).map_err(io)?;
            Ok(size)
        }
        EntryType::Symlink => {
            let target = link_target(&entry, &path)?;
            check_symlink(&target, parents.len(), &path)?;
            std::os::unix::fs::symlink(&target, &place).map_err(|error| taken(&path, error))?;
            Ok(0)
        }
        EntryType::Link => {
            let target = link_target(&entry, &path)?;
            let target = existing_file(tree, &relative(&target)?, &path)?;
            fs::hard_link(target, &place).map_err(|error| taken(&path, error))?;
            Ok(0)
        }
        EntryType::Block | EntryType::Char => Err(UnpackError::Kind(path, "a device")),
        EntryType::Fifo => Err(UnpackError::Kind(path, "a named pipe")),
        EntryType::GNUSparse => Err(UnpackError::Kind(path, "a sparse file")),
        _ => Err(UnpackError::Kind(path, "of an unknown kind")),
    }
}

/// The names of a path that stays beneath its root.
fn relative(path: &Path) -> Result<Vec<PathBuf>, UnpackError> {
    let refuse = |why| Err(UnpackError::Path(path.to_path_buf(), why));
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > PATH_BYTES_MAX {
        return Err(UnpackError::Path(shortened(bytes), "is too long"));
    }
    if bytes.contains(&0) {
        return refuse("holds a zero byte");
    }
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) if name.len() > NAME_BYTES_MAX => {
                return Err(UnpackError::Path(shortened(bytes), "holds a name that is too long"));
            }
            Component::Normal(name) => parts.push(PathBuf::from(name)),
            Component::CurDir => {}
            Component::ParentDir => return refuse("leads upwards"),
            Component::RootDir | Component::Prefix(_) => return refuse("is absolute"),
        }
    }
    if parts.len() > DEPTH_MAX {
        return Err(UnpackError::Path(shortened(bytes), "is too deep"));
    }
    Ok(parts)
}

/// The beginning of what the archive's reader says, which quotes from it whatever bytes there are.
fn printable(text: &str) -> String {
    let mut printable = String::new();
    for c in text.chars() {
        let is_plain = c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
        match is_plain {
            true => printable.push(c),
            false => printable.extend(c.escape_unicode()),
        }
        if printable.len() >= SAID_BYTES_MAX {
            printable.push('…');
            break;
        }
    }
    printable
}

/// Enough of a path to find it by.
fn shortened(bytes: &[u8]) -> PathBuf {
    String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned().into()
}

/// A link may begin with `..` up to the root and go on with plain names only. Directories above a link are real ones,
/// so its beginning stays inside, and what plain names pass through is either real or such a link itself.
fn check_symlink(target: &Path, depth: usize, path: &Path) -> Result<(), UnpackError> {
    let refuse = |why| Err(UnpackError::Path(path.to_path_buf(), why));
    if target.as_os_str().len() > PATH_BYTES_MAX || target.as_os_str().is_empty() {
        return refuse("links to a path that is too long or empty");
    }
    if target.as_os_str().as_bytes().contains(&0) {
        return refuse("links to a path that holds a zero byte");
    }
    let mut up = 0;
    let mut named = false;
    for component in target.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(_) => named = true,
            Component::ParentDir if named => return refuse("links upwards from within a path"),
            Component::ParentDir => up += 1,
            Component::RootDir | Component::Prefix(_) => return refuse("links to an absolute path"),
        }
    }
    if up > depth { refuse("links out of the code") } else { Ok(()) }
}

fn link_target<R: io::Read>(entry: &tar::Entry<'_, R>, path: &Path) -> Result<PathBuf, UnpackError> {
    let target = entry.link_name().map_err(UnpackError::Archive)?;
    target.map(|target| target.into_owned()).ok_or_else(|| UnpackError::Path(path.into(), "links to nothing"))
}

/// The file that a hard link means: one unpacked before, reached through real directories.
fn existing_file(tree: &Path, parts: &[PathBuf], path: &Path) -> Result<PathBuf, UnpackError> {
    let refuse =
        || UnpackError::Path(path.to_path_buf(), "links to something that is not a file unpacked before");
    let (name, parents) = parts.split_last().ok_or_else(refuse)?;
    let mut place = tree.to_path_buf();
    for parent in parents {
        place.push(parent);
        if !is_dir(&place)? {
            return Err(refuse());
        }
    }
    place.push(name);
    let is_file = fs::symlink_metadata(&place).is_ok_and(|metadata| metadata.is_file());
    if is_file { Ok(place) } else { Err(refuse()) }
}

/// The directory for an entry. One that is there must be a directory, not a link to one.
fn make_parents(
    tree: &Path,
    parents: &[PathBuf],
    path: &Path,
    directories: &mut usize,
) -> Result<PathBuf, UnpackError> {
    let mut place = tree.to_path_buf();
    for parent in parents {
        place.push(parent);
        if is_dir(&place)? {
            continue;
        }
        if fs::symlink_metadata(&place).is_ok() {
            return Err(UnpackError::Path(path.into(), "passes through something that is not a directory"));
        }
        make_dir(&place, directories)?;
    }
    Ok(place)
}

fn is_dir(place: &Path) -> Result<bool, UnpackError> {
    match fs::symlink_metadata(place) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(UnpackError::Io("writing its files", error)),
    }
}

/// Makes one more directory.
fn make_dir(place: &Path, directories: &mut usize) -> Result<(), UnpackError> {
    if *directories >= ENTRIES_MAX {
        return Err(UnpackError::TooManyDirectories);
    }
    *directories += 1;
    let io = |error| UnpackError::Io("making its directories", error);
    DirBuilder::new().mode(0o755).create(place).map_err(io)?;
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).map_err(io)
}

fn taken(path: &Path, error: io::Error) -> UnpackError {
    match error.kind() {
        io::ErrorKind::AlreadyExists => UnpackError::Path(path.into(), "is there twice"),
        _ => UnpackError::Io("writing its files", error),
    }
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
