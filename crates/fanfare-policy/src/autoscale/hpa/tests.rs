use super::super::Autoscaler;
use super::*;
use fanfare_types::ScalingPolicy;

/// Kubernetes: the CPU cases of `replica_calculator_test.go`, of sandboxes that reserve one CPU each.
/// Name, target in percent, current, ready, CPU of the measured ready ones, wanted.
type ReplicaCase = (&'static str, u64, u32, u32, &'static [u32], u32);
const REPLICAS: &[ReplicaCase] = &[
    ("ScaleUp", 30, 3, 3, &[300, 500, 700], 5),
    ("ScaleUpUnreadyLessScale", 30, 3, 2, &[500, 700], 4),
    ("ScaleUpUnreadyNoScale", 30, 3, 1, &[400], 3),
    ("ScaleDown", 50, 5, 5, &[100, 300, 500, 250, 250], 3),
    ("Tolerance", 100, 3, 3, &[1010, 1030, 1020], 3),
    ("MissingMetricsNoChangeEq", 100, 2, 2, &[1000], 2),
    ("MissingMetricsNoChangeGt", 100, 2, 2, &[1900], 2),
    ("MissingMetricsNoChangeLt", 100, 2, 2, &[600], 2),
    ("MissingMetricsUnreadyNoChange", 50, 3, 2, &[450], 3),
    ("MissingMetricsUnreadyScaleUp", 50, 3, 2, &[2000], 4),
    ("MissingMetricsUnreadyScaleDown", 50, 4, 3, &[100, 100], 3),
    ("more ready than current, one of them not measured", 100, 2, 4, &[700, 700, 700], 2),
    ("the difference is within the tolerance", 100, 10, 10, &[1099; 10], 10),
    ("the difference is just over the tolerance", 100, 10, 10, &[1110; 10], 12),
];

#[test]
fn kubernetes_replica_calculator() {
    for &(name, target_percent, current, ready, levels, want) in REPLICAS {
        let settings = Settings { target_percent, tolerance: 0.1, window_ns: 0, period_ns: 0 };
        let input = ScaleInput { ready, reachable: true, cpu_request_milli: 1_000 };
        let measured = u32::try_from(levels.len()).unwrap();
        let mean = f64::from(levels.iter().sum::<u32>()) / f64::from(measured);
        let (wanted, reason) = Pods::new(input, current, mean, measured).replicas(&settings).unwrap();
        assert_eq!(wanted, want, "{name}: {reason}");
    }
}

fn scaling(min: u32, max: u32, target_utilization: f64) -> Scaling {
    let policy = ScalingPolicy::Hpa(Hpa { target_utilization, ..Hpa::default() });
    Scaling { policy, min, max, ..Scaling::default() }
}

fn input(ready: u32) -> ScaleInput {
    ScaleInput { ready, reachable: true, cpu_request_milli: 1_000 }
}

/// Kubernetes: `TestUpscaleCap`, `TestUpscaleCapGreaterThanMaxReplicas`, `TestMinReplicas`, `TestMaxReplicas`,
/// `TestScaleDownStabilizeInitialSize`, each as a first decision.
#[test]
fn kubernetes_first_decisions() {
    let cases = [
        ("twice at most", 1, 100, 0.1, 3, 2_000.0, 6),
        ("but up to four", 1, 100, 0.1, 1, 2_000.0, 4),
        ("or the maximum", 1, 5, 0.1, 3, 2_000.0, 5),
        ("current below the minimum", 5, 9, 0.5, 3, 500.0, 5),
        ("current above the maximum", 1, 2, 0.5, 3, 500.0, 2),
        ("the first number is a recommendation", 2, 6, 0.5, 5, 280.0, 5),
    ];
    for (name, min, max, target, ready, cpu, want) in cases {
        let mut a = Autoscaler::new(&scaling(min, max, target), 1);
        a.record_cpu(Timestamp::ZERO, cpu, ready);
        let decision = a.decide(Timestamp::from_secs(1), input(ready));
        assert_eq!(decision.sandboxes, want, "{name}: {}", decision.reason);
    }
}

#[test]
fn a_lower_number_waits_for_the_window_and_orders_count() {
    let mut a = Autoscaler::new(&scaling(0, 100, 0.5), 1);
    a.note_order(Timestamp::ZERO, 8);
    let mut now = 0;
    let mut decide = |a: &mut Autoscaler, until: u64, ready| {
        let mut last = None;
        while now < until {
            now += 15;
            a.record_cpu(Timestamp::from_secs(now), 100.0, ready);
            last = Some(a.decide(Timestamp::from_secs(now), input(ready)));
        }
        last.unwrap()
    };
    let held = decide(&mut a, 300, 8);
    assert_eq!(held.sandboxes, 8, "{}", held.reason);
    assert!(matches!(held.reason, ScaleReason::CpuStabilized { wanted: 2, held: 8 }), "{:?}", held.reason);
    let lower = decide(&mut a, 330, 8);
    assert_eq!(lower.sandboxes, 2, "{}", lower.reason);
}

#[test]
fn between_periods_nothing_changes_and_samples_are_averaged() {
    let mut a = Autoscaler::new(&scaling(0, 100, 0.5), 1);
    assert_eq!(a.tick(), Duration::from_secs(15));
    a.record_cpu(Timestamp::ZERO, 500.0, 2);
    assert_eq!(a.decide(Timestamp::from_secs(1), input(2)).sandboxes, 2);
    for (second, cpu) in [(5, 200.0), (10, 1_800.0)] {
        a.record_cpu(Timestamp::from_secs(second), cpu, 2);
        let decision = a.decide(Timestamp::from_secs(second), input(2));
        assert_eq!(decision.reason, ScaleReason::NotDue { held: 2 });
    }
    let decision = a.decide(Timestamp::from_secs(16), input(2));
    assert_eq!(decision.sandboxes, 4, "two sandboxes at 100 % of a target of 50 %: {}", decision.reason);
}

#[test]
fn without_data_the_scale_stays_and_without_sandboxes_it_sleeps() {
    let mut a = Autoscaler::new(&scaling(0, 10, 0.5), 1);
    assert_eq!(a.decide(Timestamp::ZERO, input(0)).reason, ScaleReason::CpuAsleep);
    assert_eq!(a.decide(Timestamp::ZERO, input(3)).sandboxes, 3);
    a.record_cpu(Timestamp::from_secs(1), 1_000.0, 3);
    let unknown_request = ScaleInput { cpu_request_milli: 0, ..input(3) };
    let decision = a.decide(Timestamp::from_secs(2), unknown_request);
    assert_eq!((decision.sandboxes, decision.reason), (3, ScaleReason::NoData { held: 3 }));
    let idle = a.decide(Timestamp::from_secs(20), input(3));
    assert_eq!((idle.sandboxes, idle.reason), (3, ScaleReason::NoData { held: 3 }));
    for secs in 2..60 {
        a.record_cpu(Timestamp::from_secs(secs * 15), 0.0, 3);
        assert!(a.decide(Timestamp::from_secs(secs * 15), input(3)).sandboxes >= 1, "the last one stays");
    }
    a.reset();
    assert_eq!(a.decide(Timestamp::from_secs(1_000), input(0)).sandboxes, 0);
}
