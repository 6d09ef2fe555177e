//! Slots: what data planes hold of a sandbox is never more than it has, and in the end exactly what the leader leased.

use std::collections::BTreeMap;

use fanfare_types::{DataPlaneId, SandboxId};

use super::leader;
use crate::world::World;

type Held = BTreeMap<SandboxId, BTreeMap<DataPlaneId, u32>>;

fn held(world: &World<'_>) -> Held {
    let mut held = Held::new();
    for (index, plane) in world.planes.iter().enumerate() {
        let id = DataPlaneId(u32::try_from(index).unwrap_or(u32::MAX) + 1);
        for lease in plane.functions.values().flat_map(|f| f.queue.leases()) {
            *held.entry(lease.sandbox).or_default().entry(id).or_default() += lease.slots;
        }
    }
    held
}

pub(super) fn now(world: &World<'_>) -> Option<String> {
    let held = held(world);
    let bodies = world.nodes.iter().flat_map(|node| &node.machine.bodies);
    bodies.into_iter().find_map(|(sandbox, body)| {
        let holders = held.get(sandbox)?;
        let slots: u32 = holders.values().sum();
        (slots > body.concurrency)
            .then(|| format!("{sandbox} has {} slots, and {slots} are held: {holders:?}", body.concurrency))
    })
}

pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    let mut held = held(world);
    for belief in leader(world)?.engine.beliefs() {
        let leased: BTreeMap<DataPlaneId, u32> = belief.leases.iter().copied().collect();
        let holders = held.remove(&belief.sandbox).unwrap_or_default();
        if leased != holders {
            return Some(format!("{} is leased to {leased:?}, and held by {holders:?}", belief.sandbox));
        }
        let sum: u32 = leased.values().sum();
        if belief.serves && sum != belief.concurrency {
            return Some(format!("{sum} of {} slots of {} are leased", belief.concurrency, belief.sandbox));
        }
    }
    let left = held.into_iter().next();
    left.map(|(sandbox, holders)| format!("slots of {sandbox} are held, which nobody leased: {holders:?}"))
}
