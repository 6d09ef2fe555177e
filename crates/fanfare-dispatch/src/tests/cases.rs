//! Requests: order, refusals, condemnation, load.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{Balance, Condemned, Reason, SandboxId};

use super::{Hand, assigned, ms, released, route};
use crate::{Command, Event, FunctionQueue, Outcome, Refusal, Why};

fn whys(commands: &[Command]) -> Vec<Why> {
    commands
        .iter()
        .filter_map(|c| if let Command::Assign { why, .. } = c { Some(*why) } else { None })
        .collect()
}

#[test]
fn every_assignment_says_why() {
    let mut hand = Hand::new(1);
    assert_eq!(hand.arrive(), [Command::Demand], "it waits and says so");
    let cold = hand.grant(1, 1);
    assert_eq!((assigned(&cold), whys(&cold)), (vec![(1, 1)], vec![Why::Cold]));
    assert!(cold.contains(&Command::Demand), "the queue has drained");
    hand.arrive();
    let over = hand.finish(1, Outcome::Clean);
    assert_eq!((assigned(&over), whys(&over)), (vec![(2, 1)], vec![Why::HandedOver]));
    hand.finish(1, Outcome::Clean);
    let warm = hand.arrive();
    assert_eq!((whys(&warm), warm.len()), (vec![Why::Warm], 1), "nothing else happens on the warm path");
    hand.arrive();
    let moved = hand.step(Event::Grant { sandbox: SandboxId(2), revision: 1, slots: 1, fresh: false });
    assert_eq!(whys(&moved), [Why::Moved]);
}

#[test]
fn a_freed_slot_goes_to_the_longest_waiter_and_idle_sandboxes_are_reused_last_in_first_out() {
    let mut hand = Hand::new(1);
    hand.grant(1, 1);
    hand.grant(2, 1);
    assert_eq!(assigned(&hand.arrive()), [(1, 2)]);
    assert_eq!(assigned(&hand.arrive()), [(2, 1)]);
    hand.arrive();
    hand.arrive();
    assert_eq!(assigned(&hand.finish(1, Outcome::Clean)), [(3, 1)]);
    assert_eq!(assigned(&hand.finish(2, Outcome::KeepAliveBroken)), [(4, 2)]);
    hand.finish(2, Outcome::Clean);
    hand.finish(1, Outcome::Clean);
    for waiter in 5..10 {
        assert_eq!(assigned(&hand.arrive()), [(waiter, 1)], "the same one stays warm");
        hand.finish(1, Outcome::Clean);
    }
}

#[test]
fn a_sandbox_that_was_used_in_the_same_lane_is_preferred() {
    let mut hand = Hand::new(1);
    let arrive = |hand: &mut Hand, lane| {
        let waiter = hand.queue.next_waiter();
        let arrive = Event::Arrive { waiter, deadline: ms(9_000), key: 0, lane };
        assigned(&hand.step(arrive)).first().map(|(_, sandbox)| *sandbox)
    };
    (1..=3).for_each(|n| drop(hand.grant(n, 1)));
    assert_eq!([arrive(&mut hand, 7), arrive(&mut hand, 8)], [Some(3), Some(2)]);
    hand.finish(3, Outcome::Clean);
    hand.finish(2, Outcome::Clean);
    assert_eq!(arrive(&mut hand, 7), Some(3), "2 was free last, but 3 was used in this lane");
    assert_eq!(arrive(&mut hand, 7), Some(2), "none is left of this lane");
    assert_eq!(arrive(&mut hand, 8), Some(1));
}

#[test]
fn a_full_queue_refuses_and_a_place_that_frees_is_used() {
    let mut hand = Hand::new(1);
    for _ in 0..3 {
        hand.arrive();
    }
    assert_eq!(hand.arrive(), [Command::Refuse { waiter: 4, why: Refusal::QueueFull { limit: 3 } }]);
    assert_eq!(hand.step(Event::Left { waiter: 2 }), []);
    assert_eq!(hand.step(Event::Left { waiter: 2 }), [], "only once");
    assert_eq!(hand.arrive(), [Command::Demand]);
    assert_eq!(assigned(&hand.grant(1, 4)), [(1, 1), (3, 1), (5, 1)]);
}

