//! Single faults: what random ones found, and what they cannot reach.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{
    DataPlaneHello, Epoch, ExitCause, FromDataPlane, FromNode, FunctionId, FunctionLoad, FunctionSpec,
    GoneCause, HeldLease, Kpa, NodeHello, NodeId, Reason, Resources, RevisionId, SandboxId, Scaling,
    ScalingPolicy, StopMode, Timeouts, ToDataPlane, ToNode,
};

use super::world::{D, E, F, G, N, World, spec};
use crate::Event;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_data_plane_that_shuts_down_gets_what_its_waiting_requests_need() {
    let mut world = World::small(10, 2, Scaling::default());
    world.arrive(D, F, 1);
    world.settle();
    world.drain(D);
    world.start_all();
    world.finish(D, 1);
    world.settle();
    assert_eq!(world.served, 1, "it was cold when the shutdown began");
    assert!(world.planes[&D].held.is_empty(), "and nothing stays there");
}

#[test]
fn nobody_yields_slots_that_are_not_granted_to_whom_they_are_for() {
    let mut world = World::small(2, 1, Scaling { max: 2, ..Scaling::default() });
    world.add_plane(E);
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    world.drain(E);
    world.arrive(E, F, 2);
    world.start_all();
    world.finish(E, 2);
    world.settle();
    assert_eq!(world.served, 4);
    assert!(world.planes[&E].held.is_empty());
}

#[test]
fn a_new_leader_stops_no_sandbox_whose_holder_has_not_spoken_yet() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 1);
    world.start_all();
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.start_all();
    let old = *world.nodes[&N].sandboxes.first_key_value().unwrap().0;
    world.restart_engine(&[(F, 2, spec("f", 1, Scaling::default()))]);
    world.connect_node(N);
    world.settle();
    assert!(world.nodes[&N].sandboxes.contains_key(&old), "a request of the earlier revision runs in it");
    world.connect_plane(D);
    world.pass(secs(5));
    assert!(world.nodes[&N].sandboxes.contains_key(&old));
    world.finish(D, 1);
    world.start_all();
    assert_eq!(world.served, 1);
    assert!(!world.nodes[&N].sandboxes.contains_key(&old), "it goes with its request");
}

#[test]
fn a_broken_update_leaves_the_old_revision_serving_under_a_new_leader() {
    // More slots than the new revision has: how many the old one had is not kept.
    let mut world = World::small(10, 4, Scaling::default());
    world.arrive(D, F, 4);
    world.start_all();
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.settle();
    while world.start_one(N, 0, false) {}
    world.settle();
    world.restart_engine(&[(F, 2, spec("f", 1, Scaling::default()))]);
    world.connect_node(N);
    world.connect_plane(D);
    for _ in 0..20 {
        world.settle();
        while world.start_one(N, 0, false) {}
        world.finish(D, 4);
        world.jump(secs(1));
        world.arrive(D, F, 4);
    }
    world.settle();
    world.finish(D, 4);
    assert_eq!((world.served, world.refused.len()), (84, 0));
    assert_eq!(world.engine.function_status(F).unwrap().ready_of_old_revisions, 1);
}

#[test]
fn going_back_to_the_revision_before_costs_neither_its_sandboxes_nor_a_request() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 3);
    world.start_all();
    let before: Vec<_> = world.nodes[&N].sandboxes.keys().copied().collect();
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.settle();
    while world.start_one(N, 0, false) {}
    world.settle();
    world.set_function(F, 1, spec("f", 1, Scaling::default()));
    world.settle();
    let status = world.engine.function_status(F).unwrap();
    assert_eq!((status.ready, status.ready_of_old_revisions, status.starting), (3, 0, 0));
    world.finish(D, 3);
    world.arrive(D, F, 3);
    world.settle();
    world.finish(D, 3);
    assert_eq!((world.served, world.refused.len()), (6, 0));
    let after: Vec<_> = world.nodes[&N].sandboxes.keys().copied().collect();
    assert_eq!(after, before, "nothing was stopped or started");
}

#[test]
fn going_back_from_a_revision_that_serves_replaces_it_without_a_gap() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 2);
    world.start_all();
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.start_all();
    world.finish(D, 2);
    world.settle();
    assert_eq!(world.ready(F), 2, "of the second revision");
    world.set_function(F, 1, spec("f", 1, Scaling::default()));
    world.settle();
    world.arrive(D, F, 2);
    world.settle();
    world.start_all();
    world.finish(D, 2);
    world.settle();
    assert_eq!((world.served, world.refused.len()), (4, 0));
    assert!(world.nodes[&N].sandboxes.values().all(|s| s.revision.number == 1));
}

