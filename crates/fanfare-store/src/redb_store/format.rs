//! The file: where it is, who may use it, what its first page says.
//!
//! Layout, format 1: bytes 0 to 15 are [`MAGIC`], 16 to 19 the version (little endian), the rest of the first 4096
//! bytes is zero; a `redb` database follows. The page is written, and the database begun, before the file gets its
//! name: what has the name is a store, or damaged.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::note::Note;
use crate::StoreError;

/// The format that this version writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes before the database.
pub(crate) const HEADER_BYTES: u64 = 4096;
const MAGIC: &[u8; 16] = b"FANFARE-STORE\r\n\x1a";
const FILE_NAME: &str = "store.fanfare";

/// The store's file, open and ours alone.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) note: Note,
    /// Of the store, not of a draft that is made under the same lock.
    _lock: Option<Lock>,
}

/// The directory's lock, given back when this is dropped: a child that another thread is just starting has a copy of the
/// descriptor until it executes its program, and would hold it for that long.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the descriptor gives it back, too.
        let _ = self.0.unlock();
    }
}

/// Opens the file in `directory`, making both if need be, and takes the directory's lock. `begin` makes a new file's
/// database.
pub(crate) fn open(
    directory: &Path,
    begin: impl FnOnce(OpenFile) -> Result<(), StoreError>,
) -> Result<OpenFile, StoreError> {
    make_directory(directory).map_err(|error| io_error(directory, "make its directory", error))?;
    let handle = File::open(directory).map_err(|error| io_error(directory, "open its directory", error))?;
    let lock = lock(handle, directory)?;
    let handle = &lock.0;
    let path = directory.join(FILE_NAME);
    let existing = || OpenOptions::new().read(true).write(true).open(&path);
    let file = match existing() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let draft = draft(directory).map_err(|error| io_error(&path, "begin it", error))?;
            let written = draft.path.clone();
            begin(draft)?;
            publish(&written, &path, handle).map_err(|error| io_error(&path, "begin it", error))?;
            existing()
        }
        opened => opened,
    };
    let file = file.map_err(|error| io_error(&path, "open it", error))?;
    check_header(&file, &path)?;
    let note = Note::open(directory).map_err(|error| io_error(&path, "open the note beside it", error))?;
    Ok(OpenFile { file, path, note, _lock: Some(lock) })
}

/// The first page of a new file.
pub(crate) fn header() -> Vec<u8> {
    let mut page = vec![0; HEADER_BYTES as usize];
    page[..16].copy_from_slice(MAGIC);
    page[16..20].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    page
}

pub(crate) fn io_error(path: &Path, operation: &'static str, error: io::Error) -> StoreError {
    StoreError::Io { path: path.to_owned(), operation, source: Arc::new(error) }
}

/// Makes a directory and those above it, durably: what is acknowledged must not hang on a name that a power cut takes.
fn make_directory(directory: &Path) -> io::Result<()> {
    let missing: Vec<_> = directory.ancestors().take_while(|path| !path.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    for path in missing {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// A file without its name yet, with nothing but its first page. One that a crash left is written over.
fn draft(directory: &Path) -> io::Result<OpenFile> {
    let path = directory.join("store.fanfare.new");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all_at(&header(), 0)?;
    // Of a store that was here before: this one begins anew.
    let note = Note::open(directory)?;
    note.write(0)?;
    Ok(OpenFile { file, path, note, _lock: None })
}

fn publish(draft: &Path, path: &Path, handle: &File) -> io::Result<()> {
    File::open(draft)?.sync_all()?;
    std::fs::rename(draft, path)?;
    handle.sync_all()
}

fn check_header(file: &File, path: &Path) -> Result<(), StoreError> {
    let corrupt = |detail: String| Err(StoreError::Corrupt { path: path.to_owned(), detail });
    let mut page = Vec::new();
    file.take(HEADER_BYTES).read_to_end(&mut page).map_err(|error| io_error(path, "read it", error))?;
    if page.len() < HEADER_BYTES as usize {
        return corrupt(format!("it has {} bytes, less than its first page", page.len()));
    }
    if page[..16] != *MAGIC {
        return corrupt("it does not begin as a store does".to_owned());
    }
    let found = u32::from_le_bytes([page[16], page[17], page[18], page[19]]);
    if found > FORMAT_VERSION {
        return Err(StoreError::Newer { path: path.to_owned(), found, known: FORMAT_VERSION });
    }
    if found == 0 || page[20..].iter().any(|byte| *byte != 0) {
        return corrupt("its first page is damaged".to_owned());
    }
    Ok(())
}

fn lock(handle: File, directory: &Path) -> Result<Lock, StoreError> {
    match handle.try_lock() {
        Ok(()) => Ok(Lock(handle)),
        Err(TryLockError::WouldBlock) => {
            Err(StoreError::InUse { path: directory.to_owned(), pid: lock_holder(&handle) })
        }
        Err(TryLockError::Error(error)) => Err(io_error(directory, "lock its directory", error)),
    }
}

/// The process that holds the lock on this file, according to `/proc/locks` (lines such as
/// `1: FLOCK  ADVISORY  WRITE 742 fe:01:131 0 EOF`).
fn lock_holder(handle: &File) -> Option<u32> {
    let inode = handle.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let holder = locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK").skip(3);
        let (pid, file) = (words.next()?, words.next()?);
        (file.rsplit(':').next() == Some(inode.as_str())).then_some(pid)
    })?;
    // 0 stands for a process that this one may not see.
    holder.parse().ok().filter(|pid| *pid != 0)
}
