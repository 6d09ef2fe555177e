//! Schedules: what is registered, and what is answered.

mod document;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use document::{DeliveryName, MissedName, ScheduleDocument};
pub(crate) use document::{SCHEDULE_HEADERS_RESERVED, SCHEDULE_METHODS};

/// Answer to a schedule that was set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleResult {
    /// Its name.
    pub name: String,
    /// Its id: one that is deleted and set again is another.
    pub id: String,
    /// What was done.
    pub outcome: ScheduleOutcome,
    /// Its next occurrence, if there is one and it is not paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<OccurrenceDocument>,
}

/// What setting a schedule did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleOutcome {
    /// It is new.
    Created,
    /// It was another.
    Updated,
    /// It was so already.
    Unchanged,
}

/// An instant, as UTC and as the schedule's own clock show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OccurrenceDocument {
    /// In UTC, RFC 3339.
    pub utc: String,
    /// In the schedule's time zone, with the offset there.
    pub local: String,
}

/// Whether a schedule fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleState {
    /// It does.
    Active,
    /// Not until it is resumed.
    Paused,
    /// No occurrence comes any more.
    Ended,
    /// It does, and there is no function of that name: no occurrence is a call until there is.
    NoFunction,
}

/// One schedule in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleStatusDocument {
    /// As registered.
    pub schedule: ScheduleDocument,
    /// Its id.
    pub id: String,
    /// When it was set first, in milliseconds since 1970, by the control plane's wall clock. For display.
    pub created_unix_ms: u64,
    /// Whether it fires.
    pub state: ScheduleState,
    /// The next occurrences, at most five; none while it is paused.
    pub next: Vec<OccurrenceDocument>,
    /// The occurrence that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firing: Option<FiringDocument>,
    /// The last occurrences, the latest first, at most ten.
    pub fired: Vec<FiredDocument>,
}

/// An occurrence on its way to a data plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FiringDocument {
    /// For which it was planned, in UTC.
    pub scheduled: String,
    /// Whether it was asked for by hand.
    pub by_hand: bool,
    /// The data plane that is asked to accept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_plane: Option<String>,
    /// The stable code of why it is not accepted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// An occurrence that has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FiredDocument {
    /// For which it was planned, in UTC.
    pub scheduled: String,
    /// Whether it was asked for by hand.
    pub by_hand: bool,
    /// Occurrences before it that were left out: at most 100 are counted.
    pub left_out: u32,
    /// When that was settled, in UTC.
    pub settled: String,
    /// What became of it.
    pub outcome: FiredOutcome,
    /// The id of the asynchronous invocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// The stable code of why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What became of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FiredOutcome {
    /// A data plane has accepted the asynchronous invocation, durably.
    Accepted,
    /// It was missed, and left out.
    Skipped,
    /// No data plane has accepted it in time.
    GivenUp,
    /// Whether it was accepted is not known.
    Unknown,
}

/// Answer to a schedule that is fired by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRunResult {
    /// The schedule.
    pub name: String,
    /// The occurrence that was made, in UTC.
    pub scheduled: String,
    /// The id of the asynchronous invocation; without one it is still on its way to a data plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
}

/// One schedule in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleSummaryDocument {
    /// Its name.
    pub name: String,
    /// The function.
    pub function: String,
    /// Its cron expression, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The expression's time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its instant, if it happens once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Whether it fires.
    pub state: ScheduleState,
    /// Its next occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<OccurrenceDocument>,
    /// The last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<FiredDocument>,
}

/// A page of schedules in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleListDocument {
    /// The page.
    pub schedules: Vec<ScheduleSummaryDocument>,
    /// Give this as `after` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
