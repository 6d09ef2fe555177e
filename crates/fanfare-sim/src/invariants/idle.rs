//! Only idle sandboxes are stopped in good order: none that user code still runs in, whoever waits for it.

use crate::world::World;

pub(super) fn after_event(world: &World<'_>) -> Option<String> {
    world.did.disturbed.first().cloned()
}
