//! Nodes, data planes and leaders that go and come: one case per promise.

use fanfare_types::*;

use super::cases::{at_most, secs};
use super::plane::FakePlane;
use super::world::{D, E, F, N, World, spec};
use crate::Event;

#[test]
fn a_lost_node_costs_its_requests_and_another_takes_over() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 2);
    world.start_all();
    world.nodes.get_mut(&N).unwrap().connected = false;
    world.step(Event::NodeLost(N));
    world.add_node(fanfare_types::NodeId(2), 10);
    world.settle();
    assert!(world.planes[&D].held.is_empty(), "the data plane was told");
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    assert_eq!(world.served, 2);
}

#[test]
fn slots_move_to_the_data_plane_whose_requests_wait() {
    let mut world = World::small(10, 1, at_most(2));
    world.add_plane(E);
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    world.settle();
    world.arrive(E, F, 2);
    world.pass(secs(1));
    assert_eq!(world.planes[&E].queued[&F], 0, "idle slots moved");
    world.arrive(D, F, 4);
    world.start_all();
    world.finish(E, 1);
    world.start_all();
    let at_d: u32 = world.planes[&D].held.values().map(|h| h.slots).sum();
    assert_eq!(at_d, 1, "a busy data plane gives up its share as slots become free");
}

#[test]
fn a_data_plane_that_shuts_down_is_granted_nothing_more() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 2);
    world.start_all();
    world.drain(D);
    world.settle();
    world.finish(D, 2);
    world.settle();
    assert!(world.planes[&D].held.is_empty());
    world.add_plane(E);
    world.arrive(E, F, 2);
    world.start_all();
    world.finish(E, 2);
    assert_eq!((world.served, world.created), (4, 2), "the other data plane uses the same sandboxes");
}

#[test]
fn a_reconnected_data_plane_keeps_its_slots_and_its_requests() {
    let mut world = World::small(10, 2, Scaling::default());
    world.arrive(D, F, 4);
    world.start_all();
    world.connect_plane(D);
    world.start_all();
    assert_eq!(world.planes[&D].held.len(), 2);
    world.finish(D, 4);
    assert_eq!(world.served, 4);
    assert_eq!(world.created, 2);
}

#[test]
fn a_restarted_data_plane_does_not_reuse_slots_that_may_be_busy() {
    let mut world = World::small(10, 1, at_most(2));
    world.arrive(D, F, 2);
    world.start_all();
    let before: Vec<_> = world.nodes[&N].sandboxes.keys().copied().collect();
    world.restart_plane(D);
    world.arrive(D, F, 2);
    world.start_all();
    assert!(world.nodes[&N].sandboxes.keys().all(|s| !before.contains(s)), "they were killed");
    world.finish(D, 2);
    assert_eq!(world.served, 2);
}

#[test]
fn a_new_leader_adopts_what_runs_and_waits_for_the_leases() {
    let scaling = Scaling::default();
    let mut world = World::small(10, 1, scaling.clone());
    world.add_plane(E);
    world.arrive(D, F, 2);
    world.start_all();
    let before: Vec<_> = world.nodes[&N].sandboxes.keys().copied().collect();
    world.restart_engine(&[(F, 1, spec("f", 1, scaling))]);
    world.connect_node(N);
    world.connect_plane(E);
    world.arrive(E, F, 1);
    world.settle();
    assert!(world.planes[&E].held.is_empty(), "the other data plane may hold these slots");
    world.connect_plane(D);
    world.start_all();
    world.finish(D, 2);
    world.pass(secs(20));
    assert_eq!(world.served, 2);
    assert_eq!(
        world.nodes[&N].sandboxes.keys().filter(|s| before.contains(s)).count(),
        2,
        "none was stopped"
    );
}

#[test]
fn unclaimed_slots_of_a_data_plane_that_never_returns_are_written_off() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 1);
    world.start_all();
    let before = *world.nodes[&N].sandboxes.keys().next().unwrap();
    let functions = [(F, 1, spec("f", 1, Scaling::default()))];
    world.restart_engine(&functions);
    *world.planes.get_mut(&D).unwrap() = FakePlane::default();
    world.connect_node(N);
    world.add_plane(E);
    world.arrive(E, F, 1);
    world.pass(secs(10));
    assert!(!world.nodes[&N].sandboxes.contains_key(&before));
    world.finish(E, 1);
    assert_eq!(world.served, 1);
}

#[test]
fn owners_are_told_once_there_is_a_choice() {
    let mut world = World::small(10, 1, Scaling::default());
    assert!(world.planes[&D].owners.is_empty());
    world.add_plane(E);
    world.settle();
    let foreign = |world: &World, id| world.planes[&id].owners.contains_key(&F);
    assert!(foreign(&world, D) != foreign(&world, E), "exactly one owns it");
    let owner = if foreign(&world, D) { E } else { D };
    world.planes.get_mut(&owner).unwrap().connected = false;
    world.step(Event::DataPlaneLost(owner));
    world.settle();
    let other = if owner == D { E } else { D };
    assert!(!foreign(&world, other), "the one that is left owns everything");
}
