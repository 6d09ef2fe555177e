//! `fanfare load`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use fanfare_types::FunctionName;

use super::{PlanArgs, ReportOutputArgs, duration, function_name, whole};
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
#[command(before_help = "\
Examples:
  fanfare load --trace ./azure_500 --minutes 30 --warm-up 10 --scale 0.05 --out ./run1
  fanfare load --plan ./run1/plan.csv --out ./run2
  fanfare load --rate 100 --duration 30s --poisson --function hello

Exit codes: 0 all answered, 1 some failed, 6 unreliable, 130 interrupted; others as of `fanfare invoke`")]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) what: PlanArgs,
    /// With --rate: call this function, and deploy none.
    #[arg(long, value_name = "NAME", value_parser = function_name, add = function_names(), requires = "rate", conflicts_with = "execution")]
    pub(crate) function: Option<FunctionName>,
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

fn prefix(text: &str) -> Result<FunctionName, String> {
    match text.chars().count() {
        ..=PREFIX_LEN_MAX => function_name(text),
        _ => Err(format!("give a name of at most {PREFIX_LEN_MAX} characters")),
    }
}
