//! Where the time of a cold start went.

use std::time::Duration;

/// Durations of the stages that bring one sandbox up, as measured by the role that ran each.
///
/// The data plane adds `queue`, `propagate` and `execute` for one request; together they are its `Server-Timing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Demand received to decision made, in the control plane.
    pub decide: Duration,
    /// Choosing the node.
    pub place: Duration,
    /// Order sent to ready received, less what the node accounts for below.
    pub transfer: Duration,
    /// Node: order received to process cloned (code, template, cgroup, namespaces).
    pub create: Duration,
    /// Node: process cloned to user code reached (exec, interpreter, imports; a zygote's fork).
    pub start: Duration,
    /// Node: user code reached to the readiness event.
    pub ready: Duration,
}

impl Stages {
    /// The node's own part.
    #[must_use]
    pub fn on_node(&self) -> Duration {
        self.create + self.start + self.ready
    }

    /// Everything before the data plane learns of the sandbox.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.decide + self.place + self.transfer + self.on_node()
    }
}
