//! What requests say: a name in the path, a page of a list, a document in the body. What cannot be read is refused as
//! everything else is.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use fanfare_api::FieldError;
use fanfare_types::{FunctionName, Reason};
use http::HeaderMap;
use http::request::Parts;
use serde::de::IgnoredAny;

use super::body;
use super::problem::{Failure, quoted};
use super::query::Parameters;
use crate::limits::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX};

/// The parameter of the path.
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Name(name)),
            Err(rejection) => Err(unreadable(&rejection, parts.uri.path())),
        }
    }
}

fn unreadable(rejection: &PathRejection, path: &str) -> Failure {
    let parameter = match rejection {
        PathRejection::FailedToDeserializePathParams(why) => match why.kind() {
            ErrorKind::InvalidUtf8InPathParam { key } => Some(key.clone()),
            _ => None,
        },
        _ => None,
    };
    let Some(parameter) = parameter else {
        return Failure::new(Reason::BadRequest, format!("the path {} names nothing", quoted(path)));
    };
    let (value, limit) = (quoted(path), "UTF-8, percent-encoded");
    let detail = format!("{parameter}, in the path {value}, is not text; allowed: {limit}");
    let mut failure = Failure::new(Reason::BadRequest, detail);
    failure.problem.field = Some(parameter);
    failure.problem.value = Some(value);
    failure.problem.limit = Some(limit.to_owned());
    failure
}

/// Which part of a list is wanted.
pub(super) struct Page {
    /// At most so many.
    pub(super) limit: usize,
    /// Only names after this one.
    pub(super) after: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let query = Parameters::read(&parts.uri, &["limit", "after"])?;
        let limit = query.number("limit", LIST_LIMIT_DEFAULT, 1..=LIST_LIMIT_MAX)?;
        Ok(Page { limit: limit as usize, after: query.text("after").map(str::to_owned) })
    }
}

/// The document of a JSON body.
pub(super) async fn document<T>(
    headers: &HeaderMap,
    content: Body,
    read: fn(&[u8]) -> Result<T, FieldError>,
) -> Result<T, Failure> {
    let json = body::json(headers, content).await?;
    read(&json).map_err(|error| unread(&json, error))
}

/// No field is wrong when there is no document.
pub(super) fn unread(json: &[u8], error: FieldError) -> Failure {
    match serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(json) {
        Ok(_) => error.into(),
        Err(_) => Failure::new(Reason::BadRequest, error.message),
    }
}

/// A document that names another thing than its path does is refused.
pub(super) fn as_in_path(name: &FunctionName, path: &str) -> Result<(), FieldError> {
    match name.as_str() == path {
        true => Ok(()),
        false => {
            Err(FieldError::new("name", format!("{:?}", name.as_str()), format!("{path:?}, as in the path")))
        }
    }
}
