//! What is going to happen, in order of time and, at one time, of scheduling.

use std::collections::BTreeMap;
use std::time::Duration;

use fanfare_types::Timestamp;

/// Future events.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    events: BTreeMap<(Timestamp, u64), E>,
    scheduled: u64,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Queue { events: BTreeMap::new(), scheduled: 0 }
    }

    pub(crate) fn schedule(&mut self, at: Timestamp, event: E) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Timestamp, E)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }

    /// What `chosen` names comes sooner by `by`, but not before `now`.
    pub(crate) fn hurry(&mut self, now: Timestamp, by: Duration, chosen: impl Fn(&E) -> bool) {
        let keys: Vec<_> = self.events.iter().filter(|(_, e)| chosen(e)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(event) = self.events.remove(&key) {
                self.schedule((key.0 - by).max(now), event);
            }
        }
    }
}
