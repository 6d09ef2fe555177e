use super::*;
use fanfare_types::{Kpa, Metric};
use proptest::prelude::*;

fn kpa(kpa: Kpa) -> Scaling {
    Scaling { policy: ScalingPolicy::Kpa(kpa), ..Scaling::default() }
}

fn input(ready: u32) -> ScaleInput {
    ScaleInput { ready, reachable: true, cpu_request_milli: 10 }
}

fn load(concurrency: f64) -> LoadSample {
    LoadSample { concurrency, requests_per_second: concurrency * 10.0 }
}

/// Feeds one sample each second and decides every two, with every wanted sandbox ready at once.
struct Run {
    autoscaler: Autoscaler,
    now_secs: u64,
    ready: u32,
    last: Option<ScaleDecision>,
}

impl Run {
    fn new(scaling: &Scaling) -> Self {
        Run { autoscaler: Autoscaler::new(scaling, 1), now_secs: 100, ready: 0, last: None }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.now_secs)
    }

    fn order(&mut self, sandboxes: u32) {
        self.autoscaler.note_order(self.now(), sandboxes);
        self.ready = sandboxes;
    }

    /// Runs for `secs` seconds at a load; returns the lowest and highest decision.
    fn run(&mut self, secs: u64, concurrency: f64) -> (u32, u32) {
        let mut range = (u32::MAX, 0);
        for _ in 0..secs {
            self.now_secs += 1;
            self.autoscaler.record(self.now(), load(concurrency));
            if self.now_secs.is_multiple_of(2) {
                let decision = self.autoscaler.decide(self.now(), input(self.ready));
                self.ready = decision.sandboxes;
                range = (range.0.min(decision.sandboxes), range.1.max(decision.sandboxes));
                self.last = Some(decision);
            }
        }
        range
    }
}

#[test]
fn an_idle_function_is_small_and_has_no_heap() {
    assert!(size_of::<Autoscaler>() <= 136, "{}", size_of::<Autoscaler>());
    let mut a = Autoscaler::new(&Scaling::default(), 1);
    assert_eq!(a.decide(Timestamp::from_secs(5), input(0)).sandboxes, 0);
    let is_empty = |a: &Autoscaler| matches!(a.policy, Policy::Kpa { state: None, .. });
    assert!(is_empty(&a), "a decision allocates nothing");
    a.record(Timestamp::from_secs(6), load(1.0));
    assert!(!is_empty(&a));
    a.reset();
    assert!(is_empty(&a), "a reset frees it");
}

#[test]
fn one_long_request_keeps_exactly_one_sandbox() {
    let mut run = Run::new(&Scaling::default());
    run.order(1);
    assert_eq!(run.run(600, 1.0), (1, 1));
}

#[test]
fn a_step_never_shrinks_while_the_load_lasts_and_goes_to_zero_after() {
    let mut run = Run::new(&Scaling::default());
    run.order(100);
    assert_eq!(run.run(120, 100.0), (100, 100));
    let (low, high) = run.run(40, 0.0);
    assert!(low >= 34 && high <= 100, "the stable average falls over a window: {low}..{high}");
    run.run(40, 0.0);
    assert_eq!(run.ready, 0, "{}", run.last.unwrap().reason);
}

#[test]
fn a_demand_order_is_held_for_one_stable_window() {
    let mut run = Run::new(&Scaling::default());
    run.order(200);
    assert_eq!(run.run(60, 0.0), (200, 200));
    assert!(run.last.unwrap().panicking);
    run.run(2, 0.0);
    assert!(run.ready < 200 && !run.last.unwrap().panicking);
}

#[test]
fn the_knative_profile_keeps_the_last_sandbox_through_the_grace_period() {
    let mut run = Run::new(&kpa(Kpa { target_utilization: 1.0, ..Kpa::knative() }));
    run.order(1);
    run.run(2, 1.0);
    assert_eq!(run.run(88, 0.0), (1, 1), "60 s of window, then 30 s of grace");
    assert!(matches!(run.last.unwrap().reason, ScaleReason::Grace { .. }), "{}", run.last.unwrap().reason);
    run.run(6, 0.0);
    assert_eq!(run.ready, 0);
}

#[test]
fn without_data_the_scale_stays() {
    let mut run = Run::new(&Scaling::default());
    run.order(7);
    run.run(10, 7.0);
    run.now_secs += 61;
    let decision = run.autoscaler.decide(run.now(), input(5));
    assert_eq!((decision.sandboxes, decision.reason), (7, ScaleReason::NoData { held: 7 }));
    let fresh = Autoscaler::new(&Scaling::default(), 1).decide(run.now(), input(5));
    assert_eq!((fresh.sandboxes, fresh.reason), (5, ScaleReason::NoData { held: 5 }));
}

#[test]
fn an_adopted_function_is_not_scaled_down_for_a_window() {
    for found in [1, 50] {
        let mut run = Run::new(&Scaling { initial: 80, ..Scaling::default() });
        run.autoscaler.adopt(run.now(), found);
        run.ready = found;
        assert_eq!(run.run(58, 0.0), (found, found), "{}", run.last.unwrap().reason);
        run.run(16, 0.0);
        assert_eq!(run.ready, 0, "{}", run.last.unwrap().reason);
    }
}

