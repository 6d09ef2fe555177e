//! A plan of a trace, by InVitro's rules.

use fanfare_policy::RngExt;

use crate::arrivals::{self, Gaps};
use crate::azure::{Trace, TraceFunction};
use crate::error::TraceError;
use crate::plan::{Invocation, Plan, PlanFunction};
use crate::streams::{Purpose, stream};
use crate::{
    EXECUTION_MS_MAX, EXECUTION_MS_MIN, INITIAL_MAX, INVOCATIONS_MAX, MEMORY_MIB_MAX, MEMORY_MIB_MIN,
    RATE_MAX, SCALE_MAX,
};

/// What a column of the trace lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// A minute, as it was recorded.
    Minute,
    /// A second: the same load sixty times as fast.
    Second,
}

impl Granularity {
    /// How long a column is, in microseconds.
    #[must_use]
    pub fn column_us(self) -> u64 {
        match self {
            Granularity::Minute => 60_000_000,
            Granularity::Second => 1_000_000,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Granularity::Minute => "minute",
            Granularity::Second => "second",
        }
    }
}

/// What is made of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleOptions {
    /// Columns of the trace that are passed over.
    pub from: usize,
    /// Columns that are replayed, warm-up among them.
    pub columns: usize,
    /// How many of these are warm-up. Where there are some, each function begins with as many sandboxes as its first
    /// column keeps busy on average (Little's law).
    pub warm_up: usize,
    /// What a column lasts.
    pub granularity: Granularity,
    /// How gaps are drawn.
    pub gaps: Gaps,
    /// Whether columns are turned, so that not all functions fire at the beginning of each.
    pub shift: bool,
    /// Factor of all counts. Where a count comes between two whole numbers, what is over is carried on to the function's
    /// next column, from a beginning that is drawn: so every function keeps its share, rare ones too.
    pub rate_scale: f64,
    /// Factor of all execution times.
    pub duration_scale: f64,
    /// What everything is drawn from.
    pub seed: u64,
}

/// Makes a plan. Functions that are not invoked are not in it.
///
/// # Errors
/// What is asked for is not in the trace, or over a limit.
pub fn schedule(trace: &Trace, options: &ScheduleOptions) -> Result<Plan, TraceError> {
    check(trace, options)?;
    let column_us = options.granularity.column_us();
    let mut plan = Plan {
        seed: options.seed,
        source: describe(trace, options),
        span_us: column_us * options.columns as u64,
        warm_up_us: column_us * options.warm_up as u64,
        functions: Vec::new(),
        invocations: Vec::new(),
    };
    for function in &trace.functions {
        let counts = &function.invocations[options.from..options.from + options.columns];
        let counts = scaled(counts, options, &function.name);
        let more: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        if more == 0 {
            continue;
        }
        if plan.invocations.len() as u64 + more > INVOCATIONS_MAX as u64 {
            return Err(TraceError::Asked(format!(
                "these are more than {INVOCATIONS_MAX} invocations, which is the limit: take fewer minutes, or a smaller scale"
            )));
        }
        add(&mut plan, function, &counts, options);
    }
    // Where several are due at once they are in the order of their functions.
    plan.invocations.sort_by_key(|invocation| (invocation.at_us, invocation.function));
    Ok(plan)
}

fn check(trace: &Trace, options: &ScheduleOptions) -> Result<(), TraceError> {
    let wrong = |what: String| Err(TraceError::Asked(what));
    let end = options.from.checked_add(options.columns).filter(|end| *end <= trace.columns);
    if options.columns == 0 || end.is_none() {
        return wrong(format!(
            "the trace has {} minutes; {} from {} on are not among them",
            trace.columns, options.columns, options.from
        ));
    }
    if options.warm_up > options.columns {
        return wrong(format!(
            "{} minutes of warm-up are more than the {} that there are",
            options.warm_up, options.columns
        ));
    }
    for (name, scale) in [("rates", options.rate_scale), ("durations", options.duration_scale)] {
        if !(SCALE_MAX.recip()..=SCALE_MAX).contains(&scale) {
            return wrong(format!(
                "the scale of {name} is from {} to {SCALE_MAX}, and not {scale}",
                SCALE_MAX.recip()
            ));
        }
    }
    Ok(())
}

