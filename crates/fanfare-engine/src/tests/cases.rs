//! One case per promise, named for it.

use std::time::Duration;

use fanfare_types::{
    ExitCause, FromDataPlane, Hpa, Kpa, NodeId, OnDemand, Reason, RequestFailures, Resources, RevisionId,
    Scaling, ScalingPolicy,
};

use super::world::{D, F, G, N, World, spec};
use crate::{Event, Failed};

fn fixed(sandboxes: u32) -> Scaling {
    Scaling { policy: ScalingPolicy::Fixed(sandboxes), ..Scaling::default() }
}

pub(super) fn at_most(max: u32) -> Scaling {
    Scaling { max, ..Scaling::default() }
}

pub(super) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_surge_at_zero_orders_everything_in_one_decision() {
    let mut world = World::small(1000, 1, Scaling::default());
    world.arrive(D, F, 200);
    world.settle();
    assert_eq!(world.created, 200);
    let status = world.engine.function_status(F).unwrap();
    assert_eq!(status.starting, 200);
    assert!(status.decisions.last().unwrap().reason.starts_with("demand"), "{:?}", status.decisions);
    world.start_all();
    assert_eq!(world.planes[&D].queued[&F], 0, "every request has a slot");
}

#[test]
fn concurrency_divides_what_a_surge_orders() {
    // C5 of the public complaints: 50 requests, 10 per sandbox, at most 5: exactly 5; at most 3: 3 and the rest queue.
    for (max, sandboxes) in [(5, 5), (3, 3)] {
        let mut world = World::small(1000, 10, at_most(max));
        world.arrive(D, F, 50);
        world.start_all();
        assert_eq!(world.created, sandboxes);
        for _ in 0..3 {
            world.finish(D, 50);
            world.start_all();
        }
        assert_eq!(world.served, 50);
        assert_eq!(world.created, sandboxes);
    }
}

#[test]
fn an_idle_function_goes_to_zero_after_the_stable_window() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 3);
    world.start_all();
    world.finish(D, 3);
    world.pass(secs(30));
    assert_eq!(world.ready(F), 3, "panic holds what demand ordered");
    world.pass(secs(150));
    assert_eq!(world.ready(F), 0);
    assert!(world.nodes[&N].sandboxes.is_empty());
    assert_eq!(world.engine.next_deadline(), None, "a function at rest costs no timer");
}

#[test]
fn a_long_request_keeps_exactly_one_sandbox() {
    // A4, A6: one request of 300 s, concurrency 1: one sandbox all the time, never killed.
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 1);
    world.start_all();
    world.pass(secs(300));
    assert_eq!(world.ready(F), 1);
    assert_eq!(world.created, 1);
    world.finish(D, 1);
    assert_eq!(world.served, 1);
}

#[test]
fn a_drained_queue_calls_back_what_has_not_begun() {
    let mut world = World::small(1000, 1, Scaling::default());
    world.arrive(D, F, 50);
    world.settle();
    assert!(world.start_one(N, 0, true));
    world.settle();
    // The one sandbox serves everything before the others begin.
    for _ in 0..50 {
        world.finish(D, 1);
        world.settle();
    }
    assert_eq!(world.served, 50);
    let status = world.engine.function_status(F).unwrap();
    assert_eq!((status.ready, status.starting), (1, 0), "{:?}", status.decisions);
}

#[test]
fn short_executions_order_few_and_a_stuck_one_orders_the_rest() {
    let mut world = World::small(1000, 1, Scaling::default());
    world.arrive(D, F, 1);
    world.start_all();
    world.finish(D, 1);
    world.execution_s = Some(0.000_1);
    world.cold_starts_take(Duration::from_millis(50));
    world.arrive(D, F, 100);
    world.settle();
    let few = world.created;
    assert!(few < 20, "{few} sandboxes for 100 requests of 0.1 ms");
    world.jump(secs(5));
    world.settle();
    assert!(world.created >= 99, "{} once the queue did not drain", world.created);
}

#[test]
fn a_failed_start_answers_the_waiting_and_backs_off() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 2);
    world.settle();
    while world.start_one(N, 0, false) {}
    world.settle();
    assert_eq!(world.refused, vec![(F, Reason::HandlerNotFound); 2]);
    let failure = world.engine.function_status(F).unwrap().last_failure.unwrap();
    assert_eq!(failure.failure.log_tail, "tail");
    let created = world.created;
    world.arrive(D, F, 1);
    world.settle();
    assert_eq!(world.created, created, "no new attempt within the pause");
    assert_eq!(world.refused.len(), 3, "but an answer at once");
    world.jump(secs(1));
    world.arrive(D, F, 1);
    world.start_all();
    assert_eq!(world.ready(F), 1, "after the pause the next request brings the next attempt");
    assert!(world.engine.function_status(F).unwrap().last_failure.is_none());
}

