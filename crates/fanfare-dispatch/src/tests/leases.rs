//! Slots: revoke, yield, retire, revisions, resync, drain.

use fanfare_types::{Balance, SandboxId};

use super::{Hand, assigned, ms, released, route};
use crate::{Command, Event, FunctionQueue, Outcome};

fn revoke(sandbox: u64, slots: u32) -> Event {
    Event::Revoke { sandbox: SandboxId(sandbox), slots }
}

#[test]
fn revoke_takes_free_slots_at_once_and_busy_ones_as_they_free() {
    let mut hand = Hand::new(4);
    hand.grant(1, 4);
    hand.arrive();
    hand.arrive();
    hand.arrive();
    assert_eq!(released(&hand.step(revoke(1, 2))), [(1, 1, false)]);
    assert_eq!(hand.arrive(), [Command::Demand]);
    assert_eq!(
        hand.finish(1, Outcome::Clean),
        [Command::Release { sandbox: SandboxId(1), slots: 1, retired: false }]
    );
    assert_eq!(assigned(&hand.finish(1, Outcome::Clean)), [(4, 1)], "the rest serves on");
    hand.step(revoke(1, u32::MAX));
    let handle = hand.handle(1);
    hand.finish(1, Outcome::Clean);
    let last = hand.finish(1, Outcome::Clean);
    assert_eq!(released(&last), [(1, 1, false)]);
    assert!(last.contains(&Command::Forget { sandbox: handle }));
    assert_eq!(hand.step(revoke(1, 1)), [], "nothing is held of it any more");
}

#[test]
fn a_grant_after_a_revoke_pays_it_first() {
    let mut hand = Hand::new(2);
    hand.grant(1, 1);
    hand.arrive();
    hand.step(revoke(1, 1));
    assert_eq!(released(&hand.grant(1, 2)), [(1, 1, false)]);
    assert_eq!(assigned(&hand.arrive()), [(2, 1)]);
}

#[test]
fn yield_comes_before_waiting_requests_and_is_absolute() {
    let mut hand = Hand::new(1);
    hand.grant(1, 1);
    hand.grant(2, 1);
    hand.arrive();
    assert_eq!(released(&hand.step(Event::Yield { slots: 2 })), [(1, 1, false)]);
    hand.arrive();
    assert_eq!(released(&hand.finish(2, Outcome::Clean)), [(2, 1, false)]);
    hand.grant(3, 1);
    assert_eq!(hand.queue.queued(), 0);
    hand.step(Event::Yield { slots: 5 });
    hand.step(Event::Yield { slots: 0 });
    hand.arrive();
    assert_eq!(assigned(&hand.finish(3, Outcome::Clean)), [(3, 3)], "cancelled");
}

#[test]
fn retire_takes_the_longest_idle_first_and_then_the_first_to_be_free() {
    let mut hand = Hand::new(1);
    for n in 1..=4 {
        hand.now = ms(n);
        hand.grant(n, 1);
    }
    // 4 and 3 are busy; then 3 idles again, later than 1 and 2.
    hand.arrive();
    hand.arrive();
    hand.now = ms(10);
    hand.finish(3, Outcome::Clean);
    assert_eq!(released(&hand.step(Event::Retire { sandboxes: 2 })), [(1, 1, true), (2, 1, true)]);
    assert_eq!(released(&hand.step(Event::Retire { sandboxes: 2 })), [(3, 1, true)]);
    hand.arrive();
    assert_eq!(released(&hand.finish(4, Outcome::Clean)), [(4, 1, true)], "ordered, though a request waits");
    assert_eq!(assigned(&hand.grant(5, 1)), [(3, 5)], "the order is fulfilled");
}

#[test]
fn retire_is_absolute_and_zero_cancels() {
    let mut hand = Hand::new(2);
    hand.grant(1, 2);
    hand.grant(2, 2);
    for _ in 0..3 {
        hand.arrive();
    }
    // The one with one request in it is chosen; its free slot is not used any more.
    assert_eq!(released(&hand.step(Event::Retire { sandboxes: 1 })), []);
    assert_eq!(hand.arrive(), [Command::Demand]);
    let spared = hand.step(Event::Retire { sandboxes: 0 });
    assert_eq!(assigned(&spared).len(), 1, "its free slot serves again");
    assert_eq!(released(&hand.step(Event::Retire { sandboxes: 9 })), []);
    let mut back = Vec::new();
    for _ in 0..2 {
        for sandbox in [1, 2] {
            back.extend(released(&hand.finish(sandbox, Outcome::Clean)));
        }
    }
    assert_eq!(back, [(1, 2, true), (2, 2, true)]);
}

