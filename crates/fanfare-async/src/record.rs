//! What is kept of one call.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{FunctionId, FunctionName, Reason, Timestamp};

use crate::feed::Ready;
use crate::id::InvocationId;

/// What a crash means for a call whose attempt had begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Another attempt: user code may run more than once, each time with a higher attempt number.
    #[default]
    AtLeastOnce,
    /// None: user code runs once or not at all.
    AtMostOnce,
}

/// What the caller asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What a crash means.
    pub delivery: Delivery,
    /// Attempts that may fail; 1 under [`Delivery::AtMostOnce`].
    pub attempts_max: u32,
    /// How long after it was accepted an attempt may still begin.
    pub age_max: Duration,
    /// Where its end is told.
    pub callback: Option<Arc<str>>,
    /// The id of the request that brought it, which its attempts go by, too.
    pub request_id: Option<Arc<str>>,
}

/// A caller's name for a call: the same name with the same request is the same call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The name.
    pub key: Arc<str>,
    /// Of the request that it came with.
    pub fingerprint: u128,
}

/// Where a call's request is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The call that it was written for: a replay has its dead letter's.
    pub key: u64,
    /// Its length.
    pub bytes: u64,
}

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No attempt has begun.
    Queued,
    /// An attempt has begun, or is about to.
    Running,
    /// The last attempt did not end the call; another may begin at this time.
    Retrying(Timestamp),
    /// The function answered without an error.
    Succeeded,
    /// The function answered with an error that another attempt would not mend.
    Failed,
    /// Given up; the request is kept and can be replayed.
    Dead(Cause),
    /// By its caller.
    Cancelled,
}

/// Why a call is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// As many attempts failed as may.
    AttemptsExhausted,
    /// It became too old.
    MaxAge,
    /// There is no such function any more.
    FunctionRemoved,
    /// Its only attempt was cut short by a crash: whether user code ran is not known.
    Lost,
    /// Crashes cut as many attempts short as may.
    Interrupted,
}

/// A [`State`] without what it holds: what is shown, and what lists are filtered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateKind {
    /// [`State::Queued`].
    Queued,
    /// [`State::Running`].
    Running,
    /// [`State::Retrying`].
    Retrying,
    /// [`State::Succeeded`].
    Succeeded,
    /// [`State::Failed`].
    Failed,
    /// [`State::Dead`].
    Dead,
    /// [`State::Cancelled`].
    Cancelled,
}

/// How the telling of a call's end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callback {
    /// Not wanted, or not yet.
    None,
    /// Not taken yet: so many tries, the next one at this time.
    Waiting {
        /// Tries that were not taken.
        tries: u32,
        /// When the next one is due.
        at: Timestamp,
    },
    /// Taken.
    Delivered,
    /// Not taken in as many tries as there may be.
    GivenUp,
}

/// How the last attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastEnd {
    /// The function's status, if it answered.
    pub status: Option<u16>,
    /// The platform's reason, if it refused or broke off; or the one that the function's answer names.
    pub reason: Option<Reason>,
    /// One sentence.
    pub detail: Arc<str>,
}

/// When a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// On the log's time line.
    pub at: Timestamp,
    /// By the wall clock, to be shown.
    pub shown_ms: u64,
}

/// One call. Written whole whenever it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its name.
    pub id: InvocationId,
    /// The function as it was registered when the call came: one that is deleted and registered again is another.
    pub function: FunctionId,
    /// The function's name.
    pub name: FunctionName,
    /// What the caller asked for.
    pub settings: Settings,
    /// The caller's name for it.
    pub key: Option<IdempotencyKey>,
    /// The request; gone when it will not be needed any more.
    pub payload: Option<Payload>,
    /// How it stands.
    pub state: State,
    /// When it was accepted, on the log's time line.
    pub accepted: Timestamp,
    /// The same by the wall clock, to be shown.
    pub accepted_shown_ms: u64,
    /// Attempts that may have reached user code, the current one included.
    pub attempts: u32,
    /// Attempts of which the function is to blame for the failure.
    pub failures: u32,
    /// Attempts that a crash cut short.
    pub interruptions: u32,
    /// How the last attempt ended.
    pub last: Option<LastEnd>,
    /// Bytes of the result that is kept.
    pub result_bytes: Option<u64>,
    /// When it ended.
    pub finished: Option<Finished>,
    /// How the telling of it stands.
    pub callback: Callback,
    /// The dead letter that it repeats.
    pub replay_of: Option<InvocationId>,
    /// The call that repeats it.
    pub replayed_as: Option<InvocationId>,
}

impl State {
    /// Without what it holds.
    #[must_use]
    pub const fn kind(self) -> StateKind {
        match self {
            State::Queued => StateKind::Queued,
            State::Running => StateKind::Running,
            State::Retrying(_) => StateKind::Retrying,
            State::Succeeded => StateKind::Succeeded,
            State::Failed => StateKind::Failed,
            State::Dead(_) => StateKind::Dead,
            State::Cancelled => StateKind::Cancelled,
        }
    }

    /// Whether it is for good.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, State::Queued | State::Running | State::Retrying(_))
    }

    /// Whether the call can be replayed from it.
    pub(crate) const fn is_letter(self) -> bool {
        matches!(self, State::Failed | State::Dead(_))
    }
}

impl Record {
    /// Whether it takes a place among the open ones: it has not ended, or its callback is not settled.
    pub(crate) fn is_open(&self) -> bool {
        !self.state.is_final() || matches!(self.callback, Callback::Waiting { .. })
    }

    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload.map_or(0, |payload| payload.bytes)
    }

    /// What counts of it before its next attempt.
    pub(crate) fn ready(&self) -> Ready {
        Ready { bytes: self.payload_bytes(), once: self.settings.delivery == Delivery::AtMostOnce }
    }

    /// The last moment at which an attempt may begin.
    pub(crate) fn expires(&self) -> Timestamp {
        self.accepted + self.settings.age_max
    }
}

macro_rules! words {
    ($type:ty, $what:literal, $($variant:path => $word:literal),* $(,)?) => {
        impl $type {
            /// Its stable word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $($variant => $word,)* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl FromStr for $type {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok($variant),)*
                    _ => Err(concat!($what, " is one of", $(" ", $word),*)),
                }
            }
        }
    };
}

words!(Delivery, "a delivery",
    Delivery::AtLeastOnce => "at-least-once",
    Delivery::AtMostOnce => "at-most-once",
);
words!(StateKind, "a state",
    StateKind::Queued => "queued",
    StateKind::Running => "running",
    StateKind::Retrying => "retrying",
    StateKind::Succeeded => "succeeded",
    StateKind::Failed => "failed",
    StateKind::Dead => "dead",
    StateKind::Cancelled => "cancelled",
);
words!(Cause, "a cause",
    Cause::AttemptsExhausted => "attempts-exhausted",
    Cause::MaxAge => "max-age",
    Cause::FunctionRemoved => "function-removed",
    Cause::Lost => "lost",
    Cause::Interrupted => "interrupted",
);
