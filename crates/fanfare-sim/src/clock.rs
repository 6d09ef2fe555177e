//! A process's monotonic clock: it starts anywhere, runs a little fast or slow, and may leap ahead. It never goes back.

use std::time::Duration;

use fanfare_types::Timestamp;

const MILLION: u128 = 1_000_000;

/// Translates between true time and what a process reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Timestamp,
    /// What it showed then.
    base: Timestamp,
    /// Local nanoseconds in a million true ones.
    rate: u128,
}

impl Clock {
    /// Shows `base` at `origin`, and gains `drift_ppm` microseconds in each second, or loses them.
    pub(crate) fn new(origin: Timestamp, base: Timestamp, drift_ppm: i32) -> Self {
        let rate = u128::try_from(1_000_000 + i64::from(drift_ppm)).unwrap_or(MILLION);
        Clock { origin, base, rate: rate.max(1) }
    }

    /// What it shows.
    pub(crate) fn local(&self, now: Timestamp) -> Timestamp {
        let passed = u128::from(now.as_nanos().saturating_sub(self.origin.as_nanos()));
        self.base + nanos(passed * self.rate / MILLION)
    }

    /// The first true moment at which it shows this or more.
    pub(crate) fn when(&self, local: Timestamp) -> Timestamp {
        if local == Timestamp::MAX {
            return Timestamp::MAX;
        }
        let left = u128::from(local.as_nanos().saturating_sub(self.base.as_nanos()));
        self.origin + nanos((left * MILLION).div_ceil(self.rate))
    }

    /// From `now` on it shows so much more.
    pub(crate) fn leap(&mut self, now: Timestamp, by: Duration) {
        (self.base, self.origin) = (self.local(now) + by, now);
    }
}

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_has_passed_when_it_is_said_to_and_not_before() {
        for drift in [-50_000, -1, 0, 7, 50_000] {
            let mut clock = Clock::new(Timestamp::from_secs(3), Timestamp::from_secs(1_000), drift);
            for round in 0..200_u64 {
                let deadline =
                    clock.local(Timestamp::from_secs(4)) + Duration::from_nanos(1 + round * 77_777_777);
                let at = clock.when(deadline);
                assert!(clock.local(at) >= deadline, "{drift}: {deadline:?}");
                assert!(clock.local(Timestamp::from_nanos(at.as_nanos() - 2)) < deadline, "{drift}");
            }
            let before = clock.local(Timestamp::from_secs(9));
            clock.leap(Timestamp::from_secs(9), Duration::from_secs(2));
            assert_eq!(clock.local(Timestamp::from_secs(9)), before + Duration::from_secs(2));
        }
    }
}
