//! A queue drains once capacity exists: in the end nobody waits, no user code runs, and no change waits for a leader.

use crate::world::World;

pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    for (index, plane) in world.planes.iter().enumerate() {
        for function in plane.functions.values() {
            let (queued, in_flight) = (function.queue.queued(), function.queue.in_flight());
            let ours = (function.waiting.len(), function.running.len());
            if (queued, in_flight) != (0, 0) || ours != (0, 0) {
                let name = &function.name;
                return Some(format!(
                    "on plane {index} {queued} wait for {name:?} and {in_flight} are in it: {ours:?}"
                ));
            }
        }
    }
    if let Some(change) = world.users.waiting() {
        return Some(format!("no leader took {change:?}"));
    }
    let stale = world.users.asked.iter().find(|(_, (epoch, _))| *epoch == world.store.epoch);
    stale.map(|(revision, asked)| format!("whether {revision} starts was never said: {asked:?}"))
}
