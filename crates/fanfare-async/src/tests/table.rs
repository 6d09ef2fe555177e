//! One rule after another.

use std::time::Duration;

use fanfare_types::{FunctionId, FunctionName, Reason};

use super::{Bench, answered, at, offer, once, settings};
use crate::{
    Accepted, Callback, Calls, Cause, Command, End, Event, Filter, IdempotencyKey, Limits, Offer, Refusal,
    Settings, State, StateKind, limits,
};

fn start(sequence: u64, attempt: u32) -> Command {
    Command::Start { sequence, attempt }
}

fn refused(reason: Reason) -> End {
    End::Refused { reason, detail: "no".into(), retry_after: None }
}

fn broken(reason: Reason) -> End {
    End::Broken { reason, detail: "gone".into(), by_platform: reason == Reason::NodeLost }
}

#[test]
fn a_call_runs_once_it_is_written_and_ends_with_its_answer() {
    let mut bench = Bench::new();
    let mut commands = Vec::new();
    let accepted = bench.calls.offer(at(5), offer(1), &mut commands).unwrap();
    let Accepted::New(id) = accepted else { panic!("{accepted:?}") };
    let prepare = Command::Prepare { sequence: 1, attempt: 1 };
    assert_eq!(commands, [Command::PutPayload(1), Command::Put(1), prepare]);
    assert_eq!(bench.settle(commands), [start(1, 1)]);
    assert_eq!(
        bench.log.records[&1].state,
        State::Running,
        "the attempt's number is written before it begins"
    );
    assert_eq!(bench.calls.kind(bench.calls.get(id).unwrap()), StateKind::Queued, "it has no slot yet");
    bench.assign(1, 1);
    assert_eq!(bench.calls.kind(bench.calls.get(id).unwrap()), StateKind::Running);
    bench.now_ms = 50;
    assert_eq!(bench.end(1, 1, answered(201)), [Command::Finished(1)]);
    let record = bench.calls.get(id).unwrap();
    assert_eq!((record.state, record.attempts, record.result_bytes), (State::Succeeded, 1, Some(5)));
    assert_eq!((record.payload, record.finished.unwrap().shown_ms), (None, 1_000_050));
    assert_eq!(bench.calls.open(), 0);
}

#[test]
fn what_an_answer_means() {
    let cases: [(u16, Option<StateKind>); 16] = [
        (200, Some(StateKind::Succeeded)),
        (204, Some(StateKind::Succeeded)),
        (302, Some(StateKind::Succeeded)),
        (304, Some(StateKind::Succeeded)),
        (400, Some(StateKind::Failed)),
        (404, Some(StateKind::Failed)),
        (409, Some(StateKind::Failed)),
        (422, Some(StateKind::Failed)),
        (408, None),
        (425, None),
        (429, None),
        (500, None),
        (501, None),
        (502, None),
        (503, None),
        (599, None),
    ];
    for (status, expected) in cases {
        let mut bench = Bench::new();
        let (id, _) = bench.offer(offer(1));
        bench.end(1, 1, answered(status));
        assert_eq!(bench.state(id).kind(), expected.unwrap_or(StateKind::Retrying), "{status}");
    }
}

#[test]
fn attempts_that_fail_are_repeated_with_growing_pauses_until_they_are_used_up() {
    let mut bench = Bench::new();
    let (id, _) = bench.offer(Offer { settings: Settings { attempts_max: 4, ..settings() }, ..offer(1) });
    for (attempt, end, (least, most)) in [
        (1, answered(500), (500, 1_000)),
        (2, broken(Reason::RequestTimeout), (1_000, 2_000)),
        (3, answered(503), (2_000, 4_000)),
    ] {
        assert_eq!(bench.end(1, attempt, end), []);
        let (pause, effects) = bench.wait();
        assert!((least..=most + 1).contains(&(pause.as_millis())), "{pause:?} after attempt {attempt}");
        assert_eq!(effects, [start(1, attempt + 1)]);
    }
    assert_eq!(bench.end(1, 4, answered(500)), [Command::Finished(1)]);
    let record = bench.calls.get(id).unwrap();
    assert_eq!(record.state, State::Dead(Cause::AttemptsExhausted));
    assert!(record.payload.is_some() && record.result_bytes.is_some(), "both are kept: {record:?}");
}

