//! Revisions: which are kept, and how to go back to one.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use fanfare_api::{
    DeployResult, Problem, RevisionDocument, RevisionFailureDocument, RevisionListDocument, RollbackDocument,
    SandboxCounts, ShareDocument, TargetDocument, TrafficDocument, TrafficResult,
};
use fanfare_engine::FunctionStatus;
use fanfare_types::{FunctionId, Target, Timestamp};
use http::HeaderMap;
use tokio::sync::oneshot;

use super::App;
use super::body;
use super::extract::{Name, document, unread};
use super::functions::{find, register, routed, statuses};
use super::problem::Failure;
use crate::input::Input;
use crate::limits::TRAFFIC_TIMEOUT;
use crate::registry::{Change, Function, Past, Unstartable, unix_ms};

/// The revisions of a function that are kept: the newest 20, those that traffic or a tag names, and the newest that is
/// not known to be broken.
#[utoipa::path(
    get, path = "/v1/functions/{name}/revisions", operation_id = "list_revisions", tag = "revisions", params(("name" = String, Path)),
    responses((status = 200, body = RevisionListDocument), (status = 404, body = Problem))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Name(name): Name,
) -> Result<Json<RevisionListDocument>, Failure> {
    let function = find(&app, &name)?;
    let (now, statuses) = statuses(&app, function.parts(), true).await?;
    let revisions = documents(&function, &statuses, now);
    Ok(Json(RevisionListDocument { name: function.spec.name.to_string(), revisions }))
}

/// Register again what an earlier revision was, as a new one. Without a body it is the newest before the current one
/// that is not known to be broken, so that twice is back where it began.
#[utoipa::path(
    post, path = "/v1/functions/{name}/rollback", tag = "revisions", params(("name" = String, Path)),
    request_body(content = Option<RollbackDocument>),
    responses(
        (status = 200, description = "Updated, or unchanged", body = DeployResult),
        (status = 404, description = "There is no such function, or no such revision is kept", body = Problem),
        (status = 409, description = "No other revision that works is kept", body = Problem),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The body is not JSON", body = Problem),
        (status = 422, description = "A field is wrong", body = Problem),
    )
)]
pub(super) async fn rollback(
    State(app): State<Arc<App>>,
    Name(name): Name,
    headers: HeaderMap,
    content: Body,
) -> Result<Response, Failure> {
    let function = find(&app, &name)?;
    let to = match body::optional_json(&headers, content).await? {
        Some(json) => RollbackDocument::from_json(&json).map_err(|error| unread(&json, error))?.to,
        None => None,
    };
    register(&app, Change::Rollback(function.spec.name.clone(), to), &function.spec).await
}

/// Share a function's requests among its revisions, and set its tags. What is left out of the document stays as it is.
///
/// It is answered when requests are shared so: sandboxes that a revision lacks for its share of what serves now are
/// started before. Where they have not come within 20 seconds, it is answered as pending.
#[utoipa::path(
    put, path = "/v1/functions/{name}/traffic", tag = "revisions", request_body = TrafficDocument,
    params(("name" = String, Path)),
    responses(
        (status = 200, body = TrafficResult),
        (status = 404, description = "There is no such function, or no such revision is kept", body = Problem),
        (
            status = 409, body = Problem,
            description = "A revision that is to get requests is known not to start, or a function has a tag's host",
        ),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The body is not JSON", body = Problem),
        (status = 422, description = "A field is wrong", body = Problem),
    )
)]
pub(super) async fn traffic(
    State(app): State<Arc<App>>,
    Name(name): Name,
    headers: HeaderMap,
    content: Body,
) -> Result<Json<TrafficResult>, Failure> {
    let function = find(&app, &name)?;
    let change = document(&headers, content, TrafficDocument::from_json).await?.check()?;
    let change = Change::Traffic(function.spec.name.clone(), change);
    app.registry.change(change).await.map_err(|error| Failure::registry(&name, error))?;
    let pending = !switched(&app, function.id.function).await?;
    // Every data plane is told in the order in which it came about.
    routed(&app, &name).await;
    let function = find(&app, &name)?;
    let share = |(target, weight): (Target, u32)| ShareDocument { revision: TargetDocument(target), weight };
    Ok(Json(TrafficResult {
        traffic: function.shares().into_iter().map(share).collect(),
        tags: function
            .tags()
            .iter()
            .map(|(tag, target)| (tag.to_string(), TargetDocument(*target)))
            .collect(),
        name,
        pending,
    }))
}

