//! What is answered about calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_api::{
    AsyncCallbackDocument, AsyncInvocationDocument, AsyncListDocument, AsyncResultDocument, parse_duration,
};
use fanfare_async::{Callback, Cause, Filter, InvocationId, Record, Refusal, State, StateKind, limits};
use fanfare_types::{DataPlaneId, FunctionName, Reason, Timestamp};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Response, StatusCode, request};
use serde::Serialize;

use super::accept::{Arrived, accept};
use super::cluster;
use super::door::{Ask, Door, Outcome, Seen};
use super::route::{self, Route, What};
use super::{ATTEMPT, DURATION_US, INVOCATION_ID, STATE};
use crate::body::Body;
use crate::core::Core;
use crate::find;
use crate::function::Function;
use crate::headers::Client;
use crate::payload::ClientBody;
use crate::peers;
use crate::problem::{Problem, quoted};
use crate::request_id::random_u64;

/// How long a question may wait for a call's end.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A refusal, and the function that it is counted for.
pub(crate) struct Refused {
    pub(crate) problem: Problem,
    pub(crate) function: Option<Arc<Function>>,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Refused { problem, function: None }
    }
}

/// Answers a request whose path is one of [`route`]'s.
pub(crate) async fn answer(
    core: &Core,
    client: &Client,
    parts: request::Parts,
    body: ClientBody,
    accepted: Timestamp,
) -> Result<Response<Body>, Refused> {
    let Some(door) = &core.shared.door else {
        let detail = "this data plane has no directory to keep asynchronous invocations in";
        return Err(Problem::new(Reason::AsyncOff, detail).into());
    };
    let target = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let Some(route) = route::parse(&target) else {
        return Err(Problem::new(Reason::RouteNotFound, "there is nothing here").into());
    };
    let methods = route.methods();
    if !methods.is_empty() && !methods.contains(&parts.method.as_str()) {
        return Ok(not_allowed(core, &parts, methods));
    }
    match route {
        Route::Call(name, rest) => {
            accept(core, door, name, rest, Arrived { client, parts, body, accepted }).await
        }
        Route::List { .. } if !may_list(core, door, client, &parts) => {
            let detail = "lists of asynchronous invocations are for this machine and the other data planes, at an \
                          address; --async-lists any gives them to all";
            Err(Problem::new(Reason::Forbidden, detail).into())
        }
        Route::List { dead, query } => Ok(list(core, door, &parts, dead, query).await?),
        Route::One { id, what, query } => Ok(one(core, door, &parts, id, what, query).await?),
        Route::Unknown => Err(Problem::new(
            Reason::InvocationNotFound,
            "the path names no asynchronous invocation; ids look like d1-2a-9f86d081884c7d65",
        )
        .into()),
    }
}

/// Whoever knows an id was told it. Lists tell ids to those who were not: by default only to this machine and to other
/// data planes, and not by way of a proxy or of a web page.
fn may_list(core: &Core, door: &Door, client: &Client, parts: &request::Parts) -> bool {
    if door.options.lists_for_all || peers::is_forwarded(core, parts) {
        return true;
    }
    let known = || {
        let addresses = core.shared.peers();
        let mut hosts = addresses.iter().filter_map(|(_, address)| address.rsplit_once(':'));
        hosts.any(|(host, _)| host.trim_matches(['[', ']']).parse() == Ok(client.ip()))
    };
    let proxied = ["x-forwarded-for", "forwarded", "via", "x-real-ip"];
    (client.ip().is_loopback() || known())
        && find::host_is_an_address(parts)
        && !proxied.iter().any(|name| parts.headers.contains_key(*name))
}

