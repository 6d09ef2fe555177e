//! What the loop shows of itself.

use super::EngineLoop;
use crate::view::{ClusterView, NodeRef};

impl EngineLoop {
    pub(super) fn cluster(&self) -> ClusterView {
        ClusterView {
            status: self.engine.cluster_status(),
            nodes_connected: self.nodes.connected().map(|(id, _)| id).collect(),
            data_planes_connected: self.data_planes.connected().map(|(id, _)| id).collect(),
            loads: self.loads.clone(),
            counters: self.counters,
        }
    }

    pub(super) fn connected_nodes(&self) -> Vec<NodeRef> {
        let connected = self.nodes.connected();
        connected
            .map(|(id, peer)| NodeRef {
                id,
                name: peer.name.clone(),
                logs: self.logs.get(&id).copied().unwrap_or_default(),
                stream: peer.stream,
            })
            .collect()
    }
}
