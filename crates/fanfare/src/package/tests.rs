use std::fs::Permissions;
use std::os::unix::fs::symlink;

use super::*;

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn entries(package: Package) -> Vec<(String, u32, String)> {
    let mut archive = tar::Archive::new(package.archive);
    let mut all = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().mtime().unwrap(), 0);
        assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0));
        let path = entry.path().unwrap().display().to_string();
        let mode = entry.header().mode().unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        all.push((path, mode, text));
    }
    all
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["b.py", "a/x.py", "a/deep/y.py", "requirements.txt"] {
        write(one.path(), name, name);
    }
    for name in ["requirements.txt", "a/deep/y.py", "b.py", "a/x.py"] {
        write(two.path(), name, name);
        fs::set_permissions(two.path().join(name), Permissions::from_mode(0o600)).unwrap();
    }
    let (one, two) = (pack(one.path()).unwrap(), pack(two.path()).unwrap());
    assert_eq!(one.digest, two.digest);
    assert_eq!(one.size_bytes, one.archive.metadata().unwrap().len());
    assert_eq!(one.files, 4);
    let mut bytes = Vec::new();
    let mut archive = one.archive;
    archive.read_to_end(&mut bytes).unwrap();
    assert_eq!(one.digest, CodeDigest(Sha256::digest(&bytes).into()));
}

#[test]
fn what_is_packed_and_what_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for name in [".git/HEAD", "__pycache__/a.pyc", "lib/__pycache__/b.pyc", "fanfare.toml"] {
        write(dir.path(), name, "no");
    }
    for name in ["main.py", "node_modules/left/index.js", "lib/fanfare.toml"] {
        write(dir.path(), name, "yes");
    }
    write(dir.path(), "run", "#!/bin/sh");
    fs::set_permissions(dir.path().join("run"), Permissions::from_mode(0o750)).unwrap();
    symlink("main.py", dir.path().join("link.py")).unwrap();
    symlink("../main.py", dir.path().join("lib/up.py")).unwrap();
    let entries = entries(pack(dir.path()).unwrap());
    let names: Vec<_> = entries.iter().map(|(name, mode, _)| format!("{name} {mode:o}")).collect();
    let expected = [
        "lib 755",
        "lib/fanfare.toml 644",
        "lib/up.py 777",
        "link.py 777",
        "main.py 644",
        "node_modules 755",
        "node_modules/left 755",
        "node_modules/left/index.js 644",
        "run 755",
    ];
    let names: Vec<_> = names.iter().map(|n| n.replace("/ ", " ")).collect();
    assert_eq!(names, expected);
}

#[test]
fn what_may_hold_secrets_stays_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in [".env", ".env.local", "lib/.env", ".environment", "a.env", "main.py"] {
        write(dir.path(), name, "A=canary");
    }
    let package = pack(dir.path()).unwrap();
    assert_eq!(package.left_out, [".env", ".env.local", "lib/.env"]);
    let packed: Vec<_> = entries(package).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(packed, [".environment", "a.env", "lib", "main.py"]);
}

#[test]
fn links_that_lead_outside_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "secret", "canary");
    let cases = ["/etc/passwd".to_owned(), "../outside".to_owned(), outside.path().display().to_string()];
    for target in cases {
        let dir = tempfile::tempdir().unwrap();
        symlink(&target, dir.path().join("link")).unwrap();
        let failure = pack(dir.path()).unwrap_err();
        assert!(failure.what.contains("outside the code") && failure.what.contains(&target), "{failure}");
    }
}

#[test]
fn one_file_is_packed_under_its_name() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "hello.py", "def handler(event, context): ...");
    write(dir.path(), "other.py", "no");
    let entries = entries(pack(&dir.path().join("hello.py")).unwrap());
    assert_eq!(entries, [("hello.py".to_owned(), 0o644, "def handler(event, context): ...".to_owned())]);
}

#[test]
fn long_names_survive() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("{}/{}.py", "d".repeat(120), "f".repeat(120));
    write(dir.path(), &name, "x");
    let entries = entries(pack(dir.path()).unwrap());
    assert!(entries.iter().any(|(path, ..)| *path == name), "{entries:?}");
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a", "12345");
    let file = File::open(dir.path().join("a")).unwrap();
    let mut text = Vec::new();
    let error = Exact { file, left: 6 }.read_to_end(&mut text).unwrap_err();
    assert!(error.to_string().contains("changed"), "{error}");
}

#[test]
fn what_is_missing_or_special_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(pack(&dir.path().join("nope")).unwrap_err().what.contains("nope"));
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("sock")).unwrap();
    assert!(pack(dir.path()).unwrap_err().what.contains("neither file, directory nor link"));
}