#[test]
fn retry_after_is_waited_for_and_others_go_on() {
    let mut bench = Bench::new();
    bench.offer(offer(1));
    bench.offer(offer(1));
    bench.assign(1, 1);
    bench.assign(2, 1);
    let (_, effects) = bench.offer(offer(1));
    assert_eq!(effects, [start(3, 1)]);
    let end = End::Answered {
        status: 429,
        reason: None,
        retry_after: Some(Duration::from_secs(20)),
        bytes: Some(1),
    };
    assert_eq!(bench.end(1, 1, end), []);
    let (_, effects) = bench.offer(offer(1));
    assert_eq!(effects, [start(4, 1)], "the function's other calls are not held up");
    bench.assign(3, 1);
    bench.assign(4, 1);
    let (pause, effects) = bench.wait();
    assert_eq!((pause, effects), (Duration::from_secs(20), vec![start(1, 2)]));
    let end = End::Answered {
        status: 503,
        reason: None,
        retry_after: Some(Duration::from_secs(86_400)),
        bytes: Some(1),
    };
    bench.end(1, 2, end);
    assert_eq!(bench.wait().0, limits::RETRY_AFTER_MAX, "no longer than this");
}

#[test]
fn a_refusal_by_the_platform_is_no_attempt_and_pauses_the_function() {
    let mut bench = Bench::new();
    bench.offer(offer(1));
    bench.offer(offer(1));
    bench.offer(offer(2));
    let mut pauses = Vec::new();
    for _ in 0..12 {
        assert_eq!(bench.end(1, 1, refused(Reason::NoCapacity)), [], "the whole function pauses");
        bench.end(2, 1, refused(Reason::NoCapacity));
        assert_eq!(bench.calls.at(1).unwrap().attempts, 0);
        let (pause, effects) = bench.wait();
        pauses.push(pause.as_millis());
        assert_eq!(effects, [start(1, 1), start(2, 1)], "with the same number, for none was used");
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000, 30_000]);
    assert_eq!(bench.calls.at(3).unwrap().state, State::Running, "other functions do not");
    bench.assign(1, 1);
    bench.end(2, 1, refused(Reason::NoCapacity));
    assert_eq!(bench.wait().0.as_millis(), 100, "a slot ends the series");
}

#[test]
fn no_more_wait_for_a_slot_than_execute_but_always_two() {
    let mut bench = Bench::new();
    let mut started = Vec::new();
    for _ in 0..20 {
        started.extend(bench.offer(offer(1)).1);
    }
    assert_eq!(started, [start(1, 1), start(2, 1)]);
    assert_eq!(bench.assign(1, 1), [start(3, 1)]);
    assert_eq!(bench.assign(2, 1), [start(4, 1)]);
    assert_eq!(bench.assign(3, 1), [start(5, 1), start(6, 1)]);
    assert_eq!(bench.calls.feed_counts(FunctionId(1)), (2, 3, 3));
    assert_eq!(bench.end(3, 1, answered(200)), [Command::Finished(3)], "as many wait as may already");
}

