//! The data plane's decisions as a pure state machine: queues, slots, deadlines.
//!
//! One [`FunctionQueue`] per function and data plane. It holds the slots that the control plane leased to this data
//! plane and the requests that wait for one, and turns each [`Event`] into [`Command`]s. It knows no clock, socket
//! or thread, so the real data plane and a simulator run the same code.
//!
//! Rules, kept by the tests of this crate against a model:
//! - requests are served in the order of their arrival; a freed slot goes straight to the one that waited longest;
//! - a sandbox never has more requests than slots leased here;
//! - every request is answered exactly once: with a slot, or with a refusal that says why;
//! - a sandbox in which user code may still run without a request is never used again;
//! - one client has a share of the queue for requests whose bodies are not here to their end;
//! - everything leased is given back once it is asked for and free.

mod balanced;
mod command;
mod event;
mod lease;
mod load;
mod queue;
mod slots;
mod uploads;
mod waiters;

pub use command::{Command, Handle, Refusal};
pub use event::{Event, Outcome};
pub use fanfare_types::SlotWhy as Why;
pub use queue::FunctionQueue;

#[cfg(test)]
mod tests;
