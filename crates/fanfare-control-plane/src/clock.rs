//! The one monotonic time line of this process.

use std::time::Instant;

use fanfare_types::Timestamp;

/// Reads the time since it was made. Copies agree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Clock { origin: Instant::now() }
    }

    pub(crate) fn now(self) -> Timestamp {
        Timestamp::ZERO + self.origin.elapsed()
    }

    /// The moment of a timestamp, for timers.
    pub(crate) fn instant(self, at: Timestamp) -> Instant {
        // A point that no clock reaches stands for "never"; a day is as good, and does not overflow.
        let from_origin =
            at.since(Timestamp::ZERO).min(self.origin.elapsed() + std::time::Duration::from_secs(86_400));
        self.origin + from_origin
    }
}
