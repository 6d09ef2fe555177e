//! Scaling by CPU, as Kubernetes' horizontal pod autoscaler.
//!
//! Sources, in `kubernetes/kubernetes`: `pkg/controller/podautoscaler/replica_calculator.go` (`GetResourceReplicas`),
//! `metrics/utilization.go` (use in whole percents), and `horizontal.go` (`reconcileAutoscaler`,
//! `stabilizeRecommendation`, `convertDesiredReplicasWithRules`: the behaviour without a `behavior` section).
//! As there, CPU use never starts the first sandbox and never stops the last one: a request does the former, and a
//! function that should scale to zero needs Knative's policy.

use std::time::Duration;

use fanfare_types::{Hpa, Scaling, Timestamp};

use super::window::MaxWindow;
use super::{CpuFigures, Floor, ScaleDecision, ScaleInput, ScaleReason, nanos};

/// Kubernetes' `scaleUpLimitFactor`: at most so many times the current number at once …
const SCALE_UP_LIMIT_FACTOR: u32 = 2;
/// … or this many, if that is more (`scaleUpLimitMinimum`).
const SCALE_UP_LIMIT_MIN: u32 = 4;

/// The settings, resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings {
    target_percent: u64,
    tolerance: f64,
    window_ns: u64,
    period_ns: u64,
}

impl Settings {
    /// A scale-down delay longer than the stabilisation window takes its place: both mean the same.
    pub(super) fn new(hpa: &Hpa, scaling: &Scaling) -> Self {
        Settings {
            target_percent: ((hpa.target_utilization * 100.0).round() as u64).max(1),
            tolerance: hpa.tolerance,
            window_ns: nanos(hpa.stabilization_window.max(scaling.scale_down_delay)),
            period_ns: nanos(hpa.period),
        }
    }

    pub(super) fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }
}

/// The history of a function that has been called.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// CPU of all sandboxes, summed over the samples since the last decision.
    cpu_milli: f64,
    /// Sandboxes, summed likewise.
    sandboxes: f64,
    /// Sandboxes in the newest sample.
    measured: u32,
    recommendations: MaxWindow,
    /// Whether the number found first was recommended, too.
    begun: bool,
    /// The number decided or ordered last: what Kubernetes has as `spec.replicas`.
    held: Option<u32>,
    decided: Option<Timestamp>,
}

impl State {
    /// The state, made when it is first needed.
    pub(super) fn of(state: &mut Option<Box<State>>) -> &mut State {
        state.get_or_insert_with(|| {
            Box::new(State {
                cpu_milli: 0.0,
                sandboxes: 0.0,
                measured: 0,
                recommendations: MaxWindow::default(),
                begun: false,
                held: None,
                decided: None,
            })
        })
    }

    pub(super) fn record(&mut self, cpu_milli_per_sandbox: f64, sandboxes: u32) {
        self.cpu_milli += cpu_milli_per_sandbox * f64::from(sandboxes);
        self.sandboxes += f64::from(sandboxes);
        self.measured = sandboxes;
    }

    pub(super) fn note_order(&mut self, settings: &Settings, now: Timestamp, sandboxes: u32) {
        self.recommend(settings, now, sandboxes);
        self.held = Some(self.held.unwrap_or(0).max(sandboxes));
    }

    fn recommend(&mut self, settings: &Settings, now: Timestamp, sandboxes: u32) -> u32 {
        // A recommendation exactly as old as the window still counts.
        let span = settings.window_ns.saturating_add(1);
        self.recommendations.record(now.as_nanos(), span, sandboxes)
    }

    /// Mean CPU of one sandbox since the last decision, and how many were measured. `None` without a sample.
    fn take_sample(&mut self) -> Option<(f64, u32)> {
        let mean = (self.sandboxes > 0.0).then(|| (self.cpu_milli / self.sandboxes, self.measured));
        self.cpu_milli = 0.0;
        self.sandboxes = 0.0;
        mean
    }
}

