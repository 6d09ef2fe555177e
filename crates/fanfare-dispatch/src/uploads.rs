//! Requests that wait with a body that is not here to its end, by client.
//!
//! Such a request costs its client nothing: whoever sends heads alone could fill a queue and keep everybody else out of it
//! for as long as requests may wait. So one client has a share of the queue for them.

use std::collections::BTreeMap;

use fanfare_types::limits::{UPLOADS_WAITING_MIN, UPLOADS_WAITING_SHARE};

/// Who waits so. Holds no heap memory while nobody does.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    clients: BTreeMap<u64, u128>,
    counts: BTreeMap<u128, u32>,
}

/// How many one client may have, of a queue with this limit.
pub(crate) fn share(queue_limit: u32) -> u32 {
    (queue_limit / UPLOADS_WAITING_SHARE).max(UPLOADS_WAITING_MIN)
}

impl Uploads {
    /// Counts a request of a client; `false` where it has as many as it may.
    pub(crate) fn begin(&mut self, waiter: u64, client: u128, limit: u32) -> bool {
        let count = self.counts.get(&client).copied().unwrap_or_default();
        if count >= limit {
            return false;
        }
        if self.clients.insert(waiter, client).is_none() {
            self.counts.insert(client, count + 1);
        }
        true
    }

    /// It waits no more, or its body is here.
    pub(crate) fn end(&mut self, waiter: u64) {
        let Some(client) = self.clients.remove(&waiter) else { return };
        if let Some(count) = self.counts.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&client);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.counts.is_empty()
    }
}
