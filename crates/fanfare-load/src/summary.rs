//! What a run came to, in numbers. Definitions:
//!
//! - *response*: from when an invocation was due to the last byte of its answer. *service*: from when it was sent.
//! - *execution*: what the function says that it took, or else what the platform says.
//! - *scheduling latency*: response − execution, for each invocation.
//! - *slowdown*: response ÷ the execution that was asked for. Of a function, the geometric mean over its invocations; of a
//!   run, percentiles over its functions.
//! - *lateness*: from when an invocation was due to when it was sent.
//!
//! Latencies are those of invocations that were answered without an error, after the warm-up; failures are counted, and
//! are in no latency. Lateness and counts are of all.

use std::collections::BTreeMap;

use fanfare_trace::Plan;
use serde::Serialize;

use crate::record::{Outcome, Record};
use crate::run::Run;
use crate::server_timing::STAGES;
use crate::stats::Summary;

/// Microseconds of a millisecond.
const MS_US: f64 = 1e3;

/// How late requests were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Half are not later.
    pub p50_us: u64,
    /// 99 of 100 are not later.
    pub p99_us: u64,
    /// The latest.
    pub max_us: u64,
}

/// How late they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatenessBound {
    /// 99 of 100 must not be later, or the run is not reliable.
    pub p99_us: u64,
}

impl Lateness {
    /// Of these; `None` if there are none.
    #[must_use]
    pub fn of(mut late_us: Vec<u64>) -> Option<Lateness> {
        late_us.sort_unstable();
        let last = late_us.len().checked_sub(1)?;
        // The value that so many percent do not exceed.
        let at =
            |percent: usize| late_us[(late_us.len() * percent).div_ceil(100).saturating_sub(1).min(last)];
        Some(Lateness { p50_us: at(50), p99_us: at(99), max_us: late_us[last] })
    }

    /// Whether it is as small as it must be.
    #[must_use]
    pub fn within(&self, bound: LatenessBound) -> bool {
        self.p99_us <= bound.p99_us
    }
}

/// A distribution, in milliseconds where it is one of times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half are not more.
    pub p50: f64,
    /// 99 of 100 are not more.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Spread> {
        Summary::of(samples).map(|Summary { p50, p99, max, .. }| Spread { p50, p99, max })
    }
}

/// How many ended how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Invocations of the plan.
    pub planned: u64,
    /// Of these, sent.
    pub sent: u64,
    /// Answered without an error.
    pub ok: u64,
    /// Failed, however.
    pub failed: u64,
    /// Answered after waiting for a new sandbox.
    pub cold: u64,
    /// By outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Failures by the platform's reason, where it gave one.
    pub reasons: BTreeMap<&'static str, u64>,
}

impl Counts {
    fn add(&mut self, record: &Record) {
        self.planned += 1;
        self.sent += u64::from(record.outcome != Outcome::NotSent);
        self.ok += u64::from(record.outcome == Outcome::Ok);
        self.failed += u64::from(record.outcome.is_failure());
        self.cold += u64::from(record.cold);
        *self.outcomes.entry(record.outcome.name()).or_default() += 1;
        if let Some(reason) = record.reason {
            *self.reasons.entry(reason.code()).or_default() += 1;
        }
    }
}

/// One function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfFunction {
    /// Its name in the plan.
    pub name: String,
    /// Its name at the platform.
    pub deployed: String,
    /// Of its invocations.
    pub counts: Counts,
    /// Geometric mean of response ÷ requested execution.
    pub slowdown: Option<f64>,
    /// Scheduling latency.
    pub scheduling_ms: Option<Spread>,
}

/// All of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Of all invocations.
    pub counts: Counts,
    /// How late requests were sent.
    pub lateness: Option<Lateness>,
    /// From due to answered.
    pub response_ms: Option<Spread>,
    /// From sent to answered.
    pub service_ms: Option<Spread>,
    /// Response − execution, by invocation.
    pub scheduling_ms: Option<Spread>,
    /// The same of those that waited for no new sandbox …
    pub scheduling_warm_ms: Option<Spread>,
    /// … and of those that did.
    pub scheduling_cold_ms: Option<Spread>,
    /// Where the time of cold starts went, by stage.
    pub cold_stages_ms: BTreeMap<&'static str, Spread>,
    /// Of the functions' slowdowns.
    pub slowdown: Option<Spread>,
    /// Sandboxes that said who they are.
    pub sandboxes_seen: usize,
    /// By function, in the plan's order.
    pub functions: Vec<OfFunction>,
}

