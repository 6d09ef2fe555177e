//! `fanfare load`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs, ValueEnum};
use fanfare_types::FunctionName;

use super::{ReportOutputArgs, duration, function_name, number, whole};
use crate::complete::function_names;

/// Characters of the prefix: a number and a part of the trace's name follow it.
const PREFIX_LEN_MAX: usize = 32;

/// Replay a trace, a plan or a rate without waiting for answers, and say what came of it.
///
/// Each invocation is sent when it is due, whatever became of those before it; what is late is sent and counted as late,
/// never left out. For each function of a trace the built-in function `trace` is deployed, which waits for as long as it is
/// asked to; all are deleted afterwards. Response: from when an invocation was due to the last byte of its answer.
/// Scheduling latency: response − execution, as the function measured it. Slowdown: response ÷ requested execution, of each
/// function the geometric mean; p50 and p99 are those of functions. Failures are counted, and are in no latency; neither is
/// the warm-up. Lateness: from when an invocation was due to when it was sent; with p99 above --lateness-max the machine
/// could not keep the plan's times, and the run is unreliable.
#[derive(ClapArgs, Debug)]
#[command(
    group(ArgGroup::new("what").required(true).args(["trace", "plan", "rate"])),
    before_help = "\
Examples:
  fanfare load --trace ./azure_500 --minutes 30 --warm-up 10 --scale 0.05 --out ./run1
  fanfare load --plan ./run1/plan.csv --out ./run2
  fanfare load --rate 100 --duration 30s --poisson --function hello

Exit codes: 0 all answered, 1 some failed, 6 unreliable, 130 interrupted; others as of `fanfare invoke`"
)]
pub(crate) struct LoadArgs {
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
    #[command(flatten)]
    pub(crate) steady: SteadyArgs,
    #[command(flatten)]
    pub(crate) cut: CutArgs,
    /// What everything is drawn from.
    #[arg(long, value_name = "NUMBER", default_value_t = 42, conflicts_with = "plan")]
    pub(crate) seed: u64,
    /// Write the plan to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) write_plan: Option<PathBuf>,
    /// Say what the plan asks for, and send nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Write results and plan to this directory, new or empty.
    ///
    /// They are experiment_duration_MINUTES.csv (one row for each invocation, with InVitro's columns and more),
    /// summary.json and plan.csv.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) out: Option<PathBuf>,
    /// Deploy functions under names that begin so.
    #[arg(long, value_name = "NAME", default_value = "load", value_parser = prefix)]
    pub(crate) prefix: FunctionName,
    /// Keep the functions, and take those that an earlier run has kept.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Longest wait for an answer.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "180s")]
    pub(crate) timeout: Duration,
    /// Latest that 99 of 100 requests may be sent.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5ms")]
    pub(crate) lateness_max: Duration,
    /// Connections at once: what is due while all are busy is sent when one is free, and is late.
    #[arg(long, hide_short_help = true, value_name = "NUMBER", default_value_t = 2_000, value_parser = whole::<1, 100_000>)]
    pub(crate) connections: u32,
    /// Threads that send and read, beside the one that keeps the times.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole::<1, 64>, hide_short_help = true)]
    pub(crate) senders: u32,
    /// Run before all ordinary threads of this machine.
    ///
    /// That is SCHED_FIFO, and takes root: less late, and nearer to a generator on a machine of its own.
    #[arg(long)]
    pub(crate) realtime: bool,
    /// Where functions are called [default: asked from the control API].
    #[arg(long, env = "FANFARE_DATA_PLANE", value_name = "URL", hide_short_help = true)]
    pub(crate) data_plane: Option<String>,
    #[command(flatten)]
    pub(crate) output: ReportOutputArgs,
}

/// What goes with a rate.
#[derive(ClapArgs, Debug)]
pub(crate) struct SteadyArgs {
    /// With --rate: for so long.
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "rate")]
    pub(crate) duration: Option<Duration>,
    /// With --rate: at random, as a Poisson process.
    ///
    /// Otherwise they come at equal distances.
    #[arg(long, requires = "rate")]
    pub(crate) poisson: bool,
    /// With --rate: call this function, and deploy none.
    #[arg(long, value_name = "NAME", value_parser = function_name, add = function_names(), requires = "rate")]
    pub(crate) function: Option<FunctionName>,
    /// With --rate and without --function: each takes so long [default: 10ms].
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "rate", conflicts_with = "function", hide_short_help = true)]
    pub(crate) execution: Option<Duration>,
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

fn prefix(text: &str) -> Result<FunctionName, String> {
    match text.chars().count() {
        ..=PREFIX_LEN_MAX => function_name(text),
        _ => Err(format!("give a name of at most {PREFIX_LEN_MAX} characters")),
    }
}