pub(crate) fn not_allowed(core: &Core, parts: &request::Parts, methods: &[&str]) -> Response<Body> {
    let allowed = methods.join(", ");
    let problem = Problem::new(Reason::MethodNotAllowed, format!("the methods here are {allowed}"));
    core.shared.count_problem(problem.reason);
    let id = parts.headers.get(crate::request_id::REQUEST_ID).cloned();
    let mut response = problem.response(&id.unwrap_or(HeaderValue::from_static("")), None);
    if let Ok(allowed) = HeaderValue::try_from(allowed) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// One call: here, or where its id says.
pub(super) async fn one(
    core: &Core,
    door: &Door,
    parts: &request::Parts,
    id: InvocationId,
    what: What,
    query: &str,
) -> Result<Response<Body>, Problem> {
    route::check(query, &["wait"]).map_err(|detail| Problem::new(Reason::BadRequest, detail))?;
    let wait = wait(query)?;
    let Some(mut seen) = door.ask(|tell| Ask::Look { id, tell }).await? else {
        return cluster::elsewhere(core, door, parts, id, wait).await;
    };
    let asks = parts.method == Method::GET || parts.method == Method::HEAD;
    if asks && !wait.is_zero() && !seen.record.state.is_final() {
        let ended = door.ask(|tell| Ask::Watch { id, tell });
        // Whether it has ended or time ran out is seen below.
        let _ = tokio::time::timeout(wait, ended).await;
        seen = door.ask(|tell| Ask::Look { id, tell }).await?.ok_or_else(|| not_found(id))?;
    }
    match what {
        What::Result => result(door, id).await,
        What::Status if parts.method == Method::DELETE => {
            let cancelled = door.ask(|tell| Ask::Cancel { id, tell }).await?;
            Ok(json(StatusCode::OK, &document(&cancelled.map_err(|refusal| refused(id, refusal))?)))
        }
        What::Status => Ok(json(StatusCode::OK, &document(&seen))),
        What::Replay => {
            let nonce = random_u64();
            let replayed = door.ask(|tell| Ask::Replay { id, nonce, tell }).await?;
            let replayed = replayed.map_err(|refusal| refused(id, refusal))?;
            let seen = door.ask(|tell| Ask::Look { id: replayed, tell }).await?;
            let seen = seen.ok_or_else(|| not_found(replayed))?;
            Ok(json(StatusCode::ACCEPTED, &document(&seen)))
        }
    }
}

fn wait(query: &str) -> Result<Duration, Problem> {
    let Some(text) = route::parameter(query, "wait") else { return Ok(Duration::ZERO) };
    let wait = parse_duration(text).filter(|wait| *wait <= WAIT_MAX);
    wait.ok_or_else(|| {
        let most = WAIT_MAX.as_secs();
        Problem::new(
            Reason::BadRequest,
            format!("wait is {}; give a duration such as 10s, at most {most}s", quoted(text)),
        )
    })
}

pub(super) fn not_found(id: InvocationId) -> Problem {
    Problem::new(Reason::InvocationNotFound, format!("no asynchronous invocation {id} is kept"))
}

fn refused(id: InvocationId, refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Ended(state) => {
            Problem::new(Reason::InvocationEnded, format!("{id} has ended already: it is {}", state.kind()))
        }
        Refusal::NoLetter(state) => {
            Problem::new(Reason::NotReplayable, format!("{id} is {}, neither failed nor dead", state.kind()))
        }
        Refusal::Replayed(again) => {
            Problem::new(Reason::NotReplayable, format!("{id} was replayed already, as {again}"))
        }
        Refusal::TooMany { limit } => {
            Problem::new(Reason::AsyncQueueFull, format!("{limit} asynchronous invocations are open already"))
        }
        Refusal::TooManyBytes { limit } => Problem::new(
            Reason::AsyncQueueFull,
            format!("the open ones' requests have {limit} bytes already"),
        ),
        Refusal::Unknown | Refusal::KeyReused(_) => not_found(id),
    }
}

