//! Asynchronous invocations as a pure state machine: attempts, retries, ages, dead letters, callbacks.
//!
//! One [`Calls`] per data plane holds every call that it has accepted and still keeps. Events come in, [`Command`]s go
//! out. It knows no clock, file, socket or thread, so the real data plane and a crash simulation run the same code.
//!
//! **Write ahead.** The commands of one step are in order: first what is to be written, then what is to be done. The
//! shell makes the former durable (and that of every earlier step) before it does the latter. So an attempt has its
//! number on disk before it begins, and a crash at any point leaves a state from which [`Calls::restore`] goes on:
//! - a call that was accepted is there;
//! - one whose attempt had begun begins another, with the next number (at-least-once), or is dead (at-most-once);
//! - one that has ended has ended for good: what comes late about an earlier attempt is not heard.
//!
//! **Time.** `now` is the log's own time line: it runs while the data plane runs, and goes on after a restart from
//! where it was last written down. Ages, pauses and retention are measured on it, so they outlive restarts, the time
//! that the data plane is down does not count, and no wall clock decides anything. Wall-clock times are kept to be
//! shown.
//!
//! **Fairness.** At most as many attempts of one function wait for a slot as are executing (but always
//! [`limits::FEED_MIN`]): a synchronous request never finds a long queue of asynchronous ones before it. Some more are
//! written ahead of the queue while executions are short, so that it does not wait for the disk.

mod backoff;
mod callbacks;
mod calls;
mod command;
mod event;
mod feed;
mod id;
pub mod limits;
mod record;
mod retention;

#[cfg(test)]
mod tests;

pub use calls::Calls;
pub use command::Command;
pub use event::{Accepted, End, Event, Filter, Now, Offer, Refusal};
pub use id::InvocationId;
pub use limits::Limits;
pub use record::{
    Callback, Cause, Delivery, Finished, IdempotencyKey, LastEnd, Payload, Record, Settings, State, StateKind,
};
