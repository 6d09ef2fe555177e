//! Schedules: set, list, describe, delete, pause, resume, run.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fanfare_api::{
    FieldError, FiredDocument, FiredOutcome, FiringDocument, OccurrenceDocument, Problem, ScheduleDocument,
    ScheduleListDocument, ScheduleOutcome, ScheduleResult, ScheduleRunResult, ScheduleState,
    ScheduleStatusDocument, ScheduleSummaryDocument,
};
use fanfare_schedule::{Fired, Outcome, ScheduleSpec, Wall};
use fanfare_types::{FunctionName, Reason};
use http::{HeaderMap, StatusCode, header};

use super::App;
use super::extract::{self, Name, Page};
use super::problem::{Failure, quoted};
use crate::limits::{RUN_TIMEOUT, SCHEDULE_CHANGE_TIMEOUT, UPCOMING_MAX};
use crate::registry::unix_ms;
use crate::schedules::{Change, Done, Schedule, ScheduleError};

/// Set a schedule: when a function is called, and with what. The same content again changes nothing.
///
/// Each occurrence is an asynchronous invocation of the function, which sees the schedule's name in
/// `X-Fanfare-Schedule` and the instant for which it was planned, in UTC, in `X-Fanfare-Scheduled`. A schedule whose
/// time is changed begins anew; one that is paused stays so.
#[utoipa::path(
    put, path = "/v1/schedules/{name}", operation_id = "put_schedule", tag = "schedules", request_body = ScheduleDocument,
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "Updated, or unchanged", body = ScheduleResult),
        (status = 201, description = "Created", body = ScheduleResult),
        (status = 404, description = "There is no function of the name that is to be called", body = Problem),
        (status = 409, description = "An occurrence is under way, and another function is to be called", body = Problem),
        (status = 413, description = "The body is too large", body = Problem),
        (status = 415, description = "The body is not JSON", body = Problem),
        (status = 422, description = "A field is wrong, fields disagree, or the time is over", body = Problem),
        (status = 507, description = "There are as many schedules as are kept", body = Problem),
    )
)]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    Name(name): Name,
    headers: HeaderMap,
    content: Body,
) -> Result<Response, Failure> {
    let document = extract::document(&headers, content, ScheduleDocument::from_json).await?;
    let spec = Arc::new(ScheduleSpec::try_from(document)?);
    extract::as_in_path(&spec.name, &name)?;
    let when = spec.clone();
    match change(&app, &name, Change::Set(spec)).await {
        Ok(done) => result(done),
        Err(Refused(ScheduleError::Over)) => {
            let at = ScheduleDocument::from(&*when).at.unwrap_or_default();
            Err(FieldError::new("at", format!("{at:?}"), "an instant that is to come").into())
        }
        Err(Refused(error)) => Err(failure(&name, error)),
    }
}

fn result(done: Done) -> Result<Response, Failure> {
    let document = |schedule: &Schedule, outcome| ScheduleResult {
        name: schedule.spec.name.to_string(),
        id: schedule.id.to_string(),
        outcome,
        next: occurrences(schedule, 1).pop(),
    };
    match done {
        Done::Created(schedule) => {
            let location = [(header::LOCATION, format!("/v1/schedules/{}", schedule.spec.name))];
            let document = Json(document(&schedule, ScheduleOutcome::Created));
            Ok((StatusCode::CREATED, location, document).into_response())
        }
        Done::Updated(schedule) => Ok(Json(document(&schedule, ScheduleOutcome::Updated)).into_response()),
        Done::Unchanged(schedule) => {
            Ok(Json(document(&schedule, ScheduleOutcome::Unchanged)).into_response())
        }
        Done::Deleted | Done::Fired(_) => {
            Err(Failure::new(Reason::Internal, "a change of a schedule ended as something else"))
        }
    }
}

/// Schedules in the order of their names.
#[utoipa::path(
    get, path = "/v1/schedules", operation_id = "list_schedules", tag = "schedules",
    params(
        ("limit" = Option<u32>, Query, description = "At most so many: 1 to 1000, default 100"),
        ("after" = Option<String>, Query, description = "Only names after this one: `next` of the page before"),
    ),
    responses((status = 200, body = ScheduleListDocument), (status = 422, body = Problem))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    page: Page,
) -> Result<Json<ScheduleListDocument>, Failure> {
    let (page, more) = app.schedules.page(page.after.as_deref(), page.limit);
    let next = page.last().filter(|_| more).map(|schedule| schedule.spec.name.to_string());
    let schedules = page.iter().map(|schedule| summary(&app, schedule)).collect();
    Ok(Json(ScheduleListDocument { schedules, next }))
}

