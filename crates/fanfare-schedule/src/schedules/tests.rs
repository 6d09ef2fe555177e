use proptest::prelude::*;

use super::*;

const MINUTE: u64 = 60_000;

fn plan(expression: &str, missed: Missed, after: u64) -> Plan {
    Plan { calendar: Calendar::cron(expression, "UTC", Wall(0)).unwrap(), missed, after: Wall(after) }
}

fn due(schedules: &mut Schedules, now: u64) -> Vec<(String, u64, bool)> {
    let due = schedules.due(Wall(now), 100);
    due.into_iter().map(|due| (due.schedule, due.instant.0, due.skipped)).collect()
}

#[test]
fn what_is_due_comes_once_and_in_order() {
    let mut schedules = Schedules::default();
    schedules.set("b", plan("*/2 * * * *", Missed::Skip, 0));
    schedules.set("a", plan("* * * * *", Missed::Skip, 0));
    assert_eq!(due(&mut schedules, MINUTE - 1), []);
    assert_eq!(schedules.wait(Wall(MINUTE - 1)), Duration::from_millis(1));
    assert_eq!(due(&mut schedules, MINUTE), [("a".to_owned(), MINUTE, false)]);
    assert_eq!(due(&mut schedules, MINUTE), []);
    let both = [("a".to_owned(), 2 * MINUTE, false), ("b".to_owned(), 2 * MINUTE, false)];
    assert_eq!(due(&mut schedules, 2 * MINUTE + 5), both);
    assert!(schedules.remove("a") && !schedules.remove("a"));
    assert_eq!(due(&mut schedules, 3 * MINUTE), []);
    assert_eq!(schedules.wait(Wall(3 * MINUTE)), LOOK_AGAIN, "the clock may be set meanwhile");
}

#[test]
fn missed_ones_are_skipped_or_happen_once() {
    let hour = 60 * MINUTE;
    for (missed, skipped) in [(Missed::Skip, true), (Missed::Once, false)] {
        let mut schedules = Schedules::default();
        schedules.set("f", plan("*/10 * * * *", missed, 0));
        let now = hour + 5 * MINUTE;
        let told = schedules.due(Wall(now), 100);
        assert_eq!(
            (told.len(), told[0].instant, told[0].skipped),
            (1, Wall(hour), skipped),
            "the last of six"
        );
        assert_eq!(told[0].left_out, 5);
        assert_eq!(due(&mut schedules, hour + 10 * MINUTE), [("f".to_owned(), hour + 10 * MINUTE, false)]);
    }
    let mut schedules = Schedules::default();
    schedules.set("f", plan("* * * * *", Missed::Skip, 0));
    let late = MINUTE + ON_TIME.as_millis() as u64 - 1;
    assert_eq!(due(&mut schedules, late), [("f".to_owned(), MINUTE, false)], "a pause is no miss");
}

#[test]
fn a_clock_that_is_set_back_repeats_nothing() {
    let mut schedules = Schedules::default();
    schedules.set("f", plan("* * * * *", Missed::Once, 0));
    assert_eq!(due(&mut schedules, 10 * MINUTE).len(), 1);
    for now in 3..=10 {
        assert_eq!(due(&mut schedules, now * MINUTE), []);
    }
    assert_eq!(due(&mut schedules, 11 * MINUTE), [("f".to_owned(), 11 * MINUTE, false)]);
}

#[test]
fn an_ended_calendar_is_never_due_again() {
    let mut schedules = Schedules::default();
    let at = Calendar::At(Wall(MINUTE));
    schedules.set("f", Plan { calendar: at, missed: Missed::Skip, after: Wall(0) });
    assert_eq!(due(&mut schedules, MINUTE), [("f".to_owned(), MINUTE, false)]);
    assert_eq!(due(&mut schedules, 1_000 * MINUTE), []);
    assert_eq!((schedules.len(), schedules.get("f").map(|plan| plan.after)), (1, Some(Wall(MINUTE))));
}

#[test]
fn what_is_held_is_not_due_and_told_once_when_it_is_let_go() {
    let mut schedules = Schedules::default();
    schedules.set("f", plan("* * * * *", Missed::Once, 0));
    schedules.hold("f", true);
    schedules.hold("f", true);
    assert_eq!(due(&mut schedules, 10 * MINUTE), []);
    assert_eq!(schedules.wait(Wall(10 * MINUTE)), LOOK_AGAIN);
    schedules.hold("f", false);
    assert_eq!(due(&mut schedules, 10 * MINUTE), [("f".to_owned(), 10 * MINUTE, false)]);
    schedules.hold("f", true);
    assert!(schedules.remove("f"));
    schedules.set("f", plan("* * * * *", Missed::Once, 10 * MINUTE));
    assert_eq!(due(&mut schedules, 11 * MINUTE).len(), 1, "a new one is not held");
}

proptest! {
    /// However time passes, jumps, and restarts (with what was kept), no instant is due twice, all of them are of the
    /// calendar, and without jumps or restarts none is left out.
    #[test]
    fn each_instant_at_most_once(
        steps in proptest::collection::vec((0_u64..5 * MINUTE, any::<bool>(), any::<bool>()), 1..60),
        missed in prop::sample::select(vec![Missed::Skip, Missed::Once]),
    ) {
        let mut now = 1_000_000 * MINUTE;
        let mut schedules = Schedules::default();
        schedules.set("f", plan("* * * * *", missed, now));
        let (mut seen, mut smooth) = (BTreeSet::new(), true);
        for (step, back, restart) in steps {
            if back && step > 2 * MINUTE {
                now -= step;
                smooth = false;
            } else {
                smooth &= step <= MINUTE;
                now += step;
            }
            let before = seen.len() as u64;
            for (_, instant, _) in due(&mut schedules, now) {
                prop_assert!(instant % MINUTE == 0 && instant <= now);
                prop_assert!(seen.insert(instant), "{} twice", instant);
            }
            prop_assert!(seen.len() as u64 <= before + 1);
            if restart {
                let kept = schedules.get("f").cloned().unwrap();
                schedules = Schedules::default();
                schedules.set("f", kept);
            }
        }
        if smooth {
            prop_assert_eq!(seen.len() as u64, (now / MINUTE) - 1_000_000);
        }
    }
}
