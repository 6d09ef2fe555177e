//! Requests that wait, in order of arrival.

use std::collections::VecDeque;
use std::time::Duration;

use fanfare_types::Timestamp;

use crate::uploads::Uploads;

/// Room kept for the next surge when the queue has drained, in requests.
const CAPACITY_KEPT: usize = 256;

/// One request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) number: u64,
    pub(crate) deadline: Timestamp,
    pub(crate) since: Timestamp,
    pub(crate) lane: u32,
    left: bool,
}

impl Waiter {
    pub(crate) fn new(number: u64, deadline: Timestamp, since: Timestamp, lane: u32) -> Self {
        Waiter { number, deadline, since, lane, left: false }
    }
}

/// A FIFO sorted by the requests' numbers, so that one that leaves is found by binary search. Its place stays,
/// marked, until it reaches the front or marks outnumber requests.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queue: VecDeque<Waiter>,
    /// Those whose bodies are not here to their end.
    pub(crate) uploads: Uploads,
    live: u32,
    /// The latest deadline since the queue was empty.
    latest: Timestamp,
    /// By how much at most a deadline is earlier than one before it: nothing, but for requests of several cores that
    /// came at once, and after the function's timeout was shortened. Behind the first one that ends later than this
    /// from now, none is expired.
    disorder: Duration,
}

impl Waiters {
    pub(crate) fn len(&self) -> u32 {
        self.live
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Heap bytes held.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Adds a request behind all that arrived before it.
    pub(crate) fn insert(&mut self, waiter: Waiter) {
        self.live += 1;
        self.disorder = self.disorder.max(self.latest.since(waiter.deadline));
        self.latest = self.latest.max(waiter.deadline);
        if self.queue.back().is_none_or(|last| last.number < waiter.number) {
            self.queue.push_back(waiter);
            return;
        }
        let at = self.queue.partition_point(|w| w.number < waiter.number);
        // None of those behind it ends earlier than the next one does, less the disorder so far.
        let next = self.queue.get(at).map_or(waiter.deadline, |next| next.deadline);
        self.disorder = self.disorder.max((waiter.deadline + self.disorder).since(next));
        self.queue.insert(at, waiter);
    }

    /// The one that has waited longest.
    pub(crate) fn pop(&mut self) -> Option<Waiter> {
        if self.live == 0 {
            return None;
        }
        while let Some(waiter) = self.queue.pop_front() {
            if !waiter.left {
                self.live -= 1;
                self.uploads.end(waiter.number);
                self.tidy();
                return Some(waiter);
            }
        }
        None
    }

    /// Whether a request waits.
    pub(crate) fn has(&self, number: u64) -> bool {
        let at = self.queue.partition_point(|w| w.number < number);
        self.queue.get(at).is_some_and(|waiter| waiter.number == number && !waiter.left)
    }

    /// Takes out a request that gave up; `false` when it does not wait.
    pub(crate) fn leave(&mut self, number: u64) -> bool {
        let at = self.queue.partition_point(|w| w.number < number);
        match self.queue.get_mut(at) {
            Some(waiter) if waiter.number == number && !waiter.left => {
                waiter.left = true;
                self.live -= 1;
                self.uploads.end(number);
                self.tidy();
                true
            }
            _ => false,
        }
    }

    /// Takes out a request whose deadline has passed, in order of arrival.
    pub(crate) fn pop_expired(&mut self, now: Timestamp) -> Option<Waiter> {
        while self.queue.front().is_some_and(|w| w.left) {
            self.queue.pop_front();
        }
        let last = now + self.disorder;
        let mut near = self.queue.iter().take_while(|w| w.deadline <= last);
        let waiter = near.find(|w| !w.left && w.deadline <= now).copied()?;
        self.leave(waiter.number);
        Some(waiter)
    }

    /// The earliest deadline among them.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let mut live = self.queue.iter().filter(|w| !w.left).map(|w| w.deadline);
        let first = live.next()?;
        let last = first + self.disorder;
        Some(live.take_while(|deadline| *deadline <= last).fold(first, Timestamp::min))
    }

    fn tidy(&mut self) {
        if self.live == 0 {
            (self.latest, self.disorder) = (Timestamp::ZERO, Duration::ZERO);
            if self.queue.capacity() > CAPACITY_KEPT {
                self.queue = VecDeque::new();
            } else {
                self.queue.clear();
            }
        } else if self.queue.len() > 32 && self.queue.len() > 2 * self.live as usize {
            self.queue.retain(|w| !w.left);
        }
    }

    /// Gives the room back when nobody waits.
    pub(crate) fn shrink(&mut self) {
        if self.live == 0 {
            self.queue = VecDeque::new();
        }
    }
}
