//! Requests shared among revisions: when a change takes effect, and what it leaves.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{FunctionId, Reach, RevisionId, Scaling, Share, ToDataPlane, Traffic};

use super::world::{D, E, F, N, World, spec};
use crate::Event;

const UNIT: FunctionId = FunctionId(7);

fn unit(world: &mut World, id: FunctionId, number: u32, scaling: Scaling) {
    let id = RevisionId { function: id, number };
    world.step(Event::UnitSet { id, spec: Arc::new(spec("f", 1, scaling)) });
}

fn shared(shares: &[(FunctionId, u32)]) -> Option<Arc<Traffic>> {
    let shares = shares.iter().map(|(unit, percent)| Share { unit: *unit, percent: *percent }).collect();
    Some(Arc::new(Traffic { shares, tags: vec![] }))
}

fn set(world: &mut World, traffic: Option<Arc<Traffic>>) {
    world.step(Event::TrafficSet { function: F, traffic });
}

fn at_least(min: u32) -> Scaling {
    Scaling { min, ..Scaling::default() }
}

/// So many ready sandboxes of the function itself, each with a request in it.
fn busy(sandboxes: u32) -> World {
    let mut world = World::small(100, 1, Scaling::default());
    world.arrive(D, F, sandboxes);
    world.start_all();
    assert_eq!(world.ready(F), sandboxes);
    world
}

#[test]
fn requests_go_elsewhere_when_enough_sandboxes_are_there() {
    let mut world = busy(10);
    unit(&mut world, UNIT, 1, Scaling::default());
    set(&mut world, shared(&[(UNIT, 30), (F, 70)]));
    world.settle();
    assert_eq!((world.switched, world.created), (0, 13), "three are started first");
    assert!(world.engine.traffic_pending(F));
    world.start_all();
    assert_eq!((world.switched, world.ready(UNIT)), (1, 3));
    assert!(!world.engine.traffic_pending(F));
    // They are there when the first request comes, though that takes longer than a decision of the autoscaler.
    world.pass(Duration::from_secs(5));
    assert_eq!(world.ready(UNIT), 3);
    world.arrive(D, UNIT, 3);
    world.settle();
    assert_eq!(world.planes[&D].queued.get(&UNIT).copied().unwrap_or(0), 0, "no cold start");
}

#[test]
fn what_is_at_zero_goes_elsewhere_at_once() {
    let mut world = World::small(10, 1, Scaling::default());
    unit(&mut world, UNIT, 1, Scaling::default());
    set(&mut world, shared(&[(UNIT, 100)]));
    assert_eq!((world.switched, world.created), (1, 0));
}

#[test]
fn what_gets_no_requests_has_no_minimum_and_what_gets_them_again_has() {
    let mut world = World::small(20, 1, at_least(2));
    world.start_all();
    assert_eq!(world.ready(F), 2);
    unit(&mut world, UNIT, 1, at_least(3));
    world.start_all();
    assert_eq!(world.ready(UNIT), 3, "its minimum");
    set(&mut world, shared(&[(UNIT, 100)]));
    world.settle();
    assert_eq!(world.switched, 1);
    world.pass(Duration::from_secs(150));
    assert_eq!((world.ready(F), world.ready(UNIT)), (0, 3));
    // Nor has it one after an update.
    world.set_function(F, 3, spec("f", 1, at_least(5)));
    world.start_all();
    assert_eq!(world.ready(F), 0);
    set(&mut world, None);
    world.step(Event::FunctionRemoved(UNIT));
    world.start_all();
    world.pass(Duration::from_secs(5));
    assert_eq!((world.ready(F), world.ready(UNIT)), (5, 0));
    assert!(world.drained.contains(&UNIT) && !world.engine.traffic_pending(F));
}

