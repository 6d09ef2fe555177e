//! Bodies and parameters, bounded before they are parsed.

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use fanfare_types::Reason;
use fanfare_types::limits::{API_BODY_BYTES_MAX, FORM_BYTES_MAX};
use http::{HeaderMap, header};
use http_body_util::BodyExt;

use super::problem::{Failure, quoted};
use crate::limits::API_BODY_TIMEOUT;

const FORM: &str = "application/x-www-form-urlencoded";

/// A JSON body, whole.
pub(super) async fn json(headers: &HeaderMap, body: Body) -> Result<Bytes, Failure> {
    check_media_type(headers)?;
    whole(body, API_BODY_BYTES_MAX).await
}

/// A form, whole.
pub(super) async fn form(body: Body) -> Result<Bytes, Failure> {
    whole(body, FORM_BYTES_MAX).await
}

/// Whether a body is said to be a form.
pub(super) fn is_form(headers: &HeaderMap) -> bool {
    media_type(headers).eq_ignore_ascii_case(FORM)
}

/// What is said to whoever sends a form as anything else.
pub(super) fn not_a_form(headers: &HeaderMap) -> Failure {
    wrong_media_type(media_type(headers), FORM)
}

/// A JSON body, whole, if there is one; `null` is none.
pub(super) async fn optional_json(headers: &HeaderMap, body: Body) -> Result<Option<Bytes>, Failure> {
    let body = whole(body, API_BODY_BYTES_MAX).await?;
    if body.is_empty() {
        return Ok(None);
    }
    check_media_type(headers)?;
    Ok((body.trim_ascii() != b"null").then_some(body))
}

fn media_type(headers: &HeaderMap) -> &str {
    let given = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("not text"));
    given.unwrap_or("none").split(';').next().unwrap_or("").trim()
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Failure> {
    let media_type = media_type(headers);
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(wrong_media_type(media_type, "application/json"))
}

fn wrong_media_type(given: &str, wanted: &str) -> Failure {
    let given = quoted(given);
    let mut failure =
        Failure::new(Reason::UnsupportedMediaType, format!("the content type is {given}; send {wanted}"));
    failure.problem.field = Some("content-type".to_owned());
    failure.problem.value = Some(given);
    failure.problem.limit = Some(wanted.to_owned());
    failure
}

async fn whole(body: Body, bytes_max: usize) -> Result<Bytes, Failure> {
    match tokio::time::timeout(API_BODY_TIMEOUT, collect(body, bytes_max)).await {
        Ok(collected) => collected,
        Err(_) => {
            let detail = format!("the body did not arrive within {API_BODY_TIMEOUT:?}");
            Err(Failure::new(Reason::BadRequest, detail))
        }
    }
}

async fn collect(mut body: Body, bytes_max: usize) -> Result<Bytes, Failure> {
    let too_large = || {
        let detail = format!("the body has more than {bytes_max} bytes, which is the limit");
        let mut failure = Failure::new(Reason::TooLarge, detail);
        failure.problem.limit = Some(bytes_max.to_string());
        failure
    };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| Failure::new(Reason::BadRequest, format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > bytes_max {
            return Err(too_large());
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}
