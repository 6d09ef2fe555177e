//! A sandbox in which user code may run on, and the requests beside that one.

use std::time::Duration;

use fanfare_types::{ExitCause, NodeId, SandboxId, Scaling};

use super::world::{D, E, F, G, N, World, spec};
use crate::Event;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at_most(max: u32) -> Scaling {
    Scaling { max, ..Scaling::default() }
}

fn first(world: &World) -> SandboxId {
    *world.nodes[&N].sandboxes.first_key_value().unwrap().0
}

fn lives(world: &World, sandbox: SandboxId) -> bool {
    world.nodes[&N].sandboxes.contains_key(&sandbox)
}

#[test]
fn neighbours_of_a_timed_out_request_finish_and_a_new_sandbox_takes_the_rest() {
    let mut world = World::small(10, 4, at_most(1));
    world.arrive(D, F, 4);
    world.start_all();
    let condemned = first(&world);
    world.time_out(D);
    world.arrive(D, F, 4);
    world.start_all();
    assert!(lives(&world, condemned), "three requests still run in it");
    assert_eq!((world.created, world.ready(F)), (2, 1), "its replacement did not wait for them");
    assert_eq!(world.planes[&D].queued[&F], 0);
    world.finish(D, 3);
    world.settle();
    assert_eq!(world.served, 3, "in the condemned one");
    assert!(!lives(&world, condemned), "with its last request");
    world.finish(D, 4);
    assert_eq!((world.served, world.created), (7, 2));
    assert!(world.planes[&D].condemned.is_empty());
}

#[test]
fn neighbours_from_another_data_plane_finish_too() {
    let mut world = World::small(10, 4, at_most(1));
    world.add_plane(E);
    world.arrive(D, F, 2);
    world.arrive(E, F, 2);
    world.start_all();
    let condemned = first(&world);
    assert_eq!(world.planes[&E].held[&condemned].in_flight, 2);
    world.time_out(D);
    world.settle();
    world.arrive(E, F, 1);
    world.settle();
    assert_eq!(world.planes[&E].held[&condemned].in_flight, 2, "nothing begins in it any more");
    world.finish(D, 1);
    world.finish(E, 1);
    world.settle();
    assert!(lives(&world, condemned));
    world.finish(E, 1);
    world.settle();
    assert!(!lives(&world, condemned));
    assert_eq!(world.served, 3);
}

#[test]
fn a_lost_data_plane_costs_the_requests_of_no_other() {
    let mut world = World::small(10, 4, at_most(1));
    world.add_plane(E);
    world.arrive(D, F, 2);
    world.arrive(E, F, 2);
    world.start_all();
    let shared = first(&world);
    world.planes.get_mut(&E).unwrap().connected = false;
    world.step(Event::DataPlaneLost(E));
    world.settle();
    assert!(lives(&world, shared));
    world.finish(D, 2);
    world.settle();
    assert_eq!(world.served, 2);
    assert!(!lives(&world, shared), "what the lost one had in it may run on");
}

#[test]
fn a_neighbour_holds_it_no_longer_than_any_request_may_take() {
    let mut world = World::small(10, 2, at_most(1));
    world.arrive(D, F, 2);
    world.start_all();
    let condemned = first(&world);
    world.time_out(D);
    world.pass(secs(59));
    assert!(lives(&world, condemned), "its time is not over");
    world.pass(secs(7));
    assert!(!lives(&world, condemned));
}

#[test]
fn a_neighbour_that_times_out_as_well_condemns_nothing_twice() {
    let mut world = World::small(10, 3, at_most(1));
    world.arrive(D, F, 3);
    world.start_all();
    let condemned = first(&world);
    world.time_out(D);
    world.time_out(D);
    world.settle();
    assert!(lives(&world, condemned));
    world.time_out(D);
    world.arrive(D, F, 3);
    world.start_all();
    assert!(!lives(&world, condemned));
    world.finish(D, 3);
    assert_eq!((world.served, world.created), (3, 2));
}

#[test]
fn where_every_request_times_out_those_that_finish_and_those_that_serve_are_bounded() {
    let mut world = World::small(100, 4, at_most(3));
    let mut most = 0;
    for _ in 0..200 {
        world.arrive(D, F, 4);
        let busy = world.planes[&D].held.iter().filter(|(_, h)| h.in_flight > 0);
        if let Some(newest) = busy.map(|(id, _)| *id).max() {
            world.time_out_in(D, newest);
        }
        world.pass(Duration::from_millis(300));
        let status = world.engine.function_status(F).unwrap();
        assert!(status.ready + status.starting <= 3, "{status:?}");
        most = most.max(world.nodes[&N].sandboxes.len());
    }
    assert_eq!(most, 6, "as many again as may serve");
    let decisions = world.engine.function_status(F).unwrap().decisions;
    assert!(decisions.iter().any(|d| d.reason.contains("finish their requests first")), "{decisions:?}");
}

#[test]
fn without_room_for_a_replacement_requests_wait_until_the_condemned_one_is_dead() {
    let mut world = World::small(1, 2, at_most(5));
    world.arrive(D, F, 2);
    world.start_all();
    let condemned = first(&world);
    world.time_out(D);
    world.arrive(D, F, 1);
    world.pass(secs(3));
    assert_eq!(world.planes[&D].queued[&F], 1);
    assert!(lives(&world, condemned), "its other request is not sacrificed");
    world.finish(D, 1);
    world.start_all();
    assert_eq!((world.served, world.created), (1, 2), "room is made by its end");
    world.finish(D, 1);
    assert_eq!(world.served, 2);
}

