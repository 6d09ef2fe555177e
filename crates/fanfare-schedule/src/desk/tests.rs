//! Firings in virtual time: a store, data planes that keep calls, and crashes between any two steps.

mod world;

use std::collections::BTreeMap;

use proptest::prelude::*;

use world::World;

use super::*;
use crate::{LATE_MAX, LOST_AFTER, ON_TIME, PAUSE_MIN};

const MINUTE: u64 = 60_000;
const A: DataPlaneId = DataPlaneId(1);
const B: DataPlaneId = DataPlaneId(2);

fn rules(expression: &str, missed: Missed) -> Rules {
    let calendar = Calendar::cron(expression, "UTC", Wall(0)).unwrap();
    Rules { calendar, missed, at_most_once: false }
}

fn is_accepted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Accepted { .. })
}

#[test]
fn over_both_changes_of_the_clock_each_local_time_happens_once() {
    for (from, hours) in [("2030-03-30T12:00:00Z", 48), ("2030-10-26T12:00:00Z", 48)] {
        let Calendar::At(start) = Calendar::at(from).unwrap() else { unreachable!("`at` makes an instant") };
        let mut world = World { wall: start.0, ..World::new() };
        let calendar = Calendar::cron("30 2 * * *", "Europe/Zurich", start).unwrap();
        world.add("nightly", Rules { calendar, missed: Missed::Skip, at_most_once: false });
        world.connect(&[A]);
        for minute in 0..hours * 60 {
            world.pass(MINUTE);
            world.settle();
            if minute % 7 == 0 {
                world.crash();
            }
        }
        let calls: Vec<_> = world.calls().into_iter().map(|((_, at), n)| (Wall(at).to_string(), n)).collect();
        let expected = match from.starts_with("2030-03") {
            true => ["2030-03-31T01:00:00Z", "2030-04-01T00:30:00Z"],
            false => ["2030-10-27T00:30:00Z", "2030-10-28T01:30:00Z"],
        };
        assert_eq!(calls, expected.map(|at| (at.to_owned(), 1)));
    }
}

#[test]
fn a_crash_between_any_two_steps_neither_loses_nor_doubles_a_firing() {
    for steps in 0..8 {
        let mut world = World::new();
        world.add("f", rules("* * * * *", Missed::Skip));
        world.connect(&[A, B]);
        world.pass(MINUTE);
        for _ in 0..steps {
            if !world.act() {
                world.answer();
            }
        }
        world.crash();
        world.pass(500);
        world.settle();
        assert_eq!(world.calls().into_values().collect::<Vec<_>>(), [1], "after {steps} steps");
        assert!(is_accepted(world.last("f")), "after {steps} steps: {:?}", world.kept["f"]);
        assert_eq!(world.kept["f"].fired.len(), 1);
    }
}

#[test]
fn a_data_plane_that_may_have_it_is_asked_again_and_no_other() {
    let mut world = World::new();
    world.add("f", rules("0 * * * *", Missed::Skip));
    world.connect(&[A]);
    world.pass(60 * MINUTE);
    assert!(world.act() && world.act(), "written and asked");
    let (number, _) = world.answers.pop().unwrap();
    world.event(Event::Answered { number, answer: Answer::None("the stream broke".into()) });
    world.connect(&[B]);
    world.pass(30_000);
    world.settle();
    assert!(world.accepted[&A].len() == 1 && !world.accepted.contains_key(&B));
    assert_eq!(world.desk.trouble("f").unwrap().1.as_ref(), "the stream broke");
    world.connect(&[A, B]);
    world.settle();
    assert_eq!(*world.last("f"), Outcome::Accepted { id: "d1-1".into() });
    assert!(!world.accepted.contains_key(&B));
}

