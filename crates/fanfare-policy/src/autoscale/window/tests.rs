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
    for (x, want) in [(3.6e-17, 0.0), (0.000_000_4, 0.0), (1.234_567_8, 1.234_567), (12_345.0, 12_345.0)] {
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
fn a_steady_value_is_kept_once() {
    let mut m = MaxWindow::default();
    for index in 0..100 {
        assert_eq!(m.record(index, 50, 7), 7);
    }
    assert_eq!(m.maxima.len(), 1);
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
