//! A full resync converges: in the end every node and data plane has a stream to the leader and knows what it knows.

use std::collections::BTreeMap;

use fanfare_types::{DataPlaneId, NodeId};

use super::leader;
use crate::world::World;

pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    let term = leader(world)?;
    for (index, node) in world.nodes.iter().enumerate() {
        let id = NodeId(u32::try_from(index).unwrap_or(u32::MAX) + 1);
        if node.welcomed_on().is_none() || node.welcomed_on() != term.node_stream(id) {
            return Some(format!(
                "node {index} is on stream {:?}, and {id} is {:?}",
                node.uplink,
                term.node_stream(id)
            ));
        }
    }
    let registered: BTreeMap<_, _> =
        world.store.functions.iter().map(|(f, (id, _))| (*f, id.number)).collect();
    for (index, plane) in world.planes.iter().enumerate() {
        let id = DataPlaneId(u32::try_from(index).unwrap_or(u32::MAX) + 1);
        if plane.uplink.stream.is_none() || plane.uplink.stream != term.plane_stream(id) || !plane.synced {
            return Some(format!(
                "plane {index} is on stream {:?}, and {id} is {:?}",
                plane.uplink,
                term.plane_stream(id)
            ));
        }
        let known: BTreeMap<_, _> = plane
            .known
            .iter()
            .filter_map(|(f, (n, _))| Some((*f, plane.functions.get(n)?.revision)))
            .collect();
        if known != registered {
            return Some(format!("plane {index} knows {known:?}, and registered are {registered:?}"));
        }
        if plane.functions.len() != plane.known.len() {
            return Some(format!(
                "plane {index} keeps functions that are gone: {:?}",
                plane.functions.keys()
            ));
        }
        let mut taking: Vec<_> = term.engine.taking_data_planes().iter().map(|d| d.data_plane).collect();
        taking.sort_unstable();
        if plane.peers != taking {
            return Some(format!(
                "plane {index} knows the peers {:?}, and there are {taking:?}",
                plane.peers
            ));
        }
        for (function, (number, _)) in &plane.known {
            let owner = term.engine.owner_of(*function).filter(|owner| *owner != id);
            let believed = plane.functions.get(number).and_then(|f| f.owner);
            if believed != owner {
                return Some(format!(
                    "plane {index} sends {function} to {believed:?}, and its owner is {owner:?}"
                ));
            }
        }
    }
    None
}
