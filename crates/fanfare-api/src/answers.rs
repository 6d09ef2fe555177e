//! What the API answers about functions.

use std::time::Duration;

use fanfare_types::Stages;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FunctionDocument, RevisionDocument};

/// Answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeployResult {
    /// The function.
    pub name: String,
    /// Its id in logs and metrics, e.g. `f3`.
    pub id: String,
    /// The revision that new requests are for; counts from 1.
    pub revision: u32,
    /// What the registration did.
    pub outcome: DeployOutcome,
}

/// What a registration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeployOutcome {
    /// There was none of that name.
    Created,
    /// A new revision.
    Updated,
    /// It was registered exactly so already.
    Unchanged,
}

/// Answer to a preparation that succeeded; a failed one is a problem with the reason and the log's last lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PrepareResult {
    /// The function.
    pub name: String,
    /// The revision that was proved to start.
    pub revision: u32,
    /// The node that proved it.
    pub node: String,
    /// How long that took.
    pub elapsed_ms: f64,
}

/// Answer to an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlobDocument {
    /// SHA-256 as 64 hexadecimal digits.
    pub digest: String,
    /// Its length.
    pub size_bytes: u64,
}

/// Functions, in the order of their names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionListDocument {
    /// One page of them.
    pub functions: Vec<FunctionSummaryDocument>,
    /// Pass it as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One function in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSummaryDocument {
    /// Its name.
    pub name: String,
    /// Its latest revision.
    pub revision: u32,
    /// Kind of its handler: `python`, `node`, `http`, `fake`.
    pub kind: String,
    /// What makes its sandboxes.
    pub runtime: String,
    /// How it is doing.
    pub state: FunctionState,
    /// Its sandboxes.
    pub sandboxes: SandboxCounts,
    /// How busy it is.
    #[serde(default)]
    pub load: LoadDocument,
}

/// How busy a function is, over all data planes, as they last reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoadDocument {
    /// Requests in sandboxes.
    pub in_flight: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Requests that arrived in the last report's interval, per second.
    pub requests_per_second: f64,
    /// Smoothed execution time; absent until one has been seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_ms: Option<f64>,
    /// Failed requests since its revision was registered, or the control plane's term began.
    pub failed: u64,
    /// Why the last of them failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reason: Option<String>,
    /// Sandboxes are wanted for which there is no room.
    pub lacks_room: bool,
}

/// How a function is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FunctionState {
    /// No sandbox, and none is wanted: the next request starts one.
    Idle,
    /// Sandboxes are wanted and none is ready yet.
    Starting,
    /// Sandboxes are wanted, and no node has room for one; see its decisions.
    NoRoom,
    /// At least one sandbox is ready.
    Ready,
    /// The last attempt to start one failed; see `last_failure`.
    Failed,
    /// The latest revision cannot start (see `last_failure`), and an earlier one serves: `serving_revision`.
    Degraded,
}

/// Counts of a function's sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxCounts {
    /// Wanted by the autoscaler.
    pub wanted: u32,
    /// Accepting requests.
    pub ready: u32,
    /// Being created.
    pub starting: u32,
    /// Being stopped.
    pub stopping: u32,
    /// Of the ready ones: those of an earlier revision, which serve until one of the current revision is ready.
    #[serde(default)]
    pub old: u32,
}

/// One function in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionStatusDocument {
    /// As registered, defaults filled in.
    pub function: FunctionDocument,
    /// Its id in logs and metrics, e.g. `f3`.
    pub id: String,
    /// Its latest revision.
    pub revision: u32,
    /// The revision that new requests are for: the latest, unless that cannot start and an earlier one works.
    pub serving_revision: u32,
    /// How it is doing.
    pub state: FunctionState,
    /// Its sandboxes.
    pub sandboxes: SandboxCounts,
    /// More sandboxes are wanted than nodes have room for.
    #[serde(default)]
    pub lacks_room: bool,
    /// Requests in sandboxes, over all data planes.
    pub in_flight: u32,
    /// Requests that wait, over all data planes.
    pub queued: u32,
    /// Smoothed execution time; absent until one has been seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_ms: Option<f64>,
    /// Last changes of its scale, newest first.
    #[serde(default)]
    pub decisions: Vec<DecisionDocument>,
    /// Last start that failed, also when its sandboxes are long gone; absent after an update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailureDocument>,
    /// Failed requests, and sandboxes that ended by themselves: by reason, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureCountDocument>,
    /// Its requests are still shared as before the last change: a revision that is to get some has not come up yet.
    #[serde(default)]
    pub traffic_pending: bool,
    /// Its revisions that are kept, the latest first.
    #[serde(default)]
    pub revisions: Vec<RevisionDocument>,
}

/// Failures of one reason, counted since the revision was registered or the control plane's term began, and the last
/// of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FailureCountDocument {
    /// What failed.
    pub failed: FailedName,
    /// The stable code, e.g. `handler-error`.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// How long ago the last one was heard of.
    pub age_s: f64,
    /// The last one in one sentence.
    pub detail: String,
    /// Its request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// Last lines that its handler or sandbox wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log_tail: String,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailedName {
    /// Requests.
    Requests,
    /// Sandboxes that were ready, and ended by themselves.
    Sandboxes,
}

/// One change of a function's scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionDocument {
    /// How long ago.
    pub age_s: f64,
    /// Sandboxes wanted before.
    pub from: u32,
    /// Sandboxes wanted after.
    pub to: u32,
    /// Why, with the inputs.
    pub reason: String,
}

/// A start that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FailureDocument {
    /// How long ago.
    pub age_s: f64,
    /// The stable code, e.g. `handler-not-found`.
    pub reason: String,
    /// One sentence.
    pub detail: String,
    /// The revision it was.
    pub revision: u32,
    /// Where; absent when no node was involved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Last lines that it wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log_tail: String,
}

/// One line of a function's log; the API sends one such document per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLineDocument {
    /// Counts the lines of the function, or of a revision beside the latest one, on its node from 1; a gap means that lines were dropped or have rotated away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The node's wall clock when the line was taken, in milliseconds since 1970. For display: orders nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_unix_ms: Option<u64>,
    /// The node it was written on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The sandbox, e.g. `s10000000007`; absent for a template or a build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Which output.
    pub stream: LogStreamName,
    /// The line without its newline.
    pub text: String,
}

/// Which output a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogStreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The platform's own word.
    Platform,
}

/// Where the time of a cold start went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StagesDocument {
    /// Demand received to decision made.
    pub decide_ms: f64,
    /// Choosing the node.
    pub place_ms: f64,
    /// Order sent to ready received, less the node's own time.
    pub transfer_ms: f64,
    /// Order received to process cloned.
    pub create_ms: f64,
    /// Process cloned to user code reached.
    pub start_ms: f64,
    /// User code reached to accepting requests.
    pub ready_ms: f64,
}

impl From<&Stages> for StagesDocument {
    fn from(stages: &Stages) -> Self {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        StagesDocument {
            decide_ms: ms(stages.decide),
            place_ms: ms(stages.place),
            transfer_ms: ms(stages.transfer),
            create_ms: ms(stages.create),
            start_ms: ms(stages.start),
            ready_ms: ms(stages.ready),
        }
    }
}
