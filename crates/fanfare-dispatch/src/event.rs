//! What happens to a function's queue.

use std::sync::Arc;

use fanfare_types::{FunctionRoute, Reason, SandboxId, Timestamp};

use crate::Handle;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A request arrived.
    Arrive {
        /// Names the request; from [`crate::FunctionQueue::next_waiter`], so that numbers follow arrival.
        waiter: u64,
        /// It is answered with a refusal if it has no slot by then.
        deadline: Timestamp,
        /// What consistent hashing keeps together; any number otherwise.
        key: u64,
        /// Where the request is served (a core): among the sandboxes used last, one that was used from there is
        /// preferred, as its connection is there.
        lane: u32,
    },
    /// A request that had a slot provably never reached user code: it takes its old place in the order again,
    /// whatever the queue's limit, for it was accepted before.
    Requeue {
        /// The number it had.
        waiter: u64,
        /// The deadline it had.
        deadline: Timestamp,
        /// The key it had.
        key: u64,
        /// The lane it had.
        lane: u32,
    },
    /// A request left its slot.
    Finish {
        /// The slot's sandbox, as assigned.
        sandbox: Handle,
        /// How.
        outcome: Outcome,
        /// When it was handed to the sandbox.
        started: Timestamp,
    },
    /// The body of a request that has just begun to wait is not here to its end. It is refused where its client has as many
    /// of these as it may. Ignored when the request does not wait.
    Uploading {
        /// Which.
        waiter: u64,
        /// Whose: an address, or what stands for several of them.
        client: u128,
    },
    /// The body of a waiting request is here to its end.
    Uploaded {
        /// Which.
        waiter: u64,
    },
    /// A waiting request's client has left. Ignored when the request no longer waits.
    Left {
        /// Which.
        waiter: u64,
    },
    /// Time has passed: requests whose deadline has passed are refused.
    Tick,
    /// The function's settings, for the first time or anew.
    Route(FunctionRoute),
    /// The function is gone: waiting requests are refused, sandboxes leave as they become idle.
    Removed,
    /// More slots of a sandbox are leased to this data plane.
    Grant {
        /// The sandbox.
        sandbox: SandboxId,
        /// What it runs.
        revision: u32,
        /// How many more.
        slots: u32,
        /// It has just been started, rather than moved here from another data plane.
        fresh: bool,
    },
    /// The control plane wants slots of a sandbox back; `u32::MAX` for all.
    Revoke {
        /// The sandbox.
        sandbox: SandboxId,
        /// How many.
        slots: u32,
    },
    /// The control plane wants so many slots for another data plane; replaces the number given before.
    Yield {
        /// How many.
        slots: u32,
    },
    /// The control plane wants so many sandboxes out of service; replaces the number given before.
    Retire {
        /// How many.
        sandboxes: u32,
    },
    /// The sandbox has ended.
    Gone {
        /// Which.
        sandbox: SandboxId,
    },
    /// Requests that wait cannot be served. Later ones wait again, and bring the next attempt.
    Unavailable {
        /// What callers are told.
        reason: Reason,
        /// One sentence.
        detail: Arc<str>,
        /// Last lines of the failed sandbox's log.
        log_tail: Arc<str>,
    },
    /// A new stream to the control plane begins; orders given on the old one are void. Taken after
    /// [`crate::FunctionQueue::leases`] and [`crate::FunctionQueue::condemned`] were put into the hello of that
    /// stream, and before anything else.
    Resync,
    /// The data plane shuts down: slots that no request waits for are given back as they become free.
    Drain,
}

/// How a request left its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered; the connection can carry the next request.
    Clean,
    /// Answered, but the sandbox closed the connection afterwards. The slot is good.
    KeepAliveBroken,
    /// Nothing of it was sent and the sandbox is not to blame. The slot is good.
    NeverSent,
    /// Nobody waited for its answer any more, and that came to its end all the same: the slot is good.
    Proven,
    /// Its time ran out while user code worked on it: condemns the sandbox.
    TimedOut,
    /// Its client left while user code worked on it: condemns the sandbox.
    Abandoned,
    /// The sandbox cannot be reached, or broke the protocol: condemns the sandbox.
    Broken,
}
