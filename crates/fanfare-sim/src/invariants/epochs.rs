//! No command of an old epoch is obeyed, and in the end nothing runs that the last leader does not know.

use crate::world::World;

pub(super) fn after_event(world: &World<'_>) -> Option<String> {
    world.did.obeyed.iter().find_map(|(site, epoch, newest)| {
        (epoch < newest).then(|| format!("{site:?} obeyed {epoch} after it had seen {newest}"))
    })
}

/// One leads, and all follow it.
pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    let leads = world.controls.iter().filter_map(|c| c.term.as_ref()).map(|term| term.epoch);
    let leaders: Vec<_> = leads.collect();
    (leaders != [world.store.epoch])
        .then(|| format!("{} should lead alone, and there are {leaders:?}", world.store.epoch))
}
