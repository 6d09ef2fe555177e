//! The control plane's decisions as a pure state machine: `step(now, event) -> commands`.
//!
//! It knows functions, nodes, data planes and sandboxes, and answers every event with messages to nodes and data
//! planes. It reads no clock, file or socket: the shell (`fanfare-control-plane`) feeds it and carries its commands
//! out, and so does the simulator.
//!
//! Where to look:
//! - how many sandboxes a function gets, and why: [`scale`];
//! - which node a sandbox goes to, and who makes room: [`capacity`];
//! - which data plane may use which slot: [`lease`];
//! - what a sandbox goes through: [`lifecycle`];
//! - what a new or returning node or data plane is told: [`resync`];
//! - what a new leader takes over: [`recovery`];
//! - which peers live, and which are lost: [`liveness`], for the shell that has their streams.
//!
//! Its state is soft but for what the shell keeps in the store: functions and the ids of nodes and data planes.
//! Sandboxes are rebuilt from what nodes state, leases and demand from what data planes state.

mod audit;
pub mod capacity;
mod config;
mod engine;
mod event;
mod failures;
mod function;
mod give_way;
pub mod lease;
pub mod lifecycle;
pub mod liveness;
mod nodes;
mod orders;
mod owners;
pub mod recovery;
mod registry;
pub mod resync;
mod sandbox;
pub mod scale;
mod status;
#[cfg(test)]
mod tests;
mod traffic;
mod unplaceable;

pub use audit::Belief;
pub use config::EngineConfig;
pub use engine::Engine;
pub use event::{Command, Event};
pub use failures::{Failed, FailureCount};
pub use function::Decision;
pub use orders::Order;
pub use status::{ClusterStatus, DataPlaneStatus, FailureStatus, FunctionStatus, NodeStatus, SandboxStatus};