#[test]
fn who_condemned_a_sandbox_hears_its_end_also_after_a_new_stream() {
    for new_leader in [false, true] {
        let mut world = World::small(10, 1, Scaling::default());
        world.arrive(D, F, 1);
        world.start_all();
        let condemned = *world.nodes[&N].sandboxes.first_key_value().unwrap().0;
        world.time_out(D);
        if new_leader {
            world.restart_engine(&[(F, 1, spec("f", 1, Scaling::default()))]);
            world.connect_node(N);
        }
        world.connect_plane(D);
        world.settle();
        assert!(!world.nodes[&N].sandboxes.contains_key(&condemned));
        assert!(
            world.planes[&D].condemned.is_empty(),
            "it keeps what it condemned until it hears: {new_leader}"
        );
    }
}

#[test]
fn a_creation_is_called_back_once() {
    let mut world = World::small(1000, 1, Scaling::default());
    world.arrive(D, F, 500);
    world.settle();
    let mut called_back = 0;
    for _ in 0..20 {
        let load = FunctionLoad { function: F, ..FunctionLoad::default() };
        let message = FromDataPlane::Demand(load);
        world.step(Event::FromDataPlane { data_plane: D, message, received: world.now });
        let stop = |m: &ToNode| matches!(m, ToNode::Stop { mode: StopMode::IfNotBegun, .. });
        called_back = world.nodes[&N].to.iter().filter(|message| stop(message)).count();
    }
    assert_eq!(called_back, 500, "said 20 times, 10000 creations overflow a link");
    world.settle();
    assert!(world.nodes[&N].sandboxes.is_empty());
}

#[test]
fn a_waiting_request_makes_room_though_the_autoscaler_wants_more() {
    let mut world = World::small(3, 1, Scaling::default());
    let other = NodeId(2);
    world.arrive(D, F, 3);
    world.pass(secs(3));
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.add_node(other, 3);
    world.settle();
    world.arrive(D, G, 3);
    world.start_all();
    world.finish(D, 6);
    world.pass(secs(3));
    world.nodes.get_mut(&N).unwrap().connected = false;
    world.step(Event::NodeLost(N));
    world.settle();
    world.arrive(D, F, 1);
    world.pass(Duration::from_millis(500));
    world.finish(D, 1);
    assert_eq!(world.served, 7, "the autoscaler wants three, the request waits for one");
    assert_eq!(world.ready(G), 2);
}

#[test]
fn nobody_makes_room_for_what_no_node_could_hold() {
    let mut world = World::small(4, 1, Scaling::default());
    world.add_node(NodeId(2), 4);
    let mut large = spec("g", 1, Scaling::default());
    large.sizing.request = Resources::new(500, 500);
    world.set_function(G, 1, large);
    world.arrive(D, F, 8);
    world.start_all();
    world.finish(D, 8);
    world.pass(secs(3));
    world.arrive(D, G, 1);
    world.pass(secs(7));
    assert_eq!(world.created, 8, "all of them together would be room enough, but on no one node");
    assert_eq!(world.refused, vec![(G, Reason::NoCapacity)]);
}

#[test]
fn what_a_returning_node_does_not_state_is_gone() {
    let mut world = World::small(2, 1, Scaling::default());
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    let lost = *world.nodes[&N].sandboxes.keys().next().unwrap();
    world.nodes.get_mut(&N).unwrap().sandboxes.remove(&lost);
    world.connect_node(N);
    world.start_all();
    let known: Vec<_> = world.engine.sandboxes.keys().copied().collect();
    let there: Vec<_> = world.nodes[&N].sandboxes.keys().copied().collect();
    assert_eq!(known, there);
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    assert_eq!(world.served, 4, "its room is there again");
}

#[test]
fn functions_that_starve_together_are_given_room_together() {
    let mut world = World::small(8, 1, Scaling::default());
    world.arrive(D, F, 8);
    world.start_all();
    world.finish(D, 8);
    world.pass(secs(3));
    for id in 10..18 {
        world.set_function(FunctionId(id), 1, spec("g", 1, Scaling::default()));
    }
    world.settle();
    for id in 10..18 {
        world.arrive(D, FunctionId(id), 1);
    }
    world.pass(Duration::from_millis(20));
    world.finish(D, 8);
    assert_eq!(world.served, 16, "one look at all of them, not one for each");
}

