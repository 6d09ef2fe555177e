//! No sandbox leaks: in the end what runs on machines, what daemons list and what the leader believes are the same.

use std::collections::BTreeSet;

use fanfare_types::{NodeId, SandboxId};

use super::leader;
use crate::world::World;

pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    let term = leader(world)?;
    for (index, node) in world.nodes.iter().enumerate() {
        let id = NodeId(u32::try_from(index).unwrap_or(u32::MAX) + 1);
        let runs: BTreeSet<SandboxId> = node.machine.bodies.keys().copied().collect();
        let lists: BTreeSet<SandboxId> = node.roster.sandboxes().map(|record| record.sandbox).collect();
        let believed = term.engine.beliefs().filter(|belief| belief.node == id).map(|b| b.sandbox);
        let believed: BTreeSet<SandboxId> = believed.collect();
        if runs != lists || lists != believed {
            let of =
                |set: &BTreeSet<SandboxId>| set.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            return Some(format!(
                "node {index} runs [{}], its daemon lists [{}], and the leader believes [{}]",
                of(&runs),
                of(&lists),
                of(&believed)
            ));
        }
    }
    let orphan = term.engine.beliefs().find(|b| !world.store.functions.contains_key(&b.revision.function));
    orphan.map(|belief| format!("{} belongs to no function: {belief:?}", belief.sandbox))
}