#[test]
fn what_a_condemned_sandbox_holds_is_no_room_for_another_function() {
    let mut world = World::small(3, 2, Scaling::default());
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.arrive(D, F, 6);
    world.start_all();
    world.time_out(D);
    world.settle();
    // Of the other two, one is idle and may be asked back; the condemned one has a request in it.
    let idle = *world.planes[&D].held.keys().last().unwrap();
    world.finish_in(D, idle);
    world.finish_in(D, idle);
    world.pass(secs(3));
    world.arrive(D, G, 1);
    world.pass(secs(1));
    assert_eq!(world.ready(G), 1, "not after the condemned one's end");
}

#[test]
fn a_new_leader_lets_the_neighbours_finish() {
    for node_first in [true, false] {
        let mut world = World::small(10, 3, at_most(1));
        world.arrive(D, F, 3);
        world.start_all();
        let condemned = first(&world);
        world.time_out(D);
        world.restart_engine(&[(F, 1, spec("f", 3, at_most(1)))]);
        if node_first {
            world.connect_node(N);
            world.connect_plane(D);
        } else {
            world.connect_plane(D);
            world.connect_node(N);
        }
        world.arrive(D, F, 1);
        world.pass(secs(5));
        assert!(lives(&world, condemned), "two requests still run in it: {node_first}");
        assert_eq!(world.planes[&D].queued[&F], 0, "and a new one serves");
        world.finish(D, 2);
        world.settle();
        assert_eq!(world.served, 2);
        assert!(!lives(&world, condemned));
        assert!(world.planes[&D].condemned.is_empty());
    }
}

#[test]
fn a_sandbox_that_a_silent_data_plane_may_use_is_killed_and_not_asked_to_end() {
    for update in [false, true] {
        let mut world = World::small(10, 3, at_most(1));
        world.add_plane(E);
        world.arrive(D, F, 1);
        world.arrive(E, F, 2);
        world.start_all();
        let shared = first(&world);
        assert_eq!(world.planes[&E].held[&shared].in_flight, 2);
        world.restart_engine(&[(F, 1, spec("f", 3, at_most(1)))]);
        world.connect_node(N);
        world.connect_plane(D);
        if update {
            world.set_function(F, 2, spec("f", 3, at_most(1)));
        }
        world.pass(secs(5));
        assert!(lives(&world, shared));
        // The world refuses a stop with requests in it that is no kill.
        world.finish(D, 1);
        world.start_all();
        assert!(!lives(&world, shared));
    }
}

#[test]
fn a_new_stream_of_who_condemned_it_changes_nothing() {
    let mut world = World::small(10, 3, at_most(1));
    world.arrive(D, F, 3);
    world.start_all();
    let condemned = first(&world);
    world.time_out(D);
    // What it said on the old stream is lost.
    world.connect_plane(D);
    world.start_all();
    assert!(lives(&world, condemned));
    world.finish(D, 1);
    world.connect_plane(D);
    world.settle();
    assert!(lives(&world, condemned));
    world.finish(D, 1);
    world.settle();
    assert_eq!(world.served, 2);
    assert!(!lives(&world, condemned));
}

#[test]
fn a_condemned_sandbox_that_ends_by_itself_takes_its_neighbours_along_and_is_not_missed() {
    let mut world = World::small(10, 2, at_most(1));
    world.arrive(D, F, 2);
    world.start_all();
    let condemned = first(&world);
    world.time_out(D);
    world.start_all();
    world.end_sandbox(N, condemned, ExitCause::Signal(11));
    world.start_all();
    assert!(world.planes[&D].held.is_empty() || !world.planes[&D].held.contains_key(&condemned));
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    assert_eq!((world.served, world.ready(F)), (2, 1));
}

#[test]
fn old_slots_move_to_data_planes_that_come_after_a_broken_update() {
    let mut world = World::small(10, 2, Scaling::default());
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    world.set_function(F, 2, spec("f", 2, Scaling::default()));
    world.settle();
    while world.start_one(N, 0, false) {}
    world.settle();
    // One after the other is replaced by a newcomer.
    for (old, new) in [(D, E), (E, fanfare_types::DataPlaneId(3))] {
        world.add_plane(new);
        world.drain(old);
        world.settle();
        world.planes.get_mut(&old).unwrap().connected = false;
        world.step(Event::DataPlaneLost(old));
        world.arrive(new, F, 2);
        while world.start_one(N, 0, false) {}
        world.settle();
        assert_eq!(world.planes[&new].queued[&F], 0, "the old revision serves");
        world.finish(new, 2);
        world.settle();
    }
    assert_eq!((world.served, world.refused.len()), (6, 0));
    assert_eq!(world.engine.function_status(F).unwrap().ready_of_old_revisions, 1);
    // Mended, it serves everywhere and the old one goes.
    world.set_function(F, 3, spec("f", 2, Scaling::default()));
    world.start_all();
    let revisions: Vec<u32> = world.nodes[&N].sandboxes.values().map(|s| s.revision.number).collect();
    assert_eq!(revisions, vec![3]);
}

#[test]
fn old_slots_move_between_data_planes_while_only_they_serve() {
    let mut world = World::small(10, 1, at_most(2));
    world.add_node(NodeId(2), 0);
    world.add_plane(E);
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    world.set_function(F, 2, spec("f", 1, at_most(2)));
    world.settle();
    while world.start_one(N, 0, false) {}
    world.settle();
    world.arrive(E, F, 1);
    world.settle();
    assert_eq!(world.planes[&E].queued[&F], 0, "an idle slot of the old revision moved");
    world.finish(E, 1);
    assert_eq!(world.served, 3);
}