#[test]
fn an_update_leaves_no_gap() {
    let mut hand = Hand::new(1);
    hand.grant(1, 1);
    hand.grant(2, 1);
    hand.arrive();
    assert_eq!(hand.step(Event::Route(route(2, 1, 3, Balance::Knative))), []);
    assert_eq!(assigned(&hand.arrive()), [(2, 1)], "the old revision serves until a new sandbox is here");
    hand.finish(1, Outcome::Clean);
    hand.arrive();
    hand.finish(1, Outcome::Clean);
    let new = Event::Grant { sandbox: SandboxId(3), revision: 2, slots: 1, fresh: true };
    assert_eq!(released(&hand.step(new)), [(1, 1, true)]);
    assert_eq!(assigned(&hand.arrive()), [(4, 3)]);
    assert_eq!(hand.arrive(), [Command::Demand]);
    assert_eq!(released(&hand.finish(2, Outcome::Clean)), [(2, 1, true)], "not for the one that waits");
    let late = Event::Grant { sandbox: SandboxId(4), revision: 1, slots: 1, fresh: true };
    assert_eq!(released(&hand.step(late)), [(4, 1, true)], "an old one comes too late");
}

#[test]
fn a_newcomer_serves_with_the_old_revision_where_the_new_one_has_not_come_up() {
    let mut hand = Hand::new(1);
    hand.step(Event::Route(route(2, 1, 3, Balance::Knative)));
    hand.grant(1, 1);
    assert_eq!(assigned(&hand.arrive()), [(1, 1)], "granted after the update, so nothing newer serves");
    let new = Event::Grant { sandbox: SandboxId(2), revision: 2, slots: 1, fresh: true };
    assert_eq!(released(&hand.step(new)), []);
    assert_eq!(released(&hand.finish(1, Outcome::Clean)), [(1, 1, true)]);
    assert_eq!(released(&hand.grant(3, 1)), [(3, 1, true)], "never beside the new one");
}

#[test]
fn resync_voids_orders_and_states_what_is_held() {
    let mut hand = Hand::new(2);
    hand.grant(1, 2);
    hand.grant(2, 2);
    for _ in 0..4 {
        hand.arrive();
    }
    hand.arrive();
    hand.step(revoke(1, 1));
    hand.step(Event::Retire { sandboxes: 1 });
    hand.step(Event::Yield { slots: 2 });
    let held: Vec<_> = hand.queue.leases().map(|l| (l.sandbox.0, l.slots)).collect();
    assert_eq!(held, [(1, 2), (2, 2)]);
    assert_eq!(hand.step(Event::Resync), [Command::Demand]);
    assert_eq!(assigned(&hand.finish(1, Outcome::Clean)), [(5, 1)]);
    hand.finish(1, Outcome::Clean);
    hand.finish(1, Outcome::Clean);
    assert_eq!(hand.queue.leases().map(|l| l.slots).sum::<u32>(), 4);
}

#[test]
fn drain_serves_those_that_wait_and_gives_the_rest_back() {
    let mut hand = Hand::new(1);
    hand.grant(1, 1);
    hand.grant(2, 1);
    hand.arrive();
    hand.arrive();
    hand.arrive();
    assert_eq!(hand.step(Event::Drain), []);
    assert_eq!(assigned(&hand.finish(1, Outcome::Clean)), [(3, 1)]);
    assert_eq!(released(&hand.finish(2, Outcome::Clean)), [(2, 1, false)]);
    assert_eq!(released(&hand.finish(1, Outcome::Clean)), [(1, 1, false)]);
    assert!(hand.queue.is_idle());
}

/// Events take a time that does not grow with the number of sandboxes or of waiting requests, up to a logarithm:
/// they are taken under a lock.
#[test]
fn many_sandboxes_and_many_waiting_requests_are_no_burden() {
    const MANY: u64 = 60_000;
    let mut queue = FunctionQueue::new(&route(1, 1, u32::MAX, Balance::Knative), 0);
    let mut out = Vec::new();
    for n in 1..=MANY {
        let grant = Event::Grant { sandbox: SandboxId(n), revision: 1, slots: 1, fresh: true };
        queue.step(ms(0), grant, &mut out);
    }
    out.clear();
    queue.step(ms(1), Event::Retire { sandboxes: MANY as u32 }, &mut out);
    assert_eq!(released(&out).len() as u64, MANY);
    // Two cores whose clocks are read before the lock is taken: deadlines are a little out of order.
    for waiter in 1..=MANY {
        let deadline = ms(1_000 + (waiter ^ 1));
        queue.step(ms(2), Event::Arrive { waiter, deadline, key: 0, lane: 0 }, &mut out);
    }
    out.clear();
    for now in 1_000..=1_001 + MANY {
        queue.step(ms(now), Event::Tick, &mut out);
    }
    let refused = out.iter().filter(|c| matches!(c, Command::Refuse { .. })).count();
    assert_eq!(refused as u64, MANY);
}