#[test]
fn short_executions_are_written_ahead_and_long_ones_are_not() {
    let mut bench = Bench::new();
    for _ in 0..400 {
        bench.offer(offer(1));
    }
    // The disk is behind: what is prepared comes only when all that may be is under way.
    let mut under_way: std::collections::VecDeque<u64> = [1, 2].into();
    let mut ahead = 0;
    for _ in 0..40 {
        let sequence = under_way.pop_front().unwrap();
        let mut commands = Vec::new();
        for event in [
            Event::Assigned { sequence, attempt: 1 },
            Event::Ended { sequence, attempt: 1, end: answered(200) },
        ] {
            bench.calls.step(at(0), event, &mut commands);
        }
        let started = |command: &Command| match command {
            Command::Start { sequence, .. } => Some(*sequence),
            _ => None,
        };
        under_way.extend(commands.iter().filter_map(started));
        ahead = ahead.max(bench.calls.feed_counts(FunctionId(1)).0);
        if under_way.is_empty() {
            let running = |record: &&crate::Record| record.state == State::Running;
            let running: Vec<_> = bench.calls.all().filter(running).map(|r| r.id.sequence).collect();
            for sequence in running {
                let mut commands = Vec::new();
                bench.calls.step(at(0), Event::Durable { sequence, attempt: 1 }, &mut commands);
                under_way.extend(commands.iter().filter_map(started));
            }
        }
    }
    assert!((16..=limits::AHEAD_MAX).contains(&ahead), "{ahead}");
    let mut bench = Bench::new();
    for _ in 0..50 {
        bench.offer(offer(1));
    }
    for sequence in 1..20 {
        bench.assign(sequence, 1);
        bench.end(sequence, 1, answered(200));
        assert!(bench.calls.feed_counts(FunctionId(1)).0 <= 2, "the disk is never behind");
    }
}

#[test]
fn no_function_takes_more_than_half_of_what_may_run() {
    let limits = Limits { running_max: 8, ..Limits::default() };
    let mut bench = Bench::with(limits);
    for _ in 0..20 {
        bench.offer(offer(1));
    }
    for sequence in 1..=4 {
        bench.assign(sequence, 1);
    }
    assert_eq!(bench.calls.running(), 4);
    assert_eq!(bench.offer(offer(2)).1, [start(21, 1)]);
}

#[test]
fn bytes_under_way_are_bounded_but_one_call_always_runs() {
    let mut bench = Bench::with(Limits { running_bytes_max: 15, ..Limits::default() });
    assert_eq!(bench.offer(Offer { payload_bytes: 100, ..offer(1) }).1, [start(1, 1)]);
    assert_eq!(bench.offer(offer(2)).1, []);
    assert_eq!(bench.end(1, 1, answered(200)), [Command::Finished(1), start(2, 1)]);
}

#[test]
fn at_most_once_is_never_repeated() {
    for end in [answered(500), answered(429), broken(Reason::RequestTimeout), broken(Reason::SandboxExited)] {
        let mut bench = Bench::new();
        let (id, _) = bench.offer(once());
        bench.end(1, 1, end);
        assert_eq!(bench.state(id), State::Dead(Cause::AttemptsExhausted));
    }
    let mut bench = Bench::new();
    let (id, _) = bench.offer(once());
    bench.end(1, 1, broken(Reason::NodeLost));
    assert_eq!(bench.state(id), State::Dead(Cause::Lost));
    let mut bench = Bench::new();
    let (id, _) = bench.offer(once());
    assert_eq!(bench.crash(Limits::default()), [Command::Finished(1)]);
    assert_eq!(bench.state(id), State::Dead(Cause::Lost));
    let mut bench = Bench::new();
    let (id, _) = bench.offer(once());
    bench.end(1, 1, refused(Reason::QueueFull));
    bench.wait();
    bench.end(1, 1, answered(200));
    assert_eq!(bench.state(id), State::Succeeded, "what provably never began may begin");
}

#[test]
fn a_crash_raises_the_attempt_and_costs_none() {
    let mut bench = Bench::new();
    let (id, _) = bench.offer(offer(1));
    for crash in 1..=limits::INTERRUPTIONS_MAX {
        bench.crash(Limits::default());
        let (_, effects) = bench.wait();
        assert_eq!(effects, [start(1, crash + 1)]);
    }
    let attempt = limits::INTERRUPTIONS_MAX + 1;
    bench.end(1, attempt, answered(500));
    assert_eq!(bench.state(id).kind(), StateKind::Retrying, "none of the attempts was used up by a crash");
    bench.wait();
    bench.crash(Limits::default());
    assert_eq!(bench.state(id), State::Dead(Cause::Interrupted), "but there is an end to it");
}

