//! Time of a run: microseconds since it began, on the clock that nobody sets.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A run's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Duration,
}

impl Clock {
    /// One that begins so much later.
    pub(crate) fn beginning_in(lead: Duration) -> Clock {
        Clock { began: monotonic() + lead }
    }

    /// Now; 0 before it begins.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(monotonic().saturating_sub(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    /// That moment, as the kernel takes it.
    pub(crate) fn moment(&self, at_us: u64) -> Timespec {
        let at = self.began.saturating_add(Duration::from_micros(at_us));
        Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at.subsec_nanos().into(),
        }
    }
}

fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