#[test]
fn one_that_stays_away_is_given_up_and_another_is_asked_only_where_that_was_asked_for() {
    let cases = [(Missed::Skip, false, false), (Missed::Once, false, true), (Missed::Once, true, false)];
    for (missed, at_most_once, moves) in cases {
        let mut world = World::new();
        world.add("f", Rules { at_most_once, ..rules("0 0 * * *", missed) });
        world.connect(&[A]);
        world.pass(24 * 60 * MINUTE);
        world.pass(0);
        assert!(world.act() && world.act());
        world.answers.clear();
        world.connect(&[B]);
        world.crash();
        world.connect(&[B]);
        world.pass(LOST_AFTER.as_millis() as u64 - 1);
        world.settle();
        assert!(world.kept["f"].firing.is_some() && !world.accepted.contains_key(&B));
        world.pass(1);
        world.settle();
        match moves {
            true => assert_eq!(*world.last("f"), Outcome::Accepted { id: "d2-1".into() }),
            false => assert!(matches!(world.last("f"), Outcome::Unknown { .. }), "{:?}", world.last("f")),
        }
    }
}

#[test]
fn what_may_not_have_been_asked_before_a_crash_begins_in_its_time_only() {
    for (missed, patience) in [(Missed::Skip, ON_TIME), (Missed::Once, LATE_MAX)] {
        let patience = patience.as_millis() as u64;
        for (away, begins) in [(patience - 1, 1), (patience, 0), (5 * 60 * MINUTE, 0)] {
            let mut world = World::new();
            world.add("f", rules("0 0 * * *", missed));
            world.connect(&[A]);
            world.pass(24 * 60 * MINUTE);
            assert!(world.act() && world.kept["f"].firing.as_ref().unwrap().asked == Some(A));
            world.wall += away;
            world.at += away;
            world.crash();
            world.pass(0);
            world.settle();
            assert_eq!(world.calls().values().sum::<usize>(), begins, "{missed:?}, {away} ms away");
            assert_eq!(is_accepted(world.last("f")), begins == 1, "{:?}", world.last("f"));
        }
    }
}

#[test]
fn what_a_data_plane_has_forgotten_when_its_answer_is_asked_for_again_is_not_called_twice() {
    for (missed, at_most_once) in [(Missed::Skip, false), (Missed::Once, false), (Missed::Once, true)] {
        for forgets in [false, true] {
            let mut world = World::new();
            world.add("f", Rules { at_most_once, ..rules("0 0 * * *", missed) });
            world.connect(&[A]);
            world.pass(24 * 60 * MINUTE);
            assert!(world.act() && world.act(), "written, asked and accepted; the answer is lost");
            world.wall += 5 * 60 * MINUTE;
            world.at += 5 * 60 * MINUTE;
            if forgets {
                world.forget(Duration::ZERO);
            }
            world.crash();
            world.pass(0);
            world.settle();
            assert_eq!(world.calls().values().sum::<usize>(), 1, "{missed:?}");
            match forgets {
                false => assert_eq!(*world.last("f"), Outcome::Accepted { id: "d1-1".into() }),
                true => assert!(matches!(world.last("f"), Outcome::Unknown { .. }), "{:?}", world.last("f")),
            }
        }
    }
}

#[test]
fn nobody_is_asked_when_a_write_or_the_queue_took_until_its_time_was_over() {
    let late = ON_TIME.as_millis() as u64;
    let mut world = World::new();
    world.add("f", rules("0 0 * * *", Missed::Skip));
    world.connect(&[A]);
    world.pass(24 * 60 * MINUTE);
    world.pass(late);
    world.settle();
    assert!(
        world.calls().is_empty() && matches!(world.last("f"), Outcome::GivenUp { .. }),
        "{:?}",
        world.last("f")
    );

    let mut world = World::new();
    for n in 0..=ASKS_MAX {
        world.add(&format!("s{n}"), rules("0 0 * * *", Missed::Skip));
    }
    world.connect(&[A]);
    world.pass(24 * 60 * MINUTE);
    while world.act() {}
    let queued = world.kept.keys().find(|name| world.begun.keys().all(|(begun, _)| begun != *name));
    let queued = queued.expect("one is too many").clone();
    assert!(world.desk.freeze(&queued).is_some());
    world.pass(late);
    world.settle();
    assert_eq!(world.calls().len(), ASKS_MAX);
    assert!(world.kept[&queued].firing.is_some(), "nothing of it is written while it is frozen");
    let mut commands = Vec::new();
    world.desk.thaw(world.now(), &queued, &mut commands);
    assert_eq!(commands, [Command::Write(queued.clone())]);
    world.commands.extend(commands);
    world.settle();
    assert!(matches!(world.last(&queued), Outcome::GivenUp { .. }), "{:?}", world.last(&queued));
}

