//! Webhooks: set, list, look at, delete.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fanfare_api::{
    DeployOutcome, Problem, WebhookDocument, WebhookListDocument, WebhookResult, WebhookStatusDocument,
};
use fanfare_types::{FunctionName, Reason, WebhookSpec};
use http::{HeaderMap, StatusCode, header};

use super::App;
use super::extract::{self, Name, Page};
use super::functions::routed;
use super::problem::{Failure, quoted};
use crate::webhooks::{Change, Done, Webhook, WebhookError};

/// Set a webhook: a path on every data plane, `/webhook/NAME`, that calls a function for senders that show that they know
/// a secret. The same content again changes nothing.
///
/// The function sees method, path, headers and body as they came, without a token that was believed, and the webhook's
/// name in `X-Fanfare-Webhook`. A call is an asynchronous invocation, once under the sender's own id of the delivery
/// (`X-GitHub-Delivery`, `webhook-id`, Stripe's signature); with `wait` the sender gets the function's answer instead.
#[utoipa::path(
    put, path = "/v1/webhooks/{name}", operation_id = "put_webhook", tag = "webhooks", request_body = WebhookDocument,
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "Updated, or unchanged", body = WebhookResult),
        (status = 201, description = "Created", body = WebhookResult),
        (status = 404, description = "There is no such function, or no such secret", body = Problem),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The body is not JSON", body = Problem),
        (status = 422, description = "A field is wrong", body = Problem),
        (status = 507, description = "There are as many webhooks as are kept", body = Problem),
    )
)]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    Name(name): Name,
    headers: HeaderMap,
    content: Body,
) -> Result<Response, Failure> {
    let document = extract::document(&headers, content, WebhookDocument::from_json).await?;
    let spec = WebhookSpec::try_from(document)?;
    extract::as_in_path(&spec.name, &name)?;
    let change = Change::Set(Arc::new(spec));
    let done = app.webhooks.change(change).await.map_err(|error| failure(&name, error))?;
    routed(&app, &name).await;
    let path = url_path(&name);
    let result = |outcome| Json(WebhookResult { name: name.clone(), path: path.clone(), outcome });
    Ok(match done {
        Done::Created => {
            let location = [(header::LOCATION, format!("/v1/webhooks/{name}"))];
            (StatusCode::CREATED, location, result(DeployOutcome::Created)).into_response()
        }
        Done::Updated => result(DeployOutcome::Updated).into_response(),
        Done::Unchanged => result(DeployOutcome::Unchanged).into_response(),
        Done::Deleted => {
            return Err(Failure::new(Reason::Internal, "setting a webhook ended as something else"));
        }
    })
}

/// Webhooks in the order of their names.
#[utoipa::path(
    get, path = "/v1/webhooks", operation_id = "list_webhooks", tag = "webhooks",
    params(
        ("limit" = Option<u32>, Query, description = "At most so many: 1 to 1000, default 100"),
        ("after" = Option<String>, Query, description = "Only names after this one: `next` of the page before"),
    ),
    responses((status = 200, body = WebhookListDocument), (status = 422, body = Problem))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    page: Page,
) -> Result<Json<WebhookListDocument>, Failure> {
    let (page, more) = app.webhooks.page(page.after.as_deref(), page.limit);
    let next = page.last().filter(|_| more).map(|webhook| webhook.spec.name.to_string());
    Ok(Json(WebhookListDocument { webhooks: page.iter().map(|w| status(&app, w)).collect(), next }))
}

/// One webhook.
#[utoipa::path(
    get, path = "/v1/webhooks/{name}", operation_id = "get_webhook", tag = "webhooks", params(("name" = String, Path)),
    responses((status = 200, body = WebhookStatusDocument), (status = 404, body = Problem))
)]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Name(name): Name,
) -> Result<Json<WebhookStatusDocument>, Failure> {
    let webhook = app.webhooks.get(&name).ok_or_else(|| failure(&name, WebhookError::NotFound))?;
    Ok(Json(status(&app, &webhook)))
}

/// Delete a webhook. What it has called goes on.
#[utoipa::path(
    delete, path = "/v1/webhooks/{name}", operation_id = "delete_webhook", tag = "webhooks",
    params(("name" = String, Path)),
    responses((status = 204, description = "Deleted, durably"), (status = 404, body = Problem))
)]
pub(super) async fn delete(State(app): State<Arc<App>>, Name(name): Name) -> Result<StatusCode, Failure> {
    let checked = FunctionName::new(&name).map_err(|_| failure(&name, WebhookError::NotFound))?;
    app.webhooks.change(Change::Delete(checked)).await.map_err(|error| failure(&name, error))?;
    routed(&app, &name).await;
    Ok(StatusCode::NO_CONTENT)
}

fn url_path(name: &str) -> String {
    format!("/webhook/{name}")
}

fn status(app: &App, webhook: &Webhook) -> WebhookStatusDocument {
    let spec = &webhook.spec;
    WebhookStatusDocument {
        webhook: WebhookDocument::from(&**spec),
        path: url_path(spec.name.as_str()),
        created_unix_ms: webhook.created_unix_ms,
        function_exists: app.registry.function(spec.function.as_str()).is_some(),
        secret_exists: app.registry.secret(spec.secret.as_str()).is_some(),
    }
}

fn failure(name: &str, error: WebhookError) -> Failure {
    let of_field = |reason, field: &str, detail: String| {
        let mut failure = Failure::new(reason, detail);
        failure.problem.field = Some(field.to_owned());
        failure
    };
    match error {
        WebhookError::NotFound => {
            Failure::new(Reason::WebhookNotFound, format!("there is no webhook {}", quoted(name)))
        }
        WebhookError::NoFunction(_) => of_field(Reason::FunctionNotFound, "function", error.to_string()),
        WebhookError::NoSecret(_) => of_field(Reason::SecretNotFound, "secret", error.to_string()),
        WebhookError::Full { limit } => {
            let mut failure = Failure::new(Reason::RegistryFull, format!("{error}, which is the limit"));
            failure.problem.limit = Some(limit.to_string());
            failure
        }
        WebhookError::Unavailable(why) => Failure::new(Reason::Unavailable, why),
    }
}
