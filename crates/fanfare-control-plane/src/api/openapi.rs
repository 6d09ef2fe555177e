//! The API's description of itself.

use axum::response::IntoResponse;
use fanfare_api::{LogLineDocument, Problem};
use utoipa::OpenApi;

use super::{blobs, explain, functions, logs, revisions, status};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Fanfare control API",
        description = "Register functions, look at them, and look at the cluster. Every refusal is a problem document \
                       (RFC 9457) with a stable `reason`."
    ),
    paths(
        status::health,
        status::metrics,
        status::cluster,
        status::nodes,
        document,
        functions::list,
        functions::create,
        functions::get,
        functions::put,
        functions::delete,
        functions::prepare,
        revisions::list,
        revisions::rollback,
        logs::logs,
        explain::explain,
        blobs::put,
        blobs::head,
    ),
    components(schemas(Problem, LogLineDocument))
)]
struct Description;

/// The OpenAPI document, as JSON.
#[must_use]
pub fn openapi_document() -> serde_json::Value {
    serde_json::to_value(Description::openapi()).unwrap_or_default()
}

/// This description.
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "cluster",
    responses((status = 200, description = "An OpenAPI 3.1 document", content_type = "application/json"))
)]
pub(super) async fn document() -> impl IntoResponse {
    axum::Json(openapi_document())
}