#[test]
fn failures_are_counted_by_reason_until_an_update() {
    let mut world = World::small(10, 1, Scaling::default());
    let failed = |reason, count, detail: &str| {
        FromDataPlane::Failed(RequestFailures {
            function: F,
            reason,
            count,
            detail: detail.into(),
            request_id: "r-1".into(),
            log_tail: "".into(),
        })
    };
    for message in [
        failed(Reason::HandlerError, 2, "one"),
        failed(Reason::RequestTimeout, 1, "late"),
        failed(Reason::HandlerError, 3, "two"),
    ] {
        let received = world.now;
        world.step(Event::FromDataPlane { data_plane: D, message, received });
    }
    world.arrive(D, F, 1);
    world.start_all();
    let sandbox = world.engine.function_status(F).unwrap().sandboxes[0].sandbox;
    world.end_sandbox(N, sandbox, ExitCause::OutOfMemory);
    world.settle();
    let counts = |world: &World| -> Vec<_> {
        let failures = world.engine.function_status(F).unwrap().failures;
        failures.into_iter().map(|f| (f.failed, f.reason, f.count, f.detail.to_string())).collect()
    };
    let expected = [
        (Failed::Requests, Reason::HandlerError, 5, "two"),
        (Failed::Requests, Reason::RequestTimeout, 1, "late"),
        (Failed::Sandboxes, Reason::OutOfMemory, 1, "a sandbox was killed: out of memory"),
    ];
    assert_eq!(counts(&world), expected.map(|(f, r, n, d)| (f, r, n, d.to_owned())));
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    assert_eq!(counts(&world), [], "they are of the revision before");
}

#[test]
fn a_failed_start_among_good_ones_refuses_nobody() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 3);
    world.settle();
    world.start_one(N, 0, true);
    world.start_one(N, 0, false);
    world.start_one(N, 0, true);
    world.settle();
    assert_eq!(world.refused, vec![]);
    world.pass(secs(2));
    assert_eq!(world.planes[&D].queued[&F], 0, "the failed one was ordered again");
}

#[test]
fn a_crashed_sandbox_is_replaced_when_wanted() {
    let mut world = World::small(10, 1, fixed(2));
    world.pass(secs(3));
    assert_eq!(world.ready(F), 2);
    let victim = *world.nodes[&N].sandboxes.keys().next().unwrap();
    world.end_sandbox(N, victim, ExitCause::Status(1));
    world.settle();
    assert!(!world.planes[&D].held.contains_key(&victim), "its data plane was told");
    world.pass(secs(3));
    assert_eq!(world.ready(F), 2);
}

#[test]
fn crashes_in_a_loop_slow_down_replacement() {
    let mut world = World::small(10, 1, fixed(1));
    for _ in 0..200 {
        world.pass(Duration::from_millis(100));
        if let Some(victim) = world.nodes[&N].sandboxes.keys().next().copied() {
            world.end_sandbox(N, victim, ExitCause::Signal(11));
        }
    }
    assert!(world.created < 15, "{} sandboxes in 20 s", world.created);
}

#[test]
fn a_timed_out_request_costs_its_sandbox_and_a_new_one_serves_the_rest() {
    let mut world = World::small(10, 1, at_most(1));
    world.arrive(D, F, 2);
    world.start_all();
    world.time_out(D);
    world.start_all();
    assert_eq!(world.created, 2);
    world.finish(D, 1);
    assert_eq!(world.served, 1);
    assert_eq!(world.planes[&D].queued[&F], 0);
}

#[test]
fn an_update_has_no_gap() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 2);
    world.start_all();
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.settle();
    assert_eq!(world.planes[&D].held.len(), 2, "the old ones serve until a new one is ready");
    world.finish(D, 2);
    world.start_all();
    let revisions: Vec<u32> = world.nodes[&N].sandboxes.values().map(|s| s.revision.number).collect();
    assert!(!revisions.is_empty() && revisions.iter().all(|r| *r == 2), "{revisions:?}");
    assert!(!world.nodes[&N].revisions.contains_key(&RevisionId { function: F, number: 1 }));
}

#[test]
fn a_broken_update_leaves_the_old_revision_serving() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 1);
    world.start_all();
    world.finish(D, 1);
    world.set_function(F, 2, spec("f", 1, Scaling::default()));
    world.settle();
    while world.start_one(N, 0, false) {}
    world.settle();
    world.arrive(D, F, 1);
    world.settle();
    assert_eq!(world.refused, vec![]);
    world.finish(D, 1);
    assert_eq!(world.served, 2);
    assert!(world.engine.function_status(F).unwrap().last_failure.is_some());
}

