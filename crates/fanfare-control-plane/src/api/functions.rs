//! Functions: register, list, describe, delete, prepare.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fanfare_api::{
    DecisionDocument, DeployOutcome, DeployResult, FailedName, FailureCountDocument, FailureDocument,
    FunctionDocument, FunctionListDocument, FunctionState, FunctionStatusDocument, FunctionSummaryDocument,
    HandlerDocument, LoadDocument, PrepareResult, Problem, SandboxCounts,
};
use fanfare_engine::{Failed, FailureCount, FunctionStatus};
use fanfare_types::{FunctionId, FunctionSpec, Reason, RevisionId, StartFailure, Timestamp};
use http::{HeaderMap, StatusCode, header};
use tokio::sync::oneshot;

use super::App;
use super::extract::{self, Name, Page};
use super::problem::Failure;
use super::revisions;
use crate::input::Input;
use crate::limits::{PREPARE_GRACE, ROUTED_TIMEOUT};
use crate::registry::{Change, Done, Function, unix_ms};

/// Register a new function. When this is answered it exists, durably, and every connected data plane knows it, those
/// apart that have not confirmed it within a second.
#[utoipa::path(
    post, path = "/v1/functions", tag = "functions", request_body = FunctionDocument,
    responses(
        (status = 201, body = DeployResult),
        (status = 409, description = "There is a function of that name, or a tag of that host", body = Problem),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The body is not JSON", body = Problem),
        (status = 422, description = "A field is wrong, fields disagree, or the code was not uploaded", body = Problem),
        (status = 507, description = "There are as many functions as are kept", body = Problem),
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    content: Body,
) -> Result<Response, Failure> {
    let spec = checked(&app, extract::document(&headers, content, FunctionDocument::from_json).await?)?;
    register(&app, Change::Create(spec.clone()), &spec).await
}

/// Register a function, or a new revision of it. The same content again changes nothing.
#[utoipa::path(
    put, path = "/v1/functions/{name}", tag = "functions", request_body = FunctionDocument,
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "Updated, or unchanged", body = DeployResult),
        (status = 201, description = "Created", body = DeployResult),
        (status = 409, description = "A tag has that name as its host", body = Problem),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The body is not JSON", body = Problem),
        (status = 422, description = "A field is wrong, fields disagree, or the code was not uploaded", body = Problem),
        (status = 507, description = "There are as many functions as are kept", body = Problem),
    )
)]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    Name(name): Name,
    headers: HeaderMap,
    content: Body,
) -> Result<Response, Failure> {
    let spec = checked(&app, extract::document(&headers, content, FunctionDocument::from_json).await?)?;
    extract::as_in_path(&spec.name, &name)?;
    register(&app, Change::Put(spec.clone()), &spec).await
}

/// Functions in the order of their names.
#[utoipa::path(
    get, path = "/v1/functions", tag = "functions",
    params(
        ("limit" = Option<u32>, Query, description = "At most so many: 1 to 1000, default 100"),
        ("after" = Option<String>, Query, description = "Only names after this one: `next` of the page before"),
    ),
    responses((status = 200, body = FunctionListDocument), (status = 422, body = Problem))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    page: Page,
) -> Result<Json<FunctionListDocument>, Failure> {
    let (page, more) = app.registry.page(page.after.as_deref(), page.limit);
    let (_, statuses) = statuses(&app, page.iter().map(|f| f.id.function).collect(), false).await?;
    let next = page.last().filter(|_| more).map(|f| f.spec.name.to_string());
    let functions =
        page.iter().zip(statuses).map(|(function, status)| summary(function, status.as_ref())).collect();
    Ok(Json(FunctionListDocument { functions, next }))
}

/// One function in full: as registered, its sandboxes, its last decisions and its last failure.
#[utoipa::path(
    get, path = "/v1/functions/{name}", tag = "functions", params(("name" = String, Path)),
    responses((status = 200, body = FunctionStatusDocument), (status = 404, body = Problem))
)]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Name(name): Name,
) -> Result<Json<FunctionStatusDocument>, Failure> {
    let function = find(&app, &name)?;
    let (now, statuses) = statuses(&app, function.parts(), true).await?;
    Ok(Json(describe(&function, &statuses, now)))
}

