//! The file: who may open it, what is refused, what it is made with.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use fanfare_store::{FORMAT_VERSION, Op, RedbStore, Store, StoreError, Txn};

const FILE: &str = "store.fanfare";

#[tokio::test]
async fn a_store_has_one_process_and_says_which() {
    let directory = tempfile::tempdir().unwrap();
    let store = RedbStore::open(directory.path()).unwrap();
    match RedbStore::open(directory.path()) {
        Err(error @ StoreError::InUse { pid, .. }) => {
            assert_eq!(pid, Some(std::process::id()));
            assert!(
                error.to_string().contains(&format!("in use by process {}", std::process::id())),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    store.close().await;
    RedbStore::open(directory.path()).expect("free again").close().await;
}

#[tokio::test]
async fn only_its_owner_may_read_it() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("deep").join("store");
    let store = RedbStore::open(&directory).unwrap();
    assert_eq!(std::fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    assert_eq!(std::fs::metadata(directory.join(FILE)).unwrap().mode() & 0o777, 0o600);
    store.close().await;
}

#[tokio::test]
async fn a_file_has_its_name_only_once_it_is_a_store() {
    let directory = tempfile::tempdir().unwrap();
    // What a first start leaves that ended in the middle, wherever that was.
    std::fs::write(directory.path().join("store.fanfare.new"), vec![7; 10_000]).unwrap();
    let store = RedbStore::open(directory.path()).unwrap();
    // As the directory is at any moment from the file's first on: copied, it opens.
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(directory.path().join(FILE), copy.path().join(FILE)).unwrap();
    let length = std::fs::metadata(copy.path().join(FILE)).unwrap().len();
    assert!(length > 4096, "{length} bytes are no database");
    assert!(!directory.path().join("store.fanfare.new").exists());
    RedbStore::open(copy.path()).unwrap().close().await;
    store.close().await;
}

async fn written(directory: &Path) {
    let store = RedbStore::open(directory).unwrap();
    let ops = vec![Op::Put("key".into(), "value".into())];
    store.commit(Txn { ops, ..Txn::default() }).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn what_is_not_ours_or_newer_is_refused_untouched() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage, &str); 6] = [
        ("newer", |file| patch(file, 16, &(FORMAT_VERSION + 1).to_le_bytes()), "has format 2"),
        ("no format", |file| patch(file, 16, &[0; 4]), "first page is damaged"),
        ("another file", |file| patch(file, 0, b"SQLite format 3\0"), "does not begin as a store does"),
        ("a stray byte", |file| patch(file, 4000, &[1]), "first page is damaged"),
        ("empty", |file| std::fs::write(file, b"").unwrap(), "it has 0 bytes"),
        ("zeroed", |file| patch(file, 4096, &[0; 20_000]), "is damaged"),
    ];
    for (name, damage, message) in cases {
        let directory = tempfile::tempdir().unwrap();
        written(directory.path()).await;
        let file = directory.path().join(FILE);
        damage(&file);
        let before = std::fs::read(&file).unwrap();
        let error = RedbStore::open(directory.path()).expect_err(name);
        assert!(matches!(error, StoreError::Corrupt { .. } | StoreError::Newer { .. }), "{name}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(message) && text.contains(&file.display().to_string()), "{name}: {text}");
        assert!(text.contains("left as it is"), "{name}: {text}");
        assert_eq!(std::fs::read(&file).unwrap(), before, "{name}");
    }
}

#[tokio::test]
async fn a_damaged_page_takes_back_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let store = RedbStore::open(directory.path()).unwrap();
    let keys: Vec<String> = (0..20).map(|i| format!("key-{i}")).collect();
    for key in &keys {
        let ops = vec![Op::Put(key.clone(), vec![7; 2_000].into())];
        store.commit(Txn { ops, ..Txn::default() }).await.unwrap();
    }
    // As `kill -9` leaves them.
    let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> =
        names.map(|name| (name.clone(), std::fs::read(directory.path().join(name)).unwrap())).collect();
    store.close().await;
    let (_, whole) = left.iter().find(|(name, _)| *name == FILE).unwrap();
    let mut for_going_back = 0;
    for page in (1..whole.len() / 4_096).filter(|page| whole[page * 4_096..][..4_096] != [0; 4_096]) {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in &left {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        }
        let file = directory.path().join(FILE);
        patch(&file, page as u64 * 4_096, &[0xa5; 4_096]);
        let before = std::fs::read(&file).unwrap();
        match RedbStore::open(directory.path()) {
            Ok(store) => {
                for key in &keys {
                    let found = store.get(key.clone()).await.unwrap();
                    assert!(found.is_some(), "{key} is gone with page {page}");
                }
                store.close().await;
            }
            Err(error) => {
                assert!(matches!(error, StoreError::Corrupt { .. }), "page {page}: {error:?}");
                assert_eq!(std::fs::read(&file).unwrap(), before, "page {page}");
                for_going_back += usize::from(error.to_string().contains("acknowledged"));
            }
        }
    }
    assert!(for_going_back > 0, "no page would have the database go back");
}

fn patch(file: &Path, offset: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(file).unwrap().write_all_at(bytes, offset).unwrap();
}
