//! Knative's own unit test cases (`autoscaler_test.go`, `target_test.go`, `scaler_test.go`), re-expressed as tables.

use super::*;

const STABLE_WINDOW: u64 = 60;

/// Knative's `newTestAutoscaler`: rates of 10, a panic threshold of 2, a stable window of 60 s.
fn settings(target: f64) -> Settings {
    Settings {
        metric: Metric::Concurrency,
        target,
        panic_threshold: 2.0,
        max_scale_up_rate: 10.0,
        max_scale_down_rate: 10.0,
        activation: 1,
        stable_window_ns: STABLE_WINDOW * 1_000_000_000,
        panic_window_ns: 6_000_000_000,
        grace_ns: 0,
        delay_ns: 0,
        tick_ns: 2_000_000_000,
    }
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(1_000 + secs)
}

fn input(ready: u32) -> ScaleInput {
    ScaleInput { ready, reachable: true, cpu_request_milli: 10 }
}

fn wanted(s: &Settings, surge: &mut Surge, stable: f64, panic: f64, secs: u64, ready: u32) -> u32 {
    scale(s, surge, Observed { stable, panic }, at(secs), input(ready)).0
}

struct Case {
    name: &'static str,
    target: f64,
    stable: f64,
    panic: f64,
    ready: u32,
    surge: Option<u32>,
    adjust: fn(&mut Settings, &mut ScaleInput),
    want: u32,
}

const PLAIN: Case = Case {
    name: "",
    target: 10.0,
    stable: 0.0,
    panic: 0.0,
    ready: 1,
    surge: None,
    adjust: |_, _| {},
    want: 0,
};

/// `TestAutoscalerScale`, `TestAutoscalerStableModeIncrease…`, `…UseOnePodAsMinimum…`, `TestAutoscalerActivationScale`.
const SCALE: &[Case] = &[
    Case { name: "NoDataAtZeroNoAutoscale", ..PLAIN },
    Case { name: "StableModeUnlimitedTBC", target: 181.0, stable: 21.0, panic: 26.0, want: 1, ..PLAIN },
    Case { name: "0TBC", stable: 50.0, panic: 49.0, want: 5, ..PLAIN },
    Case { name: "StableModeNoChange", stable: 50.0, panic: 50.0, want: 5, ..PLAIN },
    Case { name: "StableModeIncrease 1", stable: 50.0, panic: 10.0, want: 5, ..PLAIN },
    Case { name: "StableModeIncrease 2", stable: 100.0, panic: 10.0, want: 10, ..PLAIN },
    Case {
        name: "PanicStableLargerThanPanic",
        target: 1.0,
        stable: 50.0,
        panic: 30.0,
        ready: 5,
        surge: Some(5),
        want: 50,
        ..PLAIN
    },
    Case {
        name: "PanicStableLessThanPanic",
        target: 1.0,
        stable: 20.0,
        panic: 30.0,
        ready: 5,
        surge: Some(5),
        want: 30,
        ..PLAIN
    },
    Case { name: "StableModeNoChangeAlreadyScaled", stable: 50.0, panic: 50.0, ready: 5, want: 5, ..PLAIN },
    Case {
        name: "StableModeIncreaseWithSmallScaleUpRate",
        target: 1.0,
        stable: 3.0,
        panic: 3.1,
        ready: 2,
        adjust: |s, _| s.max_scale_up_rate = 1.1,
        want: 3,
        ..PLAIN
    },
    Case {
        name: "StableModeDecreaseWithSmallScaleDownRate",
        stable: 1.0,
        panic: 1.0,
        ready: 100,
        adjust: |s, _| s.max_scale_down_rate = 1.1,
        want: 90,
        ..PLAIN
    },
    Case {
        name: "StableModeDecreaseNonReachable",
        stable: 1.0,
        panic: 1.0,
        ready: 100,
        adjust: |s, input| {
            s.max_scale_down_rate = 1.1;
            input.reachable = false;
        },
        want: 1,
        ..PLAIN
    },
    Case { name: "PanicModeDoublePodCount", stable: 50.0, panic: 100.0, want: 10, ..PLAIN },
    Case { name: "UseOnePodAsMinimum", stable: 1_000.0, panic: 888.0, ready: 0, want: 10, ..PLAIN },
    Case { name: "ActivationScale, nothing wanted", adjust: |s, _| s.activation = 2, ..PLAIN },
    Case { name: "ActivationScale", stable: 1.0, adjust: |s, _| s.activation = 2, want: 2, ..PLAIN },
];

#[test]
fn knative_scale() {
    for case in SCALE {
        let (mut s, mut input) = (settings(case.target), input(case.ready));
        (case.adjust)(&mut s, &mut input);
        let mut surge = Surge { since: case.surge.map(|_| at(0)), maximum: case.surge.unwrap_or(0) };
        let observed = Observed { stable: case.stable, panic: case.panic };
        let (got, reason) = scale(&s, &mut surge, observed, at(5), input);
        assert_eq!(got, case.want, "{}: {reason}", case.name);
    }
}