/// Delete a function. Its name is free at once; requests under way finish, waiting ones are refused.
#[utoipa::path(
    delete, path = "/v1/functions/{name}", tag = "functions", params(("name" = String, Path)),
    responses((status = 204, description = "Deleted, durably"), (status = 404, body = Problem))
)]
pub(super) async fn delete(State(app): State<Arc<App>>, Name(name): Name) -> Result<StatusCode, Failure> {
    let function = find(&app, &name)?;
    let change = Change::Delete(function.spec.name.clone());
    app.registry.change(change).await.map_err(|error| Failure::registry(&name, error))?;
    routed(&app, &name).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Make code, dependencies and template of the current revision ready on one node, and prove that a sandbox starts.
/// What is found is kept, also where the caller does not wait for it: a revision that cannot start, or that has never
/// started and does not within its start timeout, gets no requests while an earlier one works.
#[utoipa::path(
    post, path = "/v1/functions/{name}/prepare", tag = "functions", params(("name" = String, Path)),
    responses(
        (status = 200, body = PrepareResult),
        (status = 404, body = Problem),
        (status = 503, description = "It does not start; the problem has the last lines of its log", body = Problem),
    )
)]
pub(super) async fn prepare(
    State(app): State<Arc<App>>,
    Name(name): Name,
) -> Result<Json<PrepareResult>, Failure> {
    let function = find(&app, &name)?;
    let began = Instant::now();
    let limit = function.spec.timeouts.start + PREPARE_GRACE;
    let (answer, answered) = oneshot::channel();
    let prepare = Input::Prepare { revision: function.id, spec: function.spec.clone(), answer };
    app.engine.send(prepare).await.map_err(|_| Failure::stopping())?;
    let result = tokio::time::timeout(limit, answered).await;
    if matches!(result, Ok(Ok(_))) {
        // Another revision may serve from now on.
        routed(&app, function.spec.name.as_str()).await;
    }
    match result {
        Ok(Ok(Ok(node))) => Ok(Json(PrepareResult {
            name: function.spec.name.to_string(),
            revision: function.id.number,
            node: node.to_string(),
            elapsed_ms: began.elapsed().as_secs_f64() * 1e3,
        })),
        Ok(Ok(Err(failure))) => {
            let mut told = Failure::from(&failure);
            told.problem.hint = failure.kind.reason().hint_for(function.spec.name.as_str());
            Err(told)
        }
        Ok(Err(_)) => Err(Failure::new(Reason::Unavailable, "too many preparations are under way")),
        Err(_) => {
            let detail = format!("no node has prepared revision {} within {limit:?}", function.id.number);
            Err(Failure::new(Reason::StartTimeout, detail))
        }
    }
}

pub(super) fn find(app: &App, name: &str) -> Result<Function, Failure> {
    app.registry.function(name).ok_or_else(|| Failure::no_such_function(name))
}

fn checked(app: &App, document: FunctionDocument) -> Result<Arc<FunctionSpec>, Failure> {
    let spec = FunctionSpec::try_from(document)?;
    if let Some(digest) = spec.code
        && !app.blobs.touch(digest)
    {
        let mut failure = Failure::new(Reason::CodeNotFound, format!("the code {digest} was not uploaded"));
        failure.problem.field = Some("code".to_owned());
        return Err(failure);
    }
    Ok(Arc::new(spec))
}

pub(super) async fn register(app: &App, change: Change, spec: &FunctionSpec) -> Result<Response, Failure> {
    let name = spec.name.as_str();
    let (id, outcome) = registered(app, change, name).await?;
    let result =
        DeployResult { name: name.to_owned(), id: id.function.to_string(), revision: id.number, outcome };
    Ok(match outcome {
        DeployOutcome::Created => {
            let location = [(header::LOCATION, format!("/v1/functions/{name}"))];
            (StatusCode::CREATED, location, Json(result)).into_response()
        }
        DeployOutcome::Updated | DeployOutcome::Unchanged => Json(result).into_response(),
    })
}

/// Makes a registration durable and known to every connected data plane.
pub(super) async fn registered(
    app: &App,
    change: Change,
    name: &str,
) -> Result<(RevisionId, DeployOutcome), Failure> {
    let done = app.registry.change(change).await.map_err(|error| Failure::registry(name, error))?;
    routed(app, name).await;
    match done {
        Done::Created(id) => Ok((id, DeployOutcome::Created)),
        Done::Updated(id) => Ok((id, DeployOutcome::Updated)),
        Done::Unchanged(id) => Ok((id, DeployOutcome::Unchanged)),
        Done::Deleted | Done::Routed | Done::Noted | Done::SecretSet { .. } | Done::Peer(_) => {
            Err(Failure::new(Reason::Internal, "a registration ended as something else"))
        }
    }
}

/// Waits until every connected data plane knows of a change, so that whoever reads the answer can act on it by any of
/// them. The change stands either way.
pub(super) async fn routed(app: &App, name: &str) {
    let (answer, answered) = oneshot::channel();
    // An error is the end of the control plane.
    let wait = async { app.engine.send(Input::Barrier { answer }).await.is_ok() && answered.await.is_ok() };
    if tokio::time::timeout(ROUTED_TIMEOUT, wait).await.is_err() {
        tracing::warn!(function = name, timeout = ?ROUTED_TIMEOUT, "a data plane has not confirmed the change yet");
    }
}

/// What the engine says about functions, and its time.
pub(super) async fn statuses(
    app: &App,
    ids: Vec<FunctionId>,
    in_full: bool,
) -> Result<(Timestamp, Vec<Option<FunctionStatus>>), Failure> {
    let (answer, answered) = oneshot::channel();
    app.engine.send(Input::Functions { in_full, ids, answer }).await.map_err(|_| Failure::stopping())?;
    answered.await.map_err(|_| Failure::stopping())
}

