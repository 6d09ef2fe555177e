//! What an engine derives from its sandboxes is what they say.

use crate::world::World;

pub(super) fn now(world: &World<'_>) -> Option<String> {
    world.controls.iter().enumerate().find_map(|(index, control)| {
        let wrong = control.term.as_ref()?.engine.inconsistency()?;
        Some(format!("control {index}: {wrong}"))
    })
}
