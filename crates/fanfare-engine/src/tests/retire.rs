//! Orders to retire that cross something else: never one sandbox too many.

use std::time::Duration;

use fanfare_types::{ExitCause, FromDataPlane, FunctionLoad, SandboxId, Scaling, ToDataPlane};

use super::world::{D, F, N, World};
use crate::Event;

/// Three idle sandboxes, of which the engine has just ordered one to be retired; its order is still on its way.
fn ordered() -> World {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 3);
    world.pass(Duration::from_secs(1));
    world.finish(D, 3);
    world.settle();
    let active = world.engine.functions.get_mut(&F).unwrap().active_mut();
    active.desired = 2;
    let mut out = Vec::new();
    world.engine.ask_retire(world.now, F, 1, &mut out);
    world.hand_out(out);
    assert!(matches!(world.planes[&D].to[0], ToDataPlane::Retire { sandboxes: 1, .. }));
    world
}

fn held(world: &World) -> u32 {
    world.planes[&D].held.values().map(|h| h.slots).sum()
}

#[test]
fn an_order_takes_what_it_is_for() {
    let mut world = ordered();
    world.settle();
    assert_eq!((world.ready(F), held(&world)), (2, 2));
}

#[test]
fn an_order_said_again_while_its_answer_is_on_the_way_takes_no_more() {
    let mut world = ordered();
    let mut out = Vec::new();
    world.engine.functions.get_mut(&F).unwrap().active_mut().plane_mut(D).retire_asked = 0;
    world.engine.ask_retire(world.now, F, 1, &mut out);
    world.hand_out(out);
    world.settle();
    assert_eq!((world.ready(F), held(&world)), (2, 2), "the second answer was one too many");
}

#[test]
fn an_order_that_a_crash_has_made_needless_takes_nothing() {
    let mut world = ordered();
    // The data plane has obeyed, and its answer is behind the news of the crash.
    let order = world.planes.get_mut(&D).unwrap().to.pop_front().unwrap();
    let done = world.planes.get_mut(&D).unwrap().hears(order, world.now);
    assert!(done.started.is_empty());
    let kept: Vec<SandboxId> = world.planes[&D].held.keys().copied().collect();
    let answer = world.planes.get_mut(&D).unwrap().from.pop_front().unwrap();
    world.end_sandbox(N, kept[0], ExitCause::Signal(9));
    world.settle();
    assert_eq!(world.ready(F), 2);
    world.step(Event::FromDataPlane { data_plane: D, message: answer, received: world.now });
    world.settle();
    assert_eq!((world.ready(F), held(&world)), (2, 2), "it is wanted again, and given back");
}

#[test]
fn an_order_that_a_request_has_made_needless_gives_its_sandbox_to_that_request() {
    let mut world = ordered();
    world.arrive(D, F, 3);
    // All three were taken before the order; a fourth waits for what is given back.
    world.settle();
    world.finish(D, 1);
    let answer = world.planes.get_mut(&D).unwrap().from.pop_front().unwrap();
    assert!(matches!(answer, FromDataPlane::Released { retired: true, .. }), "{answer:?}");
    let load = FunctionLoad { function: F, in_flight: 2, queued: 1, ..FunctionLoad::default() };
    let demand = FromDataPlane::Demand(load);
    world.arrive(D, F, 1);
    let created = world.created;
    world.step(Event::FromDataPlane { data_plane: D, message: demand, received: world.now });
    world.step(Event::FromDataPlane { data_plane: D, message: answer, received: world.now });
    world.settle();
    assert_eq!(world.planes[&D].queued[&F], 0);
    assert_eq!(held(&world), 3, "{created} -> {}", world.created);
    assert_eq!(world.ready(F), 3);
}
