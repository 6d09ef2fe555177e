//! Who leads: one key of the store, taken by compare-and-swap.

use bytes::Bytes;
use fanfare_store::{Fence, Op, Precondition, Store, StoreError, Txn};
use fanfare_types::Epoch;
use serde::{Deserialize, Serialize};

use crate::ControlPlaneError;
use crate::limits::LEADER_ATTEMPTS_MAX;

const KEY: &str = "leader";

/// A term, and what every write of it is conditioned on.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    pub(crate) epoch: Epoch,
    pub(crate) fence: Fence,
}

#[derive(Serialize, Deserialize)]
struct Leader {
    name: String,
    epoch: u64,
}

/// Begins a new term, durably: its epoch is newer than any before it in this store.
pub(crate) async fn take(store: &dyn Store, name: &str) -> Result<Term, ControlPlaneError> {
    for _ in 0..LEADER_ATTEMPTS_MAX {
        let found = store.get(KEY.to_owned()).await?;
        let (before, precondition) = match found {
            None => (0, Precondition::Absent(KEY.to_owned())),
            Some(entry) => {
                (parse(&entry.value)?.epoch, Precondition::Unchanged(KEY.to_owned(), entry.revision))
            }
        };
        let leader = Leader { name: name.to_owned(), epoch: before + 1 };
        let value = serde_json::to_vec(&leader).map_err(|e| unreadable(&e))?;
        let txn = Txn {
            fence: None,
            require: vec![precondition],
            ops: vec![Op::Put(KEY.to_owned(), Bytes::from(value))],
        };
        match store.commit(txn).await {
            Ok(committed) => {
                let fence = Fence { key: KEY.to_owned(), revision: committed.revision };
                return Ok(Term { epoch: Epoch(leader.epoch), fence });
            }
            // Somebody else was faster.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ControlPlaneError::Deposed)
}

fn parse(value: &[u8]) -> Result<Leader, ControlPlaneError> {
    serde_json::from_slice(value).map_err(|e| unreadable(&e))
}

fn unreadable(error: &serde_json::Error) -> ControlPlaneError {
    ControlPlaneError::Entry { key: KEY.to_owned(), detail: error.to_string() }
}

#[cfg(test)]
mod tests {
    use fanfare_store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn each_term_is_newer_and_ends_the_one_before() {
        let store = MemoryStore::new();
        let first = take(&store, "a").await.unwrap();
        let second = take(&store, "b").await.unwrap();
        assert_eq!((first.epoch, second.epoch), (Epoch(1), Epoch(2)));
        let write = |term: &Term| Txn { fence: Some(term.fence.clone()), ..Txn::default() };
        assert!(matches!(store.commit(write(&first)).await, Err(StoreError::Deposed)));
        store.commit(write(&second)).await.unwrap();
    }

    #[tokio::test]
    async fn an_entry_that_is_not_a_leader_stops_the_start() {
        let store = MemoryStore::new();
        let ops = vec![Op::Put(KEY.to_owned(), Bytes::from_static(b"?"))];
        store.commit(Txn { ops, ..Txn::default() }).await.unwrap();
        let error = take(&store, "a").await.unwrap_err();
        assert!(error.to_string().starts_with("the store's entry leader cannot be read"), "{error}");
    }
}
