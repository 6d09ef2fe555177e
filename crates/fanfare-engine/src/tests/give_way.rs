//! Full nodes on which nothing is idle: who has nothing is given something.

use std::time::Duration;

use fanfare_types::{
    ExitCause, FunctionId, FunctionSpec, NodeId, Resources, Scaling, ScalingPolicy, ToDataPlane,
};

use super::world::{D, E, F, G, N, World, spec};
use crate::Event;

const H: FunctionId = FunctionId(3);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Room for `room`, which `F` has, with as many requests in it and many more that wait.
fn crowded(room: u64, scaling: Scaling) -> World {
    let mut world = World::small(room, 1, scaling);
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.set_function(H, 1, spec("h", 1, Scaling::default()));
    world.arrive(D, F, 200);
    world.start_all();
    world
}

fn reasons(world: &World, function: FunctionId) -> Vec<String> {
    let decisions = world.engine.function_status(function).unwrap().decisions;
    decisions.iter().map(|decision| decision.reason.to_string()).collect()
}

fn gave_way(world: &World, function: FunctionId) -> usize {
    reasons(world, function).iter().filter(|reason| reason.starts_with("gave way")).count()
}

#[test]
fn who_has_none_gets_the_next_slot_that_comes_free() {
    let mut world = crowded(8, Scaling::default());
    world.arrive(D, G, 1);
    world.pass(Duration::from_millis(200));
    assert_eq!((world.ready(F), world.ready(G)), (8, 0), "nobody's request is cut short");
    world.finish(D, 1);
    world.pass(Duration::from_millis(1));
    assert_eq!((world.ready(F), world.ready(G)), (7, 1), "one request's end is enough");
    assert_eq!(world.planes[&D].queued[&G], 0);
    assert!(
        reasons(&world, F).contains(&"gave way to g, which has none".to_owned()),
        "{:?}",
        reasons(&world, F)
    );
    world.finish(D, 50);
    world.pass(secs(5));
    assert_eq!(gave_way(&world, F), 1, "and that was all that was needed");
}

#[test]
fn those_who_starve_together_get_one_each_and_then_their_share() {
    let mut world = crowded(9, Scaling::default());
    world.arrive(D, G, 100);
    world.arrive(D, H, 100);
    world.pass(Duration::from_millis(200));
    for _ in 0..30 {
        world.finish(D, 3);
        world.pass(Duration::from_millis(500));
    }
    let shares = [F, G, H].map(|id| world.ready(id));
    assert!(shares.iter().all(|ready| (2..=4).contains(ready)), "{shares:?}");
    assert_eq!(shares.iter().sum::<u32>(), 9, "no room is left unused");
}

#[test]
fn of_many_each_has_one_as_soon_as_as_many_requests_have_ended() {
    let mut world = crowded(200, Scaling::default());
    world.arrive(D, F, 800);
    let many: Vec<FunctionId> = (10..94).map(FunctionId).collect();
    for id in &many {
        world.set_function(*id, 1, spec("g", 1, Scaling::default()));
    }
    world.settle();
    many.iter().for_each(|id| world.arrive(D, *id, 1));
    for _ in 0..8 {
        world.pass(secs(1));
        // The first of those that run are its own.
        world.finish(D, 30);
    }
    world.pass(secs(1));
    let without = many.iter().filter(|id| world.planes[&D].queued[*id] > 0).count();
    assert_eq!((without, world.ready(F)), (0, 200 - 84));
}

#[test]
fn what_has_several_slots_gives_one_up_when_all_its_requests_have_ended() {
    let mut world = World::small(4, 3, Scaling::default());
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.arrive(D, F, 90);
    world.start_all();
    world.arrive(D, G, 1);
    world.pass(Duration::from_millis(200));
    world.finish(D, 2);
    world.pass(Duration::from_millis(200));
    assert_eq!((world.ready(F), world.ready(G)), (4, 0));
    for sandbox in world.nodes[&N].sandboxes.keys().copied().collect::<Vec<_>>() {
        for _ in 0..3 {
            // The one that was chosen takes no more: it has had its last.
            if world.nodes[&N].sandboxes.get(&sandbox).is_some_and(|s| s.running > 0) {
                world.finish_in(D, sandbox);
            }
        }
    }
    world.pass(Duration::from_millis(10));
    assert_eq!((world.ready(F), world.ready(G)), (3, 1));
}

#[test]
fn shares_stay_once_they_are_fair() {
    let mut world = crowded(9, Scaling::default());
    world.arrive(D, F, 700);
    world.arrive(D, G, 900);
    world.pass(Duration::from_millis(200));
    for _ in 0..20 {
        world.finish(D, 3);
        world.pass(Duration::from_millis(500));
    }
    let (created, gave) = (world.created, gave_way(&world, F) + gave_way(&world, G));
    assert!(gave > 0);
    for _ in 0..100 {
        world.finish(D, 3);
        world.pass(Duration::from_millis(200));
    }
    assert_eq!(world.created, created, "{:?} {:?}", reasons(&world, F), reasons(&world, G));
    assert_eq!(gave_way(&world, G), 0, "what was given is not taken back");
}