/// The function's own answer; before that, how the call stands; without one, why.
async fn result(door: &Door, id: InvocationId) -> Result<Response<Body>, Problem> {
    let seen = door.ask(|tell| Ask::Look { id, tell }).await?.ok_or_else(|| not_found(id))?;
    let room = door.room_of_result(seen.record.result_bytes.unwrap_or(0))?;
    let outcome = door.ask(|tell| Ask::Result { id, tell }).await?;
    let Outcome { seen, result } = outcome.ok_or_else(|| not_found(id))?;
    let result = result.map_err(|why| {
        tracing::error!(%id, %why, "a result cannot be read");
        Problem::new(Reason::Unavailable, format!("the result cannot be read: {why}"))
    })?;
    let mut response = match result {
        Some(result) => {
            // The room is given back when the answer is out.
            let bytes = Bytes::from_owner(Kept { bytes: result.body, _room: room });
            let mut response = Response::new(Body::full(bytes));
            *response.status_mut() = result.status;
            *response.headers_mut() = result.headers;
            response
        }
        None if !seen.record.state.is_final() => {
            let mut response = json(StatusCode::ACCEPTED, &document(&seen));
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1));
            response
        }
        None => return Err(without_result(door, &seen.record)),
    };
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::try_from(id.to_string()) {
        headers.insert(INVOCATION_ID, id);
    }
    headers.insert(STATE, HeaderValue::from_static(seen.kind.word()));
    headers.insert(ATTEMPT, HeaderValue::from(seen.record.attempts));
    if let Some(finished) = seen.record.finished {
        let took = finished.at.since(seen.record.accepted).as_micros();
        headers.insert(DURATION_US, HeaderValue::from(u64::try_from(took).unwrap_or(u64::MAX)));
    }
    Ok(response)
}

