//! How the cores reach the keeper.

use std::sync::Arc;

use bytes::Bytes;
use fanfare_async::{Accepted, Filter, InvocationId, Offer, Record, Refusal, StateKind};
use fanfare_types::{FunctionId, Reason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::intake::{Intake, Taken};
use super::message::Response;
use super::options::AsyncOptions;
use super::targets::Reach;
use crate::problem::Problem;

/// Questions that wait for the keeper; the next one waits to be queued.
pub(crate) const ASKS_MAX: usize = 1_024;
/// Bytes of requests that are in memory on their way to the log and are the platform's own, or come from senders that
/// are believed already. What strangers send has room of its own ([`Intake`]).
const KNOWN_BYTES_MAX: usize = 32 << 20;
/// Bytes of results that are in memory on their way to clients.
const RESULT_BYTES_MAX: usize = 64 << 20;
const KIB: usize = 1 << 10;

/// A question to the keeper, with where its answer goes. Every answer is told once all that the keeper knew when it
/// gave it is durable.
#[derive(Debug)]
pub(crate) enum Ask {
    Offer {
        offer: Offer,
        payload: Bytes,
        room: Room,
        tell: oneshot::Sender<Result<Accepted, Refusal>>,
    },
    /// Whether a call is kept that was accepted under this key.
    Known {
        function: FunctionId,
        key: Arc<str>,
        tell: oneshot::Sender<Option<InvocationId>>,
    },
    Look {
        id: InvocationId,
        tell: oneshot::Sender<Option<Seen>>,
    },
    /// Told when the call has ended.
    Watch {
        id: InvocationId,
        tell: oneshot::Sender<()>,
    },
    Result {
        id: InvocationId,
        tell: oneshot::Sender<Option<Outcome>>,
    },
    Cancel {
        id: InvocationId,
        tell: oneshot::Sender<Result<Seen, Refusal>>,
    },
    Replay {
        id: InvocationId,
        nonce: u64,
        tell: oneshot::Sender<Result<InvocationId, Refusal>>,
    },
    List {
        filter: Filter,
        after: u64,
        limit: usize,
        tell: oneshot::Sender<(Vec<Seen>, bool)>,
    },
}

/// A call as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) record: Record,
    pub(crate) kind: StateKind,
    /// While it pauses: for how long.
    pub(crate) next_in_ms: Option<u64>,
}

/// A call, and its result if it has one.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seen: Seen,
    pub(crate) result: Result<Option<Response>, String>,
}

/// Room for bytes on their way, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _held: Held,
}

#[derive(Debug)]
enum Held {
    Nothing,
    Permit(#[allow(dead_code)] OwnedSemaphorePermit),
    Taken(#[allow(dead_code)] Taken),
}

impl From<Taken> for Room {
    fn from(taken: Taken) -> Self {
        Room { _held: Held::Taken(taken) }
    }
}

/// The way to the keeper.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) options: AsyncOptions,
    /// Where callbacks may go.
    pub(crate) reach: Reach,
    asks: mpsc::Sender<Ask>,
    /// Room for what strangers send.
    pub(crate) intake: Arc<Intake>,
    known: Arc<Semaphore>,
    results: Arc<Semaphore>,
}

impl Door {
    pub(crate) fn new(options: AsyncOptions) -> (Self, mpsc::Receiver<Ask>) {
        let (asks, to_keeper) = mpsc::channel(ASKS_MAX);
        let known = Arc::new(Semaphore::new(KNOWN_BYTES_MAX / KIB));
        let results = Arc::new(Semaphore::new(RESULT_BYTES_MAX / KIB));
        let reach = Reach::of(&options);
        (Door { options, reach, asks, intake: Arc::default(), known, results }, to_keeper)
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Ask,
    ) -> Result<T, Problem> {
        let closed = || {
            let detail =
                "the log of asynchronous invocations cannot be used at the moment; nothing of it is lost";
            Problem::new(Reason::Unavailable, detail)
        };
        let (tell, answer) = oneshot::channel();
        self.asks.send(question(tell)).await.map_err(|_| closed())?;
        // It drops what it cannot make durable.
        answer.await.map_err(|_| closed())
    }

    /// Room for so many bytes of a request whose sender is the platform, or is believed.
    pub(crate) fn room_of_known(&self, bytes: u64) -> Result<Room, Problem> {
        room(&self.known, bytes, "requests", KNOWN_BYTES_MAX)
    }

    /// Room for so many bytes of a result.
    pub(crate) fn room_of_result(&self, bytes: u64) -> Result<Room, Problem> {
        room(&self.results, bytes, "results", RESULT_BYTES_MAX)
    }
}

fn room(room: &Arc<Semaphore>, bytes: u64, what: &str, limit: usize) -> Result<Room, Problem> {
    let units = usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(KIB);
    if units == 0 {
        return Ok(Room { _held: Held::Nothing });
    }
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    let permit = room.clone().try_acquire_many_owned(units).map_err(|_| {
        let limit = limit >> 20;
        let detail =
            format!("{what} of asynchronous invocations with {limit} MiB are on their way; no more may be");
        Problem::new(Reason::DataPlaneFull, detail)
    })?;
    Ok(Room { _held: Held::Permit(permit) })
}
