//! One write, to its end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_store::{Fence, Op, Precondition, Revision, Store, StoreError, Txn};

use crate::limits::{REREAD_BACKOFF_MAX, REREAD_BACKOFF_MIN};

/// Writes a value (`None` removes the key) over what was there `before`.
///
/// Nobody else writes these keys in this term. So where it is not known whether a write was made, the key is read again
/// until that is known, and written again if it was not: for as long as the store takes, and the term lasts.
///
/// # Errors
/// [`StoreError::Deposed`], [`StoreError::Closed`], or one that says that nothing was written and never will be.
pub(crate) async fn write(
    store: Arc<dyn Store>,
    fence: Fence,
    key: String,
    mut before: Option<Revision>,
    value: Option<Bytes>,
) -> Result<Revision, StoreError> {
    let mut pause = REREAD_BACKOFF_MIN;
    loop {
        let require = match before {
            Some(revision) => Precondition::Unchanged(key.clone(), revision),
            None => Precondition::Absent(key.clone()),
        };
        let op = match &value {
            Some(value) => Op::Put(key.clone(), value.clone()),
            None => Op::Delete(key.clone()),
        };
        let txn = Txn { fence: Some(fence.clone()), require: vec![require], ops: vec![op] };
        match store.commit(txn).await {
            Ok(committed) => return Ok(committed.revision),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => tracing::warn!(%error, key, "it could not be written; reading it again"),
        }
        tokio::time::sleep(pause).await;
        pause = Duration::min(pause * 2, REREAD_BACKOFF_MAX);
        match store.get(key.clone()).await {
            Ok(found) if found.as_ref().map(|entry| &entry.value) == value.as_ref() => {
                return Ok(found.map(|entry| entry.revision).unwrap_or_default());
            }
            Ok(found) => before = found.map(|entry| entry.revision),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => tracing::warn!(%error, key, "it cannot be read again yet"),
        }
    }
}

fn is_final(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Deposed | StoreError::Closed | StoreError::TooLarge { .. } | StoreError::EmptyKey
    )
}
