//! How busy a function is, as the control plane is told.

use std::time::Duration;

use fanfare_types::Timestamp;

/// Weight of the newest execution in the smoothed execution time: that of TCP's round-trip estimator (RFC 6298).
const EXECUTION_WEIGHT: f64 = 1.0 / 8.0;

/// Time-weighted mean of the requests present, arrivals, and execution time.
#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    window_start: Timestamp,
    last: Timestamp,
    /// Requests times seconds since the window began.
    request_seconds: f64,
    pub(crate) arrivals: u32,
    execution_s: Option<f64>,
    pub(crate) active: bool,
}

impl LoadMeter {
    /// Accounts for the time since the last event, over which `present` requests were in sandboxes or waiting.
    /// Events of several cores may come a little out of order; those count as simultaneous.
    pub(crate) fn advance(&mut self, now: Timestamp, present: u32) {
        if now > self.last {
            if present > 0 {
                self.request_seconds += f64::from(present) * now.since(self.last).as_secs_f64();
            }
            self.last = now;
        }
    }

    /// The latest time that any event came at.
    pub(crate) fn now(&self) -> Timestamp {
        self.last
    }

    /// Begins a window.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.window_start = now;
        self.last = self.last.max(now);
        self.request_seconds = 0.0;
        self.arrivals = 0;
    }

    pub(crate) fn executed(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.execution_s = Some(match self.execution_s {
            None => took,
            Some(mean) => mean + EXECUTION_WEIGHT * (took - mean),
        });
    }

    pub(crate) fn execution_s(&self) -> Option<f64> {
        self.execution_s
    }

    pub(crate) fn interval_s(&self, now: Timestamp) -> f64 {
        now.since(self.window_start).as_secs_f64()
    }

    /// Mean of the requests present since the window began; `present` when it began this instant.
    pub(crate) fn mean(&self, now: Timestamp, present: u32) -> f64 {
        let interval = self.interval_s(now);
        if interval > 0.0 { self.request_seconds / interval } else { f64::from(present) }
    }

    pub(crate) fn had_load(&self) -> bool {
        self.arrivals > 0 || self.request_seconds > 0.0
    }
}
