//! What is refused for its form: it could be read in two ways, or cannot be passed on.
//!
//! The server has refused by then what it cannot read at all, and repeats of `Content-Length` that differ; of
//! `Content-Length` beside `Transfer-Encoding` it takes the latter, and ends the connection after the answer (RFC 9112,
//! section 6.1).

use fanfare_types::Reason;
use fanfare_types::limits::REQUEST_FIELDS_MAX;
use http::header::{COOKIE, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Method, StatusCode, Version, request};

use crate::problem::Problem;

/// Refuses a request before it takes a place in a queue.
pub(crate) fn check(parts: &request::Parts) -> Result<(), Problem> {
    let bad = |detail: &'static str| Err(Problem::new(Reason::BadRequest, detail));
    if parts.method == Method::CONNECT {
        return bad("CONNECT is not supported");
    }
    match parts.uri.path_and_query().map(|target| target.as_str()) {
        None => return bad("the target names no path"),
        Some("*") if parts.method != Method::OPTIONS => return bad("only OPTIONS may be for \"*\""),
        Some(_) => {}
    }
    check_host(parts)?;
    check_fields(parts)?;
    let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    let only_chunked = codings.next().is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if !only_chunked || codings.next().is_some() {
        // The server has taken `chunked` off, and would pass the rest on as if it were the body.
        let detail = "the only transfer coding is chunked, once";
        return Err(Problem::new(Reason::BadRequest, detail).with_status(StatusCode::NOT_IMPLEMENTED));
    }
    Ok(())
}

/// One host, that is a host (RFC 9112, section 3.2; RFC 9113, section 8.3.1).
fn check_host(parts: &request::Parts) -> Result<(), Problem> {
    let bad = |detail: &'static str| Err(Problem::new(Reason::BadRequest, detail));
    let mut fields = parts.headers.get_all(HOST).iter();
    let field = fields.next();
    if fields.next().is_some() {
        return bad("there is more than one Host field");
    }
    if field.is_some_and(|host| !is_host(host)) {
        return bad("the Host field names no host");
    }
    match (parts.uri.authority(), field) {
        (Some(authority), _) if authority.as_str().contains('@') => bad("the target names a user"),
        (Some(authority), Some(host)) if parts.version == Version::HTTP_2 => {
            if host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) {
                Ok(())
            } else {
                bad("the Host field and :authority differ")
            }
        }
        (None, None) if parts.version == Version::HTTP_11 => bad("there is no Host field"),
        _ => Ok(()),
    }
}

/// The characters of a host and a port (RFC 3986, section 3.2.2), none of which could end it.
fn is_host(value: &HeaderValue) -> bool {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte);
    value.as_bytes().iter().all(part)
}

/// HTTP/1 is read with this limit; each cookie of HTTP/2 may have a field of its own.
fn check_fields(parts: &request::Parts) -> Result<(), Problem> {
    if parts.version != Version::HTTP_2 || parts.headers.len() <= REQUEST_FIELDS_MAX {
        return Ok(());
    }
    let crumbs = parts.headers.get_all(COOKIE).iter().count().saturating_sub(1);
    let fields = parts.headers.len() - crumbs;
    if fields <= REQUEST_FIELDS_MAX {
        return Ok(());
    }
    let detail = format!("the head has {fields} fields; at most {REQUEST_FIELDS_MAX} are taken");
    Err(Problem::new(Reason::TooLarge, detail).with_status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE))
}