/// `TestAutoscalerUnpanicAfterSlowIncrease`.
#[test]
fn knative_unpanic_after_slow_increase() {
    let (s, mut surge) = (settings(1.0), Surge::default());
    assert_eq!(wanted(&s, &mut surge, 11.0, 25.0, 0, 10), 25);
    assert_eq!(surge.since, Some(at(0)));
    assert_eq!(wanted(&s, &mut surge, 30.0, 41.0, 30, 40), 41);
    assert_eq!(surge.since, Some(at(0)), "the panic must not be extended");
    assert_eq!(wanted(&s, &mut surge, 50.0, 56.0, 62, 55), 50, "no longer in panic");
    assert_eq!(surge, Surge::default());
}

/// `TestAutoscalerExtendPanicWindow`.
#[test]
fn knative_extend_panic_window() {
    let (s, mut surge) = (settings(1.0), Surge::default());
    assert_eq!(wanted(&s, &mut surge, 11.0, 25.0, 0, 10), 25);
    assert_eq!(wanted(&s, &mut surge, 30.0, 80.0, 30, 40), 80);
    assert_eq!(surge.since, Some(at(30)));
}

/// `TestAutoscalerStableModeDecrease` and `…NoTrafficScaleToZero`.
#[test]
fn knative_stable_decrease() {
    let (s, mut surge) = (settings(10.0), Surge::default());
    assert_eq!(wanted(&s, &mut surge, 100.0, 100.0, 0, 8), 10);
    assert_eq!(wanted(&s, &mut surge, 50.0, 50.0, 0, 8), 5);
    assert_eq!(wanted(&s, &mut surge, 1.0, 0.0, 0, 1), 1);
    assert_eq!(wanted(&s, &mut surge, 0.0, 0.0, 0, 1), 0);
}

/// `TestAutoscalerPanicModeExponentialTrackAndStabilize`.
#[test]
fn knative_exponential_track_and_stabilize() {
    let (s, mut surge) = (settings(1.0), Surge::default());
    let mut ready = 1;
    for (secs, load) in [(0, 6.0), (0, 36.0), (1, 216.0), (1, 1_296.0)] {
        let got = wanted(&s, &mut surge, load, load, secs, ready);
        assert_eq!((f64::from(got), surge.since), (load, Some(at(secs))));
        ready = got;
    }
    assert_eq!(wanted(&s, &mut surge, 1_296.0, 1_296.0, 2, ready), 1_296);
}

/// `TestAutoscalerPanicThenUnPanicScaleDown`.
#[test]
fn knative_panic_then_unpanic() {
    let (s, mut surge) = (settings(10.0), Surge::default());
    assert_eq!(wanted(&s, &mut surge, 100.0, 100.0, 0, 1), 10);
    assert_eq!(wanted(&s, &mut surge, 100.0, 1_000.0, 0, 10), 100);
    assert_eq!(wanted(&s, &mut surge, 1.0, 1.0, 30, 10), 100, "the surge is over, the panic is not");
    assert_eq!(wanted(&s, &mut surge, 1.0, 1.0, 60, 10), 100, "a whole window, to the end");
    assert_eq!(wanted(&s, &mut surge, 1.0, 1.0, 61, 10), 1);
}

/// `TestAutoscalerRateLimitScaleUp`, `…ScaleDown` and `TestAutoscalerUpdateTarget`.
#[test]
fn knative_rates_and_update() {
    let (s, mut surge) = (settings(10.0), Surge::default());
    assert_eq!(wanted(&s, &mut surge, 1_000.0, 1_001.0, 0, 1), 10);
    assert_eq!(wanted(&s, &mut surge, 1_000.0, 1_001.0, 0, 10), 100);
    let mut surge = Surge::default();
    assert_eq!(wanted(&s, &mut surge, 1.0, 1.0, 0, 100), 10);
    assert_eq!(wanted(&s, &mut surge, 1.0, 1.0, 0, 10), 1);
    let mut surge = Surge::default();
    assert_eq!(wanted(&s, &mut surge, 100.0, 101.0, 0, 1), 10);
    assert_eq!(wanted(&settings(1.0), &mut surge, 100.0, 101.0, 0, 10), 100, "a new target applies at once");
}

