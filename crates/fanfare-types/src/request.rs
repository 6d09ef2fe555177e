//! What is remembered of one request.

use std::sync::Arc;
use std::time::Duration;

use crate::{Balance, FunctionId, NodeId, Reason, SandboxId, Stages};

/// What one data plane remembers of a request that has ended there. Nothing of what the client or the function said:
/// no path, no header's value, no body.
///
/// Times are durations since the request arrived, so that they mean the same on every machine.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRecord {
    /// Its id.
    pub request_id: Arc<str>,
    /// How long ago it arrived.
    pub age: Duration,
    /// The function that was found for it.
    pub function: Option<FunctionId>,
    /// That function's name; empty where there is none, or none any more.
    pub name: Arc<str>,
    /// Requests that waited for a slot as it arrived.
    pub ahead: u32,
    /// Requests in sandboxes as it arrived, of the same function and data plane.
    pub in_flight: u32,
    /// How the function's slots were chosen.
    pub balance: Balance,
    /// Sandboxes that it was offered to.
    pub attempts: u32,
    /// The slot that it was given last.
    pub slot: Option<SlotRecord>,
    /// When the head of the answer was there.
    pub answered_after: Option<Duration>,
    /// When it was over, its answer's body included.
    pub ended_after: Duration,
    /// How it ended.
    pub end: RequestEnd,
    /// The status that the client was told; 0 when it was told none.
    pub status: u16,
    /// Why it was refused, failed or was cut.
    pub reason: Option<Reason>,
    /// The same in one sentence, within [`crate::limits::FAILURE_DETAIL_BYTES_MAX`].
    pub detail: Arc<str>,
}

/// The slot that a request was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotRecord {
    /// Of which sandbox.
    pub sandbox: SandboxId,
    /// On which node.
    pub node: NodeId,
    /// What it runs.
    pub revision: u32,
    /// Why this slot, then.
    pub why: SlotWhy,
    /// When the request was given it.
    pub after: Duration,
    /// For a cold start: the stages of its sandbox.
    pub stages: Option<Stages>,
}

/// Why a request got the slot it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotWhy {
    /// A slot was free when it arrived.
    Warm,
    /// It waited, and a request before it finished.
    HandedOver,
    /// It waited, and a slot came from another data plane.
    Moved,
    /// It waited for a sandbox that was started.
    Cold,
}

impl SlotWhy {
    /// Every value.
    pub const ALL: [SlotWhy; 4] = [SlotWhy::Warm, SlotWhy::HandedOver, SlotWhy::Moved, SlotWhy::Cold];

    /// Its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SlotWhy::Warm => "warm",
            SlotWhy::HandedOver => "handed-over",
            SlotWhy::Moved => "moved",
            SlotWhy::Cold => "cold",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// The function's answer was passed on as a whole.
    Answered,
    /// The platform answered with a problem: before it had a slot, or because nothing came of it.
    Refused,
    /// The function's answer had begun and broke off.
    Cut,
    /// The client left before its end.
    ClientLeft,
}

impl RequestEnd {
    /// Every value.
    pub const ALL: [RequestEnd; 4] =
        [RequestEnd::Answered, RequestEnd::Refused, RequestEnd::Cut, RequestEnd::ClientLeft];

    /// Its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RequestEnd::Answered => "answered",
            RequestEnd::Refused => "refused",
            RequestEnd::Cut => "cut",
            RequestEnd::ClientLeft => "client-left",
        }
    }
}