#[test]
fn deadlines_end_the_wait_in_order_and_the_rest_stays() {
    let mut hand = Hand::new(1);
    for (waiter, deadline) in [(1, 50), (2, 90), (3, 40)] {
        hand.step(Event::Arrive { waiter, deadline: ms(deadline), key: 0, lane: 0 });
    }
    assert_eq!(hand.queue.next_deadline(), Some(ms(40)));
    hand.now = ms(50);
    let refused =
        |waiter| Command::Refuse { waiter, why: Refusal::QueueTimeout { waited: Duration::from_millis(50) } };
    assert_eq!(hand.step(Event::Tick), [refused(1), refused(3)]);
    assert_eq!(hand.queue.next_deadline(), Some(ms(90)));
    hand.now = ms(100);
    assert!(hand.step(Event::Tick).contains(&Command::Demand), "drained");
    let late = hand.step(Event::Arrive { waiter: 4, deadline: ms(100), key: 0, lane: 0 });
    assert!(matches!(late[..], [Command::Refuse { waiter: 4, why: Refusal::QueueTimeout { .. } }]));
}

#[test]
fn a_slot_goes_to_no_request_whose_time_is_over() {
    let mut hand = Hand::new(1);
    hand.grant(1, 1);
    hand.arrive();
    for (waiter, deadline) in [(2, 50), (3, 60), (4, 90)] {
        hand.step(Event::Arrive { waiter, deadline: ms(deadline), key: 0, lane: 0 });
    }
    hand.now = ms(60);
    let waited = Duration::from_millis(60);
    let late = |waiter| Command::Refuse { waiter, why: Refusal::QueueTimeout { waited } };
    let finished = hand.finish(1, Outcome::Clean);
    assert_eq!(finished[..2], [late(2), late(3)], "their tick is still to come");
    assert_eq!(assigned(&finished), [(4, 1)]);
    hand.finish(1, Outcome::Clean);
    let again = hand.step(Event::Requeue { waiter: 1, deadline: ms(60), key: 0, lane: 0 });
    assert!(matches!(again[..], [Command::Refuse { waiter: 1, .. }]), "beside a free slot: {again:?}");
}

#[test]
fn a_request_that_never_reached_user_code_takes_its_old_place() {
    let mut hand = Hand::new(1);
    hand.grant(1, 1);
    hand.arrive();
    for _ in 0..3 {
        hand.arrive();
    }
    let broken = hand.finish(1, Outcome::Broken);
    assert_eq!(broken[0], Command::Condemn { sandbox: hand.handle(1), why: Condemned::Broken });
    assert_eq!(released(&broken), [(1, 1, false)]);
    let again = hand.step(Event::Requeue { waiter: 1, deadline: ms(10_000), key: 0, lane: 0 });
    assert_eq!(again, [Command::Demand], "the queue's limit does not count for it");
    assert_eq!(assigned(&hand.grant(2, 1)), [(1, 2)]);
    assert_eq!(assigned(&hand.finish(2, Outcome::NeverSent)), [(2, 2)], "the slot is good");
}