#[test]
fn pauses_and_ages_go_on_after_a_crash() {
    let mut bench = Bench::new();
    let (id, _) = bench
        .offer(Offer { settings: Settings { age_max: Duration::from_secs(60), ..settings() }, ..offer(1) });
    let end =
        End::Answered { status: 503, reason: None, retry_after: Some(Duration::from_secs(30)), bytes: None };
    bench.end(1, 1, end.clone());
    bench.now_ms = 10_000;
    bench.crash(Limits::default());
    assert_eq!(bench.wait(), (Duration::from_secs(20), vec![start(1, 2)]));
    bench.now_ms = 45_000;
    bench.end(1, 2, end);
    assert_eq!(bench.state(id), State::Dead(Cause::MaxAge), "another attempt would come too late");
}

#[test]
fn what_waits_too_long_dies_and_what_runs_may_end() {
    let settings = Settings { age_max: Duration::from_secs(60), ..settings() };
    let mut bench = Bench::new();
    let ids: Vec<_> =
        (0..3).map(|_| bench.offer(Offer { settings: settings.clone(), ..offer(1) }).0).collect();
    bench.assign(1, 1);
    bench.now_ms = 60_000;
    bench.step(Event::Tick);
    assert_eq!(bench.state(ids[0]), State::Running);
    bench.now_ms = 3_600_000;
    bench.end(1, 1, answered(200));
    assert_eq!(bench.state(ids[0]), State::Succeeded, "however long it takes");
    let mut bench = Bench::new();
    bench.offer(Offer { settings: settings.clone(), ..offer(1) });
    bench.offer(Offer { settings: settings.clone(), ..offer(1) });
    let (third, _) = bench.offer(Offer { settings, ..offer(1) });
    let (_, effects) = bench.wait();
    assert_eq!((effects, bench.state(third)), (vec![Command::Finished(3)], State::Dead(Cause::MaxAge)));
}

#[test]
fn a_removed_function_s_calls_die_and_can_be_replayed_for_its_successor() {
    let mut bench = Bench::new();
    let (id, _) = bench.offer(offer(1));
    bench.end(1, 1, refused(Reason::FunctionNotFound));
    assert_eq!(bench.state(id), State::Dead(Cause::FunctionRemoved));
    let mut commands = Vec::new();
    let again = bench.calls.replay_for(at(1), id, FunctionId(9), 8, &mut commands).unwrap();
    assert_eq!(bench.settle(commands), [start(2, 1)]);
    let (old, new) = (bench.calls.get(id).unwrap(), bench.calls.get(again).unwrap());
    assert_eq!((old.payload, old.replayed_as), (None, Some(again)));
    assert_eq!((new.function, new.replay_of, new.payload.unwrap().key), (FunctionId(9), Some(id), 1));
    let twice = bench.calls.replay(at(1), id, 9, &mut Vec::new());
    assert_eq!(twice, Err(Refusal::Replayed(again)));
    bench.end(2, 1, answered(200));
    assert!(bench.log.payloads.is_empty(), "the request goes with the call that succeeded");
    assert_eq!(
        bench.calls.replay(at(1), again, 9, &mut Vec::new()),
        Err(Refusal::NoLetter(State::Succeeded))
    );
}

