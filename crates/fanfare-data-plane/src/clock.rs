//! The process's monotonic time line.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fanfare_types::Timestamp;

static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// Now, since the first call in this process.
pub(crate) fn now() -> Timestamp {
    let origin = ORIGIN.get_or_init(Instant::now);
    Timestamp::ZERO + origin.elapsed()
}

/// The same point for a timer; a day from now when it is later than that.
pub(crate) fn instant(at: Timestamp) -> tokio::time::Instant {
    const FAR: Duration = Duration::from_secs(24 * 3600);
    tokio::time::Instant::now() + at.since(now()).min(FAR)
}