#[test]
fn a_unit_serves_until_requests_go_elsewhere_and_then_finishes_what_it_has() {
    let mut world = busy(0);
    unit(&mut world, UNIT, 1, Scaling::default());
    set(&mut world, shared(&[(UNIT, 100)]));
    world.settle();
    world.arrive(D, UNIT, 4);
    world.start_all();
    assert_eq!(world.ready(UNIT), 4);
    set(&mut world, None);
    world.step(Event::FunctionRemoved(UNIT));
    world.settle();
    let told = |world: &World| world.planes[&D].routes.contains_key(&UNIT);
    assert!(world.engine.traffic_pending(F) && told(&world), "the latest has no sandbox yet");
    world.start_all();
    assert_eq!((world.switched, world.ready(F)), (2, 4));
    assert!(!told(&world));
    assert_eq!(world.nodes[&N].sandboxes.len(), 8, "its requests finish");
    world.finish(D, 4);
    world.start_all();
    assert_eq!((world.served, world.nodes[&N].sandboxes.len()), (4, 4));
    assert!(world.drained.contains(&UNIT) && world.refused.is_empty());
}

#[test]
fn without_room_requests_go_elsewhere_in_the_end() {
    let mut world = World::small(4, 1, Scaling::default());
    world.arrive(D, F, 4);
    world.start_all();
    unit(&mut world, UNIT, 1, Scaling::default());
    set(&mut world, shared(&[(UNIT, 100)]));
    world.settle();
    world.pass(Duration::from_secs(20));
    assert_eq!(world.switched, 0);
    world.pass(Duration::from_secs(20));
    assert_eq!(world.switched, 1, "a start timeout is long enough");
}

#[test]
fn what_does_not_start_gets_no_requests_until_it_does() {
    let mut world = busy(4);
    unit(&mut world, UNIT, 1, Scaling::default());
    set(&mut world, shared(&[(UNIT, 50), (F, 50)]));
    world.settle();
    for _ in 0..200 {
        while world.start_one(N, 0, false) {}
        world.settle();
        world.jump(Duration::from_secs(1));
        world.settle();
    }
    assert_eq!(world.switched, 0);
    assert!(world.engine.traffic_pending(F));
    world.pass(Duration::from_secs(40));
    world.start_all();
    world.pass(Duration::from_secs(40));
    world.start_all();
    assert_eq!(world.switched, 1);
}

#[test]
fn a_newcomer_is_told_of_units_before_what_names_them_and_a_new_leader_knows_them() {
    let mut world = busy(0);
    unit(&mut world, UNIT, 1, Scaling::default());
    let traffic = shared(&[(UNIT, 100)]);
    set(&mut world, traffic.clone());
    world.settle();
    world.add_plane(E);
    let routes: Vec<_> = world.planes[&E]
        .to
        .iter()
        .filter_map(|m| if let ToDataPlane::Functions(routes) = m { Some(routes.clone()) } else { None })
        .flatten()
        .map(|route| (route.id, route.revision, route.reach))
        .collect();
    let expected = Reach::Shared(traffic.clone().unwrap());
    assert_eq!(routes, [(UNIT, 1, Reach::Unit), (F, 1, expected.clone())]);

    world.restart_engine(&[(F, 2, spec("f", 1, at_least(3)))]);
    let id = RevisionId { function: UNIT, number: 1 };
    world.step(Event::UnitKept { id, spec: Arc::new(spec("f", 1, at_least(2))) });
    world.step(Event::TrafficKept { function: F, traffic: traffic.unwrap() });
    world.connect_node(N);
    world.connect_plane(D);
    world.connect_plane(E);
    world.start_all();
    world.pass(Duration::from_secs(10));
    assert_eq!((world.ready(F), world.ready(UNIT)), (0, 2));
    assert_eq!(world.engine.functions[&F].reach, expected);
}

#[test]
fn twenty_updates_leave_sandboxes_of_what_gets_requests_only() {
    let mut world = World::small(100, 1, at_least(2));
    world.start_all();
    unit(&mut world, UNIT, 1, at_least(2));
    set(&mut world, shared(&[(UNIT, 50), (F, 50)]));
    for number in 2..=21 {
        world.set_function(F, number, spec("f", 1, at_least(2)));
        world.start_all();
        world.pass(Duration::from_secs(1));
    }
    world.pass(Duration::from_secs(10));
    let mut running: Vec<_> = world.nodes[&N].sandboxes.values().map(|s| s.revision.number).collect();
    running.sort_unstable();
    assert_eq!(running, [1, 1, 21, 21]);
}
