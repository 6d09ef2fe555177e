//! Knative's pod autoscaler.
//!
//! Sources, in `knative/serving`: `pkg/autoscaler/scaling/autoscaler.go` (`Scale`), `pkg/reconciler/autoscaling/kpa`
//! (`scaler.go`: bounds and scaling to zero; `kpa.go`: when a revision counts as active), and
//! `pkg/reconciler/autoscaling/resources/target.go` (the target). The numbers follow them to the letter, with two
//! differences in what surrounds them. Traffic never has to be moved to an activator before the last pod goes, so the
//! grace period counts from the decision. And nothing is kept for a function that is still activating while nothing
//! is wanted: a start has its own timeout here, and the order that began it is held by the panic maximum.

use std::time::Duration;

use fanfare_types::{Kpa, Metric, Scaling, Timestamp};

use super::window::{LoadWindow, MaxWindow};
use super::{Floor, KpaFigures, LoadSample, ScaleDecision, ScaleInput, ScaleReason, nanos};

/// Knative's `autoscaling.TargetMin`.
const TARGET_MIN: f64 = 0.01;
/// Knative's `requests-per-second-target-default`.
const REQUESTS_PER_SECOND_TARGET_DEFAULT: f64 = 200.0;

/// The settings, resolved. Small: every function has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings {
    metric: Metric,
    target: f64,
    panic_threshold: f64,
    max_scale_up_rate: f64,
    max_scale_down_rate: f64,
    activation: u32,
    stable_window_ns: u64,
    panic_window_ns: u64,
    grace_ns: u64,
    delay_ns: u64,
    tick_ns: u64,
}

impl Settings {
    pub(super) fn new(kpa: &Kpa, scaling: &Scaling, concurrency: u32) -> Self {
        Settings {
            metric: kpa.metric,
            target: resolve_target(kpa, concurrency),
            panic_threshold: kpa.panic_threshold,
            max_scale_up_rate: kpa.max_scale_up_rate,
            max_scale_down_rate: kpa.max_scale_down_rate,
            activation: scaling.activation,
            stable_window_ns: nanos(kpa.stable_window),
            panic_window_ns: nanos(kpa.panic_window()),
            grace_ns: nanos(kpa.scale_to_zero_grace),
            delay_ns: nanos(scaling.scale_down_delay),
            tick_ns: nanos(kpa.tick).max(1),
        }
    }

    pub(super) fn tick(&self) -> Duration {
        Duration::from_nanos(self.tick_ns)
    }

    fn stable_window(&self) -> Duration {
        Duration::from_nanos(self.stable_window_ns)
    }

    fn panic_window(&self) -> Duration {
        Duration::from_nanos(self.panic_window_ns)
    }
}

/// The history of a function that has been called.
#[derive(Clone, Debug)]
pub(super) struct State {
    window: LoadWindow,
    surge: Surge,
    delay: MaxWindow,
    activity: Activity,
    /// The number decided or ordered last, which stays while there is no data.
    held: Option<u32>,
}

/// Knative's panic mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Surge {
    /// When the panic threshold was last exceeded.
    since: Option<Timestamp>,
    maximum: u32,
}

/// Knative's `Active` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Activating,
    Active { since: Timestamp },
    Inactive { since: Timestamp },
}

/// The averages of the metric.
#[derive(Clone, Copy, Debug)]
struct Observed {
    stable: f64,
    panic: f64,
}

impl State {
    /// The state, made when it is first needed.
    pub(super) fn of<'a>(state: &'a mut Option<Box<State>>, settings: &Settings) -> &'a mut State {
        state.get_or_insert_with(|| {
            Box::new(State {
                window: LoadWindow::new(settings.stable_window(), settings.panic_window()),
                surge: Surge::default(),
                delay: MaxWindow::default(),
                activity: Activity::Activating,
                held: None,
            })
        })
    }

    pub(super) fn record(&mut self, settings: &Settings, now: Timestamp, sample: LoadSample) {
        let value = match settings.metric {
            Metric::Concurrency => sample.concurrency,
            Metric::RequestsPerSecond => sample.requests_per_second,
        };
        self.window.record(now, value);
    }

    pub(super) fn note_order(&mut self, now: Timestamp, sandboxes: u32) {
        self.surge.since = Some(now);
        self.surge.maximum = self.surge.maximum.max(sandboxes);
        self.held = Some(self.held.unwrap_or(0).max(sandboxes));
        if matches!(self.activity, Activity::Inactive { .. }) {
            self.activity = Activity::Activating;
        }
    }

    pub(super) fn adopt(&mut self, now: Timestamp, sandboxes: u32) {
        self.activity = Activity::Active { since: now };
        self.held = Some(sandboxes);
        self.surge = Surge { since: (sandboxes > 1).then_some(now), maximum: sandboxes };
    }
}

/// Takes new settings.
pub(super) fn update(settings: &mut Settings, state: &mut Option<Box<State>>, new: Settings) {
    if new.metric != settings.metric {
        *state = None;
    } else if let Some(state) = state {
        let widths = |s: &Settings| (s.stable_window_ns, s.panic_window_ns);
        if widths(&new) != widths(settings) {
            state.window.resize(new.stable_window(), new.panic_window());
        }
        if new.tick_ns != settings.tick_ns {
            // The delay is counted in ticks: numbers of other ticks cannot be compared.
            state.delay = MaxWindow::default();
        }
    }
    *settings = new;
}