#[test]
fn a_condemned_sandbox_is_never_used_again_and_is_stated_until_it_is_gone() {
    for (outcome, why) in [
        (Outcome::TimedOut, Condemned::Timeout),
        (Outcome::Abandoned, Condemned::Abandoned),
        (Outcome::Broken, Condemned::Broken),
    ] {
        let mut hand = Hand::new(3);
        hand.grant(1, 3);
        hand.arrive();
        hand.arrive();
        let handle = hand.handle(1);
        let back = |slots| Command::Release { sandbox: SandboxId(1), slots, retired: false };
        let first = hand.finish(1, outcome);
        assert_eq!(first, [Command::Condemn { sandbox: handle, why }, back(2)], "all but the one in use");
        assert_eq!(hand.arrive(), [Command::Demand], "its free slots are void");
        let stated: Vec<_> = hand.queue.leases().map(|l| l.slots).collect();
        assert_eq!(stated, [1], "the neighbour's slot");
        assert_eq!(hand.finish(1, outcome), [back(1)], "condemned once; no slot for the one that waits");
        assert_eq!(hand.grant(1, 2), [back(2)], "whatever is granted of it");
        assert_eq!(hand.queue.leases().count(), 0, "nothing that could be used again");
        assert_eq!(hand.queue.condemned().collect::<Vec<_>>(), [SandboxId(1)]);
        assert_eq!(hand.step(Event::Resync), [Command::Demand]);
        assert_eq!(hand.step(Event::Gone { sandbox: SandboxId(1) }), [Command::Forget { sandbox: handle }]);
        assert_eq!(hand.queue.condemned().count(), 0);
    }
}

#[test]
fn requests_in_a_sandbox_that_is_gone_finish_without_a_slot() {
    let mut hand = Hand::new(2);
    hand.grant(1, 2);
    hand.arrive();
    let handle = hand.handle(1);
    hand.step(Event::Gone { sandbox: SandboxId(1) });
    assert_eq!(hand.queue.in_flight(), 1, "until the shell has answered it");
    hand.grant(2, 1);
    let late = Event::Finish { sandbox: handle, outcome: Outcome::Broken, started: hand.now };
    assert_eq!(hand.step(late), [], "the new sandbox in the same place is not touched");
    assert_eq!(hand.queue.in_flight(), 0);
    assert_eq!(assigned(&hand.arrive()), [(2, 2)]);
}

#[test]
fn unavailable_answers_those_that_wait_and_later_ones_wait_again() {
    let unavailable = Event::Unavailable {
        reason: Reason::HandlerNotFound,
        detail: Arc::from("no `handler` in hello.py"),
        log_tail: Arc::from("line"),
    };
    let mut hand = Hand::new(1);
    hand.arrive();
    let refused = hand.step(unavailable);
    let Command::Refuse { waiter: 1, why } = &refused[0] else { panic!("{refused:?}") };
    assert_eq!(why.reason(), Reason::HandlerNotFound);
    assert_eq!(hand.arrive(), [Command::Demand], "the next one brings the next attempt");
}

#[test]
fn neighbours_of_a_request_that_timed_out_finish_in_their_sandbox() {
    let mut hand = Hand::new(4);
    hand.grant(1, 4);
    for _ in 0..4 {
        hand.arrive();
    }
    hand.finish(1, Outcome::TimedOut);
    assert_eq!(hand.arrive(), [Command::Demand]);
    for _ in 0..3 {
        assert_eq!(
            released(&hand.finish(1, Outcome::Clean)),
            [(1, 1, false)],
            "no slot for the one that waits"
        );
    }
    assert_eq!(hand.queue.queued(), 1);
    assert_eq!(assigned(&hand.grant(2, 4)), [(5, 2)]);
}

#[test]
fn a_removed_function_refuses_and_gives_its_sandboxes_back_when_idle() {
    let mut hand = Hand::new(1);
    hand.grant(1, 1);
    hand.grant(2, 1);
    hand.arrive();
    let removed = hand.step(Event::Removed);
    assert_eq!(released(&removed), [(1, 1, true)]);
    assert_eq!(hand.arrive(), [Command::Refuse { waiter: 2, why: Refusal::Removed }]);
    assert_eq!(released(&hand.finish(2, Outcome::Clean)), [(2, 1, true)]);
    assert!(hand.queue.is_idle());
}