#[test]
fn cancelling_ends_a_call_wherever_it_is_and_nothing_ends_it_again() {
    let mut bench = Bench::new();
    let ids: Vec<_> = (0..3).map(|_| bench.offer(offer(1)).0).collect();
    let cancel = |bench: &mut Bench, id| {
        let mut commands = Vec::new();
        let result = bench.calls.cancel(at(bench.now_ms), id, &mut commands);
        (result, bench.settle(commands))
    };
    // One that waits in the log, one under way, one that pauses.
    assert_eq!(cancel(&mut bench, ids[2]), (Ok(()), vec![Command::Finished(3)]));
    let abort = Command::Abort { sequence: 1, attempt: 1 };
    assert_eq!(cancel(&mut bench, ids[0]), (Ok(()), vec![abort, Command::Finished(1)]));
    bench.end(2, 1, answered(500));
    assert_eq!(cancel(&mut bench, ids[1]), (Ok(()), vec![Command::Finished(2)]));
    assert_eq!(cancel(&mut bench, ids[1]), (Ok(()), vec![]), "once more changes nothing");
    assert_eq!(bench.end(1, 1, answered(200)), [], "late success is not heard");
    assert!(ids.iter().all(|id| bench.state(*id) == State::Cancelled));
    let (id, _) = bench.offer(offer(1));
    bench.end(4, 1, answered(200));
    assert_eq!(cancel(&mut bench, id).0, Err(Refusal::Ended(State::Succeeded)));
    let stranger = crate::InvocationId { nonce: id.nonce + 1, ..id };
    assert_eq!(cancel(&mut bench, stranger).0, Err(Refusal::Unknown));
    assert!(bench.log.payloads.is_empty());
}

#[test]
fn an_idempotency_key_stands_for_one_call() {
    let keyed = |function, fingerprint| Offer {
        key: Some(IdempotencyKey { key: "k".into(), fingerprint }),
        ..offer(function)
    };
    let mut bench = Bench::new();
    let (id, _) = bench.offer(keyed(1, 1));
    let again = |bench: &mut Bench, offer| bench.calls.offer(at(bench.now_ms), offer, &mut Vec::new());
    assert_eq!(again(&mut bench, keyed(1, 1)), Ok(Accepted::Known(id)));
    assert_eq!(again(&mut bench, keyed(1, 2)), Err(Refusal::KeyReused(id)));
    bench.crash(Limits::default());
    assert_eq!(again(&mut bench, keyed(1, 1)), Ok(Accepted::Known(id)), "a crash forgets nothing");
    let other = bench.offer(keyed(2, 2)).0;
    assert_ne!(other, id, "it is the function's own");
    bench.now_ms = u64::try_from(limits::KEY_WINDOW.as_millis()).unwrap();
    assert_ne!(bench.offer(keyed(1, 2)).0, id, "its time is over");
}

#[test]
fn what_is_open_is_bounded() {
    let mut bench = Bench::with(Limits { open_max: 2, open_bytes_max: 25, ..Limits::default() });
    bench.offer(offer(1));
    let refuse = |bench: &mut Bench, bytes| {
        bench.calls.offer(at(0), Offer { payload_bytes: bytes, ..offer(1) }, &mut Vec::new())
    };
    assert_eq!(refuse(&mut bench, 16), Err(Refusal::TooManyBytes { limit: 25 }));
    bench.offer(Offer { payload_bytes: 15, ..offer(1) });
    assert_eq!(refuse(&mut bench, 0), Err(Refusal::TooMany { limit: 2 }));
    bench.end(1, 1, answered(200));
    bench.offer(offer(1));
}

#[test]
fn results_and_letters_are_kept_for_their_time_and_within_their_room() {
    let mut bench = Bench::with(Limits { results_max: 2, letters_bytes_max: 29, ..Limits::default() });
    let ids: Vec<_> = (0..5).map(|_| bench.offer(offer(1)).0).collect();
    for (index, status) in [200, 404, 200, 404, 200].into_iter().enumerate() {
        bench.now_ms += 1;
        let sequence = index as u64 + 1;
        bench.assign(sequence, 1);
        bench.end(sequence, 1, answered(status));
    }
    let kept: Vec<_> = ids.iter().map(|id| bench.calls.get(*id).is_some()).collect();
    assert_eq!(kept, [false, false, true, true, true], "a letter has 15 bytes with its request");
    assert_eq!(bench.calls.crowded_out(), 2);
    let (waited, effects) = bench.wait();
    assert_eq!((waited.as_secs(), effects), (24 * 3_600 - 1, vec![]));
    bench.wait();
    assert_eq!(bench.calls.all().map(|record| record.id).collect::<Vec<_>>(), [ids[3]]);
    bench.wait();
    assert_eq!((bench.calls.all().count(), bench.calls.crowded_out()), (0, 2));
    assert!(bench.log.records.is_empty());
    assert_eq!(bench.calls.next_sequence(), 6, "an id is never given twice");
}

