//! What lies between the database and the disk: our header's offset, and writes that are held back while opening.
//!
//! Opening a database writes to it (a flag that it is open, repairs after a crash). Those writes stay in memory until
//! the open has succeeded, so that a file we cannot read is never changed.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redb::{BackendError, StorageBackend};

use super::disk::Disk;
use super::format::HEADER_BYTES;

/// Bytes of writes that an open may hold back. A repair rewrites little: the roots and the free-page map.
const HELD_BACK_BYTES_MAX: usize = 256 << 20;
const PAGE: u64 = 4096;

/// The database's view of the disk.
#[derive(Clone, Debug)]
pub(crate) struct Backend(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    disk: Arc<dyn Disk>,
    holding: AtomicBool,
    held: Mutex<Held>,
}

/// Writes not yet on the disk.
#[derive(Debug, Default)]
struct Held {
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    len: u64,
    /// The shortest it has been: what the disk has beyond this was cut off and is zeros.
    intact: u64,
}

impl Backend {
    /// Reads from `disk` and holds every write back until [`Backend::release`].
    pub(crate) fn holding(disk: Arc<dyn Disk>) -> io::Result<Backend> {
        let len = disk.len()?.saturating_sub(HEADER_BYTES);
        let held = Mutex::new(Held { pages: BTreeMap::new(), len, intact: len });
        Ok(Backend(Arc::new(Inner { disk, holding: AtomicBool::new(true), held })))
    }

    /// Makes the writes held back durable; from now on writes go through.
    pub(crate) fn release(&self) -> io::Result<()> {
        let inner = &*self.0;
        let held = std::mem::take(&mut *inner.held.lock());
        for len in [held.intact, held.len] {
            if inner.disk.len()? != len + HEADER_BYTES {
                inner.disk.set_len(len + HEADER_BYTES)?;
            }
        }
        for (index, page) in &held.pages {
            let offset = index * PAGE;
            let end = PAGE.min(held.len.saturating_sub(offset));
            inner.disk.write(offset + HEADER_BYTES, &page[..usize::try_from(end).unwrap_or(0)])?;
        }
        inner.disk.sync()?;
        inner.holding.store(false, Ordering::Release);
        Ok(())
    }
}

impl Inner {
    fn is_holding(&self) -> bool {
        self.holding.load(Ordering::Acquire)
    }

    fn page_from_disk(&self, index: u64, intact: u64) -> io::Result<Box<[u8; PAGE as usize]>> {
        let mut page = Box::new([0; PAGE as usize]);
        let offset = index * PAGE;
        let there = usize::try_from(intact.saturating_sub(offset).min(PAGE)).unwrap_or(0);
        if there > 0 {
            self.disk.read(offset + HEADER_BYTES, &mut page[..there])?;
        }
        Ok(page)
    }

    /// Calls `each(page, range in the page, range in the buffer)` for every page that a range of bytes touches.
    fn for_pages(
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let begin = usize::try_from(at % PAGE).map_err(io::Error::other)?;
            let count = (PAGE as usize - begin).min(len - done);
            each(at / PAGE, begin..begin + count, done..done + count)?;
            done += count;
        }
        Ok(())
    }

    fn read_held(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let held = self.held.lock();
        if offset + out.len() as u64 > held.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Inner::for_pages(offset, out.len(), |page, within, buffer| {
            match held.pages.get(&page) {
                Some(bytes) => out[buffer].copy_from_slice(&bytes[within]),
                None => out[buffer].copy_from_slice(&self.page_from_disk(page, held.intact)?[within]),
            }
            Ok(())
        })
    }

    fn write_held(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let held = &mut *self.held.lock();
        if (held.pages.len() + data.len() / PAGE as usize + 2) * PAGE as usize > HELD_BACK_BYTES_MAX {
            return Err(io::Error::other("opening it would rewrite too much of it"));
        }
        held.len = held.len.max(offset + data.len() as u64);
        let (pages, intact) = (&mut held.pages, held.intact);
        Inner::for_pages(offset, data.len(), |page, within, buffer| {
            let bytes = match pages.entry(page) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(self.page_from_disk(page, intact)?)
                }
            };
            bytes[within].copy_from_slice(&data[buffer]);
            Ok(())
        })
    }

    fn set_len_held(&self, len: u64) {
        let held = &mut *self.held.lock();
        if len < held.len {
            // What is cut off must read as zeros if the length grows again.
            held.pages.split_off(&len.div_ceil(PAGE));
            if let Some(last) = held.pages.get_mut(&(len / PAGE)) {
                last[usize::try_from(len % PAGE).unwrap_or(0)..].fill(0);
            }
        }
        held.len = len;
        held.intact = held.intact.min(len);
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        if self.0.is_holding() {
            Ok(self.0.held.lock().len)
        } else {
            Ok(self.0.disk.len()?.saturating_sub(HEADER_BYTES))
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.0.is_holding() {
            self.0.read_held(offset, out)
        } else {
            self.0.disk.read(offset + HEADER_BYTES, out)
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.0.is_holding() {
            self.0.set_len_held(len);
            return Ok(());
        }
        self.0.disk.set_len(len + HEADER_BYTES)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.0.is_holding() { Ok(()) } else { self.0.disk.sync() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.0.is_holding() {
            self.0.write_held(offset, data)
        } else {
            self.0.disk.write(offset + HEADER_BYTES, data)
        }
    }

    // The directory's lock makes this process the only one.
    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn try_lock_shared_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::SimDisk;
    use super::*;

    #[test]
    fn held_writes_read_back_and_reach_the_disk_only_when_released() {
        let disk = SimDisk::default();
        disk.write(0, &vec![7; HEADER_BYTES as usize + 6000]).unwrap();
        let before = disk.volatile();
        let backend = Backend::holding(Arc::new(disk.clone())).unwrap();

        backend.set_len(20_000).unwrap();
        backend.write(5_990, &[9; 20]).unwrap();
        backend.write(8_190, &[8; 4]).unwrap();
        let mut out = [0; 40];
        backend.read(5_980, &mut out).unwrap();
        assert_eq!(out[..10], [7; 10]);
        assert_eq!(out[10..30], [9; 20]);
        assert_eq!(out[30..], [0; 10]);
        assert!(backend.read(19_999, &mut [0; 2]).is_err(), "past the end");
        assert_eq!(disk.volatile(), before, "the disk is untouched");

        // Cut and grown again: zeros.
        backend.set_len(8_191).unwrap();
        backend.set_len(9_000).unwrap();
        backend.read(8_190, &mut out[..4]).unwrap();
        assert_eq!(out[..4], [8, 0, 0, 0]);

        backend.release().unwrap();
        assert_eq!(disk.durable().len() as u64, HEADER_BYTES + 9_000);
        backend.read(5_980, &mut out).unwrap();
        assert_eq!(out[10..30], [9; 20]);
    }

    #[test]
    fn a_cut_below_the_disks_length_reads_as_zeros() {
        let disk = SimDisk::default();
        disk.write(0, &vec![7; HEADER_BYTES as usize + 10_000]).unwrap();
        let backend = Backend::holding(Arc::new(disk)).unwrap();
        backend.set_len(100).unwrap();
        backend.set_len(9_000).unwrap();
        let mut out = [1; 10];
        backend.read(95, &mut out).unwrap();
        assert_eq!(out, [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
    }
}
