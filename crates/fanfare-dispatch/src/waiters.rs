//! Requests that wait, in order of arrival.

use std::collections::VecDeque;

use fanfare_types::Timestamp;

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
    live: u32,
    /// No deadline in the queue is earlier than one before it, so expired ones are all at the front.
    deadlines_unsorted: bool,
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
        match self.queue.back() {
            Some(last) if last.number > waiter.number => {
                let at = self.queue.partition_point(|w| w.number < waiter.number);
                self.queue.insert(at, waiter);
                self.deadlines_unsorted = true;
            }
            Some(last) => {
                self.deadlines_unsorted |= last.deadline > waiter.deadline;
                self.queue.push_back(waiter);
            }
            None => self.queue.push_back(waiter),
        }
    }

    /// The one that has waited longest.
    pub(crate) fn pop(&mut self) -> Option<Waiter> {
        if self.live == 0 {
            return None;
        }
        while let Some(waiter) = self.queue.pop_front() {
            if !waiter.left {
                self.live -= 1;
                self.tidy();
                return Some(waiter);
            }
        }
        None
    }

    /// Takes out a request that gave up; `false` when it does not wait.
    pub(crate) fn leave(&mut self, number: u64) -> bool {
        let at = self.queue.partition_point(|w| w.number < number);
        match self.queue.get_mut(at) {
            Some(waiter) if waiter.number == number && !waiter.left => {
                waiter.left = true;
                self.live -= 1;
                self.tidy();
                true
            }
            _ => false,
        }
    }

    /// Takes out a request whose deadline has passed, in order of arrival.
    pub(crate) fn pop_expired(&mut self, now: Timestamp) -> Option<Waiter> {
        if self.deadlines_unsorted {
            let found = self.queue.iter().position(|w| !w.left && w.deadline <= now)?;
            let waiter = self.queue.get(found).copied()?;
            self.leave(waiter.number);
            return Some(waiter);
        }
        while self.queue.front().is_some_and(|w| w.left) {
            self.queue.pop_front();
        }
        if self.queue.front().is_some_and(|w| w.deadline <= now) { self.pop() } else { None }
    }

    /// The earliest deadline among them.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let mut live = self.queue.iter().filter(|w| !w.left).map(|w| w.deadline);
        if self.deadlines_unsorted { live.min() } else { live.next() }
    }

    fn tidy(&mut self) {
        if self.live == 0 {
            self.deadlines_unsorted = false;
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
