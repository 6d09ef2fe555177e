//! Of the requests that wait on a data plane, the one that has waited longest gets the next slot.

use crate::world::World;

pub(super) fn after_event(world: &World<'_>) -> Option<String> {
    world.did.overtaken.first().cloned()
}
