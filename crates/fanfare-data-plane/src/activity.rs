//! What one connection is used for.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Counts the requests of one connection.
#[derive(Default)]
pub(crate) struct Activity {
    /// Requests that began or ended.
    changes: Cell<u64>,
    under_way: Cell<u32>,
}

impl Activity {
    pub(crate) fn begin(self: &Rc<Self>) -> UnderWay {
        self.changes.set(self.changes.get() + 1);
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(self.clone())
    }

    /// Whether it has no request.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.under_way.get() == 0
    }

    /// A number that is another one after every request.
    pub(crate) fn done(&self) -> u64 {
        self.changes.get()
    }

    /// Resolves when there has been no request for `limit` (and at most twice that).
    pub(crate) async fn rests(&self, limit: Duration) {
        loop {
            let changes = self.changes.get();
            tokio::time::sleep(limit).await;
            if self.under_way.get() == 0 && self.changes.get() == changes {
                return;
            }
        }
    }
}

/// A request that is under way.
pub(crate) struct UnderWay(Rc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.changes.set(self.0.changes.get() + 1);
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}
