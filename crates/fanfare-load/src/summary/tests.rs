use std::time::Duration;

use fanfare_trace::{Invocation, PlanFunction};

use super::*;

fn plan(rows: &[(u64, u32, u32)], warm_up_us: u64) -> Plan {
    let function =
        |name: &str| PlanFunction { name: name.to_owned(), memory_mib: 1, initial: 0, min: 0, max: 0 };
    let invocation = |(at_us, function, execution_ms): &(u64, u32, u32)| Invocation {
        at_us: *at_us,
        function: *function,
        execution_ms: *execution_ms,
        memory_mib: 1,
        column: 0,
    };
    Plan {
        span_us: 1_000_000,
        warm_up_us,
        functions: vec![function("a"), function("b"), function("c")],
        invocations: rows.iter().map(invocation).collect(),
        ..Plan::default()
    }
}

fn answered(sent_us: u64, done_us: u64, execution_us: u32, cold: bool) -> Record {
    let outcome = Outcome::Ok;
    Record {
        outcome,
        status: 200,
        sent_us,
        done_us,
        execution_us: Some(execution_us),
        cold,
        ..Record::default()
    }
}

fn run(records: Vec<Record>) -> Run {
    let elapsed = Duration::from_secs(1);
    let cold = records.iter().enumerate().filter(|(_, record)| record.cold);
    let cold_stages =
        cold.map(|(index, _)| (index, [1.0, 0.0, 0.0, 0.0, index as f32, 0.0, 0.0, 0.0, 0.0])).collect();
    Run {
        records,
        cold_stages,
        sandboxes: vec!["s".to_owned()],
        began_epoch_us: 0,
        elapsed,
        is_complete: true,
    }
}

fn summed(plan: &Plan, records: Vec<Record>) -> Totals {
    let names = ["a", "b", "c"].map(|name| format!("p-{name}"));
    summary(plan, &run(records), &names)
}

#[test]
fn latencies_are_what_they_are_said_to_be() {
    let plan = plan(&[(0, 0, 10), (100, 0, 10), (200, 1, 2)], 0);
    let records = vec![
        // 20 ms of which 10.5 were executed; 2 ms late.
        answered(2_000, 20_000, 10_500, true),
        answered(100, 45_100, 40_000, false),
        answered(200, 2_200, 1_900, false),
    ];
    let totals = summed(&plan, records);
    assert_eq!(totals.lateness, Some(Lateness { p50_us: 0, p99_us: 2_000, max_us: 2_000 }));
    let (response, service) = (totals.response_ms.unwrap(), totals.service_ms.unwrap());
    assert_eq!((response.p50, response.max, service.p50), (20.0, 45.0, 18.0));
    assert_eq!(totals.scheduling_ms.unwrap().max, 9.5);
    assert_eq!(totals.scheduling_cold_ms.unwrap().p50, 9.5);
    assert_eq!(totals.scheduling_warm_ms.unwrap().max, 5.0);
    // Twice and four and a half times as long: the geometric mean is 3.
    let of: Vec<_> = totals.functions.iter().map(|function| function.slowdown).collect();
    assert!((of[0].unwrap() - 3.0).abs() < 1e-9 && (of[1].unwrap() - 1.0).abs() < 1e-9 && of[2].is_none());
    assert!((totals.slowdown.unwrap().p50 - 2.0).abs() < 1e-9);
    assert_eq!((totals.counts.ok, totals.counts.cold, totals.sandboxes_seen), (3, 1, 1));
    assert_eq!(totals.functions[1].deployed, "p-b");
    assert_eq!((totals.cold_stages_ms["queue"].max, totals.cold_stages_ms["create"].max), (1.0, 0.0));
}

#[test]
fn failures_are_counted_and_in_no_latency() {
    let plan = plan(&[(0, 0, 10), (100, 0, 10), (200, 1, 2)], 0);
    let reason = fanfare_types::Reason::QueueFull;
    let refused = Record {
        outcome: Outcome::Refused,
        status: 429,
        reason: Some(reason),
        sent_us: 100,
        done_us: 900_000,
        ..Record::default()
    };
    let totals = summed(&plan, vec![answered(0, 20_000, 10_000, false), refused, Record::default()]);
    let counts = &totals.counts;
    assert_eq!((counts.planned, counts.sent, counts.ok, counts.failed), (3, 2, 1, 1));
    assert_eq!(counts.outcomes, BTreeMap::from([("ok", 1), ("refused", 1), ("not-sent", 1)]));
    assert_eq!(counts.reasons, BTreeMap::from([(reason.code(), 1)]));
    assert_eq!(totals.response_ms.unwrap().max, 20.0);
    assert_eq!(totals.functions[0].counts.failed, 1);
    // What was not sent is not late.
    assert_eq!(totals.lateness.unwrap().max_us, 0);
}

#[test]
fn warm_up_is_counted_and_in_no_latency() {
    let plan = plan(&[(0, 0, 10), (500, 0, 10)], 500);
    let totals =
        summed(&plan, vec![answered(70, 900_000, 10_000, true), answered(500, 20_500, 10_000, false)]);
    assert_eq!((totals.counts.ok, totals.counts.cold), (2, 1));
    assert_eq!((totals.response_ms.unwrap().max, totals.functions[0].slowdown), (20.0, Some(2.0)));
    assert_eq!(totals.lateness.unwrap().max_us, 70);
    assert!(totals.cold_stages_ms.is_empty());
}

#[test]
fn of_nothing_nothing_is_said() {
    let totals = summed(&plan(&[], 0), vec![]);
    assert_eq!((totals.lateness, totals.response_ms, totals.slowdown), (None, None, None));
    assert_eq!(Lateness::of(vec![7]), Some(Lateness { p50_us: 7, p99_us: 7, max_us: 7 }));
    let hundred = Lateness::of((1..=200).collect()).unwrap();
    assert_eq!((hundred.p50_us, hundred.p99_us, hundred.max_us), (100, 198, 200));
}
