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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ORIGIN_MS: u64 = 1_000_250;

    fn at(secs: f64) -> Timestamp {
        Timestamp::from_millis((ORIGIN_MS as f64 + secs * 1e3) as u64)
    }

    fn window(secs: u64) -> LoadWindow {
        LoadWindow::new(Duration::from_secs(secs), Duration::from_secs(secs))
    }

    /// Knative: `TestTimedFloat64BucketsWindowAverage`.
    #[test]
    fn knative_window_average() {
        let mut w = window(5);
        w.record(at(0.0), 1.0);
        assert_eq!(w.stable(at(0.0)), 1.0, "a partial window divides by what it holds");
        for i in 1..5 {
            w.record(at(f64::from(i)), f64::from(i + 1));
        }
        assert_eq!(w.stable(at(4.0)), 15.0 / 5.0);
        assert_eq!(w.stable(at(3.6)), 15.0 / 5.0, "now lags behind");
        assert_eq!(w.stable(at(6.0)), (15.0 - 1.0 - 2.0) / 3.0, "short hole");
        assert_eq!(w.stable(at(10.0)), 0.0, "long hole");
        w.record(at(6.0), 91.0);
        assert_eq!(w.stable(at(6.0)), (15.0 - 1.0 - 2.0 + 91.0) / 5.0, "write after a hole");
        w.record(at(60.0), 1984.0);
        assert_eq!(w.stable(at(60.0)), 1984.0, "much later");
        w.record(at(57.0), 4.0);
        assert_eq!(w.stable(at(60.0)), (4.0 + 1984.0) / 4.0, "earlier than the first write");
        w.record(at(61.0), 5.0);
        assert_eq!(w.stable(at(61.0)), (4.0 + 1984.0 + 5.0) / 5.0);
        w.record(at(58.0), 10.0);
        assert_eq!(w.stable(at(61.0)), (4.0 + 10.0 + 1984.0 + 5.0) / 5.0);
        w.record(at(55.0), 10.0);
        assert_eq!(w.stable(at(61.0)), (4.0 + 10.0 + 1984.0 + 5.0) / 5.0, "too early is ignored");
    }

    /// Knative: `TestDescendingRecord`.
    #[test]
    fn knative_descending_record() {
        let mut w = window(5);
        for i in (0..=8).rev() {
            w.record(at(f64::from(i)), 5.0);
        }
        assert_eq!(w.stable(at(5.0)), 5.0);
    }

    /// Knative: `TestTimedFloat64BucketsManyReps`, `…NonMonotonicalOrder` and `…Holes`.
    #[test]
    fn knative_repetitions_and_holes() {
        for order in [[0, 1, 2, 3, 4], [0, 3, 2, 1, 4]] {
            let mut w = window(60);
            for p in order {
                for r in 0..5 {
                    w.record(at(f64::from(p)), f64::from(p + r));
                }
            }
            assert_eq!(w.stable(at(4.0)), 100.0 / 5.0, "{order:?}");
        }
        let mut w = window(5);
        for i in 0..5 {
            w.record(at(f64::from(i)), f64::from(i + 1));
        }
        w.record(at(8.0), 2.0);
        assert_eq!(w.stable(at(8.0)), 7.0 / 5.0);
    }

    /// Knative: `TestTimedFloat64BucketsWindowUpdate`.
    #[test]
    fn knative_window_update() {
        let mut w = window(5);
        for i in 0..6 {
            w.record(at(f64::from(i)), f64::from(i + 1));
        }
        assert_eq!(w.stable(at(5.0)), 20.0 / 5.0);
        w.resize(Duration::from_secs(10), Duration::from_secs(10));
        assert_eq!(w.stable(at(5.0)), 20.0 / 5.0, "wider: only five buckets are known");
        w.record(at(6.0), 7.0);
        assert_eq!(w.stable(at(6.0)), floor_to_micros(27.0 / 6.0));
        w.resize(Duration::from_secs(4), Duration::from_secs(4));
        assert_eq!(w.stable(at(6.0)), (27.0 - 2.0 - 3.0) / 4.0, "narrower: the oldest are gone");
    }

    /// Knative: `TestRoundToNDigits`, at the six digits that it uses.
    #[test]
    fn knative_rounding() {
        for (x, want) in [(3.6e-17, 0.0), (0.000_000_4, 0.0), (1.234_567_8, 1.234_567), (12_345.0, 12_345.0)]
        {
            assert_eq!(floor_to_micros(x), want);
        }
    }

    #[test]
    fn silence_is_no_data_only_after_a_whole_window() {
        let mut w = window(5);
        assert!(w.is_empty(at(0.0)));
        w.record(at(0.0), 1.0);
        assert!(!w.is_empty(at(5.0)));
        assert!(w.is_empty(at(6.0)));
        let mut odd = LoadWindow::new(Duration::from_millis(4_500), Duration::from_secs(1));
        odd.record(at(0.0), 1.0);
        assert!(!odd.is_empty(at(4.0)));
        assert!(odd.is_empty(at(5.0)));
    }

    #[test]
    fn a_late_first_write_near_the_origin_of_time() {
        let mut w = LoadWindow::new(Duration::from_secs(60), Duration::from_secs(6));
        w.record(Timestamp::from_millis(10), 3.0);
        assert_eq!((w.stable(Timestamp::ZERO), w.panic(Timestamp::ZERO)), (3.0, 3.0));
        w.resize(Duration::from_secs(30), Duration::from_secs(3));
        assert_eq!(w.stable(Timestamp::from_millis(20)), 3.0);
    }

    /// Knative: `TestTimedWindowMax`, a window of 5 s in buckets of 1 s.
    #[test]
    fn knative_time_window_max() {
        type Values = &'static [(u64, u32)];
        let cases: [(&str, Values, u32); 5] = [
            ("single value", &[(0, 5)], 5),
            ("two values in the same second", &[(0, 6), (0, 5)], 6),
            ("two values in the same second, rising", &[(0, 5), (0, 6)], 6),
            ("two values", &[(0, 5), (1, 8)], 8),
            ("time gap", &[(0, 5), (6, 4)], 4),
        ];
        for (name, values, want) in cases {
            let mut m = MaxWindow::default();
            let mut got = 0;
            for &(index, value) in values {
                got = m.record(index, 5, value);
            }
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn maxima_are_bounded_and_err_towards_holding() {
        let mut m = MaxWindow::default();
        let top = u32::try_from(MAXIMA_MAX).unwrap() + 500;
        for i in 0..top {
            assert_eq!(m.record(u64::from(i), u64::MAX, top - i), top);
        }
        assert!(m.maxima.len() <= MAXIMA_MAX);
        assert!(m.record(u64::from(top), 2, 0) >= 1, "the coalesced entry is held rather than forgotten");
    }

    /// The reference: two rings of their own, as Knative has them, but kept as a list of all writes.
    #[derive(Default)]
    struct Reference {
        writes: Vec<(u64, f64)>,
        first: u64,
        last: u64,
    }

    impl Reference {
        fn record(&mut self, second: u64, value: f64, width: u64) {
            if self.writes.is_empty() || second >= self.last + width {
                self.writes.clear();
                self.first = second;
                self.last = second;
            } else if second + width <= self.last {
                return;
            }
            self.first = self.first.min(second);
            self.last = self.last.max(second);
            self.writes.push((second, value));
        }

        fn average(&self, now: u64, width: u64) -> f64 {
            let silent = now.saturating_sub(self.last);
            if self.writes.is_empty() || silent >= width {
                return 0.0;
            }
            let from = (now.max(self.last) + 1).saturating_sub(width);
            let sum: f64 = self.writes.iter().filter(|(s, _)| *s >= from).map(|(_, v)| v).sum();
            sum / (self.last - self.first + 1).min(width - silent) as f64
        }
    }

    proptest! {
        #[test]
        fn one_ring_gives_both_averages(
            widths in (1_u64..40, 1_u64..40),
            steps in prop::collection::vec((-8_i64..20, 0_u32..100, 0_u64..30), 1..60),
        ) {
            let (stable, panic) = (widths.0.max(widths.1), widths.0.min(widths.1));
            let mut w = LoadWindow::new(Duration::from_secs(stable), Duration::from_secs(panic));
            let (mut long, mut short) = (Reference::default(), Reference::default());
            let mut second = 100_i64;
            for (step, value, later) in steps {
                second = (second + step).max(0);
                let s = second as u64;
                w.record(Timestamp::from_secs(s), f64::from(value));
                long.record(s, f64::from(value), stable);
                // A write that only the long ring takes must not disturb the short one.
                short.record(s, f64::from(value), panic);
                let now = s + later;
                prop_assert!((w.stable(Timestamp::from_secs(now)) - long.average(now, stable)).abs() < 2e-6);
                prop_assert!((w.panic(Timestamp::from_secs(now)) - short.average(now, panic)).abs() < 2e-6);
            }
        }

        #[test]
        fn the_maximum_is_the_maximum(
            span in 1_u64..30,
            steps in prop::collection::vec((0_u64..6, 0_u32..50), 1..200),
        ) {
            let mut m = MaxWindow::default();
            let mut all = Vec::new();
            let mut index = 0;
            for (step, value) in steps {
                index += step;
                all.push((index, value));
                let want = all.iter().filter(|(i, _)| index - i < span).map(|(_, v)| *v).max().unwrap();
                prop_assert_eq!(m.record(index, span, value), want);
            }
        }
    }
}
