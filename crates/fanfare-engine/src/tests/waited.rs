//! Nodes know of which sandboxes they are to make somebody waits for.

use fanfare_types::Scaling;

use super::world::{D, F, G, N, World, spec};

fn minimum(min: u32) -> Scaling {
    Scaling { min, ..Scaling::default() }
}

/// How many sandboxes start, and of how many the node knows that a request waits for them.
fn starting(world: &World) -> (usize, usize) {
    let sandboxes = world.nodes[&N].sandboxes.values().filter(|s| !s.ready);
    (sandboxes.clone().count(), sandboxes.filter(|s| s.waited).count())
}

#[test]
fn what_requests_wait_for_is_ordered_so_and_a_minimum_is_not() {
    let mut world = World::small(1000, 1, minimum(20));
    world.settle();
    assert_eq!(starting(&world), (20, 0), "a minimum that is being filled");
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.settle();
    world.arrive(D, G, 3);
    world.settle();
    assert_eq!(starting(&world), (23, 3));
}

#[test]
fn a_request_hastens_one_that_was_ordered_without_it() {
    let mut world = World::small(1000, 1, minimum(20));
    world.settle();
    world.arrive(D, F, 2);
    world.settle();
    assert_eq!(starting(&world), (20, 2));
    // Said once; what is more than the minimum is ordered, for those that wait.
    world.arrive(D, F, 21);
    world.settle();
    assert_eq!(starting(&world), (23, 23));
    world.start_all();
    world.finish(D, 23);
    assert_eq!(world.served, 23);
}

#[test]
fn of_a_minimum_that_a_request_brings_about_it_waits_for_one_alone() {
    let mut world = World::small(1000, 4, Scaling { activation: 10, ..Scaling::default() });
    world.arrive(D, F, 5);
    world.settle();
    assert_eq!(starting(&world), (10, 2), "five requests in sandboxes of four slots");
}
