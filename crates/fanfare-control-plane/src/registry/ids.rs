//! Numbers that are given out once, over all restarts.

use fanfare_store::{Fence, Revision, Store, StoreError, Txn};

use super::entry::{NEXT_ID, put_number, read_number, unchanged};
use crate::ControlPlaneError;
use crate::limits::ID_BLOCK;

/// Ids that are reserved durably and not yet given out, and the counter behind them.
#[derive(Debug)]
pub(super) struct Ids {
    next: u32,
    end: u32,
    stored: Option<Revision>,
}

impl Ids {
    /// Nothing reserved yet; begins where the counter stands.
    pub(super) async fn load(store: &dyn Store) -> Result<Ids, ControlPlaneError> {
        let (next, stored) = match store.get(NEXT_ID.to_owned()).await? {
            None => (1, None),
            Some(entry) => (read_number(NEXT_ID, &entry)?, Some(entry.revision)),
        };
        Ok(Ids { next, end: next, stored })
    }

    /// An id that was never given out. Reserves the next block, durably, when the last one is used up.
    pub(super) async fn take(&mut self, store: &dyn Store, fence: &Fence) -> Result<u32, StoreError> {
        if self.next == self.end {
            self.reserve(store, fence).await?;
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    async fn reserve(&mut self, store: &dyn Store, fence: &Fence) -> Result<(), StoreError> {
        let end = self.end.checked_add(ID_BLOCK).ok_or(StoreError::TooLarge {
            what: "ids were given out",
            value: self.end as usize,
            limit: u32::MAX as usize,
        })?;
        let require = vec![unchanged(NEXT_ID.to_owned(), self.stored)];
        let ops = vec![put_number(NEXT_ID.to_owned(), end)];
        match store.commit(Txn { fence: Some(fence.clone()), require, ops }).await {
            Ok(committed) => {
                (self.end, self.stored) = (end, Some(committed.revision));
                Ok(())
            }
            Err(error @ (StoreError::Io { .. } | StoreError::Conflict { .. })) => {
                // Perhaps it was written: whatever is there now is where the next attempt begins.
                if let Ok(Some(entry)) = store.get(NEXT_ID.to_owned()).await
                    && let Ok(found) = read_number(NEXT_ID, &entry)
                {
                    *self = Ids { next: found, end: found, stored: Some(entry.revision) };
                }
                Err(error)
            }
            Err(error) => Err(error),
        }
    }
}