/// Bytes that take room until they are sent.
struct Kept {
    bytes: Bytes,
    _room: super::door::Room,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a call that has ended has no result.
fn without_result(door: &Door, record: &Record) -> Problem {
    let last = record.last.as_ref();
    let said = last.map_or_else(|| "no attempt was made".to_owned(), |last| last.detail.to_string());
    let too_large = last.is_some_and(|last| last.status.is_some());
    match record.state {
        State::Cancelled => Problem::new(Reason::InvocationCancelled, format!("{} was cancelled", record.id)),
        State::Dead(Cause::Lost | Cause::Interrupted) => Problem::new(Reason::InvocationLost, said),
        State::Dead(Cause::MaxAge) => {
            let age = record.settings.age_max.as_secs_f64();
            Problem::new(
                Reason::MaxAgeExceeded,
                format!("it did not succeed within {age} s; the last word: {said}"),
            )
        }
        State::Dead(Cause::FunctionRemoved) => Problem::new(Reason::FunctionNotFound, said),
        _ if too_large => {
            let limit = door.options.payload_bytes_max;
            let detail = format!("{said}: its limit is {limit} bytes");
            Problem::new(Reason::TooLarge, detail).with_status(StatusCode::INSUFFICIENT_STORAGE)
        }
        _ => Problem::new(last.and_then(|last| last.reason).unwrap_or(Reason::Internal), said),
    }
}

async fn list(
    core: &Core,
    door: &Door,
    parts: &request::Parts,
    dead: bool,
    query: &str,
) -> Result<Response<Body>, Problem> {
    let bad = |detail: String| Problem::new(Reason::BadRequest, detail);
    route::check(query, &["function", "state", "after", "limit"]).map_err(bad)?;
    let given = |name: &str| quoted(route::parameter(query, name).unwrap_or_default());
    let function = route::parameter(query, "function").map(FunctionName::new).transpose();
    let function =
        function.map_err(|why| bad(format!("function is {}; the name {why}", given("function"))))?;
    let state = route::parameter(query, "state").map(str::parse::<StateKind>).transpose();
    let state = state.map_err(|allowed| bad(format!("state is {}; {allowed}", given("state"))))?;
    let after = route::parameter(query, "after").map(str::parse::<InvocationId>).transpose();
    let after = after.map_err(|why| bad(format!("after is {}; it {why}", given("after"))))?;
    let limit = match route::parameter(query, "limit") {
        None => limits::PAGE_DEFAULT,
        Some(text) => {
            text.parse().ok().filter(|limit| (1..=limits::PAGE_MAX).contains(limit)).ok_or_else(|| {
                bad(format!("limit is {}; give a number from 1 to {}", quoted(text), limits::PAGE_MAX))
            })?
        }
    };
    let state = if dead { Some(StateKind::Dead) } else { state };
    let filter = Filter { function, state, unreplayed: dead };
    let page = cluster::list(core, door, parts, &filter, after, limit).await?;
    Ok(json(StatusCode::OK, &page))
}

/// This data plane's part of a list.
pub(super) async fn own_page(
    door: &Door,
    me: Option<DataPlaneId>,
    filter: &Filter,
    after: u64,
    limit: usize,
) -> Result<AsyncListDocument, Problem> {
    let filter = filter.clone();
    let (page, more) = door.ask(|tell| Ask::List { filter, after, limit, tell }).await?;
    // As this data plane is called now: its log may know it under an earlier number.
    let cursor = |seen: &Seen| InvocationId { data_plane: me.unwrap_or_default(), ..seen.record.id };
    let next = page.last().filter(|_| more).map(|seen| cursor(seen).to_string());
    Ok(AsyncListDocument { invocations: page.iter().map(document).collect(), next, unreachable: vec![] })
}

/// A call as a document.
pub(super) fn document(seen: &Seen) -> AsyncInvocationDocument {
    let record = &seen.record;
    let text = |id: Option<InvocationId>| id.map(|id| id.to_string());
    let waiting = !record.state.is_final() && record.settings.callback.is_some();
    let callback = match record.callback {
        Callback::None if waiting => Some(("waiting", 0)),
        Callback::None => None,
        Callback::Waiting { tries, .. } => Some(("waiting", tries)),
        Callback::Delivered => Some(("delivered", 0)),
        Callback::GivenUp => Some(("given-up", limits::CALLBACK_ATTEMPTS_MAX)),
    };
    let now_ms = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    };
    AsyncInvocationDocument {
        id: record.id.to_string(),
        request_id: record
            .settings
            .request_id
            .as_ref()
            .map_or_else(|| record.id.to_string(), ToString::to_string),
        function: record.name.to_string(),
        state: seen.kind.word().to_owned(),
        cause: if let State::Dead(cause) = record.state { Some(cause.word().to_owned()) } else { None },
        delivery: record.settings.delivery.word().to_owned(),
        attempts: record.attempts,
        failed_attempts: record.failures,
        max_attempts: record.settings.attempts_max,
        interrupted_attempts: record.interruptions,
        max_age_s: record.settings.age_max.as_secs_f64(),
        accepted_unix_ms: record.accepted_shown_ms,
        finished_unix_ms: record.finished.map(|finished| finished.shown_ms),
        next_attempt_in_ms: seen.next_in_ms,
        next_attempt_unix_ms: seen.next_in_ms.map(|ms| now_ms().saturating_add(ms)),
        status: record.last.as_ref().and_then(|last| last.status),
        reason: record.last.as_ref().and_then(|last| last.reason).map(|reason| reason.code().to_owned()),
        detail: record.last.as_ref().map(|last| last.detail.to_string()),
        result: record
            .result_bytes
            .map(|bytes| AsyncResultDocument { bytes, path: format!("/async/{}/result", record.id) }),
        callback: callback
            .map(|(state, failed_tries)| AsyncCallbackDocument { state: state.to_owned(), failed_tries }),
        replay_of: text(record.replay_of),
        replayed_as: text(record.replayed_as),
    }
}

pub(super) fn json<T: Serialize>(status: StatusCode, document: &T) -> Response<Body> {
    // Documents of texts and numbers always have a JSON form.
    let mut response =
        Response::new(Body::full(Bytes::from(serde_json::to_vec(document).unwrap_or_default())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