#[test]
fn no_timer_outlives_its_sandbox() {
    let mut world = World::small(10, 1, Scaling::default());
    let hour = secs(3600);
    let timeouts = Timeouts { start: hour, request: hour, idle: None };
    world.set_function(F, 2, FunctionSpec { timeouts, ..spec("f", 1, Scaling::default()) });
    world.arrive(D, F, 3);
    world.start_all();
    world.finish(D, 3);
    world.pass(secs(200));
    assert_eq!((world.ready(F), world.engine.next_deadline()), (0, None));
}

#[test]
fn an_update_decides_at_its_own_pace() {
    let kpa = Kpa { tick: secs(3600), ..Kpa::default() };
    let scaling = Scaling { policy: ScalingPolicy::Kpa(kpa), ..Scaling::default() };
    let mut world = World::small(10, 1, scaling);
    world.arrive(D, F, 2);
    world.start_all();
    world.finish(D, 2);
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.pass(secs(200));
    assert_eq!(world.ready(F), 0, "the next decision of the earlier revision is an hour away");
}

#[test]
fn a_long_request_outlives_an_update_to_a_short_timeout() {
    let mut world = World::small(10, 1, Scaling::default());
    let of = |seconds| Timeouts { request: secs(seconds), ..Timeouts::default() };
    world.set_function(F, 2, FunctionSpec { timeouts: of(3600), ..spec("f", 1, Scaling::default()) });
    world.arrive(D, F, 1);
    world.start_all();
    world.set_function(F, 3, FunctionSpec { timeouts: of(1), ..spec("f", 1, Scaling::default()) });
    world.pass(secs(600));
    world.finish(D, 1);
    assert_eq!(world.served, 1, "it was promised an hour");
}

#[test]
fn an_exit_before_readiness_is_a_failed_start() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 1);
    for _ in 0..20 {
        world.settle();
        if let Some(starting) = world.nodes[&N].sandboxes.keys().next().copied() {
            world.end_sandbox(N, starting, ExitCause::Status(1));
        }
    }
    world.settle();
    assert_eq!((world.created, world.refused.as_slice()), (1, [(F, Reason::StartFailed)].as_slice()));
}

#[test]
fn only_its_own_node_speaks_for_a_sandbox() {
    let mut world = World::small(10, 1, Scaling::default());
    world.add_node(NodeId(2), 0);
    world.arrive(D, F, 1);
    world.start_all();
    let sandbox = *world.nodes[&N].sandboxes.first_key_value().unwrap().0;
    let cause = GoneCause { exit: ExitCause::Stopped, log_tail: "".into() };
    world.step(Event::FromNode { node: NodeId(2), message: FromNode::Exited { sandbox, cause } });
    world.settle();
    assert_eq!(world.ready(F), 1);
    assert!(world.planes[&D].held.contains_key(&sandbox));
}

#[test]
fn no_number_from_outside_breaks_anything() {
    let mut world = World::small(10, 3, Scaling { max: 20, ..Scaling::default() });
    world.add_plane(E);
    world.arrive(D, F, 4);
    world.start_all();
    let most = Resources::new(u64::MAX, u64::MAX);
    let node = |name: &str| NodeHello {
        name: name.into(),
        incarnation: 1,
        epoch_seen: Epoch(0),
        capacity: most,
        runtimes: vec!["other".into()],
        sandboxes: vec![],
        logs: 0,
    };
    for id in [8, 9] {
        world.nodes.insert(NodeId(id), Default::default());
        world.step(Event::NodeConnected { node: NodeId(id), hello: node("x") });
    }
    assert_eq!(world.engine.cluster_status().capacity, most);
    let sandbox = *world.nodes[&N].sandboxes.first_key_value().unwrap().0;
    let lease = |sandbox| HeldLease { sandbox, slots: u32::MAX };
    for recovering in [true, false] {
        if recovering {
            world.restart_engine(&[(F, 1, spec("f", 3, Scaling { max: 20, ..Scaling::default() }))]);
            world.connect_node(N);
        }
        for plane in [D, E] {
            let hello = DataPlaneHello {
                name: plane.to_string().into(),
                address: "x".into(),
                incarnation: 1,
                epoch_seen: Epoch(0),
                leases: vec![lease(sandbox), lease(SandboxId(7))],
                condemned: vec![],
            };
            world.step(Event::DataPlaneConnected { data_plane: plane, hello });
        }
        for plane in [D, E] {
            let load = FunctionLoad {
                function: F,
                in_flight: u32::MAX,
                queued: u32::MAX,
                idle_sandboxes: u32::MAX,
                concurrency_avg: f64::MAX,
                arrivals: u32::MAX,
                interval_s: f64::MIN_POSITIVE,
                execution_s: Some(f64::MAX),
            };
            let released = FromDataPlane::Released { sandbox, slots: u32::MAX, retired: false };
            for message in [FromDataPlane::Demand(load), FromDataPlane::Report(vec![load]), released] {
                world.step(Event::FromDataPlane { data_plane: plane, message, received: world.now });
            }
        }
        for _ in 0..5 {
            world.now = world.now + secs(1);
            world.step(Event::Tick);
        }
    }
}

