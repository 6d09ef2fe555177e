//! Archives of strangers: nothing of them is ever outside the directory that they are unpacked into.

#![no_main]

use std::fs;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|archive: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, tree, beside) = (dir.path().join("a"), dir.path().join("tree"), dir.path().join("b"));
    fs::write(&file, archive).expect("a file");
    fs::write(&beside, "untouched").expect("a file");
    if let Some(bytes) = fanfare_node::fuzz::code_archive(&file, &tree) {
        assert!(bytes <= archive.len() as u64, "no file can be larger than the archive");
        inspect(&tree, &tree);
    }
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).expect("it is there").flatten().map(|e| e.file_name()).collect();
    names.retain(|name| !["a", "b", "tree"].iter().any(|own| name == own));
    assert!(names.is_empty(), "{names:?}");
    assert_eq!(fs::read(&beside).expect("it is there"), b"untouched");
});

/// Only directories, files, and links that stay inside.
fn inspect(dir: &Path, tree: &Path) {
    for entry in fs::read_dir(dir).expect("a directory that was just made").flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
        if kind.is_dir() {
            inspect(&path, tree);
        } else if kind.is_symlink() {
            // A link may lead nowhere; if it leads somewhere, that is inside.
            if let Ok(end) = path.canonicalize() {
                assert!(end.starts_with(tree.canonicalize().expect("it is there")), "{path:?} -> {end:?}");
            }
        } else {
            assert!(kind.is_file(), "{path:?}");
        }
    }
}
