//! Why the API refused: `application/problem+json` (RFC 9457).

use fanfare_types::{Reason, StartFailure};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::FieldError;

/// The media type of a [`Problem`].
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

/// Why a request was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:fanfare:reason:` and the reason; handlers' own failures leave it out.
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The reason in words.
    pub title: String,
    /// The HTTP status it came with.
    pub status: u16,
    /// What exactly, and with which value.
    pub detail: String,
    /// The stable code, e.g. `function-not-found`; also in the `X-Fanfare-Reason` header.
    pub reason: String,
    /// The wrong field, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What is allowed for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// What was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What to do next.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// Names this request in logs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// Last lines that the failed sandbox wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_tail: Option<String>,
    /// The handler's stack, innermost call last, when it raised an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

impl Problem {
    /// A problem for `reason`, with its status and hint.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Problem {
            kind: format!("urn:fanfare:reason:{}", reason.code()),
            title: reason.code().replace('-', " "),
            status: reason.status(),
            detail: detail.into(),
            reason: reason.code().to_owned(),
            field: None,
            limit: None,
            value: None,
            hint: reason.hint().to_owned(),
            request_id: String::new(),
            log_tail: None,
            stack: Vec::new(),
        }
    }

    /// The same, naming the request.
    #[must_use]
    pub fn with_request_id(mut self, request_id: impl Into<String>) -> Self {
        self.request_id = request_id.into();
        self
    }

    /// The same, with what the sandbox wrote; nothing when it wrote nothing.
    #[must_use]
    pub fn with_log_tail(mut self, log_tail: &str) -> Self {
        self.log_tail = (!log_tail.is_empty()).then(|| log_tail.to_owned());
        self
    }

    /// The reason it carries; `None` when it is one that this release does not know.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        Reason::ALL.iter().copied().find(|reason| reason.code() == self.reason)
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        let reason = error.reason();
        Problem {
            field: Some(error.field),
            limit: Some(error.limit),
            value: Some(error.value),
            ..Problem::new(reason, error.message)
        }
    }
}

impl From<&StartFailure> for Problem {
    fn from(failure: &StartFailure) -> Self {
        Problem::new(failure.kind.reason(), failure.detail.clone()).with_log_tail(&failure.log_tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_makes_a_problem_that_reads_back() {
        for &reason in Reason::ALL {
            let problem = Problem::new(reason, "what").with_request_id("r1").with_log_tail("boom\n");
            let json = serde_json::to_string(&problem).unwrap();
            assert!(json.contains("\"type\":\"urn:fanfare:reason:"), "{json}");
            let back: Problem = serde_json::from_str(&json).unwrap();
            assert_eq!(back, problem);
            assert_eq!(back.reason(), Some(reason));
        }
    }

    #[test]
    fn what_a_handlers_failure_says_is_read() {
        let json = r#"{"reason":"handler-error","title":"The handler raised an error","status":502,"detail":"ZeroDivisionError",
            "request_id":"r1","error_type":"ZeroDivisionError","stack":["Traceback","  line 2"]}"#;
        let problem: Problem = serde_json::from_str(json).unwrap();
        assert_eq!(problem.reason(), Some(Reason::HandlerError));
        assert_eq!((problem.stack.len(), problem.hint.as_str()), (2, ""));
    }

    #[test]
    fn a_field_error_names_its_field() {
        let problem = Problem::from(FieldError::new("concurrency", 0, "1 to 1000"));
        assert_eq!(problem.status, 422);
        assert_eq!(problem.field.as_deref(), Some("concurrency"));
        assert_eq!(problem.detail, "concurrency is 0; allowed: 1 to 1000");
    }
}