#[test]
fn a_data_plane_that_is_left_alone_learns_that_it_owns_everything() {
    let mut world = World::small(10, 1, Scaling::default());
    world.add_plane(E);
    world.settle();
    let foreign = |world: &World, id| world.planes[&id].owners.contains_key(&F);
    let (owner, other) = if foreign(&world, D) { (E, D) } else { (D, E) };
    // Both streams break; the owner does not return.
    world.planes.get_mut(&owner).unwrap().connected = false;
    world.planes.get_mut(&other).unwrap().connected = false;
    world.step(Event::DataPlaneLost(owner));
    world.connect_plane(other);
    world.settle();
    assert!(!foreign(&world, other), "it would forward to a data plane that is gone");
}

#[test]
fn a_new_leader_starts_nothing_that_is_only_not_stated_yet() {
    let mut world = World::small(10, 1, Scaling { initial: 3, ..Scaling::default() });
    world.set_function(G, 1, spec("g", 1, Scaling { min: 2, ..Scaling::default() }));
    world.start_all();
    world.add_node(NodeId(2), 10);
    // The initial ones are gone for long.
    world.pass(secs(300));
    assert_eq!((world.ready(F), world.ready(G)), (0, 2));
    let created = world.created;
    world.restart_engine(&[
        (F, 1, spec("f", 1, Scaling { initial: 3, ..Scaling::default() })),
        (G, 1, spec("g", 1, Scaling { min: 2, ..Scaling::default() })),
    ]);
    world.connect_plane(D);
    world.connect_node(NodeId(2));
    world.pass(secs(1));
    world.connect_node(N);
    world.pass(secs(1));
    assert_eq!(world.created, created);
    assert_eq!((world.ready(F), world.ready(G)), (0, 2));
}

#[test]
fn a_sandbox_with_slots_written_off_is_replaced() {
    let scaling = Scaling { max: 1, ..Scaling::default() };
    let mut world = World::small(10, 4, scaling.clone());
    world.add_plane(E);
    world.arrive(D, F, 2);
    world.arrive(E, F, 2);
    world.start_all();
    assert_eq!(world.created, 1);
    world.restart_engine(&[(F, 1, spec("f", 4, scaling))]);
    world.planes.remove(&E);
    world.connect_node(N);
    world.connect_plane(D);
    world.pass(secs(5));
    world.arrive(D, F, 4);
    world.pass(secs(1));
    assert_eq!(world.planes[&D].queued[&F], 0, "two of four slots are not a sandbox of four");
}

#[test]
fn an_overview_is_the_status_without_its_lists() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 2);
    world.start_all();
    let full = world.engine.function_status(F).unwrap();
    assert!(!full.sandboxes.is_empty() && !full.decisions.is_empty());
    let overview = crate::FunctionStatus { sandboxes: vec![], decisions: vec![], ..full };
    assert_eq!(world.engine.function_overview(F), Some(overview));
}

#[test]
fn a_hello_that_claims_what_is_anothers_is_granted_nothing_twice() {
    let mut world = World::small(10, 1, Scaling { min: 1, ..Scaling::default() });
    world.add_plane(E);
    world.start_all();
    world.arrive(E, F, 1);
    world.start_all();
    let busy = world.planes[&E].first_running().unwrap();
    // Nobody is left to whom the replacement of what is lost with D could be granted.
    world.drain(E);
    world.planes.get_mut(&D).unwrap().connected = false;
    world.step(Event::DataPlaneLost(D));
    world.set_function(F, 1, spec("f", 1, Scaling { min: 2, ..Scaling::default() }));
    world.start_all();
    let leases = vec![HeldLease { sandbox: busy, slots: 1 }];
    let (hello, _) = world.planes.get_mut(&D).unwrap().connect(D, world.now);
    world.step(Event::DataPlaneConnected { data_plane: D, hello: DataPlaneHello { leases, ..hello } });
    let mut granted: Vec<_> = world.planes[&D]
        .to
        .iter()
        .filter_map(|m| if let ToDataPlane::Grant { sandbox, .. } = m { Some(*sandbox) } else { None })
        .collect();
    let all = granted.len();
    granted.dedup();
    assert!(all > 0);
    assert_eq!(granted.len(), all, "the same slots are granted twice");
}

