//! A request is answered once, and user code begins with it at most once.

use crate::request::Request;
use crate::world::World;

pub(super) fn after_event(world: &World<'_>) -> Option<String> {
    if let Some(stray) = world.did.strays.first() {
        return Some(stray.clone());
    }
    world.did.requests.iter().find_map(|request| wrong(*request, &world.requests[*request]))
}

pub(super) fn at_rest(world: &World<'_>) -> Option<String> {
    let open = |(index, r): (usize, &Request)| {
        r.outcome.is_none().then(|| format!("request {index} was never answered: {r:?}"))
    };
    world.requests.iter().enumerate().find_map(open)
}

fn wrong(index: usize, request: &Request) -> Option<String> {
    if request.answers > 1 {
        return Some(format!("request {index} was answered {} times", request.answers));
    }
    (request.executions > 1)
        .then(|| format!("user code began {} times with request {index}", request.executions))
}
