//! The note beside the file: how far it had come when it was last said to be durable.
//!
//! The database survives a crash by going back to the state before, should the newest not be whole. A damaged page looks
//! the same to it, and would take back what was acknowledged. The note tells the two apart: it is written after a commit
//! is durable, not synced, and never ahead of it, so a crash may leave it behind but not wrong.
//!
//! Layout: the revision (8 bytes, little endian), then its complement. What does not fit together says nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Its name beside the store's file.
pub(crate) const FILE_NAME: &str = "store.fanfare.acknowledged";

#[derive(Debug)]
pub(crate) struct Note(File);

impl Note {
    /// Opens the note in a store's directory, making it if need be.
    pub(crate) fn open(directory: &Path) -> io::Result<Note> {
        let path = directory.join(FILE_NAME);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(Note(file))
    }

    /// The revision; 0 where none was noted.
    pub(crate) fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; 16];
        match self.0.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(decode(bytes).unwrap_or(0)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write(&self, revision: u64) -> io::Result<()> {
        self.0.write_all_at(&encode(revision), 0)
    }
}

fn encode(revision: u64) -> [u8; 16] {
    (u128::from(revision) | u128::from(!revision) << 64).to_le_bytes()
}

fn decode(bytes: [u8; 16]) -> Option<u64> {
    let both = u128::from_le_bytes(bytes);
    let (revision, complement) = (both as u64, (both >> 64) as u64);
    (revision == !complement).then_some(revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_together_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let note = Note::open(directory.path()).unwrap();
        assert_eq!(note.read().unwrap(), 0);
        for revision in [1, 7, u64::MAX - 1] {
            note.write(revision).unwrap();
            assert_eq!(Note::open(directory.path()).unwrap().read().unwrap(), revision);
        }
        for damage in [vec![0; 16], vec![9; 16], vec![1], Vec::new()] {
            std::fs::write(directory.path().join(FILE_NAME), &damage).unwrap();
            assert_eq!(Note::open(directory.path()).unwrap().read().unwrap(), 0, "{damage:?}");
        }
    }
}