#[test]
fn bounds_and_initial_scale() {
    let scaling = Scaling { min: 2, max: 10, initial: 4, ..Scaling::default() };
    let mut a = Autoscaler::new(&scaling, 1);
    let now = Timestamp::from_secs(9);
    let unreachable = |ready| ScaleInput { reachable: false, ..input(ready) };
    let cases = [
        ("initial", input(0), 4),
        ("initial, on its way", input(3), 4),
        ("initial, reached", input(4), 4),
        ("then only the minimum", input(1), 2),
        ("the maximum", input(12), 10),
        ("unreachable has no minimum", unreachable(1), 1),
    ];
    for (name, input, want) in cases {
        let decision = a.decide(now, input);
        assert_eq!(decision.sandboxes, want, "{name}: {}", decision.reason);
    }
    let mut contradictory = Autoscaler::new(&Scaling { min: 5, max: 3, ..Scaling::default() }, 1);
    assert_eq!(contradictory.decide(now, input(0)).sandboxes, 3, "the maximum wins");
}

#[test]
fn new_settings_keep_what_still_means_the_same() {
    let mut run = Run::new(&Scaling::default());
    run.order(10);
    run.run(70, 10.0);
    let is_empty = |run: &Run| matches!(run.autoscaler.policy, Policy::Kpa { state: None, .. });

    run.autoscaler.update(&kpa(Kpa { target: Some(2.0), ..Kpa::default() }), 4);
    assert_eq!(run.run(2, 10.0), (5, 5), "a new target applies to what was measured");
    let window = Duration::from_secs(30);
    run.autoscaler.update(&kpa(Kpa { target: Some(2.0), stable_window: window, ..Kpa::default() }), 4);
    assert_eq!(run.run(2, 10.0), (5, 5), "a new window keeps what lies within both");
    run.autoscaler.update(&kpa(Kpa { metric: Metric::RequestsPerSecond, ..Kpa::default() }), 4);
    assert!(is_empty(&run), "another metric starts afresh");
    run.autoscaler.update(&Scaling { policy: ScalingPolicy::Fixed(3), ..Scaling::default() }, 4);
    assert_eq!(run.autoscaler.decide(run.now(), input(5)).sandboxes, 3);
    assert_eq!(run.autoscaler.tick(), AUTOSCALER_TICK);
}

#[test]
fn by_requests_per_second() {
    let mut run =
        Run::new(&kpa(Kpa { metric: Metric::RequestsPerSecond, target: Some(100.0), ..Kpa::default() }));
    run.order(1);
    run.run(60, 100.0);
    assert_eq!(run.ready, 10, "1,000 requests per second at 100 each");
}

#[test]
fn reasons_are_one_sentence() {
    let mut run = Run::new(&Scaling::default());
    run.order(3);
    run.run(2, 2.0);
    let text = run.last.unwrap().reason.to_string();
    assert!(text.contains("none of the 3 is stopped") && text.contains("2.00 concurrent requests"), "{text}");
    assert!(!text.contains('\n') && !text.ends_with('.'));
}

proptest! {
    #[test]
    fn decisions_stay_within_bounds_and_are_reproducible(
        bounds in (0_u32..5, 5_u32..50, 0_u32..8),
        delay in prop::sample::select(vec![0_u64, 2, 30]),
        loads in prop::collection::vec((0_u64..90, 0_u32..200, 0_u32..60, any::<bool>()), 1..60),
    ) {
        let scaling = Scaling {
            min: bounds.0,
            max: bounds.1,
            initial: bounds.2,
            scale_down_delay: Duration::from_secs(delay),
            ..Scaling::default()
        };
        let mut a = Autoscaler::new(&scaling, 2);
        let mut now = Timestamp::ZERO;
        let mut panic_scale = None;
        for (step, concurrency, ready, order) in loads {
            now = now + Duration::from_secs(step);
            if order {
                a.note_order(now, ready.min(scaling.max));
            }
            a.record(now, load(f64::from(concurrency)));
            let mut twin = a.clone();
            let decision = a.decide(now, input(ready));
            prop_assert_eq!(decision, twin.decide(now, input(ready)));
            prop_assert!((scaling.min..=scaling.max).contains(&decision.sandboxes), "{}", decision.reason);
            prop_assert!(concurrency == 0 || decision.sandboxes > 0, "load without a sandbox: {}", decision.reason);
            // A delay may hold more than the surge does, and end during it.
            if let Some(before) = panic_scale.filter(|_| decision.panicking && delay == 0) {
                prop_assert!(decision.sandboxes >= before, "fell from {} in panic: {}", before, decision.reason);
            }
            panic_scale = decision.panicking.then_some(decision.sandboxes);
        }
    }

    #[test]
    fn steady_load_settles_at_its_size(concurrency in 1_u32..500, start in 1_u32..500) {
        let mut run = Run::new(&Scaling::default());
        run.order(start);
        run.run(200, f64::from(concurrency));
        prop_assert_eq!(run.ready, concurrency);
    }
}
