//! How many sandboxes a function gets: the settings. The decision is in `fanfare-policy::autoscale`.

use std::time::Duration;

use crate::limits::{AUTOSCALER_TICK, SCALE_MAX};

/// Scaling settings of one function.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// What decides.
    pub policy: ScalingPolicy,
    /// Never fewer sandboxes than this.
    pub min: u32,
    /// Never more sandboxes than this.
    pub max: u32,
    /// Sandboxes started when the function is registered (0: none until the first call).
    pub initial: u32,
    /// When scaling up from zero, at least this many (Knative's activation scale; at least 1).
    pub activation: u32,
    /// A lower count takes effect only after it has been wanted for this long (0: at once).
    pub scale_down_delay: Duration,
    /// What requests that wait order at once.
    pub on_demand: OnDemand,
}

/// What requests that wait order at once, between two decisions of the autoscaler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDemand {
    /// As many sandboxes as shorten the wait.
    #[default]
    All,
    /// Those of the activation scale, where there is none; all others are the autoscaler's to order, at its ticks.
    First,
}

impl Default for Scaling {
    fn default() -> Self {
        Scaling {
            policy: ScalingPolicy::Kpa(Kpa::default()),
            min: 0,
            max: SCALE_MAX,
            initial: 0,
            activation: 1,
            scale_down_delay: Duration::ZERO,
            on_demand: OnDemand::All,
        }
    }
}

/// What decides a function's scale.
#[derive(Clone, Debug, PartialEq)]
pub enum ScalingPolicy {
    /// Knative's pod autoscaler.
    Kpa(Kpa),
    /// By CPU, as Kubernetes' horizontal pod autoscaler.
    Hpa(Hpa),
    /// Always this many.
    Fixed(u32),
}

/// What Knative's autoscaler measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Requests in flight or waiting.
    Concurrency,
    /// Requests per second.
    RequestsPerSecond,
}

/// Settings of Knative's autoscaler. [`Kpa::default`] is Fanfare's; [`Kpa::knative`] is Knative's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Kpa {
    /// What is measured.
    pub metric: Metric,
    /// What one sandbox should carry: concurrent requests or requests per second.
    /// `None` takes the function's concurrency (or 200 requests per second).
    pub target: Option<f64>,
    /// Share of the target that is aimed at, in (0, 1].
    pub target_utilization: f64,
    /// Window of the steady average.
    pub stable_window: Duration,
    /// Window of the panic average, as a share of the stable one, in (0, 1].
    pub panic_window_share: f64,
    /// Panic begins when the panic window wants at least this many times the ready sandboxes.
    pub panic_threshold: f64,
    /// At most this many times the ready sandboxes in one tick.
    pub max_scale_up_rate: f64,
    /// At least the ready sandboxes divided by this in one tick.
    pub max_scale_down_rate: f64,
    /// Extra time at one sandbox before the last one goes.
    pub scale_to_zero_grace: Duration,
    /// Time between decisions.
    pub tick: Duration,
}

impl Default for Kpa {
    fn default() -> Self {
        Kpa { target_utilization: 1.0, scale_to_zero_grace: Duration::ZERO, ..Kpa::knative() }
    }
}

impl Kpa {
    /// Knative's defaults (`config-autoscaler`): 60 s and 6 s windows, 2 s tick, 70 % utilisation, 30 s grace.
    #[must_use]
    pub fn knative() -> Self {
        Kpa {
            metric: Metric::Concurrency,
            target: None,
            target_utilization: 0.7,
            stable_window: Duration::from_secs(60),
            panic_window_share: 0.1,
            panic_threshold: 2.0,
            max_scale_up_rate: 1_000.0,
            max_scale_down_rate: 2.0,
            scale_to_zero_grace: Duration::from_secs(30),
            tick: AUTOSCALER_TICK,
        }
    }

    /// Width of the panic window.
    #[must_use]
    pub fn panic_window(&self) -> Duration {
        self.stable_window.mul_f64(self.panic_window_share)
    }
}

/// Settings of CPU-based scaling, with Kubernetes' defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Hpa {
    /// Wanted CPU use of a sandbox, as a share of its CPU *request*.
    pub target_utilization: f64,
    /// No change while the ratio of use to target is within this distance of 1.
    pub tolerance: f64,
    /// A lower count takes effect only as the highest wanted within this window.
    pub stabilization_window: Duration,
    /// Time between decisions.
    pub period: Duration,
}

impl Default for Hpa {
    fn default() -> Self {
        Hpa {
            target_utilization: 0.8,
            tolerance: 0.1,
            stabilization_window: Duration::from_secs(300),
            period: Duration::from_secs(15),
        }
    }
}
