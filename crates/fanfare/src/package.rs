//! Packs a function's code into a tar archive that is the same, byte for byte, for the same files.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use fanfare_types::{CodeDigest, limits};
use sha2::{Digest, Sha256};

use crate::exit::Failure;

/// Entries in one package.
const ENTRIES_MAX: usize = 100_000;
/// Directories within directories.
const DEPTH_MAX: usize = 64;
/// Directories that are never code.
pub(crate) const SKIPPED: [&str; 2] = [".git", "__pycache__"];
/// Variables of a developer's machine, often secret: named so, or with a suffix, as `.env.local`.
const DOTENV: &str = ".env";
/// Files left out whose names are kept, to be told.
const LEFT_OUT_NAMED_MAX: usize = 5;
/// Settings, read by the CLI: not part of the code, so that changing them keeps its digest.
pub(crate) const SETTINGS_FILE: &str = "fanfare.toml";

/// Packed code, in a file without a name.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) archive: File,
    pub(crate) digest: CodeDigest,
    pub(crate) size_bytes: u64,
    pub(crate) files: usize,
    /// Files that were left out because they may hold secrets, relative to the code: the first few.
    pub(crate) left_out: Vec<String>,
}

/// Packs a directory, or one file under its own name.
///
/// # Errors
/// What cannot be read, leads outside, or is over a limit; the message names the path.
pub(crate) fn pack(path: &Path) -> Result<Package, Failure> {
    let metadata = fs::metadata(path).map_err(|e| unreadable(path, &e))?;
    let mut packer = Packer::new()?;
    if metadata.is_dir() {
        let root = path.canonicalize().map_err(|e| unreadable(path, &e))?;
        packer.directory(&root, &root, Path::new(""), 0)?;
    } else {
        let name =
            path.file_name().ok_or_else(|| Failure::usage(format!("{} has no file name", path.display())))?;
        packer.file(path, Path::new(name), &metadata)?;
    }
    packer.finish()
}

/// Packs so many bytes as a program; `from` is where they are read.
///
/// # Errors
/// As of [`pack`].
pub(crate) fn pack_program(
    from: &Path,
    name: &Path,
    size: u64,
    bytes: impl Read,
) -> Result<Package, Failure> {
    let mut packer = Packer::new()?;
    packer.files += 1;
    packer.append(from, name, header(tar::EntryType::Regular, 0o755, size), bytes)?;
    packer.finish()
}

struct Packer {
    tar: tar::Builder<Hashed>,
    entries: usize,
    files: usize,
    left_out: Vec<String>,
}

impl Packer {
    fn new() -> Result<Self, Failure> {
        let file = tempfile::tempfile()
            .map_err(|e| Failure::platform(format!("cannot make a temporary file for the package: {e}")))?;
        let out = Hashed { out: io::BufWriter::new(file), hash: Sha256::new(), written: 0 };
        Ok(Packer { tar: tar::Builder::new(out), entries: 0, files: 0, left_out: Vec::new() })
    }

