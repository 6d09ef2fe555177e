//! What the engine's task tells the API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fanfare_engine::ClusterStatus;
use fanfare_types::{DataPlaneId, NodeId};

/// The cluster as the engine and the links see it.
#[derive(Clone, Debug)]
pub(crate) struct ClusterView {
    pub(crate) status: ClusterStatus,
    /// Those whose stream is up.
    pub(crate) nodes_connected: BTreeSet<NodeId>,
    /// Those whose stream is up.
    pub(crate) data_planes_connected: BTreeSet<DataPlaneId>,
    /// Requests in sandboxes and waiting, as each data plane last reported.
    pub(crate) loads: BTreeMap<DataPlaneId, (u64, u64)>,
    pub(crate) counters: Counters,
}

/// What the engine's task has done since the term began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Batches, registrations and questions taken.
    pub(crate) inputs: u64,
    /// Steps of the engine.
    pub(crate) events: u64,
    /// Commands that the steps gave.
    pub(crate) commands: u64,
    /// Sandboxes that nodes were told to create.
    pub(crate) sandboxes: u64,
}

/// A node and one stream of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRef {
    pub(crate) id: NodeId,
    pub(crate) name: Arc<str>,
    /// Differs when the numbers of its log lines have begun anew.
    pub(crate) logs: u64,
    pub(crate) stream: u64,
}
