//! What is remembered of requests that failed and of sandboxes that ended by themselves: for the reader, decides nothing.

use std::sync::Arc;

use fanfare_types::{GoneCause, Reason, RequestFailures, Timestamp};

use crate::engine::Engine;
use crate::sandbox::Sandbox;

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Requests.
    Requests,
    /// Sandboxes that were ready, and ended by themselves.
    Sandboxes,
}

/// Failures of one function's current revision that have the same reason, and the last of them.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureCount {
    /// What failed.
    pub failed: Failed,
    /// Why, in a word.
    pub reason: Reason,
    /// How many since the revision was registered, or since this leader's term began.
    pub count: u64,
    /// When it was last heard of.
    pub at: Timestamp,
    /// The last one in one sentence.
    pub detail: Arc<str>,
    /// Its request; empty for a sandbox.
    pub request_id: Arc<str>,
    /// What was written last; may be empty.
    pub log_tail: Arc<str>,
}

impl Engine {
    /// A data plane says that requests failed.
    pub(crate) fn requests_failed(&mut self, now: Timestamp, failures: RequestFailures) {
        let Some(function) = self.functions.get_mut(&failures.function).filter(|f| !f.removed) else {
            return;
        };
        let RequestFailures { function: _, reason, count, detail, request_id, log_tail } = failures;
        let count = u64::from(count);
        let failed = Failed::Requests;
        add(
            &mut function.failures,
            FailureCount { failed, reason, count, at: now, detail, request_id, log_tail },
        );
    }

    /// A sandbox that was ready ended by itself.
    pub(crate) fn sandbox_ended_by_itself(&mut self, now: Timestamp, sandbox: &Sandbox, cause: &GoneCause) {
        let Some(function) = self.functions.get_mut(&sandbox.revision.function) else { return };
        let ended = FailureCount {
            failed: Failed::Sandboxes,
            reason: cause.exit.reason(),
            count: 1,
            at: now,
            detail: format!("a sandbox {}", cause.exit).into(),
            request_id: Arc::from(""),
            log_tail: cause.log_tail.clone(),
        };
        add(&mut function.failures, ended);
    }
}

/// One entry for each reason, so that there are never more than there are reasons.
#[allow(clippy::box_collection, reason = "most functions never fail: a pointer is all that they pay")]
fn add(counts: &mut Option<Box<Vec<FailureCount>>>, new: FailureCount) {
    let counts = counts.get_or_insert_default();
    match counts.iter_mut().find(|c| (c.failed, c.reason) == (new.failed, new.reason)) {
        Some(known) => {
            let count = known.count.saturating_add(new.count);
            *known = FailureCount { count, ..new };
        }
        None => counts.push(new),
    }
}
