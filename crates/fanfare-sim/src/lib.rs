//! The whole cluster in virtual time, from one seed.
//!
//! The control plane's engine (`fanfare-engine`), the data planes' queues (`fanfare-dispatch`) and the nodes' rosters
//! (`fanfare-roster`) are the real ones. Around them are the rules of streams and sessions, and models of what is neither
//! pure nor ours: the network ([`Network`]), machines that run user code, clients, and the store. Every process has
//! a clock of its own, and everything can break ([`Fault`]). A seed decides all of it: the same seed, the same run, event
//! by event, on every machine.
//!
//! What must hold is in `invariants`, one promise in each file. A run ends at the first that is broken, and [`Report`]
//! says which, where, and what happened before; [`run()`] with the same scenario and seed shows it again.
//!
//! No wall clock is simulated because none of these crates reads one: what they are told is a monotonic time, which may
//! run fast or slow, stand still, or leap ahead, but never goes back.

mod clock;
mod control;
mod event;
mod faults;
mod invariants;
mod log;
mod net;
mod node;
mod plane;
mod queue;
mod report;
mod request;
mod run;
mod scenario;
mod scenarios;
mod serve;
mod store;
#[cfg(test)]
mod tests;
mod uplink;
mod users;
mod wire;
mod world;

pub use invariants::kpa::golden;
pub use report::{Outcome, Report, RequestReport, Violation};
pub use run::{run, run_told};
pub use scenario::{
    Arrival, Change, Creation, Fault, Faults, Network, NodePlan, PlannedChange, Scenario, Usage,
};
pub use scenarios::{NAMES, draw};
