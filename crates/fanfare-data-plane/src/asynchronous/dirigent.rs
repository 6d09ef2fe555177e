//! Calls as Dirigent's data planes take them in their asynchronous mode: a request to a function's host is answered 200
//! with an id as the body, and `GET /` with an id as the body is answered with the result.
//!
//! Whoever reads a result that way takes every body for one, so that nothing but a result has a body: what is not ready
//! is 204, and why there is none is said in the status and in `X-Fanfare-Reason`.

use std::time::Duration;

use bytes::Bytes;
use fanfare_async::InvocationId;
use fanfare_types::{Reason, Timestamp};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Uri, request};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};

use super::accept::{Arrived, accept};
use super::api::{Refused, one};
use super::door::Door;
use super::route::What;
use super::{DURATION_US, INVOCATION_ID};
use crate::body::Body;
use crate::core::Core;
use crate::find;
use crate::headers::Client;
use crate::names::Rest;
use crate::payload::ClientBody;
use crate::peers::FORWARDED;
use crate::problem::Problem;
use crate::request_id::REQUEST_ID;
use crate::shared::Shared;

/// From accepted to ended, as Dirigent names it.
const DURATION: HeaderName = HeaderName::from_static("duration-microseconds");
/// Bytes of an id, with room for what is none and is to be told so.
const ID_BYTES_MAX: usize = 128;
/// How long a client may take to send one.
const ID_TIMEOUT: Duration = Duration::from_secs(10);

/// What a request is about.
pub(crate) enum Asked {
    /// Call this function.
    Call(String),
    /// The result of the call whose id is the body.
    Result,
}

/// Whether this data plane is in that mode.
pub(crate) fn is_on(shared: &Shared) -> bool {
    shared.door.as_ref().is_some_and(|door| door.options.as_dirigent)
}

/// What of this a request is; `None`: it is one as any other. Calls of gRPC are: their protocol has no place for an id.
pub(crate) async fn asked(
    shared: &Shared,
    parts: &request::Parts,
    body: &ClientBody,
) -> Result<Option<Asked>, Problem> {
    let media_type = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if parts.headers.contains_key(FORWARDED) || media_type.starts_with(b"application/grpc") {
        return Ok(None);
    }
    if let Some(function) = find::by_host(shared, parts).await? {
        return Ok(Some(Asked::Call(function.name.to_string())));
    }
    let reads = parts.method == Method::GET && parts.uri.path() == "/" && !body.is_end_stream();
    Ok(reads.then_some(Asked::Result))
}

/// Answers such a request.
pub(crate) async fn answer(
    core: &Core,
    client: &Client,
    asked: Asked,
    parts: request::Parts,
    body: ClientBody,
    accepted: Timestamp,
) -> Result<Response<Body>, Refused> {
    let Some(door) = &core.shared.door else {
        return Err(Problem::new(Reason::Internal, "there is no log to be asked").into());
    };
    match asked {
        Asked::Call(name) => {
            let target = parts.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
            let arrived = Arrived { client, parts, body, accepted };
            let taken = accept(core, door, &name, Rest::whole(&target), arrived).await?;
            Ok(with_id(taken))
        }
        Asked::Result => {
            client.state.interim.give_leave();
            let id = parts.headers.get(REQUEST_ID).cloned().unwrap_or(HeaderValue::from_static(""));
            Ok(result(core, door, parts, body).await.unwrap_or_else(|problem| {
                core.shared.count_problem(problem.reason);
                without_body(problem.response(&id, None))
            }))
        }
    }
}

/// What says that a call was taken in, with its id alone as the body.
fn with_id(mut taken: Response<Body>) -> Response<Body> {
    *taken.status_mut() = StatusCode::OK;
    let headers = taken.headers_mut();
    headers.remove(LOCATION);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    let id = headers.get(INVOCATION_ID).map(|id| Bytes::copy_from_slice(id.as_bytes())).unwrap_or_default();
    taken.map(|_| Body::full(id))
}

async fn result(
    core: &Core,
    door: &Door,
    mut parts: request::Parts,
    body: ClientBody,
) -> Result<Response<Body>, Problem> {
    let id = read_id(body).await?;
    // As whoever keeps it is asked, if that is another data plane.
    let target = PathAndQuery::try_from(format!("/async/{id}/result"));
    parts.uri = target.map(Uri::from).map_err(|_| no_id())?;
    let mut response = one(core, door, &parts, id, What::Result, "").await?;
    if let Some(took) = response.headers_mut().remove(DURATION_US) {
        response.headers_mut().insert(DURATION, took);
    }
    Ok(match response.status() {
        StatusCode::ACCEPTED if !response.headers().contains_key(DURATION) => {
            let mut response = without_body(response);
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        status if status.is_success() => response,
        _ => without_body(response),
    })
}

async fn read_id(body: ClientBody) -> Result<InvocationId, Problem> {
    let whole = tokio::time::timeout(ID_TIMEOUT, Limited::new(body, ID_BYTES_MAX).collect()).await;
    let bytes = whole.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes);
    let text = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.and_then(|text| text.trim().parse().ok()).ok_or_else(no_id)
}

fn no_id() -> Problem {
    let detail = "the body names no asynchronous invocation; ids look like d1-2a-9f86d081884c7d65";
    Problem::new(Reason::InvocationNotFound, detail)
}

fn without_body(mut response: Response<Body>) -> Response<Body> {
    for name in [CONTENT_TYPE, CONTENT_LENGTH] {
        response.headers_mut().remove(name);
    }
    response.map(|_| Body::full(Bytes::new()))
}
