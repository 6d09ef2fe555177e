//! What exists in the runtime's name: one small file per owner, written before anything is made and removed after
//! everything is gone.
//!
//! The directory belongs on a file system in memory; nothing is synced, because what it describes does not survive
//! the machine either.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::procfs;

/// Bytes of one entry that are read back.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// Kinds of things that are owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A process: `PID START_TIME` (the latter from `/proc/PID/stat`, so that a reused number is not taken for it).
    Process,
    /// A cgroup directory.
    Cgroup,
    /// A socket.
    Socket,
    /// A directory or file.
    File,
}

impl Kind {
    /// As in the journal and in [`fanfare_sandbox::Orphan::kind`].
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Process => "process",
            Kind::Cgroup => "cgroup",
            Kind::Socket => "socket",
            Kind::File => "file",
        }
    }

    fn parse(name: &str) -> Option<Kind> {
        [Kind::Process, Kind::Cgroup, Kind::Socket, Kind::File].into_iter().find(|k| k.name() == name)
    }
}

/// Something owned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Item {
    /// Kind.
    pub(crate) kind: Kind,
    /// Path, or process.
    pub(crate) what: String,
}

impl Item {
    /// A path.
    pub(crate) fn path(kind: Kind, path: &Path) -> Self {
        Item { kind, what: path.to_string_lossy().into_owned() }
    }
}

/// The journal of one run directory.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
}

impl Journal {
    /// The journal in a run directory.
    pub(crate) fn new(run_dir: &Path) -> Self {
        Journal { dir: run_dir.join("journal") }
    }

    /// Says that `owner` is about to make these. Fails when the owner has an entry already.
    pub(crate) fn begin(&self, owner: &str, items: &[Item]) -> io::Result<()> {
        let mut text = String::new();
        for item in items {
            let _ = writeln!(text, "{} {}", item.kind.name(), item.what);
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(self.dir.join(owner))?;
        file.write_all(text.as_bytes())
    }

    /// Adds a process to an entry.
    pub(crate) fn add_process(&self, owner: &str, pid: i32) -> io::Result<()> {
        let start = procfs::stat(pid).map(|stat| stat.start_time).unwrap_or_default();
        let mut file = fs::OpenOptions::new().append(true).open(self.dir.join(owner))?;
        file.write_all(format!("process {pid} {start}\n").as_bytes())
    }

    /// Says that nothing of `owner` is left.
    pub(crate) fn end(&self, owner: &str) -> io::Result<()> {
        match fs::remove_file(self.dir.join(owner)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// All entries. Lines that cannot be understood (a write cut short by a crash) are left out: what they would
    /// have named was not yet made.
    pub(crate) fn entries(&self) -> io::Result<Vec<(String, Vec<Item>)>> {
        let dir = match fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut entries = Vec::new();
        for entry in dir {
            let entry = entry?;
            let mut text = match fs::read(entry.path()) {
                Ok(text) => text,
                // Ended between the listing and now.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            text.truncate(ENTRY_BYTES_MAX);
            let text = String::from_utf8_lossy(&text).into_owned();
            let items = text.split_inclusive('\n').filter_map(parse_line).collect();
            entries.push((entry.file_name().to_string_lossy().into_owned(), items));
        }
        entries.sort();
        Ok(entries)
    }
}

fn parse_line(line: &str) -> Option<Item> {
    let (kind, what) = line.strip_suffix('\n')?.split_once(' ')?;
    Some(Item { kind: Kind::parse(kind)?, what: what.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_back_until_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path());
        assert_eq!(journal.entries().unwrap(), []);
        fs::create_dir(dir.path().join("journal")).unwrap();
        let items = [
            Item { kind: Kind::Cgroup, what: "/c/a b".into() },
            Item { kind: Kind::Socket, what: "/s".into() },
        ];
        journal.begin("s1", &items).unwrap();
        assert_eq!(journal.begin("s1", &items).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let me = i32::try_from(std::process::id()).unwrap();
        journal.add_process("s1", me).unwrap();
        let entries = journal.entries().unwrap();
        assert_eq!(entries[0].0, "s1");
        assert_eq!(entries[0].1[..2], items);
        assert_eq!(entries[0].1[2].what, format!("{me} {}", procfs::stat(me).unwrap().start_time));
        journal.end("s1").unwrap();
        journal.end("s1").unwrap();
        assert_eq!(journal.entries().unwrap(), []);
    }

    #[test]
    fn a_line_cut_short_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::new(dir.path());
        fs::create_dir(dir.path().join("journal")).unwrap();
        fs::write(dir.path().join("journal/s2"), "socket /a\ncgroup /b").unwrap();
        assert_eq!(journal.entries().unwrap()[0].1, [Item { kind: Kind::Socket, what: "/a".into() }]);
    }
}
