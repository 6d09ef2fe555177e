//! Settings of one engine.

use std::time::Duration;

use fanfare_policy::Placement;
use fanfare_types::{DataPlaneId, Epoch, NodeId};

/// What an engine must be told when a leader's term begins.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The leader's term: part of every sandbox id that this engine gives.
    pub epoch: Epoch,
    /// How nodes are chosen.
    pub placement: Placement,
    /// Seed of the generator that random policies draw from.
    pub seed: u64,
    /// Data planes that an earlier leader knew. Once each has connected, or `lease_recovery` is over, slots of adopted
    /// sandboxes that none of them claims are written off.
    pub known_data_planes: Vec<DataPlaneId>,
    /// Nodes that an earlier leader knew. Until each has connected, or `lease_recovery` is over, sandboxes may still
    /// turn up: none is ordered but for requests that wait.
    pub known_nodes: Vec<NodeId>,
    /// The beginning of the term: how long sandboxes of the earlier leader are adopted and their leases awaited.
    pub lease_recovery: Duration,
    /// A sandbox idle for less than this is not evicted to make room for another function's.
    pub keep_alive_min: Duration,
    /// How long requests may wait with no node that could run them before they are told so. Covers start-up, when
    /// data planes may connect before nodes.
    pub no_node_grace: Duration,
}

impl EngineConfig {
    /// The defaults, for this term.
    #[must_use]
    pub fn new(epoch: Epoch) -> Self {
        EngineConfig {
            epoch,
            placement: Placement::Kubernetes,
            seed: epoch.0,
            known_data_planes: Vec::new(),
            known_nodes: Vec::new(),
            lease_recovery: Duration::from_secs(3),
            keep_alive_min: Duration::from_secs(1),
            no_node_grace: Duration::from_secs(5),
        }
    }
}