/// Latencies that were taken.
#[derive(Debug, Default)]
struct Samples {
    response_ms: Vec<f64>,
    service_ms: Vec<f64>,
    scheduling_ms: Vec<f64>,
    scheduling_warm_ms: Vec<f64>,
    scheduling_cold_ms: Vec<f64>,
}

/// Latencies of one function.
#[derive(Debug, Default)]
struct SamplesOfFunction {
    counts: Counts,
    scheduling_ms: Vec<f64>,
    /// Logarithms, whose mean is that of the geometric one.
    slowdown_ln: Vec<f64>,
}

/// Sums a run up; `deployed` are the names of the plan's functions at the platform.
#[must_use]
pub fn summary(plan: &Plan, run: &Run, deployed: &[String]) -> Totals {
    let mut counts = Counts::default();
    let mut samples = Samples::default();
    let mut of_functions: Vec<SamplesOfFunction> = Vec::new();
    of_functions.resize_with(plan.functions.len(), SamplesOfFunction::default);
    let mut late_us = Vec::with_capacity(run.records.len());
    for (invocation, record) in plan.invocations.iter().zip(&run.records) {
        let of_function = &mut of_functions[invocation.function as usize];
        counts.add(record);
        of_function.counts.add(record);
        if record.outcome != Outcome::NotSent {
            late_us.push(record.sent_us.saturating_sub(invocation.at_us));
        }
        if record.outcome != Outcome::Ok || plan.is_warm_up(invocation) {
            continue;
        }
        let response_us = record.done_us.saturating_sub(invocation.at_us) as f64;
        samples.response_ms.push(response_us / MS_US);
        samples.service_ms.push(record.done_us.saturating_sub(record.sent_us) as f64 / MS_US);
        if let Some(execution_us) = record.execution_us {
            let scheduling_ms = (response_us - f64::from(execution_us)) / MS_US;
            samples.scheduling_ms.push(scheduling_ms);
            let of_kind =
                if record.cold { &mut samples.scheduling_cold_ms } else { &mut samples.scheduling_warm_ms };
            of_kind.push(scheduling_ms);
            of_function.scheduling_ms.push(scheduling_ms);
        }
        if invocation.execution_ms > 0 {
            of_function.slowdown_ln.push((response_us / MS_US / f64::from(invocation.execution_ms)).ln());
        }
    }
    let functions: Vec<OfFunction> = (plan.functions.iter().zip(deployed).zip(of_functions))
        .map(|((function, deployed), samples)| OfFunction {
            name: function.name.clone(),
            deployed: deployed.clone(),
            counts: samples.counts,
            slowdown: geometric_mean(&samples.slowdown_ln),
            scheduling_ms: Spread::of(&samples.scheduling_ms),
        })
        .collect();
    let slowdowns: Vec<f64> = functions.iter().filter_map(|function| function.slowdown).collect();
    Totals {
        counts,
        lateness: Lateness::of(late_us),
        response_ms: Spread::of(&samples.response_ms),
        service_ms: Spread::of(&samples.service_ms),
        scheduling_ms: Spread::of(&samples.scheduling_ms),
        scheduling_warm_ms: Spread::of(&samples.scheduling_warm_ms),
        scheduling_cold_ms: Spread::of(&samples.scheduling_cold_ms),
        cold_stages_ms: cold_stages(plan, run),
        slowdown: Spread::of(&slowdowns),
        sandboxes_seen: run.sandboxes.len(),
        functions,
    }
}

/// By stage, after the warm-up.
fn cold_stages(plan: &Plan, run: &Run) -> BTreeMap<&'static str, Spread> {
    let counted = run.cold_stages.iter().filter(|(index, _)| !plan.is_warm_up(&plan.invocations[*index]));
    let counted: Vec<_> = counted.map(|(_, stages)| stages).collect();
    let spread =
        |at: usize| Spread::of(&counted.iter().map(|stages| stages[at].into()).collect::<Vec<f64>>());
    STAGES.iter().enumerate().filter_map(|(at, stage)| Some((*stage, spread(at)?))).collect()
}

fn geometric_mean(logarithms: &[f64]) -> Option<f64> {
    if logarithms.is_empty() {
        return None;
    }
    Some((logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
}

#[cfg(test)]
mod tests;
