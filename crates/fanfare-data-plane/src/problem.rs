//! Answers that the platform makes.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_dispatch::Refusal;
pub(crate) use fanfare_http1::quoted;
use fanfare_http1::{Heard, Limits, Misread, Turn};
use fanfare_types::limits::{REQUEST_FIELDS_MAX, REQUEST_HEAD_BYTES_MAX};
use fanfare_types::{ExitCause, FunctionName, GoneCause, Reason};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use crate::body::Body;
use crate::request_id::{self, REQUEST_ID};
use crate::shared::Shared;

/// Carries the stable code of a [`Reason`].
pub(crate) const REASON: HeaderName = HeaderName::from_static("x-fanfare-reason");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A refusal or failure, before it is known to whom it is told.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) reason: Reason,
    status: u16,
    detail: Cow<'static, str>,
    log_tail: Option<Arc<str>>,
}

/// RFC 9457, with what Fanfare adds.
#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: String,
    status: u16,
    detail: &'a str,
    reason: &'static str,
    request_id: &'a str,
    hint: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_tail: Option<&'a str>,
}

impl Problem {
    pub(crate) fn new(reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Problem { reason, status: reason.status(), detail: detail.into(), log_tail: None }
    }

    /// With another status than the reason's own.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status.as_u16();
        self
    }

    pub(crate) fn refused(refusal: &Refusal) -> Self {
        let mut problem = Problem::new(refusal.reason(), "");
        problem.detail = match refusal {
            Refusal::QueueFull { limit } => {
                format!("{limit} requests wait for this function on this data plane; no more may").into()
            }
            Refusal::ShareFull { limit } => format!(
                "{limit} requests of this client's address wait for this function with bodies that are not here to \
                 their end; no more may"
            )
            .into(),
            Refusal::QueueTimeout { waited } if waited.is_zero() => {
                "its time was over before it could wait for a free slot".into()
            }
            Refusal::QueueTimeout { waited } => {
                format!("waited {:.3} s for a free slot and got none", waited.as_secs_f64()).into()
            }
            Refusal::Unavailable { detail, log_tail, .. } => {
                // Nothing of the request ran, whatever the start failed of.
                problem.status = StatusCode::SERVICE_UNAVAILABLE.as_u16();
                problem.log_tail = (!log_tail.is_empty()).then(|| log_tail.clone());
                detail.to_string().into()
            }
            Refusal::Removed => "the function was removed".into(),
        };
        problem
    }

    /// The sandbox ended with the request in it.
    pub(crate) fn gone(cause: &GoneCause) -> Self {
        let what = match cause.exit {
            ExitCause::Stopped => {
                "the platform stopped the sandbox while it worked on the request".to_owned()
            }
            exit => format!("the sandbox {exit} while it worked on the request"),
        };
        let mut problem = Problem::new(cause.exit.reason(), what);
        problem.log_tail = (!cause.log_tail.is_empty()).then(|| cause.log_tail.clone());
        problem
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Seconds after which it is worth trying again, where waiting helps.
    pub(crate) fn retry_after_s(&self) -> Option<u32> {
        match self.reason {
            Reason::QueueFull
            | Reason::DataPlaneFull
            | Reason::ShuttingDown
            | Reason::NotSynced
            | Reason::AsyncQueueFull
            | Reason::Unavailable => Some(1),
            Reason::NoCapacity
            | Reason::NoNode
            | Reason::RuntimeMissing
            | Reason::StartTimeout
            | Reason::NotListening
            | Reason::NodeFailed => Some(5),
            _ => None,
        }
    }

    /// One sentence: what, and with which value.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The last lines of the sandbox's log, where they help.
    pub(crate) fn log_tail(&self) -> Arc<str> {
        self.log_tail.clone().unwrap_or_else(|| Arc::from(""))
    }

    /// The answer. With the function's name the hint is a command to copy.
    pub(crate) fn response(&self, request_id: &HeaderValue, name: Option<&FunctionName>) -> Response<Body> {
        self.document(request_id, name).map(|document| Body::full(document.into_inner().unwrap_or_default()))
    }

    /// The same with a body that any task may have.
    pub(crate) fn document(
        &self,
        request_id: &HeaderValue,
        name: Option<&FunctionName>,
    ) -> Response<Full<Bytes>> {
        let code = self.reason.code();
        let document = Document {
            r#type: format!("urn:fanfare:reason:{code}"),
            title: code.replace('-', " "),
            status: self.status,
            detail: &self.detail,
            reason: code,
            request_id: request_id.to_str().unwrap_or_default(),
            hint: match name {
                Some(name) => self.reason.hint_for(name.as_str()).into(),
                None => self.reason.hint().into(),
            },
            log_tail: self.log_tail.as_deref(),
        };
        // A document of texts and numbers always has a JSON form.
        let bytes = Bytes::from(serde_json::to_vec(&document).unwrap_or_default());
        let mut response = Response::new(Full::new(bytes));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        headers.insert(REASON, HeaderValue::from_static(code));
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// What is said, as bytes and with all that a refusal has, where the server would answer what it has `heard`, which is
/// no request, with nothing but this status.
pub(crate) fn of_server(shared: &Shared, status: StatusCode, heard: &Heard, turn: &Turn) -> Vec<u8> {
    let limits = Limits { fields_max: REQUEST_FIELDS_MAX, head_bytes_max: REQUEST_HEAD_BYTES_MAX };
    let misread = Misread::new(status, heard, turn, limits);
    let status = misread.status;
    let reason = if misread.is_too_large() { Reason::TooLarge } else { Reason::BadRequest };
    let problem = Problem::new(reason, misread.detail).with_status(status);
    shared.count_problem(problem.reason);
    let id = request_id::stray();
    let (mut parts, body) = problem.document(&id, None).into_parts();
    let body = body.into_inner().unwrap_or_default();
    parts.headers.insert(REQUEST_ID, id);
    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let mut bytes = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in &parts.headers {
        let value = value.as_bytes();
        bytes.extend([name.as_str().as_bytes(), b": ", value, b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body);
    bytes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_is_told_that_he_waited_for_no_time() {
        let said = |waited| Problem::refused(&Refusal::QueueTimeout { waited }).detail;
        assert_eq!(said(Duration::from_millis(50)), "waited 0.050 s for a free slot and got none");
        assert_eq!(said(Duration::ZERO), "its time was over before it could wait for a free slot");
    }
}
