//! Averages and maxima over the recent past.
//!
//! Sources: Knative's `aggregation.TimedFloat64Buckets` and `aggregation/max.TimeWindow`, with their edge cases:
//! partial windows right after the first write, holes that count as zero, late writes, rounding down to six digits.
//! Knative keeps one ring for each window. Here both averages read one ring, which gives the same numbers in half
//! the memory: the panic window is a suffix of the stable one, and only the time of its first write is its own.

use std::collections::VecDeque;
use std::time::Duration;

use fanfare_types::Timestamp;

/// Longest averaging window, as Knative's; longer settings count as this. One bucket each second.
pub const STABLE_WINDOW_MAX: Duration = Duration::from_secs(3_600);

/// Most candidates for the maximum that are kept apart. Beyond it the lowest one is held for longer.
const MAXIMA_MAX: usize = 4_096;

/// Sums of each second over the stable window.
#[derive(Clone, Debug)]
pub(super) struct LoadWindow {
    ring: Box<[f64]>,
    /// Second of the newest write.
    last: u64,
    stable: Span,
    panic: Span,
    /// Whole seconds of silence after which there is no data.
    silence: u64,
    written: bool,
}

/// One averaging window over the ring.
#[derive(Clone, Copy, Debug)]
struct Span {
    buckets: u64,
    /// Second of the first write since the window was last empty.
    first: u64,
}

impl LoadWindow {
    pub(super) fn new(stable: Duration, panic: Duration) -> Self {
        let stable_buckets = bucket_count(stable);
        LoadWindow {
            ring: vec![0.0; index_of(stable_buckets)].into_boxed_slice(),
            last: 0,
            stable: Span { buckets: stable_buckets, first: 0 },
            panic: Span { buckets: bucket_count(panic).min(stable_buckets), first: 0 },
            silence: stable.min(STABLE_WINDOW_MAX).as_secs(),
            written: false,
        }
    }

    /// Adds `value` to the second of `now`. A write older than the window is ignored.
    pub(super) fn record(&mut self, now: Timestamp, value: f64) {
        let second = now.as_secs();
        if !self.written {
            self.written = true;
            self.last = second;
            self.stable.first = second;
            self.panic.first = second;
        } else if second > self.last {
            self.advance(second);
        } else {
            let late = self.last - second;
            if late >= self.stable.buckets {
                return;
            }
            self.stable.first = self.stable.first.min(second);
            if late < self.panic.buckets {
                self.panic.first = self.panic.first.min(second);
            }
        }
        let slot = self.slot(second);
        self.ring[slot] += value;
    }

    /// Average over the stable window; 0 without data.
    pub(super) fn stable(&self, now: Timestamp) -> f64 {
        self.average(self.stable, now)
    }

    /// Average over the panic window; 0 without data.
    pub(super) fn panic(&self, now: Timestamp) -> f64 {
        self.average(self.panic, now)
    }

    /// Whether nothing was recorded for a whole stable window.
    pub(super) fn is_empty(&self, now: Timestamp) -> bool {
        !self.written || now.as_secs().saturating_sub(self.last) > self.silence
    }

    /// Changes the widths; what was recorded within both the old and the new stable window stays.
    pub(super) fn resize(&mut self, stable: Duration, panic: Duration) {
        let mut new = LoadWindow::new(stable, panic);
        if self.written {
            new.written = true;
            new.last = self.last;
            for age in 0..self.stable.buckets.min(new.stable.buckets).min(self.last + 1) {
                new.ring[new.slot(self.last - age)] = self.ring[self.slot(self.last - age)];
            }
            new.stable.first = self.stable.known_since(self.last);
            new.panic.first = self.panic.known_since(self.last);
        }
        *self = new;
    }

    fn advance(&mut self, second: u64) {
        let gap = second - self.last;
        if gap >= self.panic.buckets {
            self.panic.first = second;
        }
        if gap >= self.stable.buckets {
            self.stable.first = second;
            self.ring.fill(0.0);
        } else {
            for hole in self.last + 1..=second {
                let slot = self.slot(hole);
                self.ring[slot] = 0.0;
            }
        }
        self.last = second;
    }

    fn average(&self, span: Span, now: Timestamp) -> f64 {
        let silent = now.as_secs().saturating_sub(self.last);
        if !self.written || silent >= span.buckets {
            return 0.0;
        }
        let readable = span.buckets - silent;
        let len = self.ring.len() as u64;
        let sum: f64 = (0..readable).map(|age| self.ring[index_of((self.last + len - age) % len)]).sum();
        let counted = (self.last - span.first + 1).min(readable);
        floor_to_micros(sum / counted as f64)
    }

    fn slot(&self, second: u64) -> usize {
        index_of(second % self.ring.len() as u64)
    }
}

impl Span {
    /// The earliest second this window can vouch for.
    fn known_since(self, last: u64) -> u64 {
        self.first.max((last + 1).saturating_sub(self.buckets))
    }
}

/// The highest value of the recent past (the "ascending minima" algorithm): values that a later, larger one makes
/// irrelevant are not kept, so a steady function keeps a single entry.
#[derive(Clone, Debug, Default)]
pub(super) struct MaxWindow {
    /// Ascending in index, descending in value.
    maxima: VecDeque<(u64, u32)>,
}

impl MaxWindow {
    /// Records `value` at `index` and returns the highest value of the last `span` indexes, this one included.
    pub(super) fn record(&mut self, index: u64, span: u64, value: u32) -> u32 {
        while self.maxima.back().is_some_and(|&(_, lowest)| value >= lowest) {
            self.maxima.pop_back();
        }
        while self.maxima.front().is_some_and(|&(oldest, _)| index.saturating_sub(oldest) >= span.max(1)) {
            self.maxima.pop_front();
        }
        let full = self.maxima.len() >= MAXIMA_MAX;
        match self.maxima.back_mut() {
            // The same index keeps its larger value, which is the one that is there.
            Some((last, _)) if *last >= index => {}
            Some((last, _)) if full => *last = index,
            _ => self.maxima.push_back((index, value)),
        }
        self.maxima.front().map_or(value, |&(_, highest)| highest)
    }
}

fn bucket_count(window: Duration) -> u64 {
    let window = window.min(STABLE_WINDOW_MAX);
    (window.as_secs() + u64::from(window.subsec_nanos() > 0)).max(1)
}

/// Buckets are at most [`STABLE_WINDOW_MAX`] in number, far below any `usize`.
fn index_of(n: u64) -> usize {
    n as usize
}

/// Knative's rounding: it makes sums that cancelled out, but for an error of the arithmetic, zero.
fn floor_to_micros(x: f64) -> f64 {
    (x * 1e6).floor() / 1e6
}

#[cfg(test)]
mod tests;
