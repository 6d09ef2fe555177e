//! A request on its way, and what its client sees.

use fanfare_dispatch::Handle;
use fanfare_types::Timestamp;

use crate::event::Visit;
use crate::report::Outcome;
use crate::scenario::Arrival;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) arrival: Arrival,
    /// The data plane that its client is connected to, and in which life.
    pub(crate) entry: (usize, u64),
    pub(crate) place: Place,
    /// Counts its stations.
    pub(crate) visit: u32,
    /// Sandboxes that it was offered to in vain.
    pub(crate) attempts: u32,
    pub(crate) started: Option<Timestamp>,
    pub(crate) ended: Option<Timestamp>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) cold: bool,
    /// How often its client had an answer.
    pub(crate) answers: u32,
    /// How often user code began with it.
    pub(crate) executions: u32,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not with any data plane: not yet, on the way between two, or no more.
    Elsewhere,
    /// Its data plane does not know yet which functions there are.
    Unsynced { plane: usize },
    /// In a function's queue.
    Queued { plane: usize, function: u32, waiter: u64, deadline: Timestamp },
    /// In a slot.
    Slotted {
        plane: usize,
        function: u32,
        sandbox: Handle,
        since: Timestamp,
        deadline: Timestamp,
        waiter: u64,
    },
}

impl Place {
    pub(crate) fn plane(self) -> Option<usize> {
        match self {
            Place::Elsewhere => None,
            Place::Unsynced { plane } | Place::Queued { plane, .. } | Place::Slotted { plane, .. } => {
                Some(plane)
            }
        }
    }
}

impl Request {
    pub(crate) fn new(arrival: Arrival, entry: (usize, u64)) -> Self {
        Request {
            arrival,
            entry,
            place: Place::Elsewhere,
            visit: 0,
            attempts: 0,
            started: None,
            ended: None,
            outcome: None,
            cold: false,
            answers: 0,
            executions: 0,
        }
    }

    /// Its present station.
    pub(crate) fn visit(&self, request: usize) -> Visit {
        Visit { request, number: self.visit }
    }
}
