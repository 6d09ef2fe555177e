//! What every engine must do. Each check panics with what it expected.
//!
//! An engine's test runs `(check.run)(Arc::new(fresh_subject))` for each of [`CHECKS`].
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a check speaks by panicking")]

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};

use crate::{
    Fence, KEY_BYTES_MAX, Op, Precondition, Revision, SCAN_ENTRIES_MAX, Scan, Store, StoreError, TXN_OPS_MAX,
    Txn, VALUE_BYTES_MAX,
};

/// One empty place to keep entries in.
pub trait Subject: Send + Sync + 'static {
    /// Opens it; what handles from earlier calls wrote is there. They have been closed by then.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>>;
}

/// A named check.
#[derive(Clone, Copy)]
pub struct Check {
    /// What it shows.
    pub name: &'static str,
    /// Runs it on a fresh subject.
    pub run: fn(Arc<dyn Subject>) -> BoxFuture<'static, ()>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        /// All of them.
        pub const CHECKS: &[Check] = &[$(Check { name: stringify!($name), run: |subject| Box::pin($name(subject)) },)*];
    };
}

checks![
    what_is_written_is_read,
    preconditions_are_checked_together,
    a_deposed_leaders_write_is_refused,
    operations_of_one_transaction_are_made_in_order,
    scans_are_ordered_and_paged,
    acknowledged_writes_outlive_the_handle,
    revisions_never_repeat,
    one_of_many_creators_wins,
    concurrent_increments_all_count,
    limits_are_refused_before_anything_is_changed,
    a_closed_store_refuses,
];

fn put(key: &str, value: &str) -> Op {
    Op::Put(key.to_owned(), Bytes::copy_from_slice(value.as_bytes()))
}

fn write(ops: Vec<Op>) -> Txn {
    Txn { ops, ..Txn::default() }
}

async fn value(store: &Arc<dyn Store>, key: &str) -> Option<String> {
    let entry = store.get(key.to_owned()).await.expect("a read");
    entry.map(|entry| String::from_utf8(entry.value.to_vec()).expect("text"))
}

async fn keys(store: &Arc<dyn Store>, prefix: &str) -> Vec<String> {
    let scan = Scan { prefix: prefix.to_owned(), after: None, limit: SCAN_ENTRIES_MAX };
    store.scan(scan).await.expect("a scan").entries.into_iter().map(|(key, _)| key).collect()
}

async fn what_is_written_is_read(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    assert_eq!(store.get("a".into()).await.unwrap(), None);
    let first = store.commit(write(vec![put("a", "1"), put("b", "")])).await.unwrap();
    let entry = store.get("a".into()).await.unwrap().expect("written");
    assert_eq!((&entry.value[..], entry.revision), (&b"1"[..], first.revision));
    assert_eq!(value(&store, "b").await.as_deref(), Some(""), "an empty value is a value");

    let second = store.commit(write(vec![put("a", "2"), Op::Delete("b".into())])).await.unwrap();
    assert!(second.revision > first.revision);
    assert_eq!(value(&store, "a").await.as_deref(), Some("2"));
    assert_eq!(value(&store, "b").await, None);
    store.commit(write(vec![Op::Delete("never".into())])).await.expect("deleting nothing is no error");
}

async fn preconditions_are_checked_together(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    let made = store.commit(write(vec![put("there", "0")])).await.unwrap().revision;
    let other = Revision(made.0 + 7);
    let (there, nowhere) = ("there".to_owned(), "nowhere".to_owned());
    let cases: [(&str, Vec<Precondition>, Option<usize>); 8] = [
        ("nothing required", vec![], None),
        ("present", vec![Precondition::Present(there.clone())], None),
        ("not present", vec![Precondition::Present(nowhere.clone())], Some(0)),
        ("absent", vec![Precondition::Absent(nowhere.clone())], None),
        (
            "not absent",
            vec![Precondition::Absent(nowhere.clone()), Precondition::Absent(there.clone())],
            Some(1),
        ),
        ("unchanged", vec![Precondition::Unchanged(there.clone(), made)], None),
        ("changed", vec![Precondition::Unchanged(there, other)], Some(0)),
        ("unchanged but gone", vec![Precondition::Unchanged(nowhere, made)], Some(0)),
    ];
    for (index, (name, require, refused_by)) in cases.into_iter().enumerate() {
        let key = format!("case-{index}");
        let result = store.commit(Txn { fence: None, require, ops: vec![put(&key, "1")] }).await;
        match (refused_by, result) {
            (None, Ok(_)) => assert_eq!(value(&store, &key).await.as_deref(), Some("1"), "{name}"),
            (Some(expected), Err(StoreError::Conflict { precondition })) => {
                assert_eq!(precondition, expected, "{name}");
                assert_eq!(value(&store, &key).await, None, "{name}: nothing is changed");
            }
            (_, result) => panic!("{name}: {result:?}"),
        }
    }
}

