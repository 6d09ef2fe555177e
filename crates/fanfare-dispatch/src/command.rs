//! What is to be done.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{Condemned, Reason, SandboxId, SlotWhy as Why};

/// A sandbox that this data plane holds slots of, with its place in the queue's table.
///
/// The place is used again after [`Command::Forget`]; the id never is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Dense, so that a shell can keep its own table beside the queue's.
    pub index: u32,
}

/// An order to the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send the request to the sandbox. Answered by one [`crate::Event::Finish`].
    Assign {
        /// The request.
        waiter: u64,
        /// The sandbox.
        sandbox: Handle,
        /// Why this one, now.
        why: Why,
    },
    /// Answer the request with a refusal.
    Refuse {
        /// The request.
        waiter: u64,
        /// Why.
        why: Refusal,
    },
    /// Tell the control plane that slots are no longer held.
    Release {
        /// The sandbox.
        sandbox: SandboxId,
        /// How many.
        slots: u32,
        /// All of them, and the sandbox is to be taken out of service.
        retired: bool,
    },
    /// Tell the control plane that the sandbox must not be used any more, and close its pooled connections. Its slots
    /// go back ([`Command::Release`]) as the other requests in it end; then it may be killed.
    Condemn {
        /// The sandbox.
        sandbox: Handle,
        /// Why.
        why: Condemned,
    },
    /// Tell the control plane the load ([`crate::FunctionQueue::load`]) now: a request began to wait, or none waits
    /// any more. At most once per step.
    Demand,
    /// No slot of the sandbox is held any more: close its pooled connections and forget its endpoint.
    Forget {
        /// The sandbox.
        sandbox: Handle,
    },
    /// The function has become active: ask [`crate::FunctionQueue::report`] in every interval until it is `None`.
    Activate,
}

/// Why a request got no slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many requests wait as may.
    QueueFull {
        /// How many may.
        limit: u32,
    },
    /// As many of its client's requests wait with bodies that are not here to their end as may.
    ShareFull {
        /// How many may.
        limit: u32,
    },
    /// Its deadline passed.
    QueueTimeout {
        /// How long it waited.
        waited: Duration,
    },
    /// The control plane said so.
    Unavailable {
        /// What callers are told.
        reason: Reason,
        /// One sentence.
        detail: Arc<str>,
        /// Last lines of the failed sandbox's log.
        log_tail: Arc<str>,
    },
    /// The function was removed.
    Removed,
}

impl Refusal {
    /// The stable reason.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Refusal::QueueFull { .. } | Refusal::ShareFull { .. } => Reason::QueueFull,
            Refusal::QueueTimeout { .. } => Reason::QueueTimeout,
            Refusal::Unavailable { reason, .. } => *reason,
            Refusal::Removed => Reason::FunctionNotFound,
        }
    }
}
