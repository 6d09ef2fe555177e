//! What every request passes: a name for it, a check of where it comes from, and one form for every failure.
//!
//! A web page that somebody on this machine looks at must not be able to register functions. Browsers say which site
//! a request comes from (`Origin`), and a host name that an attacker points at this machine (DNS rebinding) shows in
//! `Host`. A callback of an asynchronous invocation says what it is, and is refused: where it goes and what it says is
//! for whoever may call functions to choose. Where the API is open to the network, names of this machine are not known, so a page must have come from
//! an address: a name could have been pointed here.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fanfare_api::Problem;
use fanfare_http1::{Heard, Limits, Misread, Turn};
use fanfare_types::limits::{REQUEST_FIELDS_MAX, REQUEST_HEAD_BYTES_MAX};
use fanfare_types::{CALLBACK_ID_FIELD, Reason};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};

use super::App;
use super::problem::{Failure, quoted, write_out};

/// The release that answers: a client of another one says so.
const VERSION: HeaderName = HeaderName::from_static("x-fanfare-version");
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Runs a request between the checks and the writing out.
pub(super) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let request_id = next_id(&app);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match allowed(request.uri(), request.headers(), app.loopback) {
        Ok(()) => match AssertUnwindSafe(next.run(request)).catch_unwind().await {
            Ok(response) => response,
            // The panic's own message went to the log when it happened.
            Err(_) => {
                Failure::new(Reason::Internal, "the request met a bug of the control plane").into_response()
            }
        },
        Err(failure) => failure.into_response(),
    };
    let failure = response.extensions_mut().remove::<Failure>().or_else(|| unexplained(&response));
    if let Some(failure) = failure {
        let status = response.status();
        let problem = &failure.problem;
        if status.is_server_error() {
            app.failures.fetch_add(1, Ordering::Relaxed);
        }
        tracing::debug!(request_id, %method, path, %status, reason = problem.reason, detail = problem.detail, "refused");
        response = write_out(response, failure, &request_id);
        if method == Method::HEAD {
            *response.body_mut() = axum::body::Body::empty();
        }
    }
    response.headers_mut().insert(VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Unique for ever: epochs are never used twice.
fn next_id(app: &App) -> String {
    format!("c{}-{}", app.epoch.0, app.requests.fetch_add(1, Ordering::Relaxed) + 1)
}

/// What is said where the server would answer what it has `heard`, which is no request, with nothing but this status.
pub(super) fn of_server(app: &App, status: StatusCode, heard: &Heard, turn: &Turn) -> Problem {
    let limits = Limits { fields_max: REQUEST_FIELDS_MAX, head_bytes_max: REQUEST_HEAD_BYTES_MAX };
    let misread = Misread::new(status, heard, turn, limits);
    let status = misread.status;
    let reason = if misread.is_too_large() { Reason::TooLarge } else { Reason::BadRequest };
    let mut failure = Failure::new(reason, misread.detail);
    failure.problem.status = status.as_u16();
    let request_id = next_id(app);
    tracing::debug!(request_id, %status, reason = failure.problem.reason, "refused");
    failure.problem.with_request_id(&request_id)
}

/// A failure that the framework made rather than a handler.
fn unexplained(response: &Response) -> Option<Failure> {
    let status = response.status();
    (status.is_client_error() || status.is_server_error()).then(|| {
        let reason = if status.is_client_error() { Reason::BadRequest } else { Reason::Internal };
        let mut failure = Failure::new(reason, status.canonical_reason().unwrap_or("the request failed"));
        failure.problem.status = status.as_u16();
        failure
    })
}

fn allowed(uri: &Uri, headers: &HeaderMap, loopback: bool) -> Result<(), Failure> {
    if headers.contains_key(CALLBACK_ID_FIELD) {
        let detail = format!("the request has {CALLBACK_ID_FIELD}: callbacks do not call the control API");
        return Err(Failure::new(Reason::CallbackForbidden, detail));
    }
    let host = authority(uri, headers)?;
    if loopback && !is_loopback(host_of(host)) {
        let detail = format!("this API answers to localhost only, not to the host {}", quoted(host));
        return Err(Failure::new(Reason::Forbidden, detail));
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or("");
    let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let named = host_of(host).parse::<IpAddr>().is_err() && !is_loopback(host_of(host));
    if !named && site.is_some_and(|site| site.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    Err(Failure::new(Reason::Forbidden, format!("a page of {} may not call this API", quoted(origin))))
}

/// The host that the client meant to reach.
pub(super) fn authority<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a str, Failure> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().map(|host| host.to_str().unwrap_or(""));
    if hosts.next().is_some() {
        return Err(Failure::new(Reason::BadRequest, "the request has several Host headers"));
    }
    let missing = || Failure::new(Reason::BadRequest, "the request has no Host header");
    uri.authority().map(http::uri::Authority::as_str).or(host).ok_or_else(missing)
}

/// A host without its port; empty when there is anything else before or behind it.
fn host_of(authority: &str) -> &str {
    if authority.contains('@') {
        return "";
    }
    match authority.strip_prefix('[') {
        Some(v6) => v6.split_once(']').map_or("", |(host, _)| host),
        None => match authority.split_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            Some(_) => "",
            None => authority,
        },
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_hosts_and_pages_pass() {
        let cases: [(&str, Option<&str>, bool, u16); 22] = [
            ("localhost:9091", None, true, 0),
            ("LOCALHOST", None, true, 0),
            ("127.0.0.1:9091", None, true, 0),
            ("127.9.9.9", None, true, 0),
            ("[::1]:9091", None, true, 0),
            ("evil.example:9091", None, true, 403),
            ("127.0.0.1.evil.example", None, true, 403),
            ("localhost.evil.example:9091", None, true, 403),
            ("[::1", None, true, 403),
            ("", None, true, 403),
            ("10.0.0.7:9091", None, false, 0),
            ("localhost:9091", Some("http://localhost:9091"), true, 0),
            ("localhost:9091", Some("https://evil.example"), true, 403),
            ("localhost:9091", Some("http://localhost:3000"), true, 403),
            ("localhost:9091", Some("null"), true, 403),
            ("10.0.0.7:9091", Some("http://evil.example"), false, 403),
            ("10.0.0.7:9091", Some("http://10.0.0.7:9091"), false, 0),
            ("fanfare.internal:9091", None, false, 0),
            ("rebound.example:9091", Some("http://rebound.example:9091"), false, 403),
            ("localhost:9091@evil.example", None, true, 403),
            ("localhost@evil.example:9091", None, true, 403),
            ("localhost:evil.example", None, true, 403),
        ];
        for (host, origin, loopback, status) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            }
            let found = allowed(&Uri::from_static("/v1/status"), &headers, loopback);
            assert_eq!(found.err().map_or(0, |f| f.problem.status), status, "{host:?} {origin:?} {loopback}");
        }
    }

    #[test]
    fn a_callback_does_not_pass() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        headers.insert(CALLBACK_ID_FIELD, HeaderValue::from_static("d1-1-a"));
        for loopback in [true, false] {
            let failure = allowed(&Uri::from_static("/v1/functions"), &headers, loopback).unwrap_err();
            assert_eq!((failure.problem.status, &*failure.problem.reason), (403, "callback-forbidden"));
        }
    }

    #[test]
    fn a_request_says_once_where_it_goes() {
        let mut headers = HeaderMap::new();
        let path = Uri::from_static("/");
        assert_eq!(allowed(&path, &headers, true).unwrap_err().problem.status, 400);
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        headers.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert_eq!(allowed(&path, &headers, true).unwrap_err().problem.status, 400);
        let absolute = Uri::from_static("http://evil.example/");
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        assert_eq!(allowed(&absolute, &headers, true).unwrap_err().problem.status, 403);
    }
}
