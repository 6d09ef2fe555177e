//! A healed world serves: requests that come when faults have been over for a while get their function's answer.

use crate::report::Outcome;
use crate::request::Request;
use crate::world::World;

pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    let healed_at = world.scenario.healed_at?;
    let late = |(_, r): &(usize, &Request)| r.arrival.at >= healed_at;
    let wrong = |(_, r): &(usize, &Request)| {
        !matches!(r.outcome, Some(Outcome::Answered | Outcome::Left)) && r.arrival.execution.is_some()
    };
    let found = world.requests.iter().enumerate().filter(late).find(wrong);
    found.map(|(index, r)| format!("request {index} came when all was well again: {r:?}"))
}
