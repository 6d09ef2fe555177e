//! Secrets: set, list, look at, delete. Their values come in and never go out.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fanfare_api::{FieldError, Problem, SecretDocument, SecretListDocument, SecretValueDocument};
use fanfare_types::{Reason, SecretName};
use http::{HeaderMap, StatusCode, header};

use super::App;
use super::extract::{self, Name};
use super::functions::routed;
use super::problem::{Failure, quoted};
use crate::registry::{Change, Done, RegistryError, Secret, WEBHOOK};

/// Every secret, without its value.
#[utoipa::path(
    get, path = "/v1/secrets", operation_id = "list_secrets", tag = "secrets",
    responses((status = 200, body = SecretListDocument))
)]
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<SecretListDocument> {
    let secrets = app.registry.secrets();
    let secrets = secrets.iter().map(|(name, secret)| document(&app, name, secret)).collect();
    Json(SecretListDocument { secrets })
}

/// One secret, without its value.
#[utoipa::path(
    get, path = "/v1/secrets/{name}", operation_id = "get_secret", tag = "secrets", params(("name" = String, Path)),
    responses((status = 200, body = SecretDocument), (status = 404, body = Problem))
)]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Name(name): Name,
) -> Result<Json<SecretDocument>, Failure> {
    let checked = SecretName::new(&name).map_err(|_| no_such_secret(&name))?;
    let secret = app.registry.secret(&name).ok_or_else(|| no_such_secret(&name))?;
    Ok(Json(document(&app, &checked, &secret)))
}

/// Set a secret, or give it a new value. When this is answered that is durable.
#[utoipa::path(
    put, path = "/v1/secrets/{name}", operation_id = "put_secret", tag = "secrets", request_body = SecretValueDocument,
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "It has a new value", body = SecretDocument),
        (status = 201, description = "Created", body = SecretDocument),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The body is not JSON", body = Problem),
        (status = 422, description = "The name or the value is wrong, or a function has it as a variable, which it cannot be", body = Problem),
        (status = 507, description = "There are as many secrets as are kept", body = Problem),
    )
)]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    Name(name): Name,
    headers: HeaderMap,
    content: Body,
) -> Result<Response, Failure> {
    let checked = SecretName::new(&name).map_err(|e| {
        let error = FieldError::new("name", format!("{name:?}"), e.to_string());
        Failure::from(FieldError { message: format!("name {e}"), ..error })
    })?;
    let value = extract::document(&headers, content, SecretValueDocument::from_json).await?.value()?;
    let done =
        app.registry.set_secret(checked.clone(), value).await.map_err(|error| refused(&name, error))?;
    // Data planes are being told, for webhooks' sake, whether or not anybody waits here.
    routed(&app, &name).await;
    let Done::SecretSet { version } = done else {
        return Err(Failure::new(Reason::Internal, "setting a secret ended as something else"));
    };
    // It may have been deleted meanwhile.
    let secret = app.registry.secret(&name).ok_or_else(|| no_such_secret(&name))?;
    let answer = Json(SecretDocument { version, ..document(&app, &checked, &secret) });
    Ok(match version {
        1 => {
            (StatusCode::CREATED, [(header::LOCATION, format!("/v1/secrets/{name}"))], answer).into_response()
        }
        _ => answer.into_response(),
    })
}

/// Delete a secret that no function and no webhook uses.
#[utoipa::path(
    delete, path = "/v1/secrets/{name}", operation_id = "delete_secret", tag = "secrets", params(("name" = String, Path)),
    responses(
        (status = 204, description = "Deleted, durably"),
        (status = 404, body = Problem),
        (status = 409, description = "A function or a webhook uses it", body = Problem),
    )
)]
pub(super) async fn delete(State(app): State<Arc<App>>, Name(name): Name) -> Result<StatusCode, Failure> {
    let checked = SecretName::new(&name).map_err(|_| no_such_secret(&name))?;
    let deleted = app.registry.change(Change::DeleteSecret(checked)).await;
    deleted.map_err(|error| refused(&name, error))?;
    routed(&app, &name).await;
    Ok(StatusCode::NO_CONTENT)
}

fn document(app: &App, name: &SecretName, secret: &Secret) -> SecretDocument {
    SecretDocument {
        name: name.to_string(),
        version: secret.version,
        created_unix_ms: secret.created_unix_ms,
        updated_unix_ms: secret.updated_unix_ms,
        used_by: app.registry.users_of(name),
    }
}

fn no_such_secret(name: &str) -> Failure {
    Failure::new(Reason::SecretNotFound, format!("there is no secret {}", quoted(name)))
}

fn refused(name: &str, error: RegistryError) -> Failure {
    match error {
        RegistryError::NotFound => no_such_secret(name),
        RegistryError::InUse { by } => {
            let detail = format!("the secret {name:?} is used by {}", by.join(", "));
            let mut failure = Failure::new(Reason::SecretInUse, detail);
            if let Some(first) = by.first() {
                failure.problem.hint = match first.strip_prefix(WEBHOOK) {
                    Some(webhook) => {
                        format!(
                            "delete the webhook (`fanfare webhook delete {webhook}`), or set it with another secret"
                        )
                    }
                    None => Reason::SecretInUse.hint_for(first),
                };
            }
            failure
        }
        error => Failure::registry(name, error),
    }
}
