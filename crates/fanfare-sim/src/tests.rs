//! The simulator itself: it repeats, and its worlds are what they should be.

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
        assert!(faults > 500 || *name == "calm", "{name}: {faults}");
    }
}

#[test]
fn the_engine_follows_knative_s_autoscaler_second_by_second() {
    assert_eq!(golden(), None);
}
