//! Requests that failed, counted for the control plane, which shows them to whoever asks how a function is doing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use fanfare_types::limits::{FAILURE_DETAIL_BYTES_MAX, FAILURES_PER_REPORT_MAX, LOG_TAIL_BYTES};
use fanfare_types::{FunctionId, Reason, RequestFailures};
use http::HeaderMap;
use http::header::HeaderValue;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;

use crate::problem::{Problem, REASON};
use crate::request_id::REQUEST_ID;

/// Functions and reasons that are counted until they are told; what comes beyond is in the metrics only.
const PENDING_MAX: usize = 16 * FAILURES_PER_REPORT_MAX;

/// What has failed and has not been told yet.
#[derive(Default)]
pub(crate) struct Failures {
    pending: Mutex<BTreeMap<(FunctionId, Reason), Pending>>,
    /// The first of those is there.
    pub(crate) first: Notify,
}

/// Failures of one function and reason: how many, and the newest as it came. A problem is put into words when it is
/// told, so that a storm of refusals costs little more than its count.
struct Pending {
    count: u32,
    newest: Newest,
}

struct Newest {
    request_id: HeaderValue,
    said: Words,
}

/// What is said of a failure, before it is put into words.
enum Words {
    Problem(Problem),
    /// A shim's, within what is told of them.
    HandlerError {
        detail: String,
        stack: String,
    },
}

impl Failures {
    /// The platform answered a request to this function with a problem.
    pub(crate) fn note(&self, function: FunctionId, problem: &Problem, id: &HeaderValue) {
        // Those are the client's doing, or the data plane's.
        let elsewhere = [Reason::BadRequest, Reason::TooLarge, Reason::ShuttingDown, Reason::NotSynced]
            .contains(&problem.reason);
        if !elsewhere {
            self.add(
                function,
                problem.reason,
                Newest { request_id: id.clone(), said: Words::Problem(problem.clone()) },
            );
        }
    }

    /// A shim answered that the handler raised an error; what it says of that in a sentence.
    pub(crate) fn note_handler_error(
        &self,
        function: FunctionId,
        reason: Reason,
        id: Option<&HeaderValue>,
        body: &Bytes,
    ) -> String {
        let nameless = HeaderValue::from_static("");
        let said: Said = serde_json::from_slice(body).unwrap_or_default();
        let stack = said.stack.join("\n");
        let words = Words::HandlerError {
            detail: head(&said.detail, FAILURE_DETAIL_BYTES_MAX).to_owned(),
            stack: tail(&stack, LOG_TAIL_BYTES).to_owned(),
        };
        let request_id = id.cloned().unwrap_or(nameless);
        self.add(function, reason, Newest { request_id, said: words });
        said.detail
    }

    /// One more. The cores share the lock: nothing is parsed or written under it.
    fn add(&self, function: FunctionId, reason: Reason, newest: Newest) {
        let mut pending = self.pending.lock();
        let count = pending.len();
        match pending.entry((function, reason)) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.count = known.count.saturating_add(1);
                known.newest = newest;
            }
            Entry::Vacant(_) if count >= PENDING_MAX => {}
            Entry::Vacant(place) => {
                place.insert(Pending { count: 1, newest });
                if count == 0 {
                    self.first.notify_one();
                }
            }
        }
    }

    /// What is told at once: each with its newest one's words.
    pub(crate) fn take(&self) -> Vec<RequestFailures> {
        let taken: Vec<_> = {
            let mut pending = self.pending.lock();
            let count = pending.len().min(FAILURES_PER_REPORT_MAX);
            std::iter::from_fn(|| pending.pop_first()).take(count).collect()
        };
        taken.into_iter().map(|((function, reason), pending)| pending.told(function, reason)).collect()
    }
}

impl Pending {
    fn told(self, function: FunctionId, reason: Reason) -> RequestFailures {
        let (detail, log_tail) = match self.newest.said {
            Words::Problem(problem) => (problem.detail().to_owned(), problem.log_tail()),
            Words::HandlerError { detail, stack } => (detail, stack.into()),
        };
        RequestFailures {
            function,
            reason,
            count: self.count,
            detail: head(&detail, FAILURE_DETAIL_BYTES_MAX).into(),
            request_id: self.newest.request_id.to_str().unwrap_or_default().into(),
            log_tail: tail(&log_tail, LOG_TAIL_BYTES).into(),
        }
    }
}