fn summary(function: &Function, status: Option<&FunctionStatus>) -> FunctionSummaryDocument {
    FunctionSummaryDocument {
        kind: HandlerDocument::from(&function.spec.contract).kind().to_owned(),
        name: function.spec.name.to_string(),
        revision: function.id.number,
        runtime: function.spec.runtime.to_string(),
        state: state(function, status),
        sandboxes: counts(status),
        load: status.map(load).unwrap_or_default(),
    }
}

fn load(status: &FunctionStatus) -> LoadDocument {
    LoadDocument {
        in_flight: status.in_flight,
        queued: status.queued,
        requests_per_second: status.requests_per_second,
        execution_ms: status.execution.map(|execution| execution.as_secs_f64() * 1e3),
        failed: status.failed,
        last_reason: status.last_reason.map(|reason| reason.code().to_owned()),
        lacks_room: status.lacks_room,
    }
}

/// `statuses` are those of whatever runs one of its revisions, the latest first.
fn describe(
    function: &Function,
    statuses: &[Option<FunctionStatus>],
    now: Timestamp,
) -> FunctionStatusDocument {
    let status = statuses.first().and_then(Option::as_ref);
    FunctionStatusDocument {
        function: FunctionDocument::from(&*function.spec),
        id: function.id.function.to_string(),
        revision: function.id.number,
        serving_revision: function.serving().0.number,
        state: state(function, status),
        sandboxes: counts(status),
        lacks_room: status.is_some_and(|status| status.lacks_room),
        in_flight: status.map_or(0, |status| status.in_flight),
        queued: status.map_or(0, |status| status.queued),
        execution_ms: status.and_then(|s| s.execution).map(|execution| execution.as_secs_f64() * 1e3),
        decisions: status.map(|status| decisions(status, now)).unwrap_or_default(),
        failures: status.map(|status| failures(status, now)).unwrap_or_default(),
        last_failure: last_failure(function, status, now),
        traffic_pending: status.is_some_and(|status| status.traffic_pending),
        revisions: revisions::documents(function, statuses, now),
    }
}

/// Why the last start failed: of the revision that serves; of the current one where another serves in its place.
fn last_failure(
    function: &Function,
    status: Option<&FunctionStatus>,
    now: Timestamp,
) -> Option<FailureDocument> {
    let document = |age_s, failure: &StartFailure| FailureDocument {
        age_s,
        reason: failure.kind.reason().code().to_owned(),
        detail: failure.detail.clone(),
        revision: function.id.number,
        node: None,
        log_tail: failure.log_tail.clone(),
    };
    if let Some(failed) = function.failed.as_ref().filter(|_| function.stand_in.is_some()) {
        let age = Duration::from_millis(unix_ms().saturating_sub(failed.at_unix_ms));
        return Some(document(age.as_secs_f64(), &failed.failure));
    }
    let last = status?.last_failure.as_ref()?;
    Some(document(now.since(last.at).as_secs_f64(), &last.failure))
}

/// The latest first.
fn failures(status: &FunctionStatus, now: Timestamp) -> Vec<FailureCountDocument> {
    let document = |count: &FailureCount| FailureCountDocument {
        failed: match count.failed {
            Failed::Requests => FailedName::Requests,
            Failed::Sandboxes => FailedName::Sandboxes,
        },
        reason: count.reason.code().to_owned(),
        count: count.count,
        age_s: now.since(count.at).as_secs_f64(),
        detail: count.detail.to_string(),
        request_id: count.request_id.to_string(),
        log_tail: count.log_tail.to_string(),
    };
    let mut documents: Vec<_> = status.failures.iter().map(document).collect();
    documents.sort_by(|a, b| a.age_s.total_cmp(&b.age_s));
    documents
}

/// Newest first; each with the number before it.
pub(super) fn decisions(status: &FunctionStatus, now: Timestamp) -> Vec<DecisionDocument> {
    let mut before = 0;
    let mut documents: Vec<_> = status
        .decisions
        .iter()
        .map(|decision| DecisionDocument {
            age_s: now.since(decision.at).as_secs_f64(),
            from: std::mem::replace(&mut before, decision.sandboxes),
            to: decision.sandboxes,
            reason: decision.reason.to_string(),
        })
        .collect();
    documents.reverse();
    documents
}

fn state(function: &Function, status: Option<&FunctionStatus>) -> FunctionState {
    if function.stand_in.is_some() {
        return FunctionState::Degraded;
    }
    let Some(status) = status else { return FunctionState::Idle };
    if status.ready + status.ready_of_old_revisions > 0 {
        FunctionState::Ready
    } else if status.last_failure.is_some() {
        FunctionState::Failed
    } else if status.starting == 0 && status.lacks_room {
        FunctionState::NoRoom
    } else if status.starting + status.desired > 0 {
        FunctionState::Starting
    } else {
        FunctionState::Idle
    }
}

fn counts(status: Option<&FunctionStatus>) -> SandboxCounts {
    status.map_or_else(SandboxCounts::default, |status| SandboxCounts {
        wanted: status.desired,
        ready: status.ready + status.ready_of_old_revisions,
        starting: status.starting,
        stopping: status.stopping,
        old: status.ready_of_old_revisions,
    })
}
