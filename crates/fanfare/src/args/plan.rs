//! What is replayed: for `fanfare load`, which sends it, and `fanfare sim`, which works it out.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs, ValueEnum};

use super::{duration, number, whole};

/// A trace, a plan or a rate.
#[derive(ClapArgs, Debug)]
#[command(group(ArgGroup::new("what").required(true).args(["trace", "plan", "rate"])))]
pub(crate) struct PlanArgs {
    /// Replay a trace as InVitro has them.
    ///
    /// The directory has invocations.csv, durations.csv and memory.csv, and perhaps dirigent.csv.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) trace: Option<PathBuf>,
    /// Replay this plan, as --write-plan and --out have written it.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Call one function so many times a second.
    #[arg(long, value_name = "NUMBER", value_parser = rate, requires = "duration")]
    pub(crate) rate: Option<f64>,
    /// With --rate: for so long.
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "rate")]
    pub(crate) duration: Option<Duration>,
    /// With --rate: at random, as a Poisson process.
    ///
    /// Otherwise they come at equal distances.
    #[arg(long, requires = "rate")]
    pub(crate) poisson: bool,
    /// With --rate: each takes so long [default: 10ms].
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "rate", hide_short_help = true)]
    pub(crate) execution: Option<Duration>,
    #[command(flatten)]
    pub(crate) cut: CutArgs,
}

/// What of a trace is replayed, and how.
#[derive(ClapArgs, Debug)]
pub(crate) struct CutArgs {
    /// With --trace: pass over so many minutes.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = whole::<0, 20_160>, conflicts_with_all = ["plan", "rate"])]
    pub(crate) from: u32,
    /// With --trace: replay so many minutes [default: 30, or all].
    #[arg(long, value_name = "NUMBER", value_parser = whole::<1, 20_160>, conflicts_with_all = ["plan", "rate"])]
    pub(crate) minutes: Option<u32>,
    /// With --trace: how many of these are warm-up.
    ///
    /// Each function then begins with as many sandboxes as its load in the first minute keeps busy.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = whole::<0, 20_160>, conflicts_with_all = ["plan", "rate"])]
    pub(crate) warm_up: u32,
    /// With --trace: factor of all rates.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale, conflicts_with_all = ["plan", "rate"])]
    pub(crate) scale: f64,
    /// With --trace: factor of all executions.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale, conflicts_with_all = ["plan", "rate"])]
    pub(crate) duration_scale: f64,
    /// With --trace: what a minute of it lasts.
    #[arg(long, value_enum, default_value_t, value_name = "UNIT", hide_short_help = true, conflicts_with_all = ["plan", "rate"])]
    pub(crate) granularity: GranularityName,
    /// With --trace: how gaps between invocations are drawn.
    #[arg(long, value_enum, default_value_t, value_name = "HOW", hide_short_help = true, conflicts_with_all = ["plan", "rate"])]
    pub(crate) gaps: GapsName,
    /// With --trace: have every function called as each minute begins, as InVitro does unless told otherwise.
    #[arg(long, hide_short_help = true, conflicts_with_all = ["plan", "rate"])]
    pub(crate) no_shift: bool,
}

/// What a column of a trace lasts.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum GranularityName {
    /// A minute.
    #[default]
    Minute,
    /// A second: sixty times as fast.
    Second,
}

/// How gaps are drawn.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum GapsName {
    /// Exponentially distributed.
    #[default]
    Exponential,
    /// Uniformly distributed.
    Uniform,
    /// All equal.
    Equidistant,
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 0.000_1, fanfare_trace::RATE_MAX)
}

fn scale(text: &str) -> Result<f64, String> {
    number(text, fanfare_trace::SCALE_MAX.recip(), fanfare_trace::SCALE_MAX)
}
