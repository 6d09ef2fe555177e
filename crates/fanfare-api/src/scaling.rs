//! Scaling settings as a user writes them.

use std::time::Duration;

use fanfare_types::{Hpa, Kpa, Metric, OnDemand, Scaling, ScalingPolicy, limits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::check::{beside, duration, factor, share, within};
use crate::{FieldError, Quantity, whole};

/// How many sandboxes a function gets. Durations are seconds, or text such as `"30s"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScalingDocument {
    /// Whose defaults hold for what is left out: Fanfare's, Knative's (which also sets `concurrency` to 1000 with a
    /// target of 100, and `initial` to 1), or Dirigent's (Fanfare's with `on_demand` `first`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    /// What decides. Default `kpa`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    /// `fixed`: how many sandboxes.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Never fewer sandboxes. Default 0.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Never more sandboxes. Default 100000.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Sandboxes started at registration. Default 0.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub initial: Option<u32>,
    /// Fewest sandboxes when scaling up from zero. Default 1.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub activation: Option<u32>,
    /// A lower count takes effect after it was wanted for so long. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down_delay: Option<Quantity>,
    /// What requests that wait order at once, between two decisions. Default `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand: Option<OnDemandName>,
    /// `kpa`: what is measured. Default `concurrency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricName>,
    /// `kpa`: what one sandbox should carry. Default: the function's concurrency, or 200 requests per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    /// `kpa`: share of the target aimed at, default 1. `hpa`: share of the CPU request aimed at, default 0.8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_utilization: Option<f64>,
    /// `kpa`: window of the steady average. Default 60 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable_window: Option<Quantity>,
    /// `kpa`: the panic window as a share of the stable one. Default 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panic_window_share: Option<f64>,
    /// `kpa`: panic begins when so many times the ready sandboxes are wanted. Default 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panic_threshold: Option<f64>,
    /// `kpa`: at most so many times the ready sandboxes in one tick. Default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_scale_up_rate: Option<f64>,
    /// `kpa`: at least the ready sandboxes divided by this in one tick. Default 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_scale_down_rate: Option<f64>,
    /// `kpa`: extra time at one sandbox before the last one goes. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_to_zero_grace: Option<Quantity>,
    /// Time between decisions. Default 2 s for `kpa`, 15 s for `hpa`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick: Option<Quantity>,
    /// `hpa`: no change while the ratio of use to target is so close to 1. Default 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// `hpa`: a lower count takes effect as the highest wanted within this window. Default 300 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stabilization_window: Option<Quantity>,
}

/// Whose defaults hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProfileName {
    /// Concurrency 1, target 100 %, no grace.
    Fanfare,
    /// Knative's.
    Knative,
    /// Dirigent's: Fanfare's, but where there is a sandbox the autoscaler alone orders others, at its ticks.
    Dirigent,
}

/// What requests that wait order at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDemandName {
    /// As many sandboxes as shorten the wait.
    All,
    /// Those of the activation scale, where there is none.
    First,
}

/// What decides a function's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Knative's pod autoscaler.
    Kpa,
    /// By CPU, as Kubernetes' horizontal pod autoscaler.
    Hpa,
    /// Always `count`.
    Fixed,
}

impl PolicyName {
    /// The word in `policy`.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            PolicyName::Kpa => "kpa",
            PolicyName::Hpa => "hpa",
            PolicyName::Fixed => "fixed",
        }
    }
}

/// Fields that not every policy has, and those that have it.
pub(crate) const POLICIES_OF: [(&str, &[PolicyName]); 13] = {
    use PolicyName::{Fixed, Hpa, Kpa};
    [
        ("count", &[Fixed]),
        ("metric", &[Kpa]),
        ("target", &[Kpa]),
        ("target_utilization", &[Kpa, Hpa]),
        ("stable_window", &[Kpa]),
        ("panic_window_share", &[Kpa]),
        ("panic_threshold", &[Kpa]),
        ("max_scale_up_rate", &[Kpa]),
        ("max_scale_down_rate", &[Kpa]),
        ("scale_to_zero_grace", &[Kpa]),
        ("tick", &[Kpa, Hpa]),
        ("tolerance", &[Hpa]),
        ("stabilization_window", &[Hpa]),
    ]
};

/// What `kpa` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MetricName {
    /// Requests in flight or waiting.
    Concurrency,
    /// Requests per second.
    Rps,
}