#[test]
fn a_refusal_for_good_does_not_say_that_what_was_asked_before_did_not_run() {
    let refused = |world: &mut World| {
        let Some(Command::Ask { number, .. }) = world.commands.pop_front() else { panic!("nobody is asked") };
        let (reason, detail) = (Reason::FunctionNotFound, "there is no function".into());
        world.event(Event::Answered { number, answer: Answer::Refused { reason, detail, for_good: true } });
        world.settle();
    };
    let asked_once = || {
        let mut world = World::new();
        world.add("f", rules("0 0 * * *", Missed::Once));
        world.connect(&[A]);
        world.pass(24 * 60 * MINUTE);
        assert!(world.act());
        world
    };
    let lost = |world: &mut World| {
        assert!(world.act(), "accepted");
        let (number, _) = world.answers.pop().unwrap();
        world.event(Event::Answered { number, answer: Answer::None("the stream broke".into()) });
    };
    let mut world = asked_once();
    refused(&mut world);
    assert!(matches!(world.last("f"), Outcome::GivenUp { .. }), "only it was asked: {:?}", world.last("f"));

    let mut world = asked_once();
    lost(&mut world);
    world.pass(PAUSE_MIN.as_millis() as u64);
    refused(&mut world);
    assert!(matches!(world.last("f"), Outcome::Unknown { .. }), "{:?}", world.last("f"));

    let mut world = asked_once();
    lost(&mut world);
    world.connect(&[B]);
    world.pass(LOST_AFTER.as_millis() as u64);
    assert!(world.act(), "written");
    refused(&mut world);
    assert!(matches!(world.last("f"), Outcome::Unknown { .. }), "by another one: {:?}", world.last("f"));
}

#[test]
fn without_a_data_plane_a_firing_waits_for_its_time_and_is_then_given_up() {
    for (missed, patience) in [(Missed::Skip, ON_TIME), (Missed::Once, LATE_MAX)] {
        let patience = patience.as_millis() as u64;
        let mut world = World::new();
        world.add("f", rules("0 0 * * *", missed));
        world.pass(24 * 60 * MINUTE);
        world.settle();
        world.pass(patience - 1);
        world.settle();
        assert!(world.kept["f"].firing.is_some(), "it is durable that it has begun");
        assert_eq!(world.desk.trouble("f").unwrap().1.as_ref(), "no data plane is connected");
        world.pass(1);
        world.settle();
        let Outcome::GivenUp { reason, detail } = world.last("f") else { panic!("{:?}", world.last("f")) };
        assert_eq!((*reason, &**detail), (Reason::Unavailable, "no data plane is connected"));

        let mut world = World::new();
        world.add("f", rules("0 0 * * *", missed));
        world.pass(24 * 60 * MINUTE);
        world.settle();
        world.pass(patience - 1);
        world.connect(&[B]);
        world.settle();
        assert!(is_accepted(world.last("f")), "one that comes in time is asked at once");
    }
}

#[test]
fn one_that_happens_late_has_its_hour_from_when_it_was_taken_up() {
    let hour = 60 * MINUTE;
    let mut world = World::new();
    world.add("f", rules("0 0 * * *", Missed::Once));
    // Nothing ran for a day and five hours, and then there is no data plane for most of an hour.
    world.pass(29 * hour);
    world.settle();
    world.pass(hour / 2);
    world.crash();
    world.pass(hour / 2 - 1);
    assert!(world.kept["f"].firing.is_some());
    world.connect(&[A]);
    world.settle();
    assert!(is_accepted(world.last("f")), "{:?}", world.kept["f"]);
    assert_eq!(world.kept["f"].fired[0].instant.0 % (24 * hour), 0);
}