/// Knative's `Scale` of the autoscaler, then `scale` of the reconciler.
pub(super) fn decide(
    settings: &Settings,
    state: Option<&mut State>,
    floor: Floor,
    now: Timestamp,
    input: ScaleInput,
) -> ScaleDecision {
    let Some(state) = state else {
        return no_data(floor, input.ready, false);
    };
    if state.window.is_empty(now) {
        let held = state.held.unwrap_or(input.ready);
        return no_data(floor, held, state.surge.since.is_some());
    }
    let observed = Observed { stable: state.window.stable(now), panic: state.window.panic(now) };
    let (wanted, reason) = scale(settings, &mut state.surge, observed, now, input);
    let (wanted, reason) = delay(settings, &mut state.delay, now, input.reachable, wanted, reason);
    let (wanted, reason) = floor.apply(wanted, reason);
    let (sandboxes, reason) = state.activity.settle(settings, now, input.ready, wanted, reason);
    state.held = Some(sandboxes);
    ScaleDecision { sandboxes, panicking: state.surge.since.is_some(), reason }
}

fn no_data(floor: Floor, held: u32, panicking: bool) -> ScaleDecision {
    let (sandboxes, reason) = floor.apply(held, ScaleReason::NoData { held });
    ScaleDecision { sandboxes, panicking, reason }
}

/// What the averages ask for, and whether a surge begins, goes on or ends.
fn scale(
    settings: &Settings,
    surge: &mut Surge,
    observed: Observed,
    now: Timestamp,
    input: ScaleInput,
) -> (u32, ScaleReason) {
    let ready = f64::from(input.ready.max(1));
    let up = (settings.max_scale_up_rate * ready).ceil();
    let down = if input.reachable { (ready / settings.max_scale_down_rate).floor() } else { 0.0 };
    let by_stable = (observed.stable / settings.target).ceil();
    let by_panic = (observed.panic / settings.target).ceil();
    let desired = |wanted: f64| {
        // A cast from float saturates, as the scale may not.
        let within = wanted.max(down).min(up) as u32;
        if wanted > 0.0 && settings.activation > 1 { within.max(settings.activation) } else { within }
    };
    let mut wanted = desired(by_stable);

    if by_panic / ready >= settings.panic_threshold {
        surge.since = Some(now);
    } else if surge.since.is_some_and(|since| since + settings.stable_window() < now) {
        *surge = Surge::default();
    }
    let figures = |wanted| KpaFigures {
        metric: settings.metric,
        stable: observed.stable,
        panic: observed.panic,
        target: settings.target,
        ready: input.ready,
        wanted,
    };
    if surge.since.is_none() {
        return (wanted, ScaleReason::Stable(figures(wanted)));
    }
    wanted = wanted.max(desired(by_panic));
    surge.maximum = surge.maximum.max(wanted);
    (surge.maximum, ScaleReason::Panic { figures: figures(wanted), maximum: surge.maximum })
}

/// Knative's scale-down delay: the highest number wanted within the delay. None for an unreachable function.
fn delay(
    settings: &Settings,
    window: &mut MaxWindow,
    now: Timestamp,
    reachable: bool,
    wanted: u32,
    reason: ScaleReason,
) -> (u32, ScaleReason) {
    // A window of one tick is not the same as none: it would hold the larger of two numbers of the same tick.
    if settings.delay_ns == 0 || !reachable {
        return (wanted, reason);
    }
    let ticks = settings.delay_ns.div_ceil(settings.tick_ns);
    let held = window.record(now.as_nanos() / settings.tick_ns, ticks, wanted);
    if held == wanted {
        return (wanted, reason);
    }
    let delay = Duration::from_nanos(settings.delay_ns);
    (held, ScaleReason::Delayed { wanted, held, delay })
}

impl Activity {
    /// Knative's `handleScaleToZero` and `computeActiveCondition`.
    fn settle(
        &mut self,
        settings: &Settings,
        now: Timestamp,
        ready: u32,
        wanted: u32,
        reason: ScaleReason,
    ) -> (u32, ScaleReason) {
        if wanted > 0 || (ready > 0 && *self == Activity::Activating) {
            *self = match *self {
                Activity::Active { since } if ready > 0 => Activity::Active { since },
                _ if ready > 0 => Activity::Active { since: now },
                _ => Activity::Activating,
            };
        }
        if wanted > 0 {
            return (wanted, reason);
        }
        let active_for = match *self {
            Activity::Active { since } => now.since(since),
            Activity::Activating | Activity::Inactive { .. } => Duration::ZERO,
        };
        if ready > 0 && matches!(self, Activity::Active { .. }) && active_for < settings.stable_window() {
            return (1, ScaleReason::LastSandbox { active_for, stable_window: settings.stable_window() });
        }
        let since = match *self {
            Activity::Inactive { since } => since,
            Activity::Activating | Activity::Active { .. } => now,
        };
        *self = Activity::Inactive { since };
        let (idle_for, grace) = (now.since(since), Duration::from_nanos(settings.grace_ns));
        if ready > 0 && idle_for < grace {
            return (ready, ScaleReason::Grace { idle_for, grace });
        }
        (0, ScaleReason::Idle { active_for })
    }
}

/// Knative's `ResolveMetricTarget`: never more than a sandbox can carry.
fn resolve_target(kpa: &Kpa, concurrency: u32) -> f64 {
    let total = match (kpa.metric, kpa.target) {
        (Metric::Concurrency, None) => f64::from(concurrency),
        (Metric::Concurrency, Some(target)) => target.min(f64::from(concurrency)),
        (Metric::RequestsPerSecond, target) => target.unwrap_or(REQUESTS_PER_SECOND_TARGET_DEFAULT),
    };
    (total * kpa.target_utilization).max(TARGET_MIN)
}

#[cfg(test)]
mod tests;
