//! Failures of handlers, and the answers they become.

use axum::response::{IntoResponse, Response};
use fanfare_api::{FieldError, PROBLEM_CONTENT_TYPE, Problem};
use fanfare_types::{Reason, StartFailure};
use http::{HeaderName, HeaderValue, StatusCode, header};

use crate::registry::RegistryError;

/// The header with the reason's code.
pub(super) const REASON_HEADER: HeaderName = HeaderName::from_static("x-fanfare-reason");

/// Characters of what a client said that are repeated to it.
const QUOTED_CHARS_MAX: usize = 100;

/// What a client said, in quotation marks, cut, and without anything that would move a cursor.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Why a handler did not do what was asked. Boxed: it is rare, and large.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) problem: Box<Problem>,
}

impl Failure {
    pub(super) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Problem::new(reason, detail).into()
    }

    /// The control plane is stopping: whoever was asked is gone.
    pub(super) fn stopping() -> Self {
        Failure::new(Reason::Unavailable, "the control plane is stopping")
    }

    pub(super) fn no_such_function(name: &str) -> Self {
        Failure::new(Reason::FunctionNotFound, format!("there is no function {}", quoted(name)))
    }

    /// Why a change of this function was not made.
    pub(super) fn registry(name: &str, error: RegistryError) -> Self {
        match error {
            RegistryError::Exists => {
                Failure::new(Reason::FunctionExists, format!("the function {name:?} exists already"))
            }
            RegistryError::HostTaken { .. } => Failure::new(Reason::HostTaken, error.to_string()),
            RegistryError::NotFound => Failure::no_such_function(name),
            RegistryError::NothingBefore { .. } => {
                Failure::new(Reason::NoEarlierRevision, format!("{error} of {name:?}"))
            }
            RegistryError::Broken { ref failed, .. } => {
                let detail = format!("of {name:?} {error}");
                let mut failure: Failure = Problem::new(Reason::RevisionFailed, detail)
                    .with_log_tail(&failed.failure.log_tail)
                    .into();
                failure.problem.hint = Reason::RevisionFailed.hint_for(name);
                failure
            }
            RegistryError::NoSuchRevision { .. } => {
                let mut failure = Failure::new(Reason::RevisionNotFound, format!("of {name:?} {error}"));
                failure.problem.hint = Reason::RevisionNotFound.hint_for(name);
                failure
            }
            RegistryError::Full { what, limit } => {
                let mut failure = Failure::new(
                    Reason::RegistryFull,
                    format!("there are {limit} {what} already, which is the limit"),
                );
                failure.problem.limit = Some(limit.to_string());
                failure
            }
            RegistryError::NoSuchSecret { name: ref secret, ref field } => {
                let mut failure = Failure::new(Reason::SecretUnknown, error.to_string());
                failure.problem.field = Some(field.clone());
                failure.problem.hint = Reason::SecretUnknown.hint().replace("NAME", secret);
                failure
            }
            RegistryError::InUse { .. } => Failure::new(Reason::SecretInUse, error.to_string()),
            RegistryError::Field(why) => (*why).into(),
            RegistryError::Unavailable(why) => Failure::new(Reason::Unavailable, why),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure { problem: Box::new(problem) }
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        Problem::from(error).into()
    }
}

impl From<&StartFailure> for Failure {
    fn from(failure: &StartFailure) -> Self {
        Problem::from(failure).into()
    }
}

impl IntoResponse for Failure {
    /// An empty answer that carries the problem; the guard, which knows the request's id, writes it out.
    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() =
            StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes a problem out, keeping headers that the answer already has (such as `Allow`).
pub(super) fn write_out(mut response: Response, failure: Failure, request_id: &str) -> Response {
    let problem = failure.problem.with_request_id(request_id);
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_CONTENT_TYPE));
    if let Ok(reason) = HeaderValue::from_str(&problem.reason) {
        headers.insert(REASON_HEADER, reason);
    }
    if matches!(problem.status, 429 | 503) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    // A problem is strings and numbers, which always encode.
    *response.body_mut() = serde_json::to_vec(&problem).unwrap_or_default().into();
    response
}
