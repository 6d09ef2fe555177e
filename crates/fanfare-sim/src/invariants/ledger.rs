//! The ledger is the truth: in the end on every node exactly that is reserved which its sandboxes are to have.

use std::collections::BTreeMap;

use fanfare_types::{NodeId, Resources};

use super::leader;
use crate::world::World;

pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    let term = leader(world)?;
    let mut used: BTreeMap<NodeId, Resources> = BTreeMap::new();
    for (index, node) in world.nodes.iter().enumerate() {
        let id = NodeId(u32::try_from(index).unwrap_or(u32::MAX) + 1);
        for body in node.machine.bodies.values() {
            *used.entry(id).or_default() += body.request;
        }
    }
    let status = term.engine.cluster_status();
    if status.nodes.len() != world.nodes.len() {
        return Some(format!("the leader knows {} of {} nodes", status.nodes.len(), world.nodes.len()));
    }
    status.nodes.iter().find_map(|node| {
        let (taken, used) =
            (node.capacity.saturating_sub(node.free), used.get(&node.node).copied().unwrap_or_default());
        (taken != used)
            .then(|| format!("on {} {taken:?} is reserved, and its sandboxes have {used:?}", node.node))
    })
}