#[test]
fn a_deleted_function_finishes_what_runs_and_is_drained() {
    let mut world = World::small(10, 1, Scaling::default());
    world.arrive(D, F, 2);
    world.start_all();
    world.step(Event::FunctionRemoved(F));
    world.settle();
    assert!(!world.drained.contains(&F), "two requests still run");
    assert_eq!(world.nodes[&N].sandboxes.len(), 2);
    world.finish(D, 2);
    world.settle();
    assert_eq!(world.served, 2);
    assert!(world.drained.contains(&F));
    assert!(world.nodes[&N].sandboxes.is_empty());
    assert!(world.nodes[&N].revisions.is_empty());
    assert!(world.engine.function_status(F).is_none());
}

#[test]
fn a_full_node_runs_what_fits_and_notes_the_rest() {
    // A3: desired 100, capacity 20: 20 run, the rest is noted, creations stop.
    let mut world = World::small(20, 1, Scaling::default());
    world.arrive(D, F, 100);
    world.start_all();
    assert_eq!(world.created, 20);
    let status = world.engine.function_status(F).unwrap();
    assert!(status.lacks_room);
    assert!(status.decisions.iter().any(|d| d.reason.contains("no room")), "{:?}", status.decisions);
    world.pass(secs(10));
    assert_eq!(world.created, 20);
    for _ in 0..5 {
        world.finish(D, 20);
        world.start_all();
    }
    assert_eq!(world.served, 100);
}

#[test]
fn idle_sandboxes_of_another_function_make_room() {
    let mut world = World::small(4, 1, Scaling::default());
    world.set_function(G, 1, spec("g", 1, Scaling::default()));
    world.arrive(D, F, 4);
    world.start_all();
    world.finish(D, 4);
    world.pass(secs(5));
    assert_eq!(world.ready(F), 4);
    world.arrive(D, G, 2);
    world.pass(Duration::from_millis(20));
    assert_eq!(world.ready(G), 2);
    assert_eq!(world.ready(F), 2);
    world.finish(D, 2);
    assert_eq!(world.served, 6);
}

#[test]
fn with_no_node_the_waiting_are_told_after_a_grace() {
    let mut world = World::new();
    world.add_plane(D);
    world.set_function(F, 1, spec("f", 1, Scaling::default()));
    world.settle();
    world.arrive(D, F, 1);
    world.pass(secs(1));
    assert_eq!(world.refused, vec![]);
    world.pass(secs(10));
    assert_eq!(world.refused, vec![(F, Reason::NoNode)]);
}

#[test]
fn what_no_node_can_run_has_failed_until_one_comes_that_can() {
    let mut world = World::small(4, 1, Scaling::default());
    let mut foreign = spec("g", 1, Scaling::default());
    foreign.runtime = "other".into();
    world.set_function(G, 1, foreign);
    let mut large = spec("f", 1, Scaling::default());
    large.sizing.request = Resources::new(500_000, 500_000);
    world.set_function(F, 2, large);
    for (function, reason, detail) in [
        (G, Reason::RuntimeMissing, "the runtime other is not offered by the one node"),
        (
            F,
            Reason::NoCapacity,
            "none of 1 nodes with the runtime fake can hold the 0.5 MiB and 500 CPUs that a sandbox reserves",
        ),
    ] {
        world.refused.clear();
        world.settle();
        world.arrive(D, function, 1);
        world.pass(secs(1));
        world.pass(secs(10));
        assert_eq!(world.refused, vec![(function, reason)]);
        let failure = world.engine.function_status(function).unwrap().last_failure.unwrap().failure;
        assert_eq!((failure.kind.reason(), failure.detail.as_str()), (reason, detail));
    }
    world.add_node(NodeId(9), 10_000);
    assert_eq!(world.engine.function_status(F).unwrap().last_failure, None, "one has come");
    assert!(world.engine.function_status(G).unwrap().last_failure.is_some());
}

#[test]
fn a_node_that_comes_later_serves_the_waiting() {
    let mut world = World::new();
    world.add_plane(D);
    world.set_function(F, 1, spec("f", 1, Scaling::default()));
    world.settle();
    world.arrive(D, F, 3);
    world.pass(secs(1));
    world.add_node(N, 10);
    world.start_all();
    world.finish(D, 3);
    assert_eq!((world.served, world.refused.len()), (3, 0));
}

