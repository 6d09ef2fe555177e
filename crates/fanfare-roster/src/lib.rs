//! What a node has, as a pure state machine: sandboxes and revisions from their order to their end.
//!
//! The [`Roster`] is told what the control plane orders and what runtimes report, and answers with [`Order`]s for its
//! shell. It knows no clock, socket or thread, so the node daemon and the simulator run the same code.
//!
//! Rules, kept by the tests of this crate:
//! - creations begin in turns (`turns`) and within the limits, and can be called back before;
//! - every sandbox that was ordered is answered for: ready, failed, or exited, and never again after its end;
//! - a revision is forgotten only when nothing uses it, and nothing begins with it meanwhile.

mod order;
mod revisions;
mod roster;
mod sandboxes;
mod turns;

pub use order::Order;
pub use roster::{CREATIONS_QUEUED_MAX, Roster, STOPS_MAX};