/// Knative's soft limit when a function names neither a concurrency nor a target.
const KNATIVE_TARGET: f64 = 100.0;

impl ScalingDocument {
    pub(crate) fn is_knative(&self) -> bool {
        self.profile == Some(ProfileName::Knative)
    }

    /// Checks every field; `concurrency_given` is whether the function names its own concurrency.
    pub(crate) fn to_scaling(&self, concurrency_given: bool) -> Result<Scaling, FieldError> {
        let defaults = Scaling::default();
        let initial_default = if self.is_knative() { 1 } else { defaults.initial };
        let max = within("scaling.max", self.max.unwrap_or(defaults.max), 1, limits::SCALE_MAX)?;
        let least_to_max =
            |field, value, least| beside(field, value, (least, max), (least, limits::SCALE_MAX));
        let min = least_to_max("scaling.min", self.min.unwrap_or(defaults.min), 0)?;
        let initial = least_to_max("scaling.initial", self.initial.unwrap_or(initial_default.min(max)), 0)?;
        let activation =
            least_to_max("scaling.activation", self.activation.unwrap_or(defaults.activation), 1)?;
        let scale_down_delay = duration(
            "scaling.scale_down_delay",
            self.scale_down_delay.as_ref(),
            defaults.scale_down_delay,
            Duration::ZERO,
            limits::SCALING_WINDOW_MAX,
        )?;
        self.refuse_foreign()?;
        let on_demand = match (self.on_demand, self.profile) {
            (Some(OnDemandName::First), _) | (None, Some(ProfileName::Dirigent)) => OnDemand::First,
            _ => OnDemand::All,
        };
        let policy = match self.policy.unwrap_or(PolicyName::Kpa) {
            PolicyName::Kpa => ScalingPolicy::Kpa(self.kpa(concurrency_given)?),
            PolicyName::Hpa => ScalingPolicy::Hpa(self.hpa()?),
            PolicyName::Fixed => {
                let count = self
                    .count
                    .ok_or_else(|| FieldError::missing("scaling.count", format!("{min} to {max}")))?;
                ScalingPolicy::Fixed(beside("scaling.count", count, (min, max), (0, limits::SCALE_MAX))?)
            }
        };
        Ok(Scaling { policy, min, max, initial, activation, scale_down_delay, on_demand })
    }

    /// A setting that the policy would ignore is a mistake of its author.
    fn refuse_foreign(&self) -> Result<(), FieldError> {
        let policy = self.policy.unwrap_or(PolicyName::Kpa);
        let given = [
            self.count.is_some(),
            self.metric.is_some(),
            self.target.is_some(),
            self.target_utilization.is_some(),
            self.stable_window.is_some(),
            self.panic_window_share.is_some(),
            self.panic_threshold.is_some(),
            self.max_scale_up_rate.is_some(),
            self.max_scale_down_rate.is_some(),
            self.scale_to_zero_grace.is_some(),
            self.tick.is_some(),
            self.tolerance.is_some(),
            self.stabilization_window.is_some(),
        ];
        let foreign = POLICIES_OF
            .iter()
            .zip(given)
            .find(|((_, policies), given)| *given && !policies.contains(&policy));
        let Some(((name, policies), _)) = foreign else { return Ok(()) };
        let of: Vec<&str> = policies.iter().map(|policy| policy.word()).collect();
        let plural = if of.len() == 1 { "policy" } else { "policies" };
        let limit = format!("only with {plural} {}", of.join(" and "));
        Err(FieldError::new(format!("scaling.{name}"), "given", limit))
    }

