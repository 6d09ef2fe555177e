//! How many sandboxes a function should have.
//!
//! One [`Autoscaler`] per function. It holds the function's settings and, only once the function has been called,
//! its history; an idle function costs no heap. The policies: [`kpa`] (by concurrency or requests per second),
//! [`hpa`] (by CPU), and a fixed number.

mod fixed;
mod hpa;
mod kpa;
mod reason;
mod window;

use std::time::Duration;

use fanfare_types::limits::AUTOSCALER_TICK;
use fanfare_types::{Scaling, ScalingPolicy, Timestamp};

pub use reason::{CpuFigures, KpaFigures, ScaleReason};
pub use window::STABLE_WINDOW_MAX;

/// What the data planes saw of one function: the mean over about the last second, summed over all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadSample {
    /// Requests in flight or waiting.
    pub concurrency: f64,
    /// Requests that arrived, per second.
    pub requests_per_second: f64,
}

/// The function's state when a decision is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleInput {
    /// Sandboxes that can take requests.
    pub ready: u32,
    /// Whether requests can still be routed to it. An unreachable function has no minimum and may shrink at any rate.
    pub reachable: bool,
    /// CPU that one sandbox reserves, for scaling by CPU.
    pub cpu_request_milli: u64,
}

/// How many sandboxes there should be, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleDecision {
    /// The number: within the function's bounds, activation and initial scale included.
    pub sandboxes: u32,
    /// Whether a surge is being absorbed, so that the number will not fall.
    pub panicking: bool,
    /// What decided.
    pub reason: ScaleReason,
}

/// Decides one function's scale.
#[derive(Clone, Debug)]
pub struct Autoscaler {
    bounds: Bounds,
    /// Whether the initial scale was reached once, after which it is no longer a minimum.
    initialized: bool,
    policy: Policy,
}

/// The limits of a function's scale.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    min: u32,
    max: u32,
    initial: u32,
}

#[derive(Clone, Debug)]
enum Policy {
    Kpa { settings: kpa::Settings, state: Option<Box<kpa::State>> },
    Hpa { settings: hpa::Settings, state: Option<Box<hpa::State>> },
    Fixed(u32),
}

impl Autoscaler {
    /// An autoscaler without history. `concurrency` is the number of slots of one sandbox.
    #[must_use]
    pub fn new(scaling: &Scaling, concurrency: u32) -> Self {
        Autoscaler {
            bounds: Bounds::new(scaling),
            initialized: scaling.initial == 0,
            policy: match &scaling.policy {
                ScalingPolicy::Kpa(kpa) => {
                    Policy::Kpa { settings: kpa::Settings::new(kpa, scaling, concurrency), state: None }
                }
                ScalingPolicy::Hpa(hpa) => {
                    Policy::Hpa { settings: hpa::Settings::new(hpa, scaling), state: None }
                }
                ScalingPolicy::Fixed(sandboxes) => Policy::Fixed(*sandboxes),
            },
        }
    }

    /// Takes new settings. History is kept as far as it still means the same: another kind of policy or another
    /// metric starts afresh, another window keeps what lies within both, everything else is kept.
    pub fn update(&mut self, scaling: &Scaling, concurrency: u32) {
        let new = Autoscaler::new(scaling, concurrency);
        self.bounds = new.bounds;
        match (&mut self.policy, new.policy) {
            (Policy::Kpa { settings, state }, Policy::Kpa { settings: new, .. }) => {
                kpa::update(settings, state, new);
            }
            (Policy::Hpa { settings, .. }, Policy::Hpa { settings: new, .. }) => *settings = new,
            (old, new) => *old = new,
        }
    }

    /// Time between two decisions for this function.
    #[must_use]
    pub fn tick(&self) -> Duration {
        match &self.policy {
            Policy::Kpa { settings, .. } => settings.tick(),
            Policy::Hpa { settings, .. } => settings.period(),
            Policy::Fixed(_) => AUTOSCALER_TICK,
        }
    }

    /// Takes one second's load. Call it once each second while the function has sandboxes or load, with zeros, too:
    /// values of one second add up (so data planes may be summed or recorded one by one), a second without a value
    /// counts as zero, and a whole window without any is no data, upon which the scale stays as it is.
    pub fn record(&mut self, now: Timestamp, sample: LoadSample) {
        if let Policy::Kpa { settings, state } = &mut self.policy {
            kpa::State::of(state, settings).record(settings, now, sample);
        }
    }

