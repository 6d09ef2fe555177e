//! Which attempt may begin next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fanfare_types::{FunctionId, Timestamp};

use crate::backoff::doubled;
use crate::limits::{FEED_MIN, Limits, REFUSAL_BACKOFF_MAX, REFUSAL_BACKOFF_MIN};

/// Calls that are ready for an attempt, and attempts under way, by function.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    lanes: BTreeMap<FunctionId, Lane>,
    /// Lanes that something may begin in.
    hungry: BTreeSet<FunctionId>,
    /// The lane that was served last.
    served: FunctionId,
    running: BTreeMap<u64, Running>,
    running_bytes: u64,
}

/// One function.
#[derive(Debug, Default)]
struct Lane {
    /// In the order of their acceptance.
    ready: BTreeMap<u64, u64>,
    /// Attempts that have no slot yet.
    waiting: u32,
    executing: u32,
    /// Refusals by the platform, one after another.
    refusals: u32,
    paused_until: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    function: FunctionId,
    attempt: u32,
    assigned: bool,
    bytes: u64,
}

impl Feed {
    /// A call may have its next attempt.
    pub(crate) fn ready(&mut self, function: FunctionId, sequence: u64, bytes: u64) {
        self.lanes.entry(function).or_default().ready.insert(sequence, bytes);
        self.hungry.insert(function);
    }

    /// It may not any more.
    pub(crate) fn forget(&mut self, function: FunctionId, sequence: u64) {
        if let Some(lane) = self.lanes.get_mut(&function) {
            lane.ready.remove(&sequence);
        }
        self.tidy(function);
    }

    /// The next call whose attempt may begin; functions take turns.
    pub(crate) fn next(&mut self, now: Timestamp, limits: &Limits) -> Option<u64> {
        if self.running.len() >= limits.running_max {
            return None;
        }
        let after = (std::ops::Bound::Excluded(self.served), std::ops::Bound::Unbounded);
        let turn: Vec<_> =
            self.hungry.range(after).chain(self.hungry.range(..=self.served)).copied().collect();
        for function in turn {
            let Some(lane) = self.lanes.get(&function) else {
                self.hungry.remove(&function);
                continue;
            };
            let Some((&sequence, &bytes)) =
                lane.ready.first_key_value().filter(|_| lane.has_room(now, limits))
            else {
                self.hungry.remove(&function);
                continue;
            };
            if !self.running.is_empty() && self.running_bytes + bytes > limits.running_bytes_max {
                // Its turn comes when others have ended; a smaller one would overtake it for ever.
                return None;
            }
            self.served = function;
            return Some(sequence);
        }
        None
    }

    /// Its attempt begins.
    pub(crate) fn begin(&mut self, function: FunctionId, sequence: u64, attempt: u32) {
        let lane = self.lanes.entry(function).or_default();
        let bytes = lane.ready.remove(&sequence).unwrap_or(0);
        lane.waiting += 1;
        self.running_bytes += bytes;
        self.running.insert(sequence, Running { function, attempt, assigned: false, bytes });
    }

    /// It has got its slot.
    pub(crate) fn assigned(&mut self, sequence: u64, attempt: u32) {
        let Some(running) = self.running.get_mut(&sequence).filter(|running| running.attempt == attempt)
        else {
            return;
        };
        if std::mem::replace(&mut running.assigned, true) {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(&running.function) {
            lane.waiting -= 1;
            lane.executing += 1;
            lane.refusals = 0;
            lane.paused_until = Timestamp::ZERO;
        }
        self.hungry.insert(running.function);
    }

    pub(crate) fn is_executing(&self, sequence: u64) -> bool {
        self.running.get(&sequence).is_some_and(|running| running.assigned)
    }

    /// It has ended; `false`: there is no such attempt.
    pub(crate) fn end(&mut self, sequence: u64, attempt: u32) -> bool {
        if self.running.get(&sequence).is_none_or(|running| running.attempt != attempt) {
            return false;
        }
        if let Some(running) = self.running.remove(&sequence) {
            self.running_bytes -= running.bytes;
            if let Some(lane) = self.lanes.get_mut(&running.function) {
                if running.assigned {
                    lane.executing -= 1;
                } else {
                    lane.waiting -= 1;
                }
            }
            self.hungry.insert(running.function);
            // Room for all.
            if self.running.len() < 2 {
                self.hungry.extend(self.lanes.keys());
            }
        }
        true
    }

    /// The platform refused an attempt of it: none begins before the time that this returns.
    pub(crate) fn pause(&mut self, function: FunctionId, now: Timestamp, at_least: Duration) -> Timestamp {
        let lane = self.lanes.entry(function).or_default();
        // Those that were refused together are refused once.
        if lane.paused_until <= now {
            lane.refusals = lane.refusals.saturating_add(1);
            let pause = doubled(REFUSAL_BACKOFF_MIN, REFUSAL_BACKOFF_MAX, lane.refusals);
            lane.paused_until = now + pause.max(at_least.min(REFUSAL_BACKOFF_MAX));
        }
        lane.paused_until
    }

    /// A pause may be over.
    pub(crate) fn wake(&mut self, function: FunctionId) {
        if self.lanes.contains_key(&function) {
            self.hungry.insert(function);
        }
    }

    /// A function without anything costs nothing; the next refusal is its first.
    pub(crate) fn tidy(&mut self, function: FunctionId) {
        let idle = |lane: &Lane| lane.ready.is_empty() && lane.waiting == 0 && lane.executing == 0;
        if self.lanes.get(&function).is_some_and(idle) {
            self.lanes.remove(&function);
            self.hungry.remove(&function);
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Attempts of one function that wait for a slot, and those that have one.
    #[cfg(test)]
    pub(crate) fn counts(&self, function: FunctionId) -> (u32, u32) {
        self.lanes.get(&function).map_or((0, 0), |lane| (lane.waiting, lane.executing))
    }
}

impl Lane {
    fn has_room(&self, now: Timestamp, limits: &Limits) -> bool {
        let share = u32::try_from(limits.running_max / 2).unwrap_or(u32::MAX).max(1);
        self.paused_until <= now
            && self.waiting < self.executing.max(FEED_MIN)
            && self.waiting + self.executing < share
    }
}
