//! In the end, without requests, every function has as many sandboxes as it is to have at least, and no others.

use fanfare_types::ScalingPolicy;

use super::leader;
use crate::world::World;

pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    let term = leader(world)?;
    for (function, (id, spec)) in &world.store.functions {
        let Some(status) = term.engine.function_status(*function) else {
            return Some(format!("{function} is registered, and the leader does not know it"));
        };
        let wanted = match spec.scaling.policy {
            ScalingPolicy::Fixed(sandboxes) => sandboxes.max(spec.scaling.min).min(spec.scaling.max),
            ScalingPolicy::Kpa(_) | ScalingPolicy::Hpa(_) => spec.scaling.min,
        };
        let others = status.starting + status.ready_of_old_revisions + status.stopping;
        // Where there is too little room, some have less.
        let enough = status.ready == wanted || status.ready < wanted && status.lacks_room;
        if status.revision != id.number || !enough || others != 0 {
            return Some(format!("{function} is to have {wanted} of revision {}: {status:?}", id.number));
        }
    }
    None
}
