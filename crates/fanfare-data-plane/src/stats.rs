//! Counters, merged when asked for.

use fanfare_types::{FunctionId, FunctionName, Reason};

/// What a data plane has done and holds.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Every function known, removed ones excluded.
    pub functions: Vec<FunctionStats>,
    /// Requests held now, waiting ones included.
    pub requests: usize,
    /// Connections of clients now.
    pub connections: usize,
    /// How many of them there may be.
    pub connections_max: usize,
    /// Connections of clients that were closed because there were too many.
    pub crowded_out: u64,
    /// Requests answered by the platform before a function was found, by reason.
    pub problems: Vec<(Reason, u64)>,
    /// Requests forwarded to the data plane that owns their function.
    pub forwarded: u64,
    /// TLS handshakes that failed, were too slow, or were one too many.
    pub handshakes_failed: u64,
    /// Whether everything has been heard from the control plane once.
    pub synced: bool,
    /// Whether a stream to the control plane is up.
    pub connected: bool,
}

/// One function on one data plane. Counters begin with 0 when the function becomes known.
#[derive(Clone, Debug)]
pub struct FunctionStats {
    /// Which.
    pub function: FunctionId,
    /// Its name.
    pub name: FunctionName,
    /// Requests in sandboxes now.
    pub in_flight: u32,
    /// Requests waiting now.
    pub queued: u32,
    /// Sandboxes that slots are held of now.
    pub sandboxes: usize,
    /// Requests that arrived.
    pub arrivals: u64,
    /// Slots given to requests on arrival.
    pub warm: u64,
    /// Slots given to waiting requests as others finished.
    pub handed_over: u64,
    /// Slots given to waiting requests as they came from other data planes.
    pub moved: u64,
    /// Slots of sandboxes just started, given to waiting requests.
    pub cold: u64,
    /// Requests answered by the function.
    pub answered: u64,
    /// Requests that reached user code and were not answered by it: timed out, abandoned, or its fault.
    pub cut: u64,
    /// Sandboxes condemned.
    pub condemned: u64,
    /// Requests answered by the platform, by reason.
    pub problems: Vec<(Reason, u64)>,
}

impl FunctionStats {
    /// Of one to which nothing has happened.
    pub(crate) fn new(function: FunctionId, name: FunctionName) -> Self {
        FunctionStats {
            function,
            name,
            in_flight: 0,
            queued: 0,
            sandboxes: 0,
            arrivals: 0,
            warm: 0,
            handed_over: 0,
            moved: 0,
            cold: 0,
            answered: 0,
            cut: 0,
            condemned: 0,
            problems: Vec::new(),
        }
    }
}

/// Counts by reason.
pub(crate) fn count(problems: &mut Vec<(Reason, u64)>, reason: Reason) {
    match problems.iter_mut().find(|(counted, _)| *counted == reason) {
        Some((_, count)) => *count += 1,
        None => problems.push((reason, 1)),
    }
}