/// One schedule in full: its next occurrences, the last ones, and the one that is under way.
#[utoipa::path(
    get, path = "/v1/schedules/{name}", operation_id = "get_schedule", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleStatusDocument), (status = 404, body = Problem))
)]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Name(name): Name,
) -> Result<Json<ScheduleStatusDocument>, Failure> {
    let schedule = app.schedules.get(&name).ok_or_else(|| failure(&name, ScheduleError::NotFound))?;
    Ok(Json(status(&app, &schedule)))
}

/// Delete a schedule. Invocations that it has made go on.
#[utoipa::path(
    delete, path = "/v1/schedules/{name}", operation_id = "delete_schedule", tag = "schedules", params(("name" = String, Path)),
    responses((status = 204, description = "Deleted, durably"), (status = 404, body = Problem))
)]
pub(super) async fn delete(State(app): State<Arc<App>>, Name(name): Name) -> Result<StatusCode, Failure> {
    change(&app, &name, Change::Delete).await.map_err(|Refused(error)| failure(&name, error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let no occurrence of a schedule be due. One that is under way goes on.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/pause", operation_id = "pause_schedule", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleResult), (status = 404, body = Problem))
)]
pub(super) async fn pause(State(app): State<Arc<App>>, Name(name): Name) -> Result<Response, Failure> {
    change(&app, &name, Change::Pause).await.map_err(|Refused(error)| failure(&name, error)).and_then(result)
}

/// Let occurrences be due from now on. Those that came meanwhile are not made up for.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/resume", operation_id = "resume_schedule", tag = "schedules", params(("name" = String, Path)),
    responses((status = 200, body = ScheduleResult), (status = 404, body = Problem))
)]
pub(super) async fn resume(State(app): State<Arc<App>>, Name(name): Name) -> Result<Response, Failure> {
    change(&app, &name, Change::Resume).await.map_err(|Refused(error)| failure(&name, error)).and_then(result)
}

/// Fire a schedule now, whatever its time, and also while it is paused.
///
/// It is answered when a data plane has accepted the invocation, which may then be asked about there; or, without its
/// id, after 5 seconds in which none has.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/run", operation_id = "run_schedule", tag = "schedules", params(("name" = String, Path)),
    responses(
        (status = 202, description = "Fired", body = ScheduleRunResult),
        (status = 404, description = "There is no such schedule, or no such function", body = Problem),
        (status = 409, description = "An occurrence is under way", body = Problem),
    )
)]
pub(super) async fn run(State(app): State<Arc<App>>, Name(name): Name) -> Result<Response, Failure> {
    let done = change(&app, &name, Change::Run).await.map_err(|Refused(error)| failure(&name, error))?;
    let Done::Fired(instant) = done else {
        return Err(Failure::new(Reason::Internal, "a firing ended as something else"));
    };
    let outcome = tokio::time::timeout(RUN_TIMEOUT, app.schedules.fired(&name, instant)).await;
    let invocation = match outcome {
        Ok(Some(Outcome::Accepted { id })) => Some(id.to_string()),
        Ok(Some(Outcome::GivenUp { reason, detail })) => return Err(Failure::new(reason, &*detail)),
        Ok(Some(Outcome::Unknown { detail })) => return Err(Failure::new(Reason::Unavailable, &*detail)),
        Ok(Some(Outcome::Skipped) | None) => return Err(failure(&name, ScheduleError::NotFound)),
        Err(_) => None,
    };
    let document = ScheduleRunResult { name, scheduled: instant.to_string(), invocation };
    Ok((StatusCode::ACCEPTED, Json(document)).into_response())
}

/// Why a change was not made, before it is told to the caller.
struct Refused(ScheduleError);

async fn change(app: &App, name: &str, change: Change) -> Result<Done, Refused> {
    // No schedule has a name that is none.
    let name = FunctionName::new(name).map_err(|_| Refused(ScheduleError::NotFound))?;
    match tokio::time::timeout(SCHEDULE_CHANGE_TIMEOUT, app.schedules.change(name, change)).await {
        Ok(changed) => changed.map_err(Refused),
        Err(_) => {
            let why = format!(
                "the store has not confirmed the change within {SCHEDULE_CHANGE_TIMEOUT:?}; whether it was made is not \
                 known yet: look before trying again"
            );
            Err(Refused(ScheduleError::Unavailable(why)))
        }
    }
}

