//! One row for each invocation, with InVitro's columns first, so that its scripts and Dirigent's read them.
//!
//! `responseTime` is from when the invocation was due; what InVitro would have measured, from when it was sent, is
//! `serviceTime`. `instance` is the sandbox.

use std::io::Write;

use fanfare_trace::Plan;

use crate::record::{Outcome, Record};
use crate::run::Run;

/// InVitro's columns: times in microseconds, `startTime` since 1970; memory in MiB.
const INVITRO_COLUMNS: [&str; 15] = [
    "phase",
    "instance",
    "invocationID",
    "startTime",
    "requestedDuration",
    "grpcConnEstablish",
    "responseTime",
    "actualDuration",
    "connectionTimeout",
    "functionTimeout",
    "actualMemoryUsage",
    "memoryAllocationTimeout",
    "timeToSubmitMs",
    "userCodeExecutionMs",
    "timeToGetResponseMs",
];
/// Ours: the function's name at the platform, when the invocation was due and how late it was sent, how it ended.
const OWN_COLUMNS: [&str; 9] = [
    "function",
    "intendedTime",
    "lateness",
    "serviceTime",
    "queueTime",
    "outcome",
    "status",
    "reason",
    "cold",
];

/// What InVitro calls warm-up, and what follows it.
const PHASES: [&str; 2] = ["1", "2"];

/// Writes all rows, in the plan's order.
///
/// # Errors
/// Those of `out`.
pub fn write(plan: &Plan, run: &Run, deployed: &[String], out: &mut impl Write) -> std::io::Result<()> {
    let mut out = csv::Writer::from_writer(out);
    out.write_record(INVITRO_COLUMNS.iter().chain(&OWN_COLUMNS))?;
    // How many of a function there were in the column that it is at.
    let mut numbers = vec![(0, 0_u32); plan.functions.len()];
    for (invocation, record) in plan.invocations.iter().zip(&run.records) {
        let (column, number) = &mut numbers[invocation.function as usize];
        if *column != invocation.column {
            (*column, *number) = (invocation.column, 0);
        }
        let id = format!("min{column}.inv{number}");
        *number += 1;
        let sandbox = record.sandbox.map_or("", |number| &run.sandboxes[number as usize]);
        let phase = PHASES[usize::from(!plan.is_warm_up(invocation))];
        let failed = failed(record);
        let since = |at_us: u64, from_us: u64| at_us.saturating_sub(from_us).to_string();
        let number = |value: Option<u32>| value.map_or_else(|| "0".to_owned(), |value| value.to_string());
        let execution = number(record.execution_us.filter(|_| record.outcome == Outcome::Ok));
        out.write_record([
            phase,
            sandbox,
            &id,
            &(run.began_epoch_us + record.sent_us).to_string(),
            &(u64::from(invocation.execution_ms) * 1_000).to_string(),
            &since(record.first_byte_us, record.sent_us),
            &since(record.done_us, invocation.at_us),
            &execution,
            failed.connection,
            failed.function,
            &invocation.memory_mib.to_string(),
            failed.memory,
            "0",
            "0",
            "0",
            &deployed[invocation.function as usize],
            &(run.began_epoch_us + invocation.at_us).to_string(),
            &since(record.sent_us, invocation.at_us),
            &since(record.done_us, record.sent_us),
            &number(record.queue_us),
            record.outcome.name(),
            &record.status.to_string(),
            record.reason.map_or("", |reason| reason.code()),
            word(record.cold),
        ])?;
    }
    out.flush()
}

/// InVitro's three columns of failures.
struct Failed {
    connection: &'static str,
    function: &'static str,
    memory: &'static str,
}

/// It has two kinds of failures: no answer at all, and one that is not 200 or cannot be read.
fn failed(record: &Record) -> Failed {
    let connection = matches!(
        record.outcome,
        Outcome::ConnectError | Outcome::Closed | Outcome::Timeout | Outcome::Interrupted | Outcome::NotSent
    );
    let function = matches!(record.outcome, Outcome::FunctionError | Outcome::Refused | Outcome::BadAnswer);
    let memory = record.outcome == Outcome::MemoryError;
    Failed { connection: word(connection), function: word(function), memory: word(memory) }
}

fn word(truth: bool) -> &'static str {
    if truth { "true" } else { "false" }
}
