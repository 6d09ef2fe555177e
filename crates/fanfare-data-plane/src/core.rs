//! One thread that serves requests, with all that belongs to it alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use fanfare_policy::{Rng, seeded};
use tokio_util::task::TaskTracker;

use crate::crowd::Crowd;
use crate::deadlines::Deadlines;
use crate::peers::PeerPool;
use crate::request_id::{RequestIds, random_u64};
use crate::shared::Shared;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The number of the core that this thread is; `usize::MAX` on any other thread.
pub(crate) fn current() -> usize {
    CURRENT.get()
}

pub(crate) struct Core {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ids: RequestIds,
    /// Shares requests out among revisions.
    pub(crate) chance: RefCell<Rng>,
    pub(crate) deadlines: Rc<Deadlines>,
    /// The connections of clients.
    pub(crate) crowd: Rc<Crowd>,
    pub(crate) peers: PeerPool,
    /// Connections that have changed their protocol, which the server knows no more of.
    pub(crate) upgraded: TaskTracker,
    /// Answers that are read on though nobody waits for them.
    pub(crate) left_behind: TaskTracker,
}

impl Core {
    /// Makes the calling thread a core.
    pub(crate) fn enter(index: usize, shared: Arc<Shared>) -> Self {
        CURRENT.set(index);
        Core {
            index,
            shared,
            ids: RequestIds::new(),
            chance: RefCell::new(seeded(random_u64())),
            deadlines: Rc::default(),
            crowd: Rc::default(),
            peers: PeerPool::default(),
            upgraded: TaskTracker::new(),
            left_behind: TaskTracker::new(),
        }
    }

    /// The same for the queues: they prefer sandboxes that this core has a connection to.
    pub(crate) fn lane(&self) -> u32 {
        u32::try_from(self.index).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes the calling thread a core, as far as streams are concerned.
    pub(crate) fn as_core(index: usize) {
        CURRENT.set(index);
    }
}
