//! What makes sandboxes.
//!
//! [`Runtime`] is the one interface between the node daemon and whatever isolates functions. Every runtime passes
//! [`conformance`]; [`fake`] is the second implementation that keeps the interface honest, and the one that
//! scale experiments run on.

pub mod conformance;
pub mod fake;
mod runtime;

pub use runtime::{
    CodeStore, ExitSink, LogLine, LogSink, LogStream, Orphan, Outlets, Runtime, SandboxExit, Started,
};
