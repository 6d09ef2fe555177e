//! What came of a simulated run, as a run that was measured.

use std::time::Duration;

use fanfare_load::{Outcome, Record, Run};
use fanfare_sim::{Outcome as SimOutcome, Report, RequestReport};
use fanfare_trace::{Invocation, Plan};
use fanfare_types::Timestamp;

/// The status of an answer that a function has given.
const OK: u16 = 200;

/// What a load generator that is never late would have seen. Times are virtual, and begin with 1970.
pub(super) fn run(plan: &Plan, ended: &Report, lead: Duration) -> Run {
    let records: Vec<Record> =
        plan.invocations.iter().zip(&ended.requests).map(|(i, r)| record(i, r, lead)).collect();
    let last_us = records.iter().map(|record| record.done_us).max().unwrap_or(0);
    Run {
        is_complete: records.len() == plan.invocations.len(),
        records,
        cold_stages: Vec::new(),
        sandboxes: Vec::new(),
        began_epoch_us: 0,
        elapsed: Duration::from_micros(last_us),
    }
}

fn record(invocation: &Invocation, request: &RequestReport, lead: Duration) -> Record {
    let since_begin = |at: Timestamp| micros(at.since(Timestamp::ZERO).saturating_sub(lead));
    let (outcome, status, reason) = match request.outcome {
        Some(SimOutcome::Answered) => (Outcome::Ok, OK, None),
        Some(SimOutcome::Refused(reason)) => (Outcome::Refused, reason.status(), Some(reason)),
        Some(SimOutcome::Left | SimOutcome::Cut) => (Outcome::Closed, 0, None),
        None => (Outcome::Timeout, 0, None),
    };
    let done_us = request.ended.map_or(invocation.at_us, since_begin);
    let execution_us = u32::try_from(u64::from(invocation.execution_ms) * 1_000).ok();
    Record {
        outcome,
        status,
        reason,
        sent_us: invocation.at_us,
        first_byte_us: if status == 0 { 0 } else { done_us },
        done_us,
        cold: request.cold,
        queue_us: request.waited().and_then(|waited| u32::try_from(waited.as_micros()).ok()),
        execution_us: execution_us.filter(|_| outcome == Outcome::Ok),
        sandbox: None,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fanfare_types::Reason;

    use super::*;

    #[test]
    fn a_request_is_what_a_caller_would_have_seen() {
        let invocation = Invocation { at_us: 1_000, function: 0, execution_ms: 20, memory_mib: 1, column: 0 };
        let lead = Duration::from_secs(1);
        let at = |us: u64| Timestamp::from_nanos(1_000_000_000 + us * 1_000);
        let request = RequestReport {
            function: 0,
            arrived: at(1_000),
            started: Some(at(6_000)),
            ended: Some(at(26_100)),
            outcome: Some(SimOutcome::Answered),
            cold: true,
        };
        let answered = record(&invocation, &request, lead);
        assert_eq!((answered.outcome, answered.status, answered.cold), (Outcome::Ok, 200, true));
        assert_eq!((answered.sent_us, answered.done_us), (1_000, 26_100));
        assert_eq!((answered.queue_us, answered.execution_us), (Some(5_000), Some(20_000)));
        let with = |outcome| record(&invocation, &RequestReport { outcome, ..request }, lead);
        let refused = with(Some(SimOutcome::Refused(Reason::QueueTimeout)));
        assert_eq!((refused.outcome, refused.status, refused.execution_us), (Outcome::Refused, 504, None));
        assert_eq!(refused.reason, Some(Reason::QueueTimeout));
        assert_eq!(with(Some(SimOutcome::Cut)).outcome, Outcome::Closed);
        assert_eq!(with(None).outcome, Outcome::Timeout);
    }
}
