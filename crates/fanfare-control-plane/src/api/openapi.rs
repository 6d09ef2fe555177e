//! The API's description of itself.

use axum::response::IntoResponse;
use fanfare_api::{
    LogLineDocument, PROBLEM_CONTENT_TYPE, Problem, constrain, digest_schema, duration_text_schema,
    name_schema,
};
use fanfare_types::{Reason, limits::REQUEST_ID_LEN_MAX};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::{blobs, explain, functions, logs, revisions, schedules, secrets, status, webhooks};
use crate::limits::{LIST_LIMIT_MAX, LOG_TAIL_MAX};

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
        revisions::traffic,
        schedules::list,
        schedules::get,
        schedules::put,
        schedules::delete,
        schedules::pause,
        schedules::resume,
        schedules::run,
        logs::logs,
        secrets::list,
        secrets::get,
        secrets::put,
        secrets::delete,
        webhooks::list,
        webhooks::get,
        webhooks::put,
        webhooks::delete,
        explain::explain,
        blobs::put,
        blobs::head,
    ),
    components(schemas(Problem, LogLineDocument))
)]
struct Description;

/// What any request may be answered with.
const REFUSALS: &[(&str, &str)] = &[
    ("400", "Malformed, or over a limit of the protocol"),
    ("403", "A web page of another site, or another host, asks"),
    ("500", "A bug"),
    ("503", "Not now: it stops, or has too much of this to do"),
];

/// The OpenAPI document, as JSON.
#[must_use]
pub fn openapi_document() -> Value {
    let mut document = serde_json::to_value(Description::openapi()).unwrap_or_default();
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        constrain(schemas);
        restrict_reasons(schemas);
    }
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for item in paths.into_iter().flat_map(Map::values_mut) {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            complete(operation, method == "head");
        }
    }
    document
}

/// This description.
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "cluster",
    responses((status = 200, description = "An OpenAPI 3.1 document", content_type = "application/json"))
)]
pub(super) async fn document() -> impl IntoResponse {
    axum::Json(openapi_document())
}

/// Problems say one of the reasons there are.
fn restrict_reasons(schemas: &mut Map<String, Value>) {
    let codes: Vec<&str> = Reason::ALL.iter().map(|reason| reason.code()).collect();
    if let Some(reason) =
        schemas.get_mut("Problem").and_then(|problem| problem.pointer_mut("/properties/reason"))
    {
        reason["enum"] = json!(codes);
    }
}

/// What holds for every operation is said once, here.
fn complete(operation: &mut Value, bodiless: bool) {
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        let schema = match parameter["name"].as_str() {
            Some("name") => name_schema(),
            Some("digest") => digest_schema(),
            Some("id" | "request") => {
                json!({"type": "string", "minLength": 1, "maxLength": REQUEST_ID_LEN_MAX, "pattern": "^[!-~]+$"})
            }
            Some("since") => duration_text_schema(),
            Some("sandbox") => json!({"type": "string", "pattern": "^s[0-9A-Fa-f]{1,16}$"}),
            Some("limit") => json!({"type": "integer", "minimum": 1, "maximum": LIST_LIMIT_MAX}),
            Some("tail") => json!({"type": "integer", "minimum": 0, "maximum": LOG_TAIL_MAX}),
            _ => continue,
        };
        parameter["schema"] = schema;
    }
    let raw = operation.pointer_mut("/requestBody/content/application~1octet-stream/schema");
    if let Some(schema) = raw {
        *schema = json!({"type": "string", "format": "binary"});
    }
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    for (status, description) in REFUSALS {
        let problem = json!({"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
        let response = if bodiless {
            json!({"description": description})
        } else {
            json!({"description": description, "content": problem})
        };
        responses.entry(*status).or_insert(response);
    }
    for (status, response) in responses {
        let refused = status.starts_with(['4', '5']);
        if let Some(content) = response.get_mut("content").and_then(Value::as_object_mut)
            && refused
            && let Some(problem) = content.remove("application/json")
        {
            content.insert(PROBLEM_CONTENT_TYPE.to_owned(), problem);
        }
        response["headers"] = headers(status, refused);
    }
}

fn headers(status: &str, refused: bool) -> Value {
    let header = |description: &str| json!({"description": description, "required": true, "schema": {"type": "string", "minLength": 1}});
    let mut headers = json!({
        "X-Request-Id": header("Names the request in logs"),
        "X-Fanfare-Version": header("The release that answers"),
    });
    if refused {
        headers["X-Fanfare-Reason"] = header("The stable code of why");
    }
    if status == "503" {
        headers["Retry-After"] = header("Seconds after which another try may help");
    }
    if status == "201" {
        headers["Location"] = header("Where what was made is described");
    }
    headers
}
