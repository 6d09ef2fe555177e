//! What there is no room for: said at once where it is for good, shown where it is not.

use std::time::Duration;

use fanfare_types::{NodeId, Reason, Resources, RevisionId, Scaling, ScalingPolicy, StartFailureKind};

use super::world::{D, F, G, World, spec};
use crate::Event;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn fixed(sandboxes: u32) -> Scaling {
    Scaling { policy: ScalingPolicy::Fixed(sandboxes), ..Scaling::default() }
}

#[test]
fn what_no_node_can_hold_is_not_proved_by_one_that_is_too_small() {
    let mut world = World::small(4, 1, Scaling::default());
    let mut large = spec("f", 1, Scaling::default());
    large.sizing.request = Resources::new(500, 500);
    world.set_function(F, 2, large.clone());
    let revision = RevisionId { function: F, number: 2 };
    world.step(Event::PrepareRequested { id: revision, spec: large.into() });
    world.settle();
    assert_eq!(world.prepared, vec![], "a larger node may yet connect");
    world.pass(secs(1));
    let (of, result) = world.prepared.pop().unwrap();
    assert_eq!((of, result.unwrap_err().kind), (revision, StartFailureKind::NoRoom));

    world.arrive(D, F, 1);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.refused, vec![(F, Reason::NoCapacity)], "it is known: nobody waits for it again");
    world.add_node(NodeId(9), 10);
    world.arrive(D, F, 1);
    world.start_all();
    assert_eq!(world.ready(F), 1, "one has come that can");
}

#[test]
fn what_has_no_room_is_wanted_all_the_same() {
    let mut world = World::small(4, 1, Scaling { min: 10, ..Scaling::default() });
    world.start_all();
    world.pass(secs(5));
    let status = world.engine.function_status(F).unwrap();
    assert_eq!((status.ready, status.desired, status.lacks_room), (4, 10, true));
}

#[test]
fn a_fixed_number_makes_room_for_nobody() {
    let mut world = World::small(4, 1, fixed(4));
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.start_all();
    world.pass(secs(70));
    assert_eq!(world.ready(F), 4);
    world.arrive(D, G, 1);
    world.pass(secs(1));
    assert_eq!((world.ready(F), world.ready(G)), (4, 0));
}

#[test]
fn an_order_says_how_long_room_was_waited_for() {
    let mut world = World::small(1, 1, Scaling::default());
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.arrive(D, F, 1);
    world.start_all();
    world.arrive(D, G, 1);
    world.pass(secs(3));
    world.finish(D, 1);
    world.pass(secs(1));
    let sandbox = world.engine.function_status(G).unwrap().sandboxes[0].sandbox;
    let waited = world.engine.order_of(sandbox).unwrap().room_after;
    assert!(waited >= secs(3) && waited <= secs(4), "{waited:?}");
}