#[test]
fn refusals_go_on_to_the_next_data_plane_with_growing_pauses_and_one_for_good_ends_it() {
    let mut world = World::new();
    world.add("f", rules("* * * * *", Missed::Skip));
    world.connect(&[A, B]);
    world.pass(MINUTE);
    let mut asked = Vec::new();
    for _ in 0..4 {
        while let Some(command) = world.commands.pop_front() {
            match command {
                Command::Write(name) => world.event(Event::Written(name)),
                Command::Ask { number, data_plane, .. } => {
                    asked.push((world.at - MINUTE, data_plane));
                    let (reason, detail) = (Reason::ShuttingDown, "no".into());
                    let answer = Answer::Refused { reason, detail, for_good: false };
                    world.event(Event::Answered { number, answer });
                }
            }
        }
        let wait = world.desk.wait(world.now());
        world.pass(wait.as_millis() as u64);
    }
    let (times, whom): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    assert_eq!(times, [0, 100, 300, 700]);
    assert!(whom.windows(2).any(|pair| pair[0] != pair[1]), "{whom:?}");
    while let Some(command) = world.commands.pop_front() {
        match command {
            Command::Write(name) => {
                world.kept.insert(name.clone(), world.desk.state(&name).unwrap().clone());
                world.event(Event::Written(name));
            }
            Command::Ask { number, .. } => {
                let (reason, detail) = (Reason::FunctionNotFound, "there is no function".into());
                world.event(Event::Answered {
                    number,
                    answer: Answer::Refused { reason, detail, for_good: true },
                });
            }
        }
    }
    assert!(matches!(world.last("f"), Outcome::GivenUp { reason: Reason::FunctionNotFound, .. }));
    world.pass(MINUTE);
    world.settle();
    assert!(is_accepted(world.last("f")), "the next one is tried anew");
}

#[test]
fn paused_frozen_and_removed_schedules_are_not_due() {
    let mut world = World::new();
    for name in ["paused", "frozen", "removed"] {
        world.add(name, rules("* * * * *", Missed::Skip));
    }
    world.connect(&[A]);
    let paused = State { paused: true, ..world.desk.freeze("paused").unwrap() };
    world.desk.set(world.now(), "paused", world.rules["paused"].clone(), paused);
    assert!(world.desk.freeze("frozen").is_some() && world.desk.freeze("frozen").is_none());
    assert!(world.desk.remove("removed") && !world.desk.remove("removed"));
    world.pass(5 * MINUTE);
    world.settle();
    assert!(world.calls().is_empty());
    let mut commands = Vec::new();
    world.desk.thaw(world.now(), "frozen", &mut commands);
    world.pass(0);
    world.settle();
    assert_eq!(world.calls().into_keys().map(|(name, _)| name).collect::<Vec<_>>(), ["frozen"]);
    assert_eq!(world.kept["frozen"].fired[0].left_out, 4);
}

#[test]
fn an_answer_that_comes_while_a_schedule_is_frozen_is_heard_when_it_is_thawed() {
    let mut world = World::new();
    world.add("f", rules("* * * * *", Missed::Skip));
    world.connect(&[A]);
    world.pass(MINUTE);
    assert!(world.desk.freeze("f").is_none(), "it is being written");
    assert!(world.act() && world.act());
    let state = world.desk.freeze("f").unwrap();
    assert!(state.firing.is_some());
    assert!(world.answer());
    assert!(world.commands.is_empty());
    let mut commands = Vec::new();
    world.desk.thaw(world.now(), "f", &mut commands);
    world.commands.extend(commands);
    world.settle();
    assert!(is_accepted(world.last("f")));
}

