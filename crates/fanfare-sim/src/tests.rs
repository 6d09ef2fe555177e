//! The simulator itself: it repeats, and its worlds are what they should be.

use std::time::Duration;

use fanfare_types::Timestamp;

use super::*;

fn told(name: &str, seed: u64) -> (Vec<String>, Report) {
    let mut lines = Vec::new();
    let report = run_told(&draw(name, seed).unwrap(), seed, |line| lines.push(line));
    (lines, report)
}

#[test]
fn a_seed_is_a_run_line_by_line() {
    for (name, _) in NAMES {
        let (lines, first) = told(name, 7);
        assert!(lines.len() > 100, "{name}: {}", lines.len());
        assert_eq!(lines, told(name, 7).0, "{name}");
        let silent = run(&draw(name, 7).unwrap(), 7);
        assert_eq!(
            (first.digest, first.events),
            (silent.digest, silent.events),
            "{name}: telling changes nothing"
        );
        assert_eq!(first.requests, silent.requests, "{name}");
        assert_ne!(first.digest, told(name, 8).1.digest, "{name}");
    }
}

#[test]
fn every_kind_of_world_keeps_its_promises_and_heals() {
    for (name, _) in NAMES {
        let (mut faults, mut answered) = (0, 0);
        for seed in 1..=40 {
            let report = run(&draw(name, seed).unwrap(), seed);
            assert!(report.violation.is_none(), "{report}");
            faults += report.faults;
            answered += report.requests.iter().filter(|r| r.outcome == Some(Outcome::Answered)).count();
        }
        assert!(answered > 4_000, "{name}: {answered}");
        assert!(faults > 500 || matches!(*name, "calm" | "crowded"), "{name}: {faults}");
    }
}

#[test]
fn the_engine_follows_knative_s_autoscaler_second_by_second() {
    assert_eq!(golden(), None);
}

/// A replay: many functions on many nodes, and nothing goes wrong.
fn replay(functions: usize, nodes: usize, invocations: u64) -> Scenario {
    let function = |index: usize| {
        let mut spec = draw("calm", 1).unwrap().functions[0].clone();
        spec.name = fanfare_types::FunctionName::new(&format!("f{index}")).unwrap();
        spec.sizing.concurrency = 1;
        spec.timeouts.request = Duration::from_secs(60);
        spec.scaling = fanfare_types::Scaling::default();
        spec
    };
    let arrival = |n: u64| Arrival {
        at: Timestamp::from_millis(1_000 + n / 4),
        function: usize::try_from(n * n % 7_919).unwrap() % functions,
        execution: Some(Duration::from_millis(20 + n % 300)),
        leaves_after: None,
    };
    Scenario {
        name: "replay".to_owned(),
        control_planes: 1,
        data_planes: 1,
        nodes: vec![
            NodePlan { capacity: fanfare_types::Resources::new(20_000, 20_000), creations_max: 16 };
            nodes
        ],
        placement: Default::default(),
        functions: (0..functions).map(function).collect(),
        changes: vec![],
        arrivals: (0..invocations).map(arrival).collect(),
        creation: Creation {
            min: Duration::from_millis(10),
            max: Duration::from_millis(10),
            failures_permille: 0,
        },
        network: Network { min: Duration::from_micros(50), max: Duration::from_micros(50) },
        usage: None,
        faults: None,
        end: Timestamp::from_millis(1_000 + invocations / 4 + 60_000),
        healed_at: None,
    }
}

#[test]
fn a_replay_answers_everything_and_says_where_the_time_went() {
    let report = run(&replay(50, 20, 20_000), 1);
    assert!(report.requests.iter().all(|r| r.outcome == Some(Outcome::Answered)));
    let cold = report.requests.iter().filter(|r| r.cold).count();
    assert!(cold > 50 && cold < 5_000, "{cold}");
    for request in &report.requests {
        let (started, ended) = (request.started.unwrap(), request.ended.unwrap());
        assert!(started < ended && request.waited().unwrap() < Duration::from_secs(1), "{request:?}");
    }
    assert!(report.sandboxes_created >= 50);
    assert!(report.node_peaks.iter().any(|peak| *peak > 0));
}
