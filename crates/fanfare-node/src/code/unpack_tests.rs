use super::*;

use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;
use tar::{Builder, Header};

enum Item<'a> {
    File(&'a str, &'a str, u32),
    Dir(&'a str),
    Link(EntryType, &'a str, &'a str),
    Other(EntryType, &'a str),
}

/// An archive with exactly these names, whatever a decent archiver would say of them.
fn archive(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for item in items {
        let (kind, path, target, data, mode) = match item {
            Item::File(path, data, mode) => (EntryType::Regular, *path, None, *data, *mode),
            Item::Dir(path) => (EntryType::Directory, *path, None, "", 0o777),
            Item::Link(kind, path, target) => (*kind, *path, Some(*target), "", 0o777),
            Item::Other(kind, path) => (*kind, *path, None, "", 0o666),
        };
        let mut header = Header::new_ustar();
        let bytes = header.as_ustar_mut().unwrap();
        bytes.name[..path.len()].copy_from_slice(path.as_bytes());
        if let Some(target) = target {
            bytes.linkname[..target.len()].copy_from_slice(target.as_bytes());
        }
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(mode);
        header.set_uid(1_000);
        header.set_gid(1_000);
        header.set_cksum();
        builder.append(&header, data.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    /// For as many files and directories as would take a disk minutes.
    fn in_memory() -> Self {
        Place(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn tree(&self) -> PathBuf {
        self.0.path().join("outer/tree")
    }

    fn unpack(&self, bytes: &[u8]) -> Result<u64, UnpackError> {
        let archive = self.0.path().join("archive.tar");
        fs::write(&archive, bytes).unwrap();
        fs::create_dir_all(self.0.path().join("outer")).unwrap();
        unpack(&archive, &self.tree())
    }

    /// Everything in the temporary directory that is not in the tree.
    fn outside(&self) -> Vec<PathBuf> {
        let mut outside = Vec::new();
        for dir in [self.0.path().to_path_buf(), self.0.path().join("outer")] {
            for entry in fs::read_dir(dir).unwrap() {
                outside.push(entry.unwrap().path());
            }
        }
        outside.sort();
        outside
    }
}

#[test]
fn ordinary_code_is_unpacked_for_root_alone() {
    let place = Place::new();
    let bytes = place
        .unpack(&archive(&[
            Item::Dir("./"),
            Item::File("./hello.py", "print()", 0o666),
            Item::File("bin/run", "#!/bin/sh\n", 0o6777),
            Item::Dir("bin"),
            Item::Link(EntryType::Symlink, "bin/again", "../hello.py"),
            Item::Link(EntryType::Symlink, "lib", "bin/."),
            Item::Link(EntryType::Link, "twin", "bin/run"),
        ]))
        .unwrap();
    assert_eq!(bytes, 17);
    let mode = |path: &str| fs::symlink_metadata(place.tree().join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("hello.py"), mode("bin/run"), mode("bin"), mode("")), (0o644, 0o755, 0o755, 0o755));
    let own = fs::metadata(place.0.path()).unwrap().uid();
    assert_eq!(fs::metadata(place.tree().join("hello.py")).unwrap().uid(), own, "not the archive's owner");
    assert_eq!(fs::read_to_string(place.tree().join("bin/again")).unwrap(), "print()");
    assert_eq!(fs::read_to_string(place.tree().join("lib/run")).unwrap(), "#!/bin/sh\n");
    assert_eq!(fs::read_to_string(place.tree().join("twin")).unwrap(), "#!/bin/sh\n");
}

#[test]
fn attacks_are_refused_and_touch_nothing() {
    use EntryType as E;
    use Item::{Dir, File, Link, Other};
    let long = "x".repeat(99);
    let deep = "d/".repeat(DEPTH_MAX - 20) + "f";
    let cases: Vec<(&str, Vec<Item<'_>>)> = vec![
        ("absolute", vec![File("/outer/evil", "x", 0o644)]),
        ("upwards", vec![File("../evil", "x", 0o644)]),
        ("upwards inside", vec![File("a/../../evil", "x", 0o644)]),
        ("upwards directory", vec![Dir("../evil")]),
        ("absolute link", vec![Link(E::Symlink, "a", "/etc/passwd")]),
        ("link out", vec![Link(E::Symlink, "a", "../evil")]),
        ("link out of a directory", vec![Link(E::Symlink, "d/a", "../../evil")]),
        ("link that turns", vec![Link(E::Symlink, "a", "b/../../evil")]),
        (
            "link through a link",
            vec![Link(E::Symlink, "a/b/c/up", "../../.."), Link(E::Symlink, "y", "a/b/c/up/../evil")],
        ),
        ("empty link", vec![Link(E::Symlink, "a", "")]),
        ("write through a link", vec![Link(E::Symlink, "a", "."), File("a/evil", "x", 0o644)]),
        ("write onto a link", vec![Link(E::Symlink, "a", "b"), File("a", "x", 0o644)]),
        ("directory onto a link", vec![Link(E::Symlink, "a", "."), Dir("a")]),
        ("hard link out", vec![Link(E::Link, "a", "../archive.tar")]),
        ("absolute hard link", vec![Link(E::Link, "a", "/etc/passwd")]),
        ("hard link to a link", vec![Link(E::Symlink, "a", "b"), Link(E::Link, "c", "a")]),
        (
            "hard link through a link",
            vec![File("d/f", "x", 0o644), Link(E::Symlink, "a", "d"), Link(E::Link, "c", "a/f")],
        ),
        ("hard link to nothing", vec![Link(E::Link, "a", "b")]),
        ("character device", vec![Other(E::Char, "null")]),
        ("block device", vec![Other(E::Block, "sda")]),
        ("named pipe", vec![Other(E::Fifo, "pipe")]),
        ("sparse file", vec![Other(E::GNUSparse, "sparse")]),
        ("unknown kind", vec![Other(E::new(b'Z'), "what")]),
        ("twice", vec![File("a", "x", 0o644), File("a", "y", 0o644)]),
        ("a file as a directory", vec![File("a", "x", 0o644), File("a/b", "y", 0o644)]),
        ("a nameless file", vec![File("./", "x", 0o644)]),
    ];
    for (what, items) in &cases {
        let place = Place::new();
        fs::create_dir_all(place.0.path().join("outer")).unwrap();
        fs::write(place.0.path().join("archive.tar"), "").unwrap();
        let before = place.outside();
        let refused = place.unpack(&archive(items));
        assert!(refused.is_err(), "{what}");
        let mut after = place.outside();
        after.retain(|path| *path != place.tree());
        assert_eq!(after, before, "{what}");
    }
    // The same with names of the largest sizes is no attack.
    let place = Place::new();
    assert!(deep.len() < 100);
    place.unpack(&archive(&[File(&long, "x", 0o644), File(&deep, "y", 0o644)])).unwrap();
}

#[test]
fn long_paths_are_bounded() {
    let with_path = |path: &str| {
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, &b""[..]).unwrap();
        builder.into_inner().unwrap()
    };
    let name = "n".repeat(NAME_BYTES_MAX);
    Place::new().unpack(&with_path(&format!("{name}/{name}/{name}"))).unwrap();
    let too_deep = vec!["d"; DEPTH_MAX + 1].join("/");
    let too_long = vec!["p".repeat(200); 30].join("/");
    for path in [format!("{name}n"), too_deep, too_long, "x".repeat(100_000)] {
        let error = Place::new().unpack(&with_path(&path)).unwrap_err();
        assert!(error.to_string().len() < 300, "{error}");
    }
}

#[test]
fn sizes_that_lie_are_refused() {
    let mut bytes = archive(&[Item::File("a", "0123456789", 0o644)]);
    bytes.truncate(512 + 5);
    assert!(Place::new().unpack(&bytes).is_err());

    let mut header = Header::new_ustar();
    header.set_path("a").unwrap();
    header.set_size(CODE_BYTES_MAX + 1);
    header.set_cksum();
    assert!(Place::new().unpack(header.as_bytes()).is_err());
}

#[test]
fn many_entries_are_bounded() {
    let header = &archive(&[Item::Other(EntryType::XGlobalHeader, "pax_global_header")])[..512];
    let place = Place::new();
    assert!(matches!(place.unpack(&header.repeat(ENTRIES_MAX + 1)), Err(UnpackError::TooManyEntries)));
    assert_eq!(Place::new().unpack(&header.repeat(10)).unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whatever_an_archive_says_nothing_appears_outside(
        items in prop::collection::vec((0_usize..5, "[a-c./]{1,12}", "[a-c./]{0,12}"), 1..8),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let items: Vec<_> = items.iter().map(|(kind, path, target)| match kind {
            0 => Item::File(path, target, 0o644),
            1 => Item::Dir(path),
            2 => Item::Link(EntryType::Symlink, path, target),
            3 => Item::Link(EntryType::Link, path, target),
            _ => Item::File(path, "", 0o755),
        }).collect();
        let mut bytes = archive(&items);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let place = Place::new();
        fs::create_dir_all(place.0.path().join("outer")).unwrap();
        fs::write(place.0.path().join("archive.tar"), "").unwrap();
        let before = place.outside();
        let _ = place.unpack(&bytes);
        let mut after = place.outside();
        after.retain(|path| *path != place.tree());
        prop_assert_eq!(after, before);
        // And every link that came to be leads nowhere else, through however many others.
        let root = place.tree();
        let Ok(root) = root.canonicalize() else { return Ok(()) };
        let mut pending = vec![root.clone()];
        while let Some(dir) = pending.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    pending.push(entry.path());
                } else if let Ok(real) = entry.path().canonicalize() {
                    prop_assert!(real.starts_with(&root), "{} leads to {}", entry.path().display(), real.display());
                }
            }
        }
    }
}

#[test]
fn paths_do_not_multiply_into_directories_without_end() {
    // Of entries alone a hundredth of what is allowed.
    let path = |n: usize| format!("{n:x}{}/f", "/d".repeat(40));
    let paths: Vec<String> = (0..ENTRIES_MAX / 40).map(path).collect();
    let items: Vec<Item<'_>> = paths.iter().map(|path| Item::File(path, "", 0o644)).collect();
    let place = Place::in_memory();
    assert!(matches!(place.unpack(&archive(&items)), Err(UnpackError::TooManyDirectories)));
}