#[test]
fn load_is_the_time_weighted_mean_and_reports_end_when_idle() {
    let mut queue = FunctionQueue::new(&route(1, 1, 10, Balance::Knative), 0);
    let mut out = Vec::new();
    let grant = |n| Event::Grant { sandbox: SandboxId(n), revision: 1, slots: 1, fresh: true };
    queue.step(ms(0), grant(1), &mut out);
    queue.step(ms(1_000), Event::Arrive { waiter: 1, deadline: ms(9_000), key: 0, lane: 0 }, &mut out);
    assert!(out.contains(&Command::Activate));
    out.clear();
    queue.step(ms(1_500), Event::Arrive { waiter: 2, deadline: ms(9_000), key: 0, lane: 0 }, &mut out);
    assert_eq!(out, [Command::Demand]);
    let load = queue.load(ms(1_500));
    assert_eq!((load.in_flight, load.queued, load.arrivals), (1, 1, 2));
    let load = queue.report(ms(2_000)).unwrap();
    assert!((load.concurrency_avg - 1.5).abs() < 1e-9 && (load.interval_s - 1.0).abs() < 1e-9, "{load:?}");
    let sandbox = queue.handle(SandboxId(1)).unwrap();
    let finish = |started| Event::Finish { sandbox, outcome: Outcome::Clean, started: ms(started) };
    queue.step(ms(2_250), finish(1_000), &mut out);
    queue.step(ms(2_500), finish(2_250), &mut out);
    let load = queue.report(ms(3_000)).unwrap();
    // 2 for 0.25 s, 1 for 0.25 s, 0 for 0.5 s.
    assert!((load.concurrency_avg - 0.75).abs() < 1e-9, "{load:?}");
    assert_eq!((load.arrivals, load.idle_sandboxes), (0, 1));
    let expected = 1.25 + (0.25 - 1.25) / 8.0;
    assert!((load.execution_s.unwrap() - expected).abs() < 1e-9, "{load:?}");
    assert_eq!(queue.report(ms(4_000)), None);
    out.clear();
    queue.step(ms(90_000), Event::Arrive { waiter: 3, deadline: ms(99_000), key: 0, lane: 0 }, &mut out);
    assert_eq!(out[0], Command::Activate);
    let load = queue.report(ms(90_500)).unwrap();
    assert!((load.concurrency_avg - 1.0).abs() < 1e-9, "idle time is in no window: {load:?}");
}

#[test]
fn an_idle_queue_is_small() {
    assert!(size_of::<FunctionQueue>() <= 384, "{}", size_of::<FunctionQueue>());
}

#[test]
fn one_client_s_unfinished_bodies_have_a_share_of_the_queue() {
    let mut hand = Hand::new(1);
    hand.step(Event::Route(route(1, 1, 80, Balance::Knative)));
    let begin = |hand: &mut Hand, client: u128| {
        let waiter = hand.queue.next_waiter();
        let mut said = hand.step(Event::Arrive { waiter, deadline: ms(9_000), key: 0, lane: 0 });
        said.extend(hand.step(Event::Uploading { waiter, client }));
        (waiter, said.into_iter().filter(|c| matches!(c, Command::Refuse { .. })).count() == 0)
    };
    let first: Vec<_> = (0..20).map(|_| begin(&mut hand, 7)).collect();
    assert!(first.iter().all(|(_, waits)| *waits), "a quarter of 80");
    let (_, waits) = begin(&mut hand, 7);
    assert!(!waits);
    assert_eq!(hand.queue.queued(), 20, "and takes no place");
    assert!(begin(&mut hand, 8).1, "another client has a share of its own");
    // One that is here to its end, one that left, and one that has a slot count no more.
    hand.step(Event::Uploaded { waiter: first[0].0 });
    hand.step(Event::Left { waiter: first[1].0 });
    assert_eq!(assigned(&hand.grant(1, 1)), [(first[0].0, 1)]);
    assert!(begin(&mut hand, 7).1 && begin(&mut hand, 7).1 && !begin(&mut hand, 7).1);
    assert_eq!(assigned(&hand.finish(1, Outcome::Clean)), [(first[2].0, 1)]);
    assert!(begin(&mut hand, 7).1 && !begin(&mut hand, 7).1);
    hand.step(Event::Removed);
    assert!(hand.queue.waiters.uploads.is_empty());
}
