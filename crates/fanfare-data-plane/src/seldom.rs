//! Something that may happen very often and is said once in a while.

use std::time::Duration;

use fanfare_types::Timestamp;
use parking_lot::Mutex;

/// How often it is said at most.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts what happens, and says when that is to be told.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: Option<Timestamp>,
    since: u64,
}

impl Seldom {
    /// It has happened; how often since it was told last, when it should be told again.
    pub(crate) fn happened(&self, now: Timestamp) -> Option<u64> {
        let mut told = self.0.lock();
        told.since += 1;
        if told.last.is_some_and(|last| now.since(last) < INTERVAL) {
            return None;
        }
        told.last = Some(now);
        Some(std::mem::take(&mut told.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_at_once_and_then_once_in_a_while() {
        let seldom = Seldom::default();
        let at = |secs| seldom.happened(Timestamp::from_secs(secs));
        assert_eq!(
            [at(1), at(1), at(10), at(11), at(12), at(30)],
            [Some(1), None, None, Some(3), None, Some(2)]
        );
    }
}