/// `TestAutoscalerScaleDownDelay`, `…Zero` and `…NotReachable`.
#[test]
fn knative_scale_down_delay() {
    let s = Settings { panic_threshold: 100.0, delay_ns: 300_000_000_000, ..settings(10.0) };
    let step = |s: &Settings, window: &mut MaxWindow, millis: u64, load: f64, reachable: bool| {
        let now = Timestamp::from_millis(millis);
        let input = ScaleInput { reachable, ..input(0) };
        let observed = Observed { stable: load, panic: load };
        let (wanted, reason) = scale(s, &mut Surge::default(), observed, now, input);
        delay(s, window, now, reachable, wanted, reason).0
    };
    let minute = 60_000;
    let mut window = MaxWindow::default();
    let cases = [
        ("up", 2_000, 40.0, 4),
        ("five minutes at a lower load", 5 * minute, 0.0, 4),
        ("and one tick", 5 * minute + 2_000, 0.0, 0),
        ("gradual: up", 9 * minute, 40.0, 4),
        ("4 still dominates", 10 * minute, 30.0, 4),
        ("still", 11 * minute, 0.0, 4),
        ("4 scrolls out", 14 * minute, 0.0, 3),
        ("everything scrolled out", 15 * minute, 0.0, 0),
    ];
    for (name, millis, load, want) in cases {
        assert_eq!(step(&s, &mut window, millis, load, true), want, "{name}");
    }
    let mut window = MaxWindow::default();
    assert_eq!(step(&s, &mut window, 2_000, 40.0, true), 4);
    assert_eq!(step(&s, &mut window, minute, 0.0, true), 4);
    assert_eq!(step(&s, &mut window, minute + 2_000, 0.0, false), 0, "an unreachable function is not held");
    let none = Settings { delay_ns: 0, ..s };
    let mut window = MaxWindow::default();
    assert_eq!(step(&none, &mut window, 0, 40.0, true), 4);
    assert_eq!(step(&none, &mut window, 500, 20.0, true), 2, "without a delay at once");
}

/// `TestResolveMetricTarget`, with the concurrency of a sandbox in the place of `containerConcurrency`.
#[test]
fn knative_resolve_target() {
    use Metric::{Concurrency, RequestsPerSecond};
    let cases = [
        ("defaults", Concurrency, 100, None, 1.0, 100.0),
        ("80 %", Concurrency, 100, None, 0.8, 80.0),
        ("concurrency 2 at 30 %", Concurrency, 2, None, 0.3, 0.6),
        ("concurrency 12 at 75 %", Concurrency, 12, None, 0.75, 9.0),
        ("concurrency 1 at 80 %", Concurrency, 1, None, 0.8, 0.8),
        ("concurrency 1", Concurrency, 1, None, 1.0, 1.0),
        ("target 10 at 75 %", Concurrency, 100, Some(10.0), 0.75, 7.5),
        ("target below concurrency", Concurrency, 10, Some(1.0), 1.0, 1.0),
        ("target above concurrency", Concurrency, 1, Some(10.0), 1.0, 1.0),
        ("never below the least target", Concurrency, 1, Some(0.001), 1.0, 0.01),
        ("requests per second", RequestsPerSecond, 1, None, 0.7, 140.0),
        ("requests per second, target above concurrency", RequestsPerSecond, 1, Some(50.0), 1.0, 50.0),
    ];
    for (name, metric, concurrency, target, target_utilization, want) in cases {
        let kpa = Kpa { metric, target, target_utilization, ..Kpa::knative() };
        let got = resolve_target(&kpa, concurrency);
        assert!((got - want).abs() < 1e-9, "{name}: {got} instead of {want}");
    }
}

/// `TestScaler`: scaling to zero, with a stable window of 60 s and a grace period of 30 s.
#[test]
fn knative_scale_to_zero() {
    let s = Settings { grace_ns: 30_000_000_000, ..settings(1.0) };
    let active = |secs| Activity::Active { since: at(secs) };
    let inactive = |secs| Activity::Inactive { since: at(secs) };
    let cases = [
        ("just before the idle period", active(0), 59, 1, 0, 1),
        ("to one until the idle period is over", active(0), 59, 10, 0, 1),
        ("after the idle period, grace begins", active(0), 60, 1, 0, 1),
        ("grace keeps what there is", active(0), 60, 4, 0, 4),
        ("just before the grace period", inactive(0), 29, 1, 0, 1),
        ("after the grace period", inactive(0), 30, 1, 0, 0),
        ("scales up", active(0), 1, 1, 10, 10),
        ("scales up while inactive", inactive(0), 15, 1, 10, 10),
        ("scales up from zero", inactive(0), 15, 0, 10, 10),
        ("nothing to keep", active(0), 1, 0, 0, 0),
        ("ready just now", Activity::Activating, 1, 1, 0, 1),
    ];
    for (name, activity, secs, ready, wanted, want) in cases {
        let mut activity = activity;
        let reason = ScaleReason::NoData { held: 0 };
        let (got, reason) = activity.settle(&s, at(secs), ready, wanted, reason);
        assert_eq!(got, want, "{name}: {reason}");
    }
    let mut activity = active(0);
    let idle = activity.settle(&settings(1.0), at(60), 3, 0, ScaleReason::NoData { held: 0 });
    assert_eq!(idle.0, 0, "without a grace period at once");
    assert_eq!(activity, inactive(60));
}

/// `TestStartInPanicMode`.
#[test]
fn knative_start_in_panic_mode() {
    for (found, panicking) in [(1, false), (2, true)] {
        let mut state = None;
        State::of(&mut state, &settings(100.0)).adopt(at(0), found);
        let surge = state.unwrap().surge;
        assert_eq!((surge.since.is_some(), surge.maximum), (panicking, found));
    }
}
