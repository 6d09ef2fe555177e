//! What the API answers about one request.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{BalanceName, DecisionDocument};

/// Everything that is remembered of requests with one id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestExplanationDocument {
    /// The id that was asked about.
    pub request_id: String,
    /// The latest first. More than one where a client chose an id twice.
    pub requests: Vec<RequestDocument>,
    /// Data planes that were asked and gave no answer in time: they may remember more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<String>,
}

/// One request that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestDocument {
    /// Its id. Another than the one that was asked for where that is an asynchronous invocation's, of which it is an
    /// attempt.
    pub request_id: String,
    /// The data plane that served it.
    pub data_plane: String,
    /// The function that was found for it, by name; absent when there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// That function's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_id: Option<String>,
    /// How long ago it arrived.
    pub age_s: f64,
    /// When it arrived by the control plane's wall clock, in milliseconds since 1970. For display: orders nothing.
    pub time_unix_ms: u64,
    /// What happened, in a few sentences.
    pub summary: String,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// The status that its client was told; absent when it was told none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why it did not end well: the stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same with its values.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// From its arrival to its end.
    pub total_ms: f64,
    /// Where that time went, in order.
    pub stages: Vec<RequestStageDocument>,
    /// Requests of the function that waited on this data plane as it arrived.
    pub ahead: u32,
    /// Requests of the function that were in sandboxes as it arrived.
    pub in_flight: u32,
    /// How slots are chosen.
    pub balance: BalanceName,
    /// Sandboxes that it was offered to: more than one where some provably got nothing of it.
    pub attempts: u32,
    /// The slot that it was given last; absent when it got none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotDocument>,
    /// The decision that ordered that slot's sandbox; absent when it is not remembered any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderDocument>,
    /// Changes of the function's scale while the request was under way and the last one before, newest first, as far as
    /// they are remembered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<DecisionDocument>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    /// The function's answer was passed on as a whole.
    Answered,
    /// The platform answered with a problem, and the function was not given the request.
    Refused,
    /// The function was given the request, and its time ran out.
    TimedOut,
    /// The function was given the request, and its sandbox ended, or its node was lost.
    Crashed,
    /// The function was given the request, and hung up or answered no HTTP.
    Failed,
    /// The function's answer had begun and broke off.
    Cut,
    /// The client left before its end.
    ClientLeft,
}

/// One stage of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestStageDocument {
    /// Its name, as in `Server-Timing`; `answer` is from the head of the answer to its end.
    pub stage: String,
    /// When it began, from the request's arrival on; negative where a sandbox was under way already.
    pub from_ms: f64,
    /// How long it took.
    pub took_ms: f64,
    /// What it is.
    pub what: String,
}

/// A slot that a request was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SlotDocument {
    /// Its sandbox.
    pub sandbox: String,
    /// The node that runs it.
    pub node: String,
    /// The revision that it runs.
    pub revision: u32,
    /// `warm`, `handed-over`, `moved` or `cold`.
    pub why: String,
    /// When the request was given it, from its arrival on.
    pub after_ms: f64,
}

/// A decision that ordered sandboxes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderDocument {
    /// How long ago.
    pub age_s: f64,
    /// Why, with the inputs.
    pub reason: String,
    /// How many were ordered at once.
    pub sandboxes: u32,
    /// How many of those for requests that waited.
    pub for_demand: u32,
    /// How nodes are chosen.
    pub placement: String,
    /// Why the first of them went to its node.
    pub placed: String,
    /// From the word of need to the decision.
    pub deciding_ms: f64,
}
