//! The plan that the command line asks for.

use std::fs::File;
use std::path::Path;

use fanfare_trace::{
    AzureFiles, Gaps, Granularity, Plan, ScheduleOptions, Steady, SteadyOptions, Trace, TraceError, schedule,
    steady,
};
use fanfare_types::FunctionName;

use crate::args::{GapsName, GranularityName, PlanArgs};
use crate::exit::Failure;
use crate::printer::{Printer, counted};

/// Minutes that are replayed unless the command line says how many.
const MINUTES: usize = 30;
/// Execution of a rate's invocations, unless the command line says how long.
const EXECUTION_MS: u32 = 10;
/// Memory of a rate's invocations.
const MEMORY_MIB: u32 = 16;
/// The one function of a rate.
const STEADY_NAME: &str = "steady";

/// Makes it, drawn from `seed`; a rate may call `function`, which is there already.
pub(crate) fn make(
    printer: &Printer,
    args: &PlanArgs,
    seed: u64,
    function: Option<&FunctionName>,
) -> Result<Plan, Failure> {
    let plan = match (&args.trace, &args.plan, args.rate) {
        (Some(directory), ..) => of_trace(printer, args, seed, directory)?,
        (_, Some(path), _) => {
            let file = open(path, PLAN_HINT)?;
            Plan::read(&path.display().to_string(), file).map_err(|e| wrong(&e))?
        }
        (_, _, Some(per_second)) => of_rate(args, per_second, seed, function)?,
        // One of them is required.
        (None, None, None) => Plan::default(),
    };
    if plan.invocations.is_empty() {
        return Err(Failure::usage("there is not one invocation in it")
            .next("take more minutes, a larger --scale, or a longer --duration"));
    }
    Ok(plan)
}

fn of_trace(printer: &Printer, args: &PlanArgs, seed: u64, directory: &Path) -> Result<Plan, Failure> {
    let file = |name: &str| open(&directory.join(name), TRACE_HINT);
    let dirigent = directory.join("dirigent.csv");
    let trace = Trace::read(AzureFiles {
        invocations: file("invocations.csv")?,
        durations: file("durations.csv")?,
        memory: file("memory.csv")?,
        dirigent: dirigent.is_file().then(|| open(&dirigent, TRACE_HINT)).transpose()?,
    })
    .map_err(|e| wrong(&e))?;
    tell_repairs(printer, &trace);
    let cut = &args.cut;
    let from = cut.from as usize;
    let columns = cut
        .minutes
        .map_or_else(|| MINUTES.min(trace.columns.saturating_sub(from)).max(1), |minutes| minutes as usize);
    let options = ScheduleOptions {
        from,
        columns,
        warm_up: cut.warm_up as usize,
        granularity: match cut.granularity {
            GranularityName::Minute => Granularity::Minute,
            GranularityName::Second => Granularity::Second,
        },
        gaps: match cut.gaps {
            GapsName::Exponential => Gaps::Exponential,
            GapsName::Uniform => Gaps::Uniform,
            GapsName::Equidistant => Gaps::Equidistant,
        },
        shift: !cut.no_shift,
        rate_scale: cut.scale,
        duration_scale: cut.duration_scale,
        seed,
    };
    schedule(&trace, &options).map_err(|e| wrong(&e))
}

/// What of the trace is not taken as it is.
fn tell_repairs(printer: &Printer, trace: &Trace) {
    let repairs = trace.repairs;
    let told = [
        (repairs.without_durations, "function", "left out for want of durations"),
        (repairs.without_memory, "function", "left out for want of memory"),
        (repairs.duplicates, "row", "left out, of functions that have one"),
        (repairs.negative, "negative value", "taken as 0"),
        (repairs.unsorted, "function", "with percentiles that decrease, raised to those before"),
    ];
    for (count, what, how) in told.into_iter().filter(|(count, ..)| *count > 0) {
        printer.note(format_args!("note: {} {how}", counted(count as u64, what)));
    }
}

fn of_rate(
    args: &PlanArgs,
    per_second: f64,
    seed: u64,
    function: Option<&FunctionName>,
) -> Result<Plan, Failure> {
    let whole = |duration: std::time::Duration, unit: u128| {
        u64::try_from(duration.as_nanos() / unit).unwrap_or(u64::MAX)
    };
    let execution_ms = match (function, args.execution) {
        // How long it takes is its own affair.
        (Some(_), _) => 0,
        (None, Some(execution)) => u32::try_from(whole(execution, 1_000_000)).unwrap_or(u32::MAX),
        (None, None) => EXECUTION_MS,
    };
    let options = SteadyOptions {
        function: function.map_or(STEADY_NAME, |name| name.as_str()).to_owned(),
        per_second,
        span_us: args.duration.map_or(0, |duration| whole(duration, 1_000)),
        kind: if args.poisson { Steady::Poisson } else { Steady::Constant },
        execution_ms,
        memory_mib: MEMORY_MIB,
        seed,
    };
    steady(&options).map_err(|e| wrong(&e))
}

const PLAN_HINT: &str =
    "`fanfare load` and `fanfare sim` write a plan into the directory of --out, as plan.csv";
const TRACE_HINT: &str = "a trace is a directory with invocations.csv, durations.csv and memory.csv; docs/load.md says where to \
                          get one";

fn open(path: &Path, hint: &str) -> Result<File, Failure> {
    File::open(path).map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display())).next(hint))
}

fn wrong(error: &TraceError) -> Failure {
    Failure::usage(error.to_string())
}