/// Kubernetes' `reconcileAutoscaler`.
pub(super) fn decide(
    settings: &Settings,
    state: Option<&mut State>,
    floor: Floor,
    now: Timestamp,
    input: ScaleInput,
) -> ScaleDecision {
    let Some(state) = state else {
        let reason = if input.ready == 0 { ScaleReason::CpuAsleep } else { no_data(input.ready) };
        return bounded(floor, input.ready, reason);
    };
    let held = state.held.unwrap_or(input.ready);
    if state.decided.is_some_and(|last| last + settings.period() > now) {
        return bounded(floor, held, ScaleReason::NotDue { held });
    }
    if held == 0 {
        return bounded(floor, 0, ScaleReason::CpuAsleep);
    }
    state.decided = Some(now);
    if !state.begun {
        state.begun = true;
        state.recommend(settings, now, held);
    }
    let Some((cpu_milli, measured)) = state.take_sample().filter(|_| input.cpu_request_milli > 0) else {
        return bounded(floor, held, no_data(held));
    };
    let pods = Pods::new(input, held, cpu_milli, measured);
    let decision = match pods.replicas(settings) {
        None => bounded(floor, held, no_data(held)),
        Some((wanted, reason)) => {
            let kept = state.recommend(settings, now, wanted);
            let reason =
                if kept == wanted { reason } else { ScaleReason::CpuStabilized { wanted, held: kept } };
            let limit = held.saturating_mul(SCALE_UP_LIMIT_FACTOR).max(SCALE_UP_LIMIT_MIN);
            let (kept, reason) = if kept > limit && limit < floor.max {
                (limit, ScaleReason::CpuRate { wanted: kept, limit })
            } else {
                (kept.max(1), reason)
            };
            bounded(floor, kept, reason)
        }
    };
    state.held = Some(decision.sandboxes);
    decision
}

fn no_data(held: u32) -> ScaleReason {
    ScaleReason::NoData { held }
}

fn bounded(floor: Floor, wanted: u32, reason: ScaleReason) -> ScaleDecision {
    let (sandboxes, reason) = floor.apply(wanted, reason);
    ScaleDecision { sandboxes, panicking: false, reason }
}

/// Kubernetes' `groupPods`: who is ready, who is not yet, and whose use is not known.
#[derive(Clone, Copy, Debug)]
struct Pods {
    current: u32,
    ready: u32,
    unready: u32,
    measured: u32,
    missing: u32,
    /// CPU of the measured ones together.
    cpu_milli: f64,
    request_milli: u64,
}

impl Pods {
    fn new(input: ScaleInput, current: u32, cpu_milli_per_sandbox: f64, measured: u32) -> Self {
        let measured = measured.min(input.ready);
        Pods {
            current,
            ready: input.ready,
            unready: current.saturating_sub(input.ready),
            measured,
            missing: input.ready - measured,
            cpu_milli: cpu_milli_per_sandbox * f64::from(measured),
            request_milli: input.cpu_request_milli,
        }
    }

    /// Kubernetes' `GetResourceReplicas`. `None` when no ready sandbox was measured.
    fn replicas(self, settings: &Settings) -> Option<(u32, ScaleReason)> {
        if self.measured == 0 {
            return None;
        }
        let percent = self.utilization_percent(self.cpu_milli, self.measured);
        let figures = CpuFigures {
            utilization_percent: percent,
            target_percent: settings.target_percent,
            ready: self.ready,
        };
        let stay = (self.current, ScaleReason::CpuWithinTolerance { figures, tolerance: settings.tolerance });
        let scale = |wanted| (wanted, ScaleReason::Cpu { figures, wanted });
        let ratio = |percent: u64| percent as f64 / settings.target_percent as f64;
        let within_tolerance = |ratio: f64| (1.0 - ratio).abs() <= settings.tolerance;

        let usage = ratio(percent);
        let rebalance = self.unready > 0 && usage > 1.0;
        if !rebalance && self.missing == 0 {
            let wanted = (usage * f64::from(self.ready)).ceil() as u32;
            return Some(if within_tolerance(usage) { stay } else { scale(wanted) });
        }
        // Those whose use is not known count so that they dampen the change: all of their request when scaling down,
        // nothing when scaling up.
        let (mut cpu_milli, mut counted) = (self.cpu_milli, self.measured);
        if usage != 1.0 {
            counted += self.missing;
        }
        if usage < 1.0 {
            cpu_milli += f64::from(self.missing) * self.request_milli as f64;
        }
        if rebalance {
            counted += self.unready;
        }
        let damped = ratio(self.utilization_percent(cpu_milli, counted));
        let turned = (usage < 1.0 && damped > 1.0) || (usage > 1.0 && damped < 1.0);
        let wanted = (damped * f64::from(counted)).ceil() as u32;
        let wrong_way = (damped < 1.0 && wanted > self.current) || (damped > 1.0 && wanted < self.current);
        Some(if within_tolerance(damped) || turned || wrong_way { stay } else { scale(wanted) })
    }

    /// Kubernetes computes in whole percents, rounded down.
    fn utilization_percent(self, cpu_milli: f64, sandboxes: u32) -> u64 {
        let requested = self.request_milli.saturating_mul(u64::from(sandboxes));
        ((cpu_milli.round() as u64).saturating_mul(100)).checked_div(requested).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