#[test]
fn a_callback_is_tried_until_it_is_taken() {
    let called =
        || Offer { settings: Settings { callback: Some("http://h/".into()), ..settings() }, ..offer(1) };
    let mut bench = Bench::with(Limits { results_max: 0, ..Limits::default() });
    let (id, _) = bench.offer(called());
    assert_eq!(bench.end(1, 1, answered(200)), [Command::Finished(1), Command::CallBack(1)]);
    assert_eq!(bench.calls.open(), 1, "it is open until that is settled, and kept so long");
    assert_eq!(bench.step(Event::CalledBack { sequence: 1, taken: false }), []);
    bench.crash(Limits { results_max: 0, ..Limits::default() });
    let (waited, effects) = bench.wait();
    assert!((500..=1_001).contains(&waited.as_millis()), "{waited:?}");
    assert_eq!(effects, [Command::CallBack(1)]);
    bench.step(Event::CalledBack { sequence: 1, taken: true });
    assert_eq!((bench.calls.get(id), bench.calls.open()), (None, 0));

    let mut bench = Bench::new();
    let (id, _) = bench.offer(called());
    bench.end(1, 1, answered(404));
    for tried in 0..limits::CALLBACK_ATTEMPTS_MAX {
        if tried > 0 {
            assert_eq!(bench.wait().1, [Command::CallBack(1)]);
        }
        assert!(matches!(bench.calls.get(id).unwrap().callback, Callback::Waiting { .. }));
        bench.step(Event::CalledBack { sequence: 1, taken: false });
    }
    assert_eq!(bench.calls.get(id).unwrap().callback, Callback::GivenUp);
}

#[test]
fn a_draining_data_plane_begins_nothing_and_loses_nothing() {
    let mut bench = Bench::new();
    let ids: Vec<_> = (0..3).map(|_| bench.offer(offer(1)).0).collect();
    bench.assign(1, 1);
    bench.step(Event::Drain);
    assert_eq!(bench.end(2, 1, refused(Reason::ShuttingDown)), []);
    assert_eq!(bench.end(3, 1, refused(Reason::ShuttingDown)), []);
    assert_eq!(bench.end(1, 1, answered(200)), [Command::Finished(1)]);
    assert_eq!(bench.crash(Limits::default()), [start(2, 1), start(3, 1)]);
    assert_eq!(bench.state(ids[0]), State::Succeeded);
}

#[test]
fn lists_are_in_order_filtered_and_paged() {
    let mut bench = Bench::new();
    for function in [1, 2, 1, 2, 1] {
        bench.offer(offer(function));
    }
    bench.end(1, 1, answered(404));
    let sequences = |(records, more): (Vec<&crate::Record>, bool)| {
        (records.iter().map(|record| record.id.sequence).collect::<Vec<_>>(), more)
    };
    let list = |filter: &Filter, after, limit| sequences(Calls::list(&bench.calls, filter, after, limit));
    let all = Filter::default();
    assert_eq!(list(&all, 0, 10), (vec![1, 2, 3, 4, 5], false));
    assert_eq!(list(&all, 0, 2), (vec![1, 2], true));
    assert_eq!(list(&all, 3, 2), (vec![4, 5], false));
    let f1 = Filter { function: Some(FunctionName::new("f1").unwrap()), ..Filter::default() };
    assert_eq!(list(&f1, 0, 10), (vec![1, 3, 5], false));
    let failed = Filter { state: Some(StateKind::Failed), ..Filter::default() };
    assert_eq!(list(&failed, 0, 10), (vec![1], false));
}