async fn a_deposed_leaders_write_is_refused(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    let lead = |require, who: &str| Txn { fence: None, require, ops: vec![put("leader", who)] };
    let first = store.commit(lead(vec![Precondition::Absent("leader".into())], "a")).await.unwrap().revision;
    let fenced = |revision, key: &str| Txn {
        fence: Some(Fence { key: "leader".into(), revision }),
        require: vec![],
        ops: vec![put(key, "x")],
    };
    store.commit(fenced(first, "by-a")).await.expect("the leader writes");
    let second = store
        .commit(lead(vec![Precondition::Unchanged("leader".into(), first)], "b"))
        .await
        .expect("a standby takes over")
        .revision;

    let late = store.commit(fenced(first, "late")).await;
    assert!(matches!(late, Err(StoreError::Deposed)), "{late:?}");
    assert_eq!(value(&store, "late").await, None);
    store.commit(fenced(second, "by-b")).await.expect("the next leader writes");
    let again = store.commit(lead(vec![Precondition::Unchanged("leader".into(), first)], "a")).await;
    assert!(matches!(again, Err(StoreError::Conflict { precondition: 0 })), "{again:?}");

    store.commit(write(vec![Op::Delete("leader".into())])).await.unwrap();
    let leaderless = store.commit(fenced(second, "late")).await;
    assert!(matches!(leaderless, Err(StoreError::Deposed)), "a missing key fences everyone: {leaderless:?}");
}

async fn operations_of_one_transaction_are_made_in_order(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    store
        .commit(write(vec![put("a", "1"), put("a", "2"), put("b", "1"), Op::Delete("b".into())]))
        .await
        .unwrap();
    assert_eq!(value(&store, "a").await.as_deref(), Some("2"));
    assert_eq!(value(&store, "b").await, None);
    store.commit(write(vec![Op::Delete("a".into()), put("a", "3")])).await.unwrap();
    assert_eq!(value(&store, "a").await.as_deref(), Some("3"));
}

async fn scans_are_ordered_and_paged(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    for key in ["f/b", "f/a", "f/a/x", "f", "f0", "g/a", "e/z", "f/ü", "f/c"] {
        store.commit(write(vec![put(key, key)])).await.unwrap();
    }
    assert_eq!(keys(&store, "f/").await, ["f/a", "f/a/x", "f/b", "f/c", "f/ü"]);
    assert_eq!(keys(&store, "").await.len(), 9);
    assert_eq!(keys(&store, "h").await, Vec::<String>::new());

    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.scan(Scan { prefix: "f/".into(), after, limit: 2 }).await.unwrap();
        assert!(page.entries.len() <= 2);
        seen.extend(page.entries.iter().map(|(key, _)| key.clone()));
        after = seen.last().cloned();
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, ["f/a", "f/a/x", "f/b", "f/c", "f/ü"]);
    let before = store.scan(Scan { prefix: "f/".into(), after: Some("a".into()), limit: 1 }).await.unwrap();
    assert_eq!(before.entries[0].0, "f/a", "a cursor before the prefix changes nothing");
    let none = store.scan(Scan { prefix: "f/".into(), after: None, limit: 0 }).await.unwrap();
    assert_eq!((none.entries.len(), none.more), (0, true));
}

async fn acknowledged_writes_outlive_the_handle(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    let writes = (0..200).map(|i| store.commit(write(vec![put(&format!("k/{i:03}"), &i.to_string())])));
    let committed: Vec<_> =
        join_all(writes).await.into_iter().map(|r| r.expect("a write").revision).collect();
    store.close().await;
    drop(store);
    let store = subject.open().await;
    for (i, revision) in committed.iter().enumerate() {
        let entry = store.get(format!("k/{i:03}")).await.unwrap().expect("an acknowledged write");
        assert_eq!((entry.value, entry.revision), (Bytes::from(i.to_string()), *revision));
    }
}

