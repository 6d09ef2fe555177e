//! What happens, and what is answered.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{DataPlaneId, FunctionId, FunctionName, Reason, Timestamp};

use crate::id::InvocationId;
use crate::record::{IdempotencyKey, Settings, State, StateKind};

/// The moment of a step.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// On the log's time line; decides.
    pub at: Timestamp,
    /// Milliseconds of the wall clock since 1970; only kept to be shown.
    pub shown_ms: u64,
}

/// A call that asks to be accepted.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The data plane whose log it is.
    pub data_plane: DataPlaneId,
    /// Random, for the call's id.
    pub nonce: u64,
    /// The function as it is registered now.
    pub function: FunctionId,
    /// Its name.
    pub name: FunctionName,
    /// What the caller asks for.
    pub settings: Settings,
    /// The caller's name for the call.
    pub key: Option<IdempotencyKey>,
    /// Bytes of the request.
    pub payload_bytes: u64,
}

/// A call is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is new. Its request is to be written by [`crate::Command::PutPayload`].
    New(InvocationId),
    /// It came before, under the same idempotency key.
    Known(InvocationId),
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many calls are open as may be.
    TooMany {
        /// How many.
        limit: usize,
    },
    /// The open calls' requests have as many bytes as they may.
    TooManyBytes {
        /// How many.
        limit: u64,
    },
    /// The idempotency key stands for this call, which had another request.
    KeyReused(InvocationId),
    /// There is no such call, or not any more.
    Unknown,
    /// It has ended, so it cannot be cancelled.
    Ended(State),
    /// It is neither failed nor dead, so it cannot be replayed.
    NoLetter(State),
    /// It has been replayed as this one.
    Replayed(InvocationId),
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The function answered, completely.
    Answered {
        /// The status.
        status: u16,
        /// The answer's own reason, where a shim made it.
        reason: Option<Reason>,
        /// What its `Retry-After` says.
        retry_after: Option<Duration>,
        /// Bytes of the answer; `None` when it is too large to be kept.
        bytes: Option<u64>,
    },
    /// The platform refused it, and provably nothing of it reached user code.
    Refused {
        /// Why.
        reason: Reason,
        /// One sentence.
        detail: Arc<str>,
        /// When it is worth trying again.
        retry_after: Option<Duration>,
    },
    /// No answer came, though user code may have run.
    Broken {
        /// Why.
        reason: Reason,
        /// One sentence.
        detail: Arc<str>,
        /// The platform lost or stopped what it ran in: the function is not to blame.
        by_platform: bool,
    },
}

/// Something that needs no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What [`crate::Command::Prepare`] named is durable, and all that was ordered before it.
    Durable {
        /// Whose.
        sequence: u64,
        /// Which.
        attempt: u32,
    },
    /// An attempt has got its slot.
    Assigned {
        /// Whose.
        sequence: u64,
        /// Which.
        attempt: u32,
    },
    /// An attempt has ended.
    Ended {
        /// Whose.
        sequence: u64,
        /// Which.
        attempt: u32,
        /// How.
        end: End,
    },
    /// A callback was taken, or not.
    CalledBack {
        /// Whose.
        sequence: u64,
        /// Whether its receiver said that it has it.
        taken: bool,
    },
    /// Time has passed.
    Tick,
    /// No attempt is to begin any more: the data plane is shutting down.
    Drain,
}

/// Which calls to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Those of this function.
    pub function: Option<FunctionName>,
    /// Those in this state.
    pub state: Option<StateKind>,
    /// Only those that have not been replayed.
    pub unreplayed: bool,
}
