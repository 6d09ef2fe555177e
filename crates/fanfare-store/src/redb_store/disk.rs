//! The few file operations that the store needs, so that tests can lose power or fill the disk.

use std::fmt;
use std::io;
use std::os::unix::fs::FileExt;

use super::format::OpenFile;

/// Bytes that can be read, written and made durable.
pub(crate) trait Disk: fmt::Debug + Send + Sync + 'static {
    fn len(&self) -> io::Result<u64>;
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    /// The newest revision that was said to be durable, as far as that was noted.
    fn acknowledged(&self) -> io::Result<u64>;
    /// Notes that a revision is durable. The note need not be: it is never ahead of what is, whatever is lost.
    fn acknowledge(&self, revision: u64) -> io::Result<()>;
}

/// The real file; holds the directory's lock for as long as it lives.
#[derive(Debug)]
pub(crate) struct FileDisk {
    file: OpenFile,
}

impl FileDisk {
    pub(crate) fn new(file: OpenFile) -> Self {
        FileDisk { file }
    }
}

impl Disk for FileDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.file.read_exact_at(out, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.file.write_all_at(data, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.file.sync_data()
    }

    fn acknowledged(&self) -> io::Result<u64> {
        self.file.note.read()
    }

    fn acknowledge(&self, revision: u64) -> io::Result<()> {
        self.file.note.write(revision)
    }
}