fn failure(name: &str, error: ScheduleError) -> Failure {
    match error {
        ScheduleError::NotFound => {
            Failure::new(Reason::ScheduleNotFound, format!("there is no schedule {}", quoted(name)))
        }
        ScheduleError::NoFunction(_) => {
            let mut failure = Failure::new(Reason::FunctionNotFound, error.to_string());
            failure.problem.field = Some("function".to_owned());
            failure
        }
        ScheduleError::Busy => {
            let mut failure = Failure::new(Reason::ScheduleBusy, format!("of the schedule {name:?} {error}"));
            failure.problem.hint = Reason::ScheduleBusy.hint_for(name);
            failure
        }
        ScheduleError::Full { what, limit } => {
            let detail = format!("there are {limit} {what} already, which is the limit");
            let mut failure = Failure::new(Reason::RegistryFull, detail);
            failure.problem.limit = Some(limit.to_string());
            failure
        }
        ScheduleError::Over => Failure::new(Reason::InvalidField, error.to_string()),
        ScheduleError::Unavailable(why) => Failure::new(Reason::Unavailable, why),
    }
}

fn state(app: &App, schedule: &Schedule) -> ScheduleState {
    let comes = || !schedule.upcoming(Wall(unix_ms()), 1).is_empty();
    if schedule.state.paused {
        ScheduleState::Paused
    } else if schedule.state.firing.is_none() && !comes() {
        ScheduleState::Ended
    } else if app.registry.function(schedule.spec.function.as_str()).is_none() {
        ScheduleState::NoFunction
    } else {
        ScheduleState::Active
    }
}

fn occurrences(schedule: &Schedule, count: usize) -> Vec<OccurrenceDocument> {
    let document =
        |at: Wall| OccurrenceDocument { utc: at.to_string(), local: schedule.rules.calendar.local(at) };
    schedule.upcoming(Wall(unix_ms()), count).into_iter().map(document).collect()
}

fn summary(app: &App, schedule: &Schedule) -> ScheduleSummaryDocument {
    let ScheduleDocument { name, function, cron, zone, at, .. } = ScheduleDocument::from(&*schedule.spec);
    ScheduleSummaryDocument {
        name,
        function,
        cron,
        zone,
        at,
        state: state(app, schedule),
        next: occurrences(schedule, 1).pop(),
        last: schedule.state.fired.first().map(fired),
    }
}

fn status(app: &App, schedule: &Schedule) -> ScheduleStatusDocument {
    ScheduleStatusDocument {
        schedule: ScheduleDocument::from(&*schedule.spec),
        id: schedule.id.to_string(),
        created_unix_ms: schedule.created_unix_ms,
        state: state(app, schedule),
        next: occurrences(schedule, UPCOMING_MAX),
        firing: schedule.state.firing.as_ref().map(|firing| FiringDocument {
            scheduled: firing.instant.to_string(),
            by_hand: firing.by_hand,
            data_plane: firing.asked.map(|asked| asked.to_string()),
            reason: schedule.trouble.as_ref().map(|(reason, _)| reason.code().to_owned()),
            detail: schedule.trouble.as_ref().map(|(_, detail)| detail.to_string()),
        }),
        fired: schedule.state.fired.iter().map(fired).collect(),
    }
}

fn fired(fired: &Fired) -> FiredDocument {
    let (outcome, invocation, reason, detail) = match &fired.outcome {
        Outcome::Accepted { id } => (FiredOutcome::Accepted, Some(id.to_string()), None, None),
        Outcome::Skipped => (FiredOutcome::Skipped, None, None, None),
        Outcome::GivenUp { reason, detail } => {
            (FiredOutcome::GivenUp, None, Some(reason.code().to_owned()), Some(detail.to_string()))
        }
        Outcome::Unknown { detail } => (FiredOutcome::Unknown, None, None, Some(detail.to_string())),
    };
    FiredDocument {
        scheduled: fired.instant.to_string(),
        by_hand: fired.by_hand,
        left_out: fired.left_out,
        settled: fired.at.to_string(),
        outcome,
        invocation,
        reason,
        detail,
    }
}
