//! What became of a request: the data planes' records of it, with the decisions behind them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use fanfare_api::{OrderDocument, Problem, RequestDocument, RequestExplanationDocument, SlotDocument};
use fanfare_engine::{FunctionStatus, Order};
use fanfare_types::limits::{REQUEST_ID_LEN_MAX, REQUESTS_REMEMBERED_MAX, REQUESTS_REMEMBERED_WARM_MAX};
use fanfare_types::{DataPlaneId, FunctionId, LogSelect, NodeId, Reason, RequestRecord, Timestamp};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::App;
use super::extract::Name;
use super::functions::{decisions, statuses};
use super::problem::Failure;
use super::timeline::{ms, outcome, stages, summary};
use crate::input::Input;
use crate::limits::{QUESTION_TIMEOUT, QUESTIONS_MAX};
use crate::questions::Remembered;

/// How far two clocks' readings of one moment may lie apart: the way of an answer from a data plane.
const SKEW: Duration = Duration::from_millis(50);

/// Everything that is remembered of a request: where its time went, and why.
#[utoipa::path(
    get, path = "/v1/requests/{id}", tag = "requests",
    params(("id" = String, Path, description = "As in the answer's `X-Request-Id`, or an asynchronous invocation's: 1 to 128 visible ASCII characters")),
    responses(
        (status = 200, body = RequestExplanationDocument),
        (status = 404, description = "Nothing is remembered of it", body = Problem),
        (status = 422, description = "This cannot be a request's id", body = Problem),
    )
)]
pub(super) async fn explain(
    State(app): State<Arc<App>>,
    Name(id): Name,
) -> Result<Json<RequestExplanationDocument>, Failure> {
    if id.is_empty() || id.len() > REQUEST_ID_LEN_MAX || !id.bytes().all(|b| b.is_ascii_graphic()) {
        let allowed = format!("1 to {REQUEST_ID_LEN_MAX} visible ASCII characters");
        return Err(fanfare_api::FieldError::new("id", format!("{id:?}"), allowed).into());
    }
    let told = ask(&app, &id).await?;
    let records: Vec<_> = told
        .answers
        .iter()
        .flat_map(|answer| answer.records.iter().map(move |record| (answer.data_plane, answer.at, record)))
        .collect();
    if records.is_empty() {
        return Err(unknown(&id, &told));
    }
    let mut functions: Vec<FunctionId> =
        records.iter().filter_map(|(_, _, record)| record.function).collect();
    functions.sort_unstable();
    functions.dedup();
    let (now, known) = statuses(&app, functions.clone(), true).await?;
    let sandboxes = records.iter().map(|(_, _, r)| r.slot.map(|slot| slot.sandbox).unwrap_or_default());
    let (answer, answered) = oneshot::channel();
    let question = Input::Orders { sandboxes: sandboxes.collect(), answer };
    app.engine.send(question).await.map_err(|_| Failure::stopping())?;
    let orders = answered.await.map_err(|_| Failure::stopping())?;
    let behind = Behind {
        now,
        functions: functions.into_iter().zip(known).filter_map(|(id, status)| Some((id, status?))).collect(),
        nodes: app.registry.nodes().into_iter().map(|(name, id)| (id, name)).collect(),
        placement: app.placement.name(),
    };
    let mut requests: Vec<_> = records
        .into_iter()
        .zip(orders)
        .map(|((data_plane, at, record), order)| {
            behind.document(told.name(data_plane), at, record, order.as_ref())
        })
        .collect();
    requests.sort_by(|a, b| a.age_s.total_cmp(&b.age_s));
    Ok(Json(RequestExplanationDocument { request_id: id, requests, silent: told.silent() }))
}

/// Lines written at the ends of a request's time in its sandbox take so long to be stamped.
const STAMP_SLACK: Duration = Duration::from_millis(20);

/// Which lines of a function's log were written while a request was in its sandbox, and what is to be said of them.
pub(super) async fn lines_of(
    app: &App,
    request_id: &str,
    function: FunctionId,
) -> Result<(LogSelect, Option<String>), Failure> {
    let told = ask(app, request_id).await?;
    let remembered = || told.answers.iter().flat_map(|a| a.records.iter().map(move |record| (a.at, record)));
    let of_function = remembered().filter(|(_, record)| record.function == Some(function));
    let Some((at, record)) = of_function.min_by_key(|(_, record)| record.age) else {
        return Err(unknown(request_id, &told));
    };
    // The engine's time is that of the records' ages.
    let (now, _) = statuses(app, Vec::new(), false).await?;
    let age = now.since(at) + record.age;
    let Some(slot) = record.slot else {
        // Nothing was written before the beginning of time.
        let select = LogSelect { age_max: Some(Duration::ZERO), ..LogSelect::default() };
        return Ok((
            select,
            Some(format!("request {request_id} reached no sandbox, so nothing was written for it")),
        ));
    };
    let select = LogSelect {
        after: None,
        sandbox: Some(slot.sandbox),
        age_max: Some(age.saturating_sub(slot.after) + STAMP_SLACK),
        age_min: Some(age.saturating_sub(record.ended_after + STAMP_SLACK)),
    };
    let note = format!(
        "what sandbox {} wrote while request {request_id} was in it, {:.3} s, and {} ms before and after; lines \
         of other requests may be among these",
        slot.sandbox,
        record.ended_after.saturating_sub(slot.after).as_secs_f64(),
        STAMP_SLACK.as_millis()
    );
    Ok((select, Some(note)))
}