/// What a shim says of a handler's error.
#[derive(Default, Deserialize)]
struct Said {
    #[serde(default)]
    detail: String,
    #[serde(default)]
    stack: Vec<String>,
}

/// What a shim says of an error of its handler.
pub(crate) const HANDLER_ERRORS: [Reason; 3] = [Reason::HandlerError, Reason::ProcessLimit, Reason::NoSpace];

/// Why a sandbox's answer says that its handler raised an error, if it does.
pub(crate) fn handler_error(status: http::StatusCode, headers: &HeaderMap) -> Option<Reason> {
    // Two cheap looks: this is asked of every answer.
    if status != http::StatusCode::BAD_GATEWAY {
        return None;
    }
    let code = headers.get(REASON)?;
    HANDLER_ERRORS.into_iter().find(|reason| code == reason.code())
}

/// The id under which a request travels.
pub(crate) fn id_of(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(REQUEST_ID)
}

fn head(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

fn tail(text: &str, bytes_max: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes_max))..]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn refused(reason: Reason) -> Problem {
        Problem::new(reason, "why")
    }

    #[test]
    fn failures_are_counted_by_function_and_reason_and_told_once() {
        let failures = Failures::default();
        let id = HeaderValue::from_static;
        let function = FunctionId(1);
        failures.note(function, &Problem::new(Reason::RequestTimeout, "the first"), &id("r-1"));
        failures.note(function, &Problem::new(Reason::RequestTimeout, "the newest"), &id("r-2"));
        failures.note(FunctionId(2), &refused(Reason::QueueFull), &id("r-3"));
        failures.note(function, &refused(Reason::BadRequest), &id("r-4"));
        let body = Bytes::from_static(br#"{"detail": "ValueError: x", "stack": ["a", "b"], "more": 1}"#);
        failures.note_handler_error(
            function,
            Reason::HandlerError,
            Some(&id("r-0")),
            &Bytes::from_static(b"{}"),
        );
        failures.note_handler_error(function, Reason::HandlerError, Some(&id("r-5")), &body);
        failures.note_handler_error(
            FunctionId(3),
            Reason::HandlerError,
            None,
            &Bytes::from_static(b"not JSON"),
        );
        let told: Vec<_> = failures
            .take()
            .into_iter()
            .map(|f| {
                (f.function.0, f.reason, f.count, f.detail.to_string(), f.request_id.to_string(), f.log_tail)
            })
            .collect();
        let expected = [
            (1, Reason::RequestTimeout, 2, "the newest", "r-2", ""),
            (1, Reason::HandlerError, 2, "ValueError: x", "r-5", "a\nb"),
            (2, Reason::QueueFull, 1, "why", "r-3", ""),
            (3, Reason::HandlerError, 1, "", "", ""),
        ];
        let mut expected =
            expected.map(|(f, r, n, d, i, l)| (f, r, n, d.to_owned(), i.to_owned(), Arc::from(l)));
        expected.sort();
        assert_eq!(told, expected);
        assert!(failures.take().is_empty());
    }

    #[test]
    fn what_is_told_and_what_is_kept_is_bounded() {
        let failures = Failures::default();
        let id = HeaderValue::from_static("r");
        let long = Problem::new(Reason::QueueFull, "ü".repeat(FAILURE_DETAIL_BYTES_MAX));
        for function in 0..PENDING_MAX as u32 + 10 {
            failures.note(FunctionId(function), &long, &id);
        }
        let mut told = 0;
        loop {
            let batch = failures.take();
            assert!(batch.len() <= FAILURES_PER_REPORT_MAX);
            assert!(batch.iter().all(|f| f.detail.len() <= FAILURE_DETAIL_BYTES_MAX));
            if batch.is_empty() {
                break;
            }
            told += batch.len();
        }
        assert_eq!(told, PENDING_MAX);
    }
}