    fn directory(&mut self, root: &Path, path: &Path, within: &Path, depth: usize) -> Result<(), Failure> {
        if depth > DEPTH_MAX {
            return Err(Failure::usage(format!("{} is over {DEPTH_MAX} directories deep", path.display())));
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(|e| unreadable(path, &e))? {
            names.push(entry.map_err(|e| unreadable(path, &e))?.file_name());
            self.count()?;
        }
        names.sort();
        for name in names {
            let settings = depth == 0 && name == SETTINGS_FILE;
            if settings || SKIPPED.iter().any(|skipped| name == *skipped) {
                continue;
            }
            let (from, to) = (path.join(&name), within.join(&name));
            let metadata = fs::symlink_metadata(&from).map_err(|e| unreadable(&from, &e))?;
            if metadata.is_dir() {
                self.append(&from, &to, header(tar::EntryType::Directory, 0o755, 0), io::empty())?;
                self.directory(root, &from, &to, depth + 1)?;
            } else if is_dotenv(&name) {
                if self.left_out.len() < LEFT_OUT_NAMED_MAX {
                    self.left_out.push(to.display().to_string());
                }
            } else if metadata.is_symlink() {
                self.link(root, &from, &to)?;
            } else if metadata.is_file() {
                self.file(&from, &to, &metadata)?;
            } else {
                return Err(Failure::usage(format!(
                    "{} is neither file, directory nor link",
                    from.display()
                )));
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), Failure> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(Failure::usage(format!(
                "the code has over {ENTRIES_MAX} files; the limit is {ENTRIES_MAX}"
            )));
        }
        Ok(())
    }

    fn file(&mut self, from: &Path, to: &Path, metadata: &Metadata) -> Result<(), Failure> {
        let mode = if metadata.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
        let file = File::open(from).map_err(|e| unreadable(from, &e))?;
        let size = metadata.len();
        self.files += 1;
        self.append(from, to, header(tar::EntryType::Regular, mode, size), Exact { file, left: size })
    }

    /// Keeps a link whose target is inside the code; any other would name a file that a node does not have, or has.
    fn link(&mut self, root: &Path, from: &Path, to: &Path) -> Result<(), Failure> {
        let target = fs::read_link(from).map_err(|e| unreadable(from, &e))?;
        if target.is_absolute() || !stays_inside(to, &target) || !resolves_inside(root, from) {
            let (link, target) = (from.display(), target.display());
            let what = format!("{link} is a link to {target}, which is outside the code");
            return Err(Failure::usage(what).next(
                "put what it leads to in its place, or a link that is relative and stays within the code",
            ));
        }
        self.files += 1;
        let mut header = header(tar::EntryType::Symlink, 0o777, 0);
        self.tar.append_link(&mut header, to, &target).map_err(|e| unreadable(from, &e))?;
        self.check_size()
    }

    fn append(
        &mut self,
        from: &Path,
        to: &Path,
        mut header: tar::Header,
        data: impl Read,
    ) -> Result<(), Failure> {
        self.tar.append_data(&mut header, to, data).map_err(|e| unreadable(from, &e))?;
        self.check_size()
    }

    fn check_size(&self) -> Result<(), Failure> {
        let (size, max) = (self.tar.get_ref().written, limits::CODE_BYTES_MAX);
        if size > max {
            return Err(Failure::usage(format!("the code is over {} MiB; the limit is {0} MiB", max >> 20))
                .next("leave out what the function does not need at run time"));
        }
        Ok(())
    }

    fn finish(self) -> Result<Package, Failure> {
        let write_failed = |e: io::Error| Failure::platform(format!("cannot write the package: {e}"));
        let Hashed { out, hash, written } = self.tar.into_inner().map_err(write_failed)?;
        let mut archive = out.into_inner().map_err(|e| write_failed(e.into_error()))?;
        archive.rewind().map_err(write_failed)?;
        Ok(Package {
            archive,
            digest: CodeDigest(hash.finalize().into()),
            size_bytes: written,
            files: self.files,
            left_out: self.left_out,
        })
    }
}

fn is_dotenv(name: &std::ffi::OsStr) -> bool {
    let suffix = name.to_str().and_then(|name| name.strip_prefix(DOTENV));
    suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
}

/// No owner, no time: the same files give the same bytes.
fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Whether `target`, read from the link at `link` (relative to the root), never climbs above the root.
fn stays_inside(link: &Path, target: &Path) -> bool {
    let mut depth = link.components().count().saturating_sub(1);
    for component in target.components() {
        match component {
            Component::ParentDir if depth == 0 => return false,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            _ => {}
        }
    }
    true
}

/// Whether the link, through every other link on its way, ends inside the root. A dangling one has no end.
fn resolves_inside(root: &Path, link: &Path) -> bool {
    match link.canonicalize() {
        Ok(end) => end.starts_with(root),
        Err(_) => true,
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let path: PathBuf = path.to_owned();
    Failure::usage(format!("cannot read {}: {error}", path.display()))
}

/// A file that must have exactly the length that its header states.
struct Exact {
    file: File,
    left: u64,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let want = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.file.read(&mut buffer[..want])?;
        if got == 0 && want > 0 {
            return Err(io::Error::other("it changed while it was read"));
        }
        self.left -= got as u64;
        Ok(got)
    }
}

/// Writes and hashes in one pass.
struct Hashed {
    out: io::BufWriter<File>,
    hash: Sha256,
    written: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
