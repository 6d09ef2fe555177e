//! Both engines do what every engine must.

use std::sync::Arc;

use fanfare_store::conformance::{CHECKS, Subject};
use fanfare_store::{MemoryStore, RedbStore, Store};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

struct Memory(Mutex<MemoryStore>);

impl Subject for Memory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        let mut current = self.0.lock();
        *current = current.reopen();
        let store: Arc<dyn Store> = Arc::new(current.clone());
        Box::pin(async move { store })
    }
}

struct OnDisk(tempfile::TempDir);

impl Subject for OnDisk {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        let directory = self.0.path().join("store");
        Box::pin(async move {
            let opened = tokio::task::spawn_blocking(move || RedbStore::open(&directory)).await.unwrap();
            Arc::new(opened.unwrap()) as Arc<dyn Store>
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_store_conforms() {
    for check in CHECKS {
        println!("{check:?}");
        (check.run)(Arc::new(Memory(Mutex::new(MemoryStore::new())))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redb_store_conforms() {
    for check in CHECKS {
        println!("{check:?}");
        (check.run)(Arc::new(OnDisk(tempfile::tempdir().unwrap()))).await;
    }
}
