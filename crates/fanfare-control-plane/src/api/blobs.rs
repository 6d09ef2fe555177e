//! Code: upload, and whether it is there.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fanfare_api::{BlobDocument, FieldError, Problem};
use fanfare_types::{CodeDigest, Reason, limits::CODE_BYTES_MAX};
use http::{StatusCode, header};

use super::App;
use super::extract::Name;
use super::problem::Failure;
use crate::blobs::UploadError;

/// Upload packed code under its SHA-256. It is kept, durably, when this is answered.
#[utoipa::path(
    put, path = "/v1/blobs/{digest}", operation_id = "put_blob", tag = "code",
    params(("digest" = String, Path, description = "SHA-256 of the body, 64 hexadecimal digits")),
    request_body(content_type = "application/octet-stream", content = inline(Vec<u8>), description = "A tar archive"),
    responses(
        (status = 201, body = BlobDocument),
        (status = 413, body = Problem),
        (status = 422, description = "The bytes have another digest", body = Problem),
    )
)]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    Name(digest): Name,
    content: Body,
) -> Result<Response, Failure> {
    let digest = parse(&digest)?;
    if content.size_hint().lower() > CODE_BYTES_MAX {
        return Err(failure(&UploadError::TooLarge { limit: CODE_BYTES_MAX }));
    }
    let size_bytes =
        app.blobs.upload(digest, content.into_data_stream()).await.map_err(|error| failure(&error))?;
    let document = BlobDocument { digest: digest.to_string(), size_bytes };
    let location = [(header::LOCATION, format!("/v1/blobs/{digest}"))];
    Ok((StatusCode::CREATED, location, Json(document)).into_response())
}

/// Whether code was uploaded. If it was, it stays for at least the grace from now on.
#[utoipa::path(
    head, path = "/v1/blobs/{digest}", tag = "code", params(("digest" = String, Path)),
    responses(
        (status = 200, description = "It is there; its length is the content length"),
        (status = 404, description = "It is not"),
        (status = 422, description = "The digest is none"),
    )
)]
pub(super) async fn head(State(app): State<Arc<App>>, Name(digest): Name) -> Result<Response, Failure> {
    let digest = parse(&digest)?;
    let missing = || {
        let mut failure = Failure::new(Reason::CodeNotFound, format!("the code {digest} was not uploaded"));
        failure.problem.status = StatusCode::NOT_FOUND.as_u16();
        failure
    };
    if !app.blobs.touch(digest) {
        return Err(missing());
    }
    let size_bytes = app.blobs.size_bytes(digest).await.map_err(|_| missing())?;
    Ok([(header::CONTENT_LENGTH, size_bytes)].into_response())
}

fn parse(digest: &str) -> Result<CodeDigest, Failure> {
    digest.parse().map_err(|allowed: &str| FieldError::new("digest", format!("{digest:?}"), allowed).into())
}

fn failure(error: &UploadError) -> Failure {
    let detail = error.to_string();
    match error {
        UploadError::Mismatch { .. } => Failure::new(Reason::CodeMismatch, detail),
        UploadError::TooLarge { limit } => {
            let mut failure = Failure::new(Reason::TooLarge, detail);
            failure.problem.limit = Some(limit.to_string());
            failure
        }
        UploadError::Interrupted(_) => Failure::new(Reason::BadRequest, detail),
        UploadError::Busy => Failure::new(Reason::Unavailable, detail),
        UploadError::Disk(_) => {
            tracing::error!(%error, "an upload failed");
            Failure::new(Reason::Unavailable, detail)
        }
    }
}
