//! What a data plane answers about asynchronous invocations.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An asynchronous invocation is durable: it will be executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AsyncAcceptedDocument {
    /// Names it; also in the `X-Fanfare-Invocation-Id` header.
    pub id: String,
    /// The function.
    pub function: String,
    /// Whether it is the one that came before under the same idempotency key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub known: bool,
    /// Where its status is.
    pub status_path: String,
    /// Where its result will be.
    pub result_path: String,
}

/// How one asynchronous invocation stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AsyncInvocationDocument {
    /// Names it.
    pub id: String,
    /// What its attempts go by in `X-Request-Id`, in logs and where a request is explained: the id of the request that
    /// brought it, or its own where no client did. 1 to 128 visible ASCII characters; empty from earlier releases.
    #[serde(default)]
    #[schema(max_length = 128)]
    pub request_id: String,
    /// The function.
    pub function: String,
    /// `queued`, `running`, `retrying`, `succeeded`, `failed`, `dead` or `cancelled`.
    pub state: String,
    /// Why it is dead: `attempts-exhausted`, `max-age`, `function-removed`, `lost` or `interrupted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// `at-least-once` or `at-most-once`.
    pub delivery: String,
    /// Attempts that may have reached user code, the current one included.
    pub attempts: u32,
    /// Attempts that failed by the function's doing.
    pub failed_attempts: u32,
    /// How many of those there may be.
    pub max_attempts: u32,
    /// Attempts that a crash of the platform cut short.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub interrupted_attempts: u32,
    /// How long after it was accepted an attempt may still begin, in seconds.
    pub max_age_s: f64,
    /// The data plane's wall clock when it was accepted, in milliseconds since 1970. For display: orders nothing.
    pub accepted_unix_ms: u64,
    /// The same when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_unix_ms: Option<u64>,
    /// While `retrying`: in how many milliseconds the next attempt may begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_in_ms: Option<u64>,
    /// The same as a wall clock's time, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_unix_ms: Option<u64>,
    /// The function's status in the last attempt that was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The stable code of why the last attempt was refused or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How the last attempt ended, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The result that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<AsyncResultDocument>,
    /// How the telling of its end stands, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<AsyncCallbackDocument>,
    /// The invocation that this one repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<String>,
    /// The invocation that repeats this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed_as: Option<String>,
}

/// A result that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AsyncResultDocument {
    /// Its length with its head.
    pub bytes: u64,
    /// Where it is.
    pub path: String,
}

/// A callback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AsyncCallbackDocument {
    /// `waiting` (for the invocation's end, or for its next try), `delivered` or `given-up`.
    pub state: String,
    /// Tries that were not taken.
    pub failed_tries: u32,
}

/// A page of asynchronous invocations, by data plane and in the order of their acceptance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AsyncListDocument {
    /// The page.
    pub invocations: Vec<AsyncInvocationDocument>,
    /// Give this as `after` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Data planes that could not be asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<String>,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}