    fn kpa(&self, concurrency_given: bool) -> Result<Kpa, FieldError> {
        let base = if self.is_knative() { Kpa::knative() } else { Kpa::default() };
        let metric = match self.metric {
            Some(MetricName::Rps) => Metric::RequestsPerSecond,
            Some(MetricName::Concurrency) | None => Metric::Concurrency,
        };
        let soft = self.is_knative() && !concurrency_given && metric == Metric::Concurrency;
        let target = self.target.or(soft.then_some(KNATIVE_TARGET));
        let max = limits::SCALING_FACTOR_MAX;
        let (window_min, window_max) = (limits::SCALING_WINDOW_MIN, limits::SCALING_WINDOW_MAX);
        let stable = self.stable_window.as_ref();
        let grace = self.scale_to_zero_grace.as_ref();
        let share_of = |field, value: Option<f64>, default| share(field, value.unwrap_or(default));
        let factor_of =
            |field, value: Option<f64>, default| factor(field, value.unwrap_or(default), 1.0, max);
        Ok(Kpa {
            metric,
            target: target.map(|t| factor("scaling.target", t, 0.01, max)).transpose()?,
            target_utilization: share_of(
                "scaling.target_utilization",
                self.target_utilization,
                base.target_utilization,
            )?,
            stable_window: duration(
                "scaling.stable_window",
                stable,
                base.stable_window,
                window_min,
                window_max,
            )?,
            panic_window_share: share_of(
                "scaling.panic_window_share",
                self.panic_window_share,
                base.panic_window_share,
            )?,
            panic_threshold: factor_of(
                "scaling.panic_threshold",
                self.panic_threshold,
                base.panic_threshold,
            )?,
            max_scale_up_rate: factor_of(
                "scaling.max_scale_up_rate",
                self.max_scale_up_rate,
                base.max_scale_up_rate,
            )?,
            max_scale_down_rate: factor_of(
                "scaling.max_scale_down_rate",
                self.max_scale_down_rate,
                base.max_scale_down_rate,
            )?,
            scale_to_zero_grace: duration(
                "scaling.scale_to_zero_grace",
                grace,
                base.scale_to_zero_grace,
                Duration::ZERO,
                window_max,
            )?,
            tick: self.tick(base.tick)?,
        })
    }

    fn hpa(&self) -> Result<Hpa, FieldError> {
        let base = Hpa::default();
        Ok(Hpa {
            target_utilization: factor(
                "scaling.target_utilization",
                self.target_utilization.unwrap_or(base.target_utilization),
                0.01,
                100.0,
            )?,
            tolerance: factor("scaling.tolerance", self.tolerance.unwrap_or(base.tolerance), 0.0, 1.0)?,
            stabilization_window: duration(
                "scaling.stabilization_window",
                self.stabilization_window.as_ref(),
                base.stabilization_window,
                Duration::ZERO,
                limits::SCALING_WINDOW_MAX,
            )?,
            period: self.tick(base.period)?,
        })
    }

    fn tick(&self, default: Duration) -> Result<Duration, FieldError> {
        let (min, max) = (limits::SCALING_TICK_MIN, limits::SCALING_WINDOW_MAX);
        duration("scaling.tick", self.tick.as_ref(), default, min, max)
    }
}

impl From<&Scaling> for ScalingDocument {
    fn from(scaling: &Scaling) -> Self {
        let common = ScalingDocument {
            min: Some(scaling.min),
            max: Some(scaling.max),
            initial: Some(scaling.initial),
            activation: Some(scaling.activation),
            scale_down_delay: Some(Quantity::from_duration(scaling.scale_down_delay)),
            on_demand: Some(match scaling.on_demand {
                OnDemand::All => OnDemandName::All,
                OnDemand::First => OnDemandName::First,
            }),
            ..ScalingDocument::default()
        };
        match &scaling.policy {
            ScalingPolicy::Kpa(kpa) => ScalingDocument {
                policy: Some(PolicyName::Kpa),
                metric: Some(match kpa.metric {
                    Metric::Concurrency => MetricName::Concurrency,
                    Metric::RequestsPerSecond => MetricName::Rps,
                }),
                target: kpa.target,
                target_utilization: Some(kpa.target_utilization),
                stable_window: Some(Quantity::from_duration(kpa.stable_window)),
                panic_window_share: Some(kpa.panic_window_share),
                panic_threshold: Some(kpa.panic_threshold),
                max_scale_up_rate: Some(kpa.max_scale_up_rate),
                max_scale_down_rate: Some(kpa.max_scale_down_rate),
                scale_to_zero_grace: Some(Quantity::from_duration(kpa.scale_to_zero_grace)),
                tick: Some(Quantity::from_duration(kpa.tick)),
                ..common
            },
            ScalingPolicy::Hpa(hpa) => ScalingDocument {
                policy: Some(PolicyName::Hpa),
                target_utilization: Some(hpa.target_utilization),
                tolerance: Some(hpa.tolerance),
                stabilization_window: Some(Quantity::from_duration(hpa.stabilization_window)),
                tick: Some(Quantity::from_duration(hpa.period)),
                ..common
            },
            ScalingPolicy::Fixed(count) => {
                ScalingDocument { policy: Some(PolicyName::Fixed), count: Some(*count), ..common }
            }
        }
    }
}
