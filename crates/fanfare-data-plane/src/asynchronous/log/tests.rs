//! Failures of the store, and what they leave.

use super::*;
use fanfare_store::{Committed, Entry, MemoryStore, Page};
use futures_util::future::BoxFuture;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fails one transaction, and takes those after it.
#[derive(Debug)]
struct Flaky {
    inner: MemoryStore,
    fail_in: AtomicUsize,
}

impl Store for Flaky {
    fn commit(&self, txn: Txn) -> BoxFuture<'static, Result<Committed, StoreError>> {
        if self.fail_in.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Box::pin(std::future::ready(Err(StoreError::Closed)));
        }
        self.inner.commit(txn)
    }

    fn get(&self, key: String) -> BoxFuture<'static, Result<Option<Entry>, StoreError>> {
        self.inner.get(key)
    }

    fn scan(&self, scan: Scan) -> BoxFuture<'static, Result<Page, StoreError>> {
        self.inner.scan(scan)
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.inner.close()
    }
}

fn unit(key: &str) -> Unit {
    // Each fills a transaction.
    Unit { ops: vec![Op::Put(key.to_owned(), Bytes::from(vec![7; TXN_BYTES]))], bytes: TXN_BYTES }
}

#[tokio::test]
async fn a_transaction_that_fails_takes_those_after_it_along() {
    let inner = MemoryStore::new();
    let flaky = Arc::new(Flaky { inner: inner.clone(), fail_in: AtomicUsize::new(usize::MAX) });
    let (mut log, loaded) = Log::load(flaky.clone()).await.unwrap();
    let clock = Clock { at: Timestamp::from_secs(9), sequence: 5 };
    log.commit(vec![unit("z/1"), unit("z/2")], clock).await.unwrap();
    flaky.fail_in.store(2, Ordering::Relaxed);
    let failed = log.commit(vec![unit("z/3"), unit("z/4"), unit("z/5")], clock).await;
    assert!(failed.is_err());
    let late = log.commit(vec![unit("z/6")], clock).await;
    assert!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
    let keys = |prefix: &str| {
        let scan = Scan { prefix: prefix.to_owned(), after: None, limit: 99 };
        let inner = inner.clone();
        async move { inner.scan(scan).await.unwrap().entries.into_iter().map(|(key, _)| key).collect::<Vec<_>>() }
    };
    assert_eq!(keys("z/").await, ["z/1", "z/2", "z/3"], "what came before the failure, and nothing after");
    assert_eq!(keys("chain/").await, [chain_key(3)]);
    assert_eq!(loaded.clock.sequence, 1);
    // Read again, it goes on from there.
    let (mut log, loaded) = Log::load(flaky).await.unwrap();
    assert_eq!((loaded.clock.at, loaded.clock.sequence), (clock.at, 5));
    log.commit(vec![unit("z/7")], clock).await.unwrap();
    assert_eq!(keys("z/").await.last().unwrap(), "z/7");
}

#[tokio::test]
async fn what_a_crash_left_of_bodies_is_removed() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (mut log, _) = Log::load(store.clone()).await.unwrap();
    let put = |key: String| Unit { ops: vec![Op::Put(key, Bytes::from_static(b"x"))], bytes: 1 };
    let clock = Clock { at: Timestamp::ZERO, sequence: 1 };
    let orphans = (0..40).map(|chunk| put(Kind::Payload.key(1, chunk))).collect();
    log.commit(orphans, clock).await.unwrap();
    Log::load(store.clone()).await.unwrap();
    let scan = Scan { prefix: "p/".to_owned(), after: None, limit: 99 };
    assert!(store.scan(scan).await.unwrap().entries.is_empty());
}
