//! The files of an Azure trace, and the plan that is made of them.

#![no_main]

use fanfare_trace::{AzureFiles, Gaps, Granularity, ScheduleOptions, Trace, schedule};

/// Invocations that are still planned here: more take longer than an input may.
const INVOCATIONS_MAX: u64 = 10_000;

// Four files in one input, apart by a line of dashes.
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    let mut files = text.split("----\n").map(str::as_bytes);
    let mut next = || files.next().unwrap_or_default();
    let (invocations, durations, memory, dirigent) = (next(), next(), next(), next());
    let dirigent = (!dirigent.is_empty()).then_some(dirigent);
    let Ok(trace) = Trace::read(AzureFiles { invocations, durations, memory, dirigent }) else { return };
    let counts = trace.functions.iter().flat_map(|function| &function.invocations);
    let total: u64 = counts.map(|count| u64::from(*count)).sum();
    let options = ScheduleOptions {
        from: 0,
        columns: trace.columns,
        warm_up: trace.columns / 2,
        granularity: Granularity::Minute,
        gaps: Gaps::Exponential,
        shift: true,
        rate_scale: 1.0,
        duration_scale: 0.5,
        seed: 1,
    };
    if total <= INVOCATIONS_MAX {
        let plan = schedule(&trace, &options).expect("all of a trace is in it");
        plan.check().expect("a plan is within its limits");
        assert_eq!(plan.invocations.len() as u64, total);
    }
});