/// Waits until the last change of the function's traffic has taken effect. Whether it has.
async fn switched(app: &App, function: FunctionId) -> Result<bool, Failure> {
    let (answer, answered) = oneshot::channel();
    app.engine.send(Input::Switched { function, answer }).await.map_err(|_| Failure::stopping())?;
    match tokio::time::timeout(TRAFFIC_TIMEOUT, answered).await {
        Ok(answered) => answered.map(|()| true).map_err(|_| Failure::stopping()),
        Err(_) => Ok(false),
    }
}

/// Every revision that is kept, the latest first. `statuses` are those of whatever runs one of them.
pub(super) fn documents(
    function: &Function,
    statuses: &[Option<FunctionStatus>],
    now: Timestamp,
) -> Vec<RevisionDocument> {
    let latest = function.as_past();
    let shares = function.shares();
    let past = function.past.iter().rev().map(|past| &**past);
    let revisions = std::iter::once(&latest).chain(past);
    let document = |past: &Past| {
        let is_latest = past.number == latest.number;
        let names = |target| match target {
            Target::Latest => is_latest,
            Target::Revision(number) => number == past.number,
        };
        let seen = statuses.iter().flatten().find(|status| status.revision == past.number);
        let kept = past.failed.as_deref().map(failure);
        RevisionDocument {
            revision: past.number,
            latest: is_latest,
            created_unix_ms: past.created_unix_ms,
            digest: past.digest.to_string(),
            weight: shares.iter().filter(|(target, _)| names(*target)).map(|(_, percent)| percent).sum(),
            tags: function.tags().iter().filter(|(_, t)| names(*t)).map(|(tag, _)| tag.to_string()).collect(),
            sandboxes: counts(statuses, past.number),
            failure: kept.or_else(|| seen.and_then(|status| seen_failure(status, now))),
        }
    };
    revisions.map(document).collect()
}

fn failure(unstartable: &Unstartable) -> RevisionFailureDocument {
    let Unstartable { at_unix_ms, failure } = unstartable;
    RevisionFailureDocument {
        at_unix_ms: *at_unix_ms,
        reason: failure.kind.reason().code().to_owned(),
        detail: failure.detail.clone(),
        log_tail: failure.log_tail.clone(),
    }
}

/// A failed start that is not kept: another try may pass, or nobody has asked for a proof.
fn seen_failure(status: &FunctionStatus, now: Timestamp) -> Option<RevisionFailureDocument> {
    let last = status.last_failure.as_ref()?;
    let age_ms = u64::try_from(now.since(last.at).as_millis()).unwrap_or(u64::MAX);
    let unstartable =
        Unstartable { at_unix_ms: unix_ms().saturating_sub(age_ms), failure: last.failure.clone() };
    Some(failure(&unstartable))
}

/// Sandboxes of one revision, whichever of the function's parts they belong to.
fn counts(statuses: &[Option<FunctionStatus>], revision: u32) -> SandboxCounts {
    let mut counts = SandboxCounts::default();
    for status in statuses.iter().flatten() {
        if status.revision == revision {
            counts.wanted += status.desired;
        }
        for sandbox in status.sandboxes.iter().filter(|sandbox| sandbox.revision == revision) {
            match sandbox.phase {
                "starting" => counts.starting += 1,
                "ready" => counts.ready += 1,
                _ => counts.stopping += 1,
            }
        }
    }
    counts
}
