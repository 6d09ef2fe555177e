//! What came of a run.

use std::fmt;
use std::time::Duration;

use fanfare_types::{Reason, Timestamp};

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was simulated.
    pub scenario: String,
    /// What chance was drawn from.
    pub seed: u64,
    /// Events that were handled.
    pub events: u64,
    /// Equal for two runs in which the same things happened at the same times.
    pub digest: u64,
    /// The promise that was broken; the run ended there.
    pub violation: Option<Violation>,
    /// Every request, in the order of the scenario.
    pub requests: Vec<RequestReport>,
    /// Sandboxes that nodes were told to start.
    pub sandboxes_created: u64,
    /// The most sandboxes that each node had at once.
    pub node_peaks: Vec<u32>,
    /// Faults that met somebody.
    pub faults: u64,
}

/// What became of a request. Times are on the scenario's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestReport {
    /// The function's index.
    pub function: usize,
    /// When it arrived.
    pub arrived: Timestamp,
    /// When user code began with it.
    pub started: Option<Timestamp>,
    /// When its client had the answer, or left.
    pub ended: Option<Timestamp>,
    /// How it ended; `None`: it had not when the run ended.
    pub outcome: Option<Outcome>,
    /// Its sandbox was started for it.
    pub cold: bool,
}

impl RequestReport {
    /// From its arrival until user code began.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        self.started.map(|started| started.since(self.arrived))
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its function answered.
    Answered,
    /// The platform answered, with this reason.
    Refused(Reason),
    /// Its client left.
    Left,
    /// The data plane that it was at ended, and its connection with it.
    Cut,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's name, as its file.
    pub invariant: &'static str,
    /// What was found.
    pub detail: String,
    /// When, on the scenario's line.
    pub at: Timestamp,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { scenario, seed, events, digest, faults, .. } = self;
        let requests = self.requests.len();
        write!(
            f,
            "scenario {scenario}, seed {seed}: {requests} requests, {faults} faults, {events} events, digest {digest:016x}: "
        )?;
        match &self.violation {
            None => f.write_str("every invariant held"),
            Some(Violation { invariant, detail, at }) => write!(f, "BROKEN at {at}: {invariant}: {detail}"),
        }
    }
}