#[test]
fn a_revision_of_a_function_that_was_deleted_meanwhile_is_forgotten_when_it_is_prepared() {
    let mut world = World::small(10, 1, Scaling::default());
    let revision = RevisionId { function: F, number: 1 };
    let spec = Arc::new(spec("f", 1, Scaling::default()));
    // It runs on one node, and is prepared on another.
    world.arrive(D, F, 1);
    world.start_all();
    world.finish(D, 1);
    world.add_node(NodeId(2), 10);
    world.step(Event::PrepareRequested { id: revision, spec });
    world.step(Event::FunctionRemoved(F));
    world.settle();
    assert_eq!(world.prepared.len(), 1);
    for (id, node) in &world.nodes {
        assert!(node.revisions.is_empty(), "its template would stay on {id} until that connects anew");
    }
    assert_eq!(world.engine.inconsistency(), None);
}

#[test]
fn an_earlier_revision_makes_way_under_a_new_leader_too() {
    for late in [false, true] {
        let scaling = Scaling { min: 1, ..Scaling::default() };
        let mut world = World::small(1, 1, scaling.clone());
        world.start_all();
        world.add_node(NodeId(2), 1);
        world.arrive(D, F, 1);
        world.settle();
        world.add_plane(E);
        world.set_function(F, 2, spec("f", 1, scaling.clone()));
        world.arrive(E, F, 1);
        world.start_all();
        let here = |world: &World, node| world.nodes[&node].sandboxes.len();
        assert_eq!((here(&world, N), here(&world, NodeId(2))), (1, 1), "a request keeps the earlier one");
        world.restart_engine(&[(F, 2, spec("f", 1, scaling))]);
        for node in if late { [NodeId(2), N] } else { [N, NodeId(2)] } {
            world.connect_node(node);
        }
        world.connect_plane(D);
        world.connect_plane(E);
        world.settle();
        world.finish(D, 1);
        world.finish(E, 1);
        // What was found is held for a window.
        world.pass(secs(150));
        let left: Vec<u32> =
            world.nodes.values().flat_map(|n| n.sandboxes.values()).map(|s| s.revision.number).collect();
        assert_eq!(left, [2], "nobody asks for the earlier one any more: {late}");
    }
}

#[test]
fn what_a_hello_condemns_is_granted_to_nobody() {
    let mut world = World::small(10, 1, Scaling { max: 2, ..Scaling::default() });
    world.add_plane(E);
    world.arrive(D, F, 2);
    world.start_all();
    let busy: Vec<_> = world.planes[&D].held.keys().copied().collect();
    assert_eq!(busy.len(), 2);
    world.arrive(E, F, 2);
    world.settle();
    // Both run out of time while D has no stream: user code runs on, and only D knows.
    world.planes.get_mut(&D).unwrap().connected = false;
    world.time_out(D);
    world.time_out(D);
    world.connect_plane(D);
    let granted = |m: &ToDataPlane| matches!(m, ToDataPlane::Grant { sandbox, .. } if busy.contains(sandbox));
    assert!(!world.planes[&E].to.iter().any(granted), "replacing the first one granted the second");
    world.start_all();
    world.finish(E, 2);
    assert_eq!(world.served, 2);
}

#[test]
fn what_a_hello_condemns_is_killed_though_it_was_on_its_way_out() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 1);
    world.start_all();
    let busy = *world.nodes[&N].sandboxes.first_key_value().unwrap().0;
    // An update wants the slot back, and the request runs out of time while D has no stream.
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.start_all();
    world.planes.get_mut(&D).unwrap().connected = false;
    world.time_out(D);
    world.connect_plane(D);
    let stops = world.nodes[&N].to.iter().filter_map(|m| match m {
        ToNode::Stop { sandbox, mode } if *sandbox == busy => Some(*mode),
        _ => None,
    });
    assert_eq!(stops.collect::<Vec<_>>(), [StopMode::Kill], "user code runs in it");
}