#[test]
fn preparing_is_answered_with_or_without_a_node() {
    let mut world = World::new();
    world.set_function(F, 1, spec("f", 1, Scaling::default()));
    let revision = RevisionId { function: F, number: 1 };
    let prepare = Event::PrepareRequested { id: revision, spec: spec("f", 1, Scaling::default()).into() };
    world.step(prepare.clone());
    assert_eq!(world.prepared, vec![], "a node may yet connect");
    world.pass(secs(1));
    assert!(world.prepared.pop().unwrap().1.is_err());
    world.step(prepare);
    world.add_node(N, 1);
    world.settle();
    assert_eq!(world.prepared, vec![(revision, Ok(()))], "by the node that has just come, and once");
    world.pass(secs(2));
    assert_eq!(world.prepared.len(), 1);

    let other = RevisionId { function: F, number: 7 };
    world.step(Event::PrepareRequested { id: other, spec: spec("f", 1, Scaling::default()).into() });
    world.settle();
    assert_eq!(world.prepared.last(), Some(&(other, Ok(()))), "one that is not current can be proved, too");
    assert!(!world.nodes[&N].revisions.contains_key(&other), "and is forgotten where it was");
}

#[test]
fn initial_and_minimum_scale_come_without_a_call() {
    let mut world = World::small(10, 1, Scaling { initial: 3, ..Scaling::default() });
    world.start_all();
    assert_eq!(world.ready(F), 3);
    world.pass(secs(200));
    assert_eq!(world.ready(F), 0);
    let mut world = World::small(10, 1, Scaling { min: 2, ..Scaling::default() });
    world.pass(secs(200));
    assert_eq!(world.ready(F), 2);
}

#[test]
fn kpa_target_utilization_holds_spare_room() {
    let kpa = Kpa { target_utilization: 0.5, ..Kpa::default() };
    let mut world = World::small(100, 10, Scaling { policy: ScalingPolicy::Kpa(kpa), ..Scaling::default() });
    world.arrive(D, F, 20);
    world.pass(secs(90));
    assert_eq!(world.ready(F), 4, "20 requests at 5 of 10 per sandbox");
}

#[test]
fn where_only_the_first_is_ordered_on_demand_the_autoscaler_orders_the_rest() {
    for (on_demand, at_once) in [(OnDemand::All, 20), (OnDemand::First, 1)] {
        let mut world = World::small(100, 1, Scaling { on_demand, ..Scaling::default() });
        world.arrive(D, F, 20);
        world.pass(Duration::from_millis(1_500));
        assert_eq!(world.ready(F), at_once, "{on_demand:?}");
        world.pass(secs(10));
        assert_eq!(world.ready(F), 20, "{on_demand:?}");
    }
}

/// Sandboxes after `duration` of an HPA function of 2 to 12, which are its bounds at every second of it.
fn hpa_after(world: &mut World, duration: Duration) -> u32 {
    for _ in 0..duration.as_secs() {
        world.pass(secs(1));
        let status = world.engine.function_status(F).unwrap();
        let sandboxes = status.ready + status.starting;
        assert!((2..=12).contains(&sandboxes), "{sandboxes}: {:?}", status.decisions);
    }
    world.ready(F)
}

#[test]
fn cpu_use_scales_up_and_down_within_the_bounds() {
    // A sandbox requests 100 mCPU, of which half is aimed at.
    let hpa =
        Hpa { target_utilization: 0.5, period: secs(2), stabilization_window: secs(20), ..Hpa::default() };
    let scaling = Scaling { policy: ScalingPolicy::Hpa(hpa), min: 2, max: 12, ..Scaling::default() };
    let mut world = World::small(100, 1, scaling);
    world.start_all();
    assert_eq!(hpa_after(&mut world, secs(10)), 2, "without a word of CPU nothing changes");
    world.cpu_milli = Some(350.0);
    assert_eq!(hpa_after(&mut world, secs(15)), 7, "350 mCPU at 50 each");
    let decisions = world.engine.function_status(F).unwrap().decisions;
    assert!(decisions.iter().any(|d| d.reason.contains("CPU")), "{decisions:?}");
    world.cpu_milli = Some(10_000.0);
    assert_eq!(hpa_after(&mut world, secs(15)), 12, "200 would be needed");
    world.cpu_milli = Some(350.0);
    assert_eq!(hpa_after(&mut world, secs(15)), 12, "no less while more was wanted within the window");
    assert_eq!(hpa_after(&mut world, secs(15)), 7);
    world.cpu_milli = Some(0.0);
    assert_eq!(hpa_after(&mut world, secs(40)), 2);
}