#[test]
fn by_hand_it_fires_at_once_and_each_time_is_another() {
    let mut world = World::new();
    world.add("f", rules("0 0 1 1 *", Missed::Skip));
    world.connect(&[A]);
    for _ in 0..3 {
        let mut state = world.desk.freeze("f").unwrap();
        assert!(state.fire(Wall(world.wall)) && !state.fire(Wall(world.wall)));
        world.kept.insert("f".to_owned(), state.clone());
        world.desk.set(world.now(), "f", world.rules["f"].clone(), state);
        world.pass(0);
        world.settle();
        world.wall -= 1;
    }
    assert_eq!(world.calls().len(), 3);
    assert!(world.kept["f"].fired.iter().all(|fired| fired.by_hand && is_accepted(&fired.outcome)));
}

#[test]
fn no_more_are_asked_about_at_once_than_may_be_and_all_come_to_pass() {
    let mut world = World::new();
    for n in 0..1_000 {
        world.add(&format!("s{n}"), rules("* * * * *", Missed::Skip));
    }
    world.connect(&[A]);
    world.pass(MINUTE);
    let mut most = 0;
    loop {
        while world.act() {}
        most = most.max(world.answers.len());
        if !world.answer() {
            if world.calls().len() == 1_000 {
                break;
            }
            assert_eq!(world.desk.wait(world.now()), Duration::ZERO, "more is due");
            world.pass(0);
        }
    }
    assert_eq!(most, ASKS_MAX);
}

proptest! {
    /// Whatever crashes, breaks and is forgotten when its time is over: nobody is asked to begin it too late; what a data plane that comes back has accepted is accepted once; what is
    /// said to be accepted was; and once all is well, the next occurrence comes to pass.
    #[test]
    fn each_occurrence_is_accepted_at_most_once(
        steps in proptest::collection::vec((0_u8..11, 0_u64..MINUTE), 1..120),
        missed in prop::sample::select(vec![Missed::Skip, Missed::Once]),
        at_most_once: bool,
    ) {
        let mut world = World::new();
        for name in ["a", "b"] {
            world.add(name, Rules { at_most_once, ..rules("* * * * *", missed) });
        }
        let mut away = BTreeMap::from([(A, 0_u64), (B, 0)]);
        for (step, ms) in steps {
            match step {
                0 => world.crash(),
                1 => world.connect(&[A]),
                2 => world.connect(&[A, B]),
                3 => world.connect(&[]),
                4 => {
                    // An answer is lost with its stream.
                    if let Some((number, _)) = world.answers.pop() {
                        world.event(Event::Answered { number, answer: Answer::None("lost".into()) });
                    }
                }
                5 => drop(world.act()),
                6 => drop(world.answer()),
                7 => {
                    // No question is under way for longer than a call is kept.
                    while world.act() {}
                    world.forget(if missed == Missed::Skip { ON_TIME } else { LATE_MAX });
                }
                _ => {
                    let ms = if step == 8 { 90 * ms } else { ms };
                    world.pass(ms);
                    for (data_plane, since) in &mut away {
                        *since = if world.connected.contains(data_plane) { 0 } else { *since + ms };
                    }
                }
            }
            // One that is away for too long may have what another is asked for then, where that was asked for.
            if missed == Missed::Skip || at_most_once {
                prop_assert!(world.calls().values().all(|times| *times == 1), "{:?}", world.calls());
            }
        }
        world.connect(&[A, B]);
        for _ in 0..10 {
            world.pass(MINUTE);
            world.settle();
        }
        for name in ["a", "b"] {
            prop_assert!(is_accepted(world.last(name)), "{:?}", world.kept[name]);
            prop_assert!(world.kept[name].firing.is_none());
            for fired in &world.kept[name].fired {
                if let Outcome::Accepted { id } = &fired.outcome {
                    let of = if id.starts_with("d1") { A } else { B };
                    prop_assert!(world.begun[&(name.to_owned(), fired.instant.0)].contains(&of));
                }
            }
        }
        let doubled = world.calls().values().filter(|times| **times > 1).count();
        prop_assert!(doubled == 0 || missed == Missed::Once && !at_most_once);
    }
}