/// What all data planes said.
struct Told {
    data_planes: Vec<(DataPlaneId, Arc<str>)>,
    answers: Vec<Remembered>,
}

impl Told {
    fn name(&self, id: DataPlaneId) -> &str {
        self.data_planes.iter().find(|(known, _)| *known == id).map_or("", |(_, name)| name)
    }

    fn silent(&self) -> Vec<String> {
        let spoke = |id: &DataPlaneId| self.answers.iter().any(|answer| answer.data_plane == *id);
        let silent = self.data_planes.iter().filter(|(id, _)| !spoke(id));
        silent.map(|(_, name)| name.to_string()).collect()
    }
}

async fn ask(app: &App, id: &str) -> Result<Told, Failure> {
    let (answer, asked) = oneshot::channel();
    let question = Input::Explain { request_id: id.into(), answer };
    app.engine.send(question).await.map_err(|_| Failure::stopping())?;
    let mut asked = asked.await.map_err(|_| {
        let detail = format!("{QUESTIONS_MAX} questions about requests are open, which is the limit");
        Failure::new(Reason::Unavailable, detail)
    })?;
    let until = Instant::now() + QUESTION_TIMEOUT;
    let mut answers = Vec::new();
    while answers.len() < asked.data_planes.len() {
        match tokio::time::timeout_at(until, asked.answers.recv()).await {
            Ok(Some(answer)) => answers.push(answer),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(Told { data_planes: asked.data_planes, answers })
}

fn unknown(id: &str, told: &Told) -> Failure {
    let silent = told.silent();
    let asked = told.answers.len();
    let mut detail = format!(
        "none of the {asked} data planes that answered remembers a request or an attempt of {id:?}: each keeps its last \
         {REQUESTS_REMEMBERED_MAX} that waited, failed or were slow, and its last {REQUESTS_REMEMBERED_WARM_MAX} others"
    );
    if let Some(kept) = told.answers.iter().filter_map(|answer| answer.kept).min() {
        detail.push_str(&format!(", which at present is {:.0} s of them", kept.as_secs_f64()));
    }
    if !silent.is_empty() {
        detail.push_str(&format!("; no answer came from {}", silent.join(", ")));
    }
    Failure::new(Reason::RequestNotFound, detail)
}

/// What decided.
struct Behind {
    now: Timestamp,
    functions: BTreeMap<FunctionId, FunctionStatus>,
    nodes: BTreeMap<NodeId, Arc<str>>,
    placement: &'static str,
}

impl Behind {
    fn document(
        &self,
        data_plane: &str,
        at: Timestamp,
        record: &RequestRecord,
        order: Option<&Order>,
    ) -> RequestDocument {
        let age = self.now.since(at) + record.age;
        let node = |id: NodeId| self.nodes.get(&id).map_or_else(|| id.to_string(), ToString::to_string);
        let name = (!record.name.is_empty()).then(|| record.name.to_string());
        let hint = |reason: Reason| match &name {
            Some(name) => reason.hint_for(name),
            None => reason.hint().to_owned(),
        };
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        RequestDocument {
            request_id: record.request_id.to_string(),
            data_plane: data_plane.to_owned(),
            function_id: record.function.map(|id| id.to_string()),
            age_s: age.as_secs_f64(),
            time_unix_ms: u64::try_from(wall.saturating_sub(age).as_millis()).unwrap_or(u64::MAX),
            summary: summary(record),
            outcome: outcome(record),
            status: (record.status > 0).then_some(record.status),
            reason: record.reason.map(|reason| reason.code().to_owned()),
            detail: record.detail.to_string(),
            hint: record.reason.map(hint).unwrap_or_default(),
            total_ms: ms(record.ended_after),
            stages: stages(record, order.map_or(Duration::ZERO, |order| order.room_after)),
            ahead: record.ahead,
            in_flight: record.in_flight,
            balance: record.balance.into(),
            attempts: record.attempts,
            slot: record.slot.map(|slot| SlotDocument {
                sandbox: slot.sandbox.to_string(),
                node: node(slot.node),
                revision: slot.revision,
                why: slot.why.name().to_owned(),
                after_ms: ms(slot.after),
            }),
            order: order.map(|order| OrderDocument {
                age_s: self.now.since(order.at).as_secs_f64(),
                reason: order.reason.to_string(),
                sandboxes: order.sandboxes,
                for_demand: order.for_demand,
                placement: self.placement.to_owned(),
                placed: format!("{}: {}", node(order.node), order.placed),
                deciding_ms: ms(order.deciding),
            }),
            decisions: record.function.map(|id| self.decisions(id, age, record)).unwrap_or_default(),
            function: name,
        }
    }

    /// Those that were taken while the request was under way, and the one that was in force as it arrived.
    fn decisions(
        &self,
        function: FunctionId,
        age: Duration,
        record: &RequestRecord,
    ) -> Vec<fanfare_api::DecisionDocument> {
        let Some(status) = self.functions.get(&function) else { return Vec::new() };
        let (arrived, ended) = (age + SKEW, age.saturating_sub(record.ended_after + SKEW));
        let mut before = false;
        let mut relevant = decisions(status, self.now);
        relevant.retain(|decision| {
            let in_force = decision.age_s <= arrived.as_secs_f64() || !std::mem::replace(&mut before, true);
            in_force && decision.age_s >= ended.as_secs_f64()
        });
        relevant
    }
}
