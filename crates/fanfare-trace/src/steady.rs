//! A plan of a rate.

use fanfare_policy::RngExt;

use crate::error::TraceError;
use crate::plan::{Invocation, Plan, PlanFunction};
use crate::schedule::check_rate;
use crate::streams::{Purpose, stream};
use crate::{EXECUTION_MS_MAX, INVOCATIONS_MAX, MEMORY_MIB_MAX, SPAN_US_MAX};

/// Microseconds of a second, of which a rate speaks.
const SECOND_US: f64 = 1e6;

/// How invocations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steady {
    /// At equal distances.
    Constant,
    /// As a Poisson process has it: independently of each other, so that their number varies.
    Poisson,
}

/// A rate.
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyOptions {
    /// The one function that is called.
    pub function: String,
    /// Invocations a second.
    pub per_second: f64,
    /// How long, in microseconds.
    pub span_us: u64,
    /// How they follow each other.
    pub kind: Steady,
    /// How long each is to execute, in milliseconds.
    pub execution_ms: u32,
    /// How much memory each is to use, in MiB.
    pub memory_mib: u32,
    /// What a Poisson process is drawn from.
    pub seed: u64,
}

/// Makes a plan.
///
/// # Errors
/// What is asked for is over a limit.
pub fn steady(options: &SteadyOptions) -> Result<Plan, TraceError> {
    let SteadyOptions { per_second, span_us, .. } = *options;
    check_rate(per_second)?;
    let wrong = |what: String| Err(TraceError::Asked(what));
    if span_us == 0 || span_us > SPAN_US_MAX {
        return wrong(format!("a duration is above 0 and at most {} s", SPAN_US_MAX / 1_000_000));
    }
    if per_second * span_us as f64 / SECOND_US > INVOCATIONS_MAX as f64 {
        return wrong(format!("these are more than {INVOCATIONS_MAX} invocations, which is the limit"));
    }
    if options.execution_ms > EXECUTION_MS_MAX || options.memory_mib > MEMORY_MIB_MAX {
        return wrong(format!("an execution takes at most {EXECUTION_MS_MAX} ms and {MEMORY_MIB_MAX} MiB"));
    }
    let mut invocations = Vec::new();
    let mut rng = stream(options.seed, Purpose::Arrivals, &options.function, 0);
    let gap_us = SECOND_US / per_second;
    let mut at = 0.0;
    // A Poisson process may have a few more than its mean.
    while invocations.len() < INVOCATIONS_MAX {
        let at_us = match options.kind {
            // Multiplied and not added up: distances stay equal.
            Steady::Constant => (invocations.len() as f64 * gap_us) as u64,
            Steady::Poisson => {
                at += -(1.0 - rng.random::<f64>()).ln() * gap_us;
                at as u64
            }
        };
        if at_us >= span_us {
            break;
        }
        let column = u32::try_from(at_us / 60_000_000).unwrap_or(u32::MAX);
        let (execution_ms, memory_mib) = (options.execution_ms, options.memory_mib);
        invocations.push(Invocation { at_us, function: 0, execution_ms, memory_mib, column });
    }
    let kind = match options.kind {
        Steady::Constant => "constant",
        Steady::Poisson => "Poisson",
    };
    let function = PlanFunction {
        name: options.function.clone(),
        memory_mib: options.memory_mib,
        initial: 0,
        min: 0,
        max: 0,
    };
    let plan = Plan {
        seed: options.seed,
        source: format!("{kind} rate of {per_second} a second"),
        span_us,
        warm_up_us: 0,
        functions: vec![function],
        invocations,
    };
    plan.check()?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Steady, per_second: f64, span_us: u64) -> Result<Plan, TraceError> {
        let function = "f".to_owned();
        steady(&SteadyOptions {
            function,
            per_second,
            span_us,
            kind,
            execution_ms: 10,
            memory_mib: 20,
            seed: 1,
        })
    }

    #[test]
    fn a_constant_rate_has_equal_distances_and_no_drift() {
        let plan = of(Steady::Constant, 3.0, 1_000_000_000).unwrap();
        assert_eq!(plan.invocations.len(), 3_000);
        assert_eq!(plan.invocations[0].at_us, 0);
        assert_eq!(plan.invocations[2_999].at_us, 999_666_666);
        assert_eq!(plan.invocations[2_999].column, 16);
        assert!(
            plan.invocations
                .windows(2)
                .all(|pair| (333_333..=333_334).contains(&(pair[1].at_us - pair[0].at_us)))
        );
    }

    #[test]
    fn a_poisson_process_has_its_mean_and_its_spread() {
        let plan = of(Steady::Poisson, 100.0, 100_000_000).unwrap();
        let count = plan.invocations.len();
        assert!((9_600..10_400).contains(&count), "{count}");
        let mut per_second = [0.0_f64; 100];
        for invocation in &plan.invocations {
            per_second[(invocation.at_us / 1_000_000) as usize] += 1.0;
        }
        let mean = count as f64 / 100.0;
        let variance = per_second.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 100.0;
        assert!((0.6..1.6).contains(&(variance / mean)), "{variance} / {mean}");
        assert_eq!(plan, of(Steady::Poisson, 100.0, 100_000_000).unwrap());
    }

    #[test]
    fn what_is_over_a_limit_is_refused() {
        for (rate, span_us) in [(0.0, 1), (-1.0, 1), (f64::NAN, 1), (1e9, 1), (1.0, 0), (1.0, u64::MAX)] {
            assert!(of(Steady::Constant, rate, span_us).is_err(), "{rate} {span_us}");
        }
        let error = of(Steady::Constant, 100_000.0, 100_000_000).unwrap_err().to_string();
        assert!(error.contains("5000000 invocations"), "{error}");
    }
}
