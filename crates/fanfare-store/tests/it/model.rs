//! Any sequence of transactions has the same outcome in both engines.

use bytes::Bytes;
use fanfare_store::{Fence, MemoryStore, Op, Precondition, RedbStore, Revision, Scan, Store, Txn};
use proptest::prelude::*;

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "b/1", "b/2", "c"]).prop_map(str::to_owned)
}

fn revision() -> impl Strategy<Value = Revision> {
    (0_u64..12).prop_map(Revision)
}

fn precondition() -> impl Strategy<Value = Precondition> {
    prop_oneof![
        key().prop_map(Precondition::Absent),
        key().prop_map(Precondition::Present),
        (key(), revision()).prop_map(|(key, revision)| Precondition::Unchanged(key, revision)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (key(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(key, value)| Op::Put(key, Bytes::from(value))),
        key().prop_map(Op::Delete),
    ]
}

fn txn() -> impl Strategy<Value = Txn> {
    let fence =
        prop::option::weighted(0.2, (key(), revision()).prop_map(|(key, revision)| Fence { key, revision }));
    (fence, prop::collection::vec(precondition(), 0..2), prop::collection::vec(op(), 0..4))
        .prop_map(|(fence, require, ops)| Txn { fence, require, ops })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn engines_agree(txns in prop::collection::vec(txn(), 1..30), reopen_after in 0_usize..30) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let memory = MemoryStore::new();
            let mut disk = RedbStore::open(directory.path()).unwrap();
            for (index, txn) in txns.into_iter().enumerate() {
                let expected = memory.commit(txn.clone()).await.map_err(|e| e.to_string());
                let found = disk.commit(txn).await.map_err(|e| e.to_string());
                prop_assert_eq!(expected, found);
                if index == reopen_after {
                    disk.close().await;
                    disk = RedbStore::open(directory.path()).unwrap();
                }
                let all = Scan { limit: 100, ..Scan::default() };
                prop_assert_eq!(memory.scan(all.clone()).await.unwrap(), disk.scan(all).await.unwrap());
            }
            Ok(())
        })?;
    }
}
