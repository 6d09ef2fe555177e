//! What must hold, one promise in each file.
//!
//! Some are looked at after every event, for what the event did; the others when faults are over and the world has had
//! its time to heal. Each answers with what it found broken.

mod answered_once;
mod concurrency;
mod consistency;
mod drains;
mod epochs;
mod fair;
mod idle;
pub(crate) mod kpa;
mod leaks;
mod ledger;
mod order;
mod resync;
mod scale;
mod served;
mod slots;

use crate::report::Violation;
use crate::world::World;

type Check = fn(&World<'_>) -> Option<String>;

const NONE: Check = |_| None;

/// Name, after every event, now and then, at rest.
const ALL: &[(&str, Check, Check, Check)] = &[
    ("answered_once", answered_once::after_event, NONE, answered_once::at_rest),
    ("concurrency", concurrency::after_event, NONE, NONE),
    ("idle", idle::after_event, NONE, NONE),
    ("order", order::after_event, NONE, NONE),
    ("epochs", epochs::after_event, NONE, epochs::at_rest),
    ("consistency", NONE, consistency::now, consistency::now),
    ("fair", NONE, fair::now, NONE),
    ("slots", NONE, slots::now, slots::at_rest),
    ("resync", NONE, NONE, resync::at_rest),
    ("leaks", NONE, NONE, leaks::at_rest),
    ("drains", NONE, NONE, drains::at_rest),
    ("served", NONE, NONE, served::at_rest),
    ("scale", NONE, NONE, scale::at_rest),
    ("ledger", NONE, NONE, ledger::at_rest),
];

/// What an event broke; with `audit`, what else is wrong by now.
pub(crate) fn after_event(world: &World<'_>, audit: bool) -> Option<Violation> {
    ALL.iter().find_map(|(name, after, now, _)| {
        let found = after(world).or_else(|| if audit { now(world) } else { None });
        found.map(|detail| violation(world, name, detail))
    })
}

/// What has not healed.
pub(crate) fn at_rest(world: &World<'_>) -> Option<Violation> {
    ALL.iter().find_map(|(name, _, _, at_rest)| at_rest(world).map(|detail| violation(world, name, detail)))
}

fn violation(world: &World<'_>, invariant: &'static str, detail: String) -> Violation {
    Violation { invariant, detail, at: world.now }
}

/// Who leads, if the store agrees.
fn leader<'w>(world: &'w World<'_>) -> Option<&'w crate::control::Term> {
    let mut terms = world.controls.iter().filter_map(|control| control.term.as_ref());
    terms.find(|term| term.epoch == world.store.epoch)
}