    /// Takes the mean CPU use of `sandboxes` sandboxes. Samples between two decisions are averaged.
    pub fn record_cpu(&mut self, _now: Timestamp, cpu_milli_per_sandbox: f64, sandboxes: u32) {
        if let Policy::Hpa { state, .. } = &mut self.policy {
            hpa::State::of(state).record(cpu_milli_per_sandbox, sandboxes);
        }
    }

    /// Says that a demand order raised the function to `sandboxes`, between two decisions. It counts as entering
    /// panic mode (the number is held for one stable window); when scaling by CPU, as a recommendation.
    pub fn note_order(&mut self, now: Timestamp, sandboxes: u32) {
        match &mut self.policy {
            Policy::Kpa { settings, state } => kpa::State::of(state, settings).note_order(now, sandboxes),
            Policy::Hpa { settings, state } => {
                hpa::State::of(state).note_order(settings, now, sandboxes);
            }
            Policy::Fixed(_) => {}
        }
    }

    /// Says that `sandboxes` ready sandboxes were found by a leader that has just taken over and has no history.
    /// They are not scaled down for one window, and the initial scale is not started a second time. (A new autoscaler
    /// of Knative's that finds more than one pod starts in panic mode.)
    pub fn adopt(&mut self, now: Timestamp, sandboxes: u32) {
        self.initialized = true;
        match &mut self.policy {
            Policy::Kpa { settings, state } if sandboxes > 0 => {
                kpa::State::of(state, settings).adopt(now, sandboxes);
            }
            Policy::Hpa { settings, state } if sandboxes > 0 => {
                hpa::State::of(state).note_order(settings, now, sandboxes);
            }
            Policy::Kpa { .. } | Policy::Hpa { .. } | Policy::Fixed(_) => {}
        }
    }

    /// Decides. Due every [`Autoscaler::tick`].
    pub fn decide(&mut self, now: Timestamp, input: ScaleInput) -> ScaleDecision {
        self.initialized |= input.ready >= self.bounds.min.max(self.bounds.initial);
        let floor = Floor::new(self.bounds, self.initialized, input.reachable);
        match &mut self.policy {
            Policy::Kpa { settings, state } => kpa::decide(settings, state.as_deref_mut(), floor, now, input),
            Policy::Hpa { settings, state } => hpa::decide(settings, state.as_deref_mut(), floor, now, input),
            Policy::Fixed(sandboxes) => fixed::decide(if input.reachable { *sandboxes } else { 0 }, floor),
        }
    }

    /// Forgets the history and frees its memory: for a function that has scaled to zero.
    pub fn reset(&mut self) {
        match &mut self.policy {
            Policy::Kpa { state, .. } => *state = None,
            Policy::Hpa { state, .. } => *state = None,
            Policy::Fixed(_) => {}
        }
    }
}

impl Bounds {
    fn new(scaling: &Scaling) -> Self {
        Bounds { min: scaling.min, max: scaling.max, initial: scaling.initial }
    }
}

/// The bounds as they apply to one decision.
#[derive(Clone, Copy, Debug)]
struct Floor {
    min: u32,
    max: u32,
    /// Whether `min` is the initial scale rather than the minimum.
    initial: bool,
}

impl Floor {
    /// Knative's `scaler.scale`: the initial scale is a minimum until it was reached, and nothing has a minimum once
    /// it is unreachable. The maximum wins over either.
    fn new(bounds: Bounds, initialized: bool, reachable: bool) -> Self {
        let min = if reachable { bounds.min } else { 0 };
        let initial = !initialized && bounds.initial > min;
        let min = if initial { bounds.initial } else { min };
        Floor { min: min.min(bounds.max), max: bounds.max, initial }
    }

    fn apply(self, wanted: u32, reason: ScaleReason) -> (u32, ScaleReason) {
        if wanted < self.min && self.initial {
            (self.min, ScaleReason::Initial { wanted, initial: self.min })
        } else if wanted < self.min {
            (self.min, ScaleReason::Minimum { wanted, min: self.min })
        } else if wanted > self.max {
            (self.max, ScaleReason::Maximum { wanted, max: self.max })
        } else {
            (wanted, reason)
        }
    }
}

/// Nanoseconds, saturating: settings are compared with timestamps, which are such.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