#[test]
fn neither_a_minimum_nor_a_fixed_number_gives_way() {
    for scaling in [
        Scaling { min: 8, ..Scaling::default() },
        Scaling { policy: ScalingPolicy::Fixed(8), ..Scaling::default() },
    ] {
        let mut world = crowded(8, scaling);
        world.arrive(D, G, 1);
        for _ in 0..20 {
            world.pass(Duration::from_millis(500));
            world.finish(D, 4);
        }
        assert_eq!((world.ready(F), world.ready(G), gave_way(&world, F)), (8, 0, 0));
    }
    let mut world = crowded(8, Scaling { min: 7, ..Scaling::default() });
    world.arrive(D, G, 9);
    for _ in 0..6 {
        world.pass(Duration::from_millis(500));
        world.finish_in(D, world.planes[&D].first_running().unwrap());
    }
    assert_eq!(world.ready(F), 7, "down to its minimum");
}

#[test]
fn a_need_that_is_over_takes_nothing() {
    let mut world = crowded(8, Scaling::default());
    world.arrive(D, G, 1);
    world.pass(Duration::from_millis(200));
    assert_eq!(world.engine.gifts.len(), 1);
    world.step(Event::FunctionRemoved(G));
    world.finish(D, 30);
    world.pass(secs(2));
    assert_eq!((world.ready(F), gave_way(&world, F)), (8, 0));
}

#[test]
fn a_need_that_has_become_smaller_takes_less() {
    let mut world = crowded(8, Scaling::default());
    world.arrive(D, G, 3);
    world.pass(Duration::from_millis(900));
    assert_eq!(world.engine.gifts.len(), 1, "of eight no more than one in a second");
    world.pass(secs(4));
    assert_eq!(world.engine.gifts.len(), 3);
    world.finish(D, 1);
    world.pass(Duration::from_millis(10));
    assert_eq!(world.ready(G), 1);
    // What waited has come to its end in the first of them.
    let newest = *world.nodes[&N].sandboxes.keys().next_back().unwrap();
    world.finish_in(D, newest);
    world.finish_in(D, newest);
    world.pass(secs(2));
    world.finish(D, 20);
    world.pass(secs(1));
    assert_eq!(gave_way(&world, F), 1);
}

#[test]
fn only_a_sandbox_whose_room_is_of_use_goes() {
    let mut world = World::small(4, 1, Scaling::default());
    world.add_node(NodeId(2), 4);
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.arrive(D, F, 200);
    world.start_all();
    assert_eq!(world.ready(F), 8);
    // The other node does not take any more.
    world.engine.ledger.set_schedulable(NodeId(2), false);
    world.arrive(D, G, 1);
    world.pass(Duration::from_millis(200));
    let there = |world: &World, id| world.nodes[&id].sandboxes.len();
    for _ in 0..8 {
        world.finish(D, 8);
        world.pass(Duration::from_millis(100));
    }
    assert_eq!((there(&world, N), there(&world, NodeId(2))), (4, 4), "nothing has gone in vain");
    assert_eq!((world.ready(F), world.ready(G), gave_way(&world, F)), (7, 1, 1));
}

#[test]
fn what_one_sandbox_s_room_does_not_hold_takes_none() {
    let mut world = crowded(8, Scaling::default());
    let large = FunctionSpec {
        sizing: fanfare_types::Sizing {
            request: Resources::new(300, 300),
            ..spec("g", 1, Scaling::default()).sizing
        },
        ..spec("g", 1, Scaling::default())
    };
    world.set_function(G, 2, large);
    world.arrive(D, G, 1);
    for _ in 0..8 {
        world.pass(Duration::from_millis(500));
        world.finish(D, 8);
    }
    assert_eq!((world.ready(F), world.ready(G), gave_way(&world, F)), (8, 0, 0));
}

#[test]
fn of_several_data_planes_the_one_with_the_most_is_asked_and_a_new_stream_again() {
    let mut world = World::small(8, 1, Scaling::default());
    world.add_plane(E);
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.arrive(D, F, 100);
    world.arrive(E, F, 2);
    world.start_all();
    world.arrive(E, G, 1);
    world.pass(Duration::from_millis(200));
    assert_eq!(world.engine.gifts.len(), 1);
    world.connect_plane(D);
    let asked =
        world.planes[&D].to.iter().any(|m| matches!(m, ToDataPlane::Retire { function: F, sandboxes: 1 }));
    assert!(asked, "{:?}", world.planes[&D].to);
    world.start_all();
    world.finish(D, 2);
    world.pass(Duration::from_millis(100));
    assert_eq!((world.ready(F), world.ready(G)), (7, 1));
}

#[test]
fn a_giver_that_crashes_down_to_its_last_gives_nothing() {
    let mut world = crowded(3, Scaling::default());
    world.arrive(D, G, 1);
    world.pass(Duration::from_millis(200));
    assert_eq!(world.engine.gifts.len(), 1);
    let all: Vec<_> = world.nodes[&N].sandboxes.keys().copied().collect();
    for sandbox in &all[1..] {
        world.end_sandbox(N, *sandbox, ExitCause::Signal(9));
    }
    world.settle();
    assert_eq!(world.engine.inconsistency(), None);
    world.finish(D, 1);
    world.start_all();
    assert_eq!((world.ready(F), world.ready(G), gave_way(&world, F)), (3, 0, 0), "it has its own back first");
}

#[test]
fn the_room_is_its_heir_s_and_not_the_giver_s_who_has_waited_longer() {
    let mut world = crowded(4, Scaling::default());
    world.pass(secs(10));
    assert!(
        world.engine.starved.first().is_some_and(|(_, id)| *id == F),
        "it has wanted more since long ago"
    );
    world.arrive(D, G, 1);
    world.pass(Duration::from_millis(60));
    world.finish(D, 1);
    world.pass(Duration::from_millis(1));
    assert_eq!((world.ready(F), world.ready(G)), (3, 1));
}
