//! The part of a program that is loaded when it runs. What is for debuggers alone is most of a file, and every node would
//! fetch it.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

/// An ELF header of 64 bits, little-endian: its length, and where in it is what (`elf(5)`).
const HEADER_BYTES: usize = 64;
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const PROGRAM_HEADERS_AT: usize = 0x20;
const SECTION_HEADERS_AT: usize = 0x28;
const PROGRAM_HEADER_BYTES_AT: usize = 0x36;
const PROGRAM_HEADERS_COUNT_AT: usize = 0x38;
const SECTION_HEADERS_COUNT_AT: usize = 0x3c;
const SECTION_NAMES_AT: usize = 0x3e;
/// Of one program header: its length, and where in it is where its segment is in the file.
const PROGRAM_HEADER_BYTES: usize = 56;
const SEGMENT_AT: usize = 0x08;
const SEGMENT_BYTES_AT: usize = 0x20;

/// A program's file, as much of it as is loaded.
#[derive(Debug)]
pub(crate) struct Program {
    file: File,
    header: Vec<u8>,
    size_bytes: u64,
}

impl Program {
    /// Opens it. A file of another form than the one that is known is taken whole.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let whole = file.metadata()?.len();
        let mut header = Vec::new();
        (&mut file).take(HEADER_BYTES as u64).read_to_end(&mut header)?;
        let loaded = loaded_bytes(&mut file, &header)?.filter(|loaded| *loaded < whole);
        if loaded.is_some() {
            // There are no sections any more: nobody who runs it looks for them.
            header[SECTION_HEADERS_AT..SECTION_HEADERS_AT + 8].fill(0);
            header[SECTION_HEADERS_COUNT_AT..SECTION_HEADERS_COUNT_AT + 2].fill(0);
            header[SECTION_NAMES_AT..SECTION_NAMES_AT + 2].fill(0);
        }
        Ok(Program { file, header, size_bytes: loaded.unwrap_or(whole) })
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// So many bytes.
    pub(crate) fn read(mut self) -> io::Result<impl Read> {
        let header = self.header.len() as u64;
        self.file.seek(SeekFrom::Start(header))?;
        Ok(Cursor::new(self.header).chain(self.file.take(self.size_bytes - header)))
    }
}

/// Where the last segment ends in the file; `None` if this is no such file.
fn loaded_bytes(file: &mut File, header: &[u8]) -> io::Result<Option<u64>> {
    if header.len() != HEADER_BYTES || !header.starts_with(MAGIC) {
        return Ok(None);
    }
    let (at, count) = (u64_at(header, PROGRAM_HEADERS_AT), u16_at(header, PROGRAM_HEADERS_COUNT_AT));
    if usize::from(u16_at(header, PROGRAM_HEADER_BYTES_AT)) != PROGRAM_HEADER_BYTES || count == 0 {
        return Ok(None);
    }
    let table = u64::from(count) * PROGRAM_HEADER_BYTES as u64;
    let Some(mut end) = at.checked_add(table) else { return Ok(None) };
    file.seek(SeekFrom::Start(at))?;
    let mut segments = Vec::new();
    (&mut *file).take(table).read_to_end(&mut segments)?;
    if segments.len() as u64 != table {
        return Ok(None);
    }
    for segment in segments.chunks_exact(PROGRAM_HEADER_BYTES) {
        let segment_end = u64_at(segment, SEGMENT_AT).checked_add(u64_at(segment, SEGMENT_BYTES_AT));
        let Some(segment_end) = segment_end else { return Ok(None) };
        end = end.max(segment_end);
    }
    Ok(Some(end.max(HEADER_BYTES as u64)))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let mut value = [0; 2];
    value.copy_from_slice(&bytes[at..at + 2]);
    u16::from_le_bytes(value)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn taken(path: &Path) -> Vec<u8> {
        let program = Program::open(path).unwrap();
        let size = program.size_bytes();
        let mut bytes = Vec::new();
        program.read().unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, size);
        bytes
    }

    #[test]
    fn what_is_loaded_runs_as_the_whole_does() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let less = dir.path().join("program");
        std::fs::write(&less, taken(&own)).unwrap();
        std::fs::set_permissions(&less, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(less.metadata().unwrap().len() < own.metadata().unwrap().len());
        let listed = |program: &Path| Command::new(program).arg("--list").output().unwrap();
        let (whole, less) = (listed(&own), listed(&less));
        assert!(less.status.success(), "{less:?}");
        assert_eq!(less.stdout, whole.stdout);
    }

    #[test]
    fn any_other_file_is_taken_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut header = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        header.truncate(HEADER_BYTES);
        let mut far = header.clone();
        far[PROGRAM_HEADERS_AT..PROGRAM_HEADERS_AT + 8].fill(0xff);
        let mut none = header.clone();
        none[PROGRAM_HEADERS_COUNT_AT..PROGRAM_HEADERS_COUNT_AT + 2].fill(0);
        for bytes in [&b""[..], b"#!/bin/sh\n", MAGIC, &header[..63], &header, &far, &none] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(taken(&path), bytes);
        }
    }
}