async fn revisions_never_repeat(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    store.commit(write(vec![put("a", "1")])).await.unwrap();
    let newest = store.commit(write(vec![put("b", "1")])).await.unwrap().revision;
    let deleted = store.commit(write(vec![Op::Delete("b".into())])).await.unwrap().revision;
    assert!(deleted > newest);
    store.close().await;
    drop(store);
    let store = subject.open().await;
    let again = store.commit(write(vec![put("b", "1")])).await.unwrap().revision;
    assert!(
        again > deleted,
        "{again} after {deleted}: whoever knew the old entry would take the new one for it"
    );
}

async fn one_of_many_creators_wins(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    let create = |i: usize| Txn {
        fence: None,
        require: vec![Precondition::Absent("name".into())],
        ops: vec![put("name", &i.to_string()), put(&format!("by/{i}"), "")],
    };
    let results = join_all((0..64).map(|i| store.commit(create(i)))).await;
    let won: Vec<_> = results.iter().enumerate().filter(|(_, r)| r.is_ok()).map(|(i, _)| i).collect();
    assert_eq!(won.len(), 1, "{results:?}");
    assert!(results.iter().all(|r| matches!(r, Ok(_) | Err(StoreError::Conflict { precondition: 0 }))));
    assert_eq!(value(&store, "name").await, Some(won[0].to_string()));
    assert_eq!(keys(&store, "by/").await, [format!("by/{}", won[0])]);
}

async fn concurrent_increments_all_count(subject: Arc<dyn Subject>) {
    const WRITERS: u64 = 8;
    const EACH: u64 = 25;
    let store = subject.open().await;
    store.commit(write(vec![put("count", "0")])).await.unwrap();
    let increment = |store: Arc<dyn Store>| async move {
        // Each failed attempt means that another writer succeeded, so the attempts are bounded by their number.
        let mut done = 0;
        for _ in 0..WRITERS * EACH {
            let entry = store.get("count".into()).await.unwrap().expect("the counter");
            let count: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
            let result = store
                .commit(Txn {
                    fence: None,
                    require: vec![Precondition::Unchanged("count".into(), entry.revision)],
                    ops: vec![put("count", &(count + 1).to_string())],
                })
                .await;
            match result {
                Ok(_) => done += 1,
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            if done == EACH {
                break;
            }
        }
        done
    };
    let done: u64 = join_all((0..WRITERS).map(|_| increment(store.clone()))).await.into_iter().sum();
    assert_eq!(value(&store, "count").await, Some(done.to_string()));
    assert_eq!(done, WRITERS * EACH);
}

async fn limits_are_refused_before_anything_is_changed(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    let longest_key = "k".repeat(KEY_BYTES_MAX);
    let largest = Bytes::from(vec![b'x'; VALUE_BYTES_MAX]);
    store
        .commit(write(vec![Op::Put(longest_key.clone(), largest.clone())]))
        .await
        .expect("the limits themselves");
    assert_eq!(store.get(longest_key.clone()).await.unwrap().expect("written").value, largest);

    let too_many = (0..=TXN_OPS_MAX).map(|i| put(&format!("{i}"), "")).collect();
    let cases = [
        ("a longer key", write(vec![put("a", ""), put(&format!("{longest_key}k"), "")])),
        (
            "a larger value",
            write(vec![put("a", ""), Op::Put("b".into(), vec![0; VALUE_BYTES_MAX + 1].into())]),
        ),
        ("two large values", write(vec![Op::Put("a".into(), largest.clone()), Op::Put("b".into(), largest)])),
        ("more operations", write(too_many)),
    ];
    for (name, txn) in cases {
        let result = store.commit(txn).await;
        assert!(matches!(result, Err(StoreError::TooLarge { .. })), "{name}: {result:?}");
    }
    let empty = store.commit(write(vec![put("", "")])).await;
    assert!(matches!(empty, Err(StoreError::EmptyKey)), "{empty:?}");
    assert_eq!(keys(&store, "").await, [longest_key]);
}

async fn a_closed_store_refuses(subject: Arc<dyn Subject>) {
    let store = subject.open().await;
    store.commit(write(vec![put("a", "1")])).await.unwrap();
    store.close().await;
    assert!(matches!(store.commit(write(vec![put("a", "2")])).await, Err(StoreError::Closed)));
    assert!(matches!(store.get("a".into()).await, Err(StoreError::Closed)));
    assert!(matches!(store.scan(Scan::default()).await, Err(StoreError::Closed)));
    store.close().await;
    let store = subject.open().await;
    assert_eq!(value(&store, "a").await.as_deref(), Some("1"));
}
