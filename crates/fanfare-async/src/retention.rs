//! How long calls are kept that have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use fanfare_types::Timestamp;

/// Calls of one kind, the one that ended first first.
#[derive(Debug)]
pub(crate) struct Shelf {
    entries: BTreeSet<(Timestamp, u64)>,
    bytes: u64,
    count_max: usize,
    bytes_max: u64,
    keep: Duration,
}

impl Shelf {
    pub(crate) fn new(count_max: usize, bytes_max: u64, keep: Duration) -> Self {
        Shelf { entries: BTreeSet::new(), bytes: 0, count_max, bytes_max, keep }
    }

    pub(crate) fn add(&mut self, finished: Timestamp, sequence: u64, bytes: u64) {
        if self.entries.insert((finished, sequence)) {
            self.bytes += bytes;
        }
    }

    pub(crate) fn remove(&mut self, finished: Timestamp, sequence: u64, bytes: u64) {
        if self.entries.remove(&(finished, sequence)) {
            self.bytes -= bytes;
        }
    }

    /// The call that is to be dropped next, if one is.
    pub(crate) fn overdue(&self, now: Timestamp) -> Option<u64> {
        let (finished, sequence) = *self.entries.first()?;
        let over = self.entries.len() > self.count_max || self.bytes > self.bytes_max;
        (over || finished + self.keep <= now).then_some(sequence)
    }

    pub(crate) fn keep(&self) -> Duration {
        self.keep
    }

    /// When the next one is to be dropped for its age.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.entries.first().map(|(finished, _)| *finished + self.keep)
    }
}
