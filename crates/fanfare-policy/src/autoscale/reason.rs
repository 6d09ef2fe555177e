//! Why a scale was decided, with the inputs that decided it.

use std::fmt;
use std::time::Duration;

use fanfare_types::{HumanDuration, Metric};

/// What Knative's autoscaler saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KpaFigures {
    /// What is measured.
    pub metric: Metric,
    /// Its average over the stable window.
    pub stable: f64,
    /// Its average over the panic window.
    pub panic: f64,
    /// What one sandbox should carry of it.
    pub target: f64,
    /// Sandboxes that were ready.
    pub ready: u32,
    /// What the averages ask for, within the rates at which the scale may change.
    pub wanted: u32,
}

/// What scaling by CPU saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuFigures {
    /// CPU used, in percent of what is reserved.
    pub utilization_percent: u64,
    /// CPU use that is aimed at, in percent of what is reserved.
    pub target_percent: u64,
    /// Sandboxes that were ready.
    pub ready: u32,
}

/// What decided a function's scale. Its `Display` is one sentence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleReason {
    /// Nothing was measured for a whole window, so the scale stays.
    NoData {
        /// The number that is kept.
        held: u32,
    },
    /// The steady average decided.
    Stable(KpaFigures),
    /// A surge decided: the larger of both averages, and never less than the highest since it began.
    Panic {
        /// What was seen.
        figures: KpaFigures,
        /// The highest number since the surge began.
        maximum: u32,
    },
    /// A lower number is wanted, but not yet for long enough.
    Delayed {
        /// What is wanted.
        wanted: u32,
        /// The highest number wanted within the delay.
        held: u32,
        /// How long a lower number must be wanted.
        delay: Duration,
    },
    /// The function's minimum.
    Minimum {
        /// What is wanted.
        wanted: u32,
        /// The minimum.
        min: u32,
    },
    /// The function's maximum.
    Maximum {
        /// What is wanted.
        wanted: u32,
        /// The maximum.
        max: u32,
    },
    /// The scale that a new function starts with was not reached yet.
    Initial {
        /// What is wanted.
        wanted: u32,
        /// The initial scale.
        initial: u32,
    },
    /// Nothing is wanted, but the function has not been active for a stable window yet: one sandbox stays.
    LastSandbox {
        /// Since when it is active.
        active_for: Duration,
        /// How long it must have been.
        stable_window: Duration,
    },
    /// Nothing is wanted; what there is stays for a grace period.
    Grace {
        /// How long nothing has been wanted.
        idle_for: Duration,
        /// The grace period.
        grace: Duration,
    },
    /// Nothing is wanted any more.
    Idle {
        /// How long the function was active; zero when it was not.
        active_for: Duration,
    },
    /// CPU use decided.
    Cpu {
        /// What was seen.
        figures: CpuFigures,
        /// What it asks for.
        wanted: u32,
    },
    /// CPU use is so close to the target that the scale stays.
    CpuWithinTolerance {
        /// What was seen.
        figures: CpuFigures,
        /// Distance of use from target that is tolerated, as a share of the target.
        tolerance: f64,
    },
    /// A higher number was recommended within the stabilisation window.
    CpuStabilized {
        /// What CPU use asks for now.
        wanted: u32,
        /// The highest recommendation within the window.
        held: u32,
    },
    /// The scale may not grow faster.
    CpuRate {
        /// What is wanted.
        wanted: u32,
        /// At most this many at once.
        limit: u32,
    },
    /// No decision is due: the period has not passed.
    NotDue {
        /// The number decided last.
        held: u32,
    },
    /// Scaling by CPU does not start a function that has no sandbox; a request does.
    CpuAsleep,
    /// A fixed number.
    Fixed {
        /// The number.
        sandboxes: u32,
    },
}

impl fmt::Display for ScaleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ScaleReason::NoData { held } => {
                write!(f, "no load was reported for a whole window, so the scale stays at {held}")
            }
            ScaleReason::Stable(figures) => write!(f, "as the load has been for a while: {figures}"),
            ScaleReason::Panic { figures, maximum } => {
                write!(f, "the load has risen lately, so none of the {maximum} is stopped for now: {figures}")
            }
            ScaleReason::Delayed { wanted, held, delay } => {
                let delay = HumanDuration(delay);
                write!(f, "{wanted} wanted, but {held} were wanted within the scale-down delay of {delay}")
            }
            ScaleReason::Minimum { wanted, min } => write!(f, "{wanted} wanted, the minimum is {min}"),
            ScaleReason::Maximum { wanted, max } => write!(f, "{wanted} wanted, the maximum is {max}"),
            ScaleReason::Initial { wanted, initial } => {
                write!(f, "{wanted} wanted, but the initial scale of {initial} was not reached yet")
            }
            ScaleReason::LastSandbox { active_for, stable_window } => {
                let (active, window) = (HumanDuration(active_for), HumanDuration(stable_window));
                write!(
                    f,
                    "nothing wanted, but active for only {active} of the stable window of {window}, so one sandbox stays"
                )
            }
            ScaleReason::Grace { idle_for, grace } => {
                let (idle_for, grace) = (HumanDuration(idle_for), HumanDuration(grace));
                write!(f, "nothing wanted for {idle_for} of the grace period of {grace}")
            }
            ScaleReason::Idle { active_for: Duration::ZERO } => f.write_str("nothing wanted"),
            ScaleReason::Idle { active_for } => {
                write!(f, "nothing wanted after {} of activity", HumanDuration(active_for))
            }
            ScaleReason::Cpu { figures, wanted } => write!(f, "{figures}, which wants {wanted}"),
            ScaleReason::CpuWithinTolerance { figures, tolerance } => {
                write!(f, "{figures}, within the tolerance of {} %", (tolerance * 100.0).round())
            }
            ScaleReason::CpuStabilized { wanted, held } => {
                write!(f, "{wanted} wanted, but {held} were recommended within the stabilisation window")
            }
            ScaleReason::CpuRate { wanted, limit } => {
                write!(f, "{wanted} wanted, but at most {limit} at once")
            }
            ScaleReason::NotDue { held } => write!(f, "no decision is due, so the scale stays at {held}"),
            ScaleReason::CpuAsleep => f.write_str("no sandbox runs, and CPU use cannot ask for the first"),
            ScaleReason::Fixed { sandboxes } => write!(f, "the scale is fixed at {sandboxes}"),
        }
    }
}

impl fmt::Display for KpaFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KpaFigures { stable, panic, target, ready, wanted, .. } = *self;
        let unit = match self.metric {
            Metric::Concurrency => "concurrent requests",
            Metric::RequestsPerSecond => "requests per second",
        };
        write!(
            f,
            "{stable:.2} {unit} on average and {panic:.2} lately, at {target} for each sandbox: {wanted} wanted, \
             {ready} ready"
        )
    }
}

impl fmt::Display for CpuFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CpuFigures { utilization_percent, target_percent, ready } = *self;
        write!(
            f,
            "{ready} ready sandboxes use {utilization_percent} % of their CPU at a target of {target_percent} %"
        )
    }
}
