//! Nobody starves: while nothing goes wrong, no function with waiting requests is without any sandbox for long while
//! another one has two or more beyond its fair share.

use std::time::Duration;

use fanfare_engine::FunctionStatus;
use fanfare_policy::{Claim, fair_level};
use fanfare_types::{FunctionId, FunctionSpec, ScalingPolicy, Timestamp};

use super::leader;
use crate::scenarios::CROWD_EXECUTION_MAX_MS;
use crate::world::World;

/// A turn each of the others in want, a report, room on its way that others take, the longest execution of who gives way, and a start.
const WAIT_MAX: Duration = Duration::from_millis(5_000 + 1_000 + 2_000 + CROWD_EXECUTION_MAX_MS + 500);

pub(super) fn now(world: &World<'_>) -> Option<String> {
    if world.scenario.faults.as_ref().is_none_or(|faults| !faults.kinds.is_empty()) {
        return None;
    }
    let hungry = hungry(world);
    if hungry.is_empty() {
        return None;
    }
    let engine = &leader(world)?.engine;
    let known = world.store.functions.iter();
    let all: Vec<(FunctionId, &FunctionSpec, FunctionStatus)> =
        known.filter_map(|(id, (_, spec))| Some((*id, &**spec, engine.function_status(*id)?))).collect();
    let least = |spec: &FunctionSpec| match spec.scaling.policy {
        ScalingPolicy::Fixed(sandboxes) => sandboxes.max(spec.scaling.min),
        _ => spec.scaling.min,
    };
    let claim = |spec: &FunctionSpec, status: &FunctionStatus| Claim {
        keeps: status.starting + status.ready.min(least(spec)),
        wants: (status.in_flight + status.queued).div_ceil(spec.sizing.concurrency),
    };
    let room = all.iter().map(|(_, _, status)| status.ready + status.starting).sum();
    let claims: Vec<Claim> = all.iter().map(|(_, spec, status)| claim(spec, status)).collect();
    let level = fair_level(&claims, room);
    let is_rich = |spec: &FunctionSpec, status: &FunctionStatus| {
        status.ready >= claim(spec, status).share(level).max(1) + 2
    };
    let rich = all.iter().find(|(_, spec, status)| is_rich(spec, status))?;
    let poor =
        all.iter().find(|(id, _, status)| hungry.contains(id) && status.ready + status.starting == 0)?;
    Some(format!("{} has none and waits, and {} has {}: {:?}", poor.0, rich.0, rich.2.ready, poor.2))
}

/// Functions of which a request has waited for too long.
fn hungry(world: &World<'_>) -> Vec<FunctionId> {
    let queues = world.planes.iter().flat_map(|plane| &plane.functions);
    let waited = queues.filter(|(_, function)| {
        let requests = function.waiting.values().filter_map(|index| world.requests.get(*index));
        let first = requests.map(|r| r.arrival.at).min().unwrap_or(Timestamp::MAX);
        first < Timestamp::MAX && world.now.since(first) > WAIT_MAX
    });
    waited.map(|(id, _)| FunctionId(*id)).collect()
}