/// What a plan says of how it was made.
fn describe(trace: &Trace, options: &ScheduleOptions) -> String {
    let shift = if options.shift { ", shifted" } else { "" };
    format!(
        "azure trace of {} functions, {} columns from {} on, each a {}, {} gaps{shift}, rates × {}, durations × {}",
        trace.functions.len(),
        options.columns,
        u64::from(trace.first_column) + options.from as u64,
        options.granularity.name(),
        options.gaps.name(),
        options.rate_scale,
        options.duration_scale,
    )
}

/// Counts, times the scale.
fn scaled(counts: &[u32], options: &ScheduleOptions, name: &str) -> Vec<u32> {
    // Exact: no rounding may change what is not scaled.
    if options.rate_scale == 1.0 {
        return counts.to_vec();
    }
    let start: f64 = stream(options.seed, Purpose::Rounding, name, 0).random();
    let (mut sum, mut given) = (0.0, 0.0);
    let mut whole = |count: &u32| {
        sum += f64::from(*count);
        let due = (sum * options.rate_scale + start).floor();
        let now = due - given;
        given = due;
        // A count times at most a thousand; what does not fit is over the limit of invocations anyhow.
        now as u32
    };
    counts.iter().map(&mut whole).collect()
}

fn add(plan: &mut Plan, function: &TraceFunction, counts: &[u32], options: &ScheduleOptions) {
    let index = u32::try_from(plan.functions.len()).unwrap_or(u32::MAX);
    let column_us = options.granularity.column_us();
    let bounds = function.bounds;
    plan.functions.push(PlanFunction {
        name: function.name.clone(),
        memory_mib: clamped(function.memory_average_mib.ceil(), MEMORY_MIB_MIN, MEMORY_MIB_MAX),
        initial: if options.warm_up > 0 { initial(function, counts[0], options) } else { 0 },
        min: bounds.map_or(0, |bounds| bounds.min),
        max: bounds.map_or(0, |bounds| bounds.max),
    });
    for (column, count) in (0_u32..).zip(counts) {
        if *count == 0 {
            continue;
        }
        // Columns are drawn by where they are in the trace: another beginning shifts no draws.
        let at = options.from as u64 + u64::from(column);
        let mut arrivals = stream(options.seed, Purpose::Arrivals, &function.name, at);
        let mut demands = stream(options.seed, Purpose::Demands, &function.name, at);
        let begins = column_us * u64::from(column);
        for within in arrivals::within(options.gaps, options.shift, *count, column_us, &mut arrivals) {
            let duration = function.duration_ms.draw(&mut demands);
            let memory = function.memory_mib.draw(&mut demands);
            plan.invocations.push(Invocation {
                at_us: begins + within,
                function: index,
                execution_ms: execution_ms(duration, options.duration_scale),
                memory_mib: clamped(memory.round(), MEMORY_MIB_MIN, MEMORY_MIB_MAX),
                column,
            });
        }
    }
}

/// A drawn duration, first clamped as InVitro does, then scaled.
fn execution_ms(duration_ms: f64, scale: f64) -> u32 {
    let clamped_ms = clamped(duration_ms.round(), EXECUTION_MS_MIN, EXECUTION_MS_MAX);
    clamped((f64::from(clamped_ms) * scale).round(), EXECUTION_MS_MIN, EXECUTION_MS_MAX)
}

/// Sandboxes that the first column keeps busy.
fn initial(function: &TraceFunction, count: u32, options: &ScheduleOptions) -> u32 {
    let per_second = f64::from(count) * 1e6 / options.granularity.column_us() as f64;
    let average_ms = f64::from(execution_ms(function.duration_average_ms, options.duration_scale));
    clamped((per_second * average_ms / 1e3).ceil(), 0, INITIAL_MAX)
}

fn clamped(value: f64, min: u32, max: u32) -> u32 {
    value.clamp(min.into(), max.into()) as u32
}

/// Refuses a rate that nobody can make.
pub(crate) fn check_rate(per_second: f64) -> Result<(), TraceError> {
    match per_second > 0.0 && per_second <= RATE_MAX {
        true => Ok(()),
        false => Err(TraceError::Asked(format!(
            "a rate is above 0 and at most {RATE_MAX} a second, and not {per_second}"
        ))),
    }
}

#[cfg(test)]
mod tests;
