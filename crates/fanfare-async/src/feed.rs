//! Which attempt may begin next.
//!
//! An attempt passes four stages. *Starting*: its number is being written. *Prepared*: it is written, and waits at the
//! gate to the function's queue. *Waiting*: it is in the queue, without a slot. *Executing*: it has one. The gate lets
//! few wait, so that the queue is free for others; how many are written ahead for it depends on how fast it empties:
//! none too many for long executions, so that a crash costs few of them a number, and enough for short ones, so that
//! the queue does not run dry while the disk writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fanfare_types::{FunctionId, Timestamp};

use crate::backoff::doubled;
use crate::limits::{AHEAD_MAX, AHEAD_ONCE_MAX, FEED_MIN, Limits, REFUSAL_BACKOFF_MAX, REFUSAL_BACKOFF_MIN};

/// Calls that are ready for an attempt, and attempts under way, by function.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    lanes: BTreeMap<FunctionId, Lane>,
    /// Lanes that something may begin in.
    hungry: BTreeSet<FunctionId>,
    /// Lanes whose gate may open.
    gates: BTreeSet<FunctionId>,
    /// The lane that was served last.
    served: FunctionId,
    running: BTreeMap<u64, Running>,
    running_bytes: u64,
}

/// One function.
#[derive(Debug)]
struct Lane {
    /// In the order of their acceptance.
    ready: BTreeMap<u64, Ready>,
    starting: u32,
    prepared: BTreeSet<u64>,
    waiting: u32,
    executing: u32,
    /// How many may be starting or prepared.
    ahead: u32,
    /// Refusals by the platform, one after another.
    refusals: u32,
    paused_until: Timestamp,
}

/// What counts of a call that may have its next attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) bytes: u64,
    /// A crash would lose it.
    pub(crate) once: bool,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    function: FunctionId,
    attempt: u32,
    stage: Stage,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Prepared,
    Waiting,
    Executing,
}

impl Default for Lane {
    fn default() -> Self {
        Lane {
            ready: BTreeMap::new(),
            starting: 0,
            prepared: BTreeSet::new(),
            waiting: 0,
            executing: 0,
            ahead: FEED_MIN,
            refusals: 0,
            paused_until: Timestamp::ZERO,
        }
    }
}

impl Feed {
    /// A call may have its next attempt.
    pub(crate) fn ready(&mut self, function: FunctionId, sequence: u64, ready: Ready) {
        self.lanes.entry(function).or_default().ready.insert(sequence, ready);
        self.hungry.insert(function);
    }

    /// It may not any more.
    pub(crate) fn forget(&mut self, function: FunctionId, sequence: u64) {
        if let Some(lane) = self.lanes.get_mut(&function) {
            lane.ready.remove(&sequence);
        }
        self.tidy(function);
    }

    /// The next call whose attempt may be written; functions take turns.
    pub(crate) fn next(&mut self, now: Timestamp, limits: &Limits) -> Option<u64> {
        if self.running.len() >= limits.running_max {
            return None;
        }
        let after = (std::ops::Bound::Excluded(self.served), std::ops::Bound::Unbounded);
        let turn: Vec<_> =
            self.hungry.range(after).chain(self.hungry.range(..=self.served)).copied().collect();
        for function in turn {
            let next = self.lanes.get(&function).and_then(|lane| {
                let (&sequence, &ready) = lane.ready.first_key_value()?;
                lane.has_room(ready, now, limits).then_some((sequence, ready.bytes))
            });
            let Some((sequence, bytes)) = next else {
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

    /// Its attempt is being written.
    pub(crate) fn begin(&mut self, function: FunctionId, sequence: u64, attempt: u32) {
        let lane = self.lanes.entry(function).or_default();
        let bytes = lane.ready.remove(&sequence).map_or(0, |ready| ready.bytes);
        lane.starting += 1;
        self.running_bytes += bytes;
        self.running.insert(sequence, Running { function, attempt, stage: Stage::Starting, bytes });
    }

    /// Its attempt is written.
    pub(crate) fn prepared(&mut self, sequence: u64, attempt: u32) {
        let starting =
            |running: &&mut Running| (running.attempt, running.stage) == (attempt, Stage::Starting);
        let Some(running) = self.running.get_mut(&sequence).filter(starting) else { return };
        running.stage = Stage::Prepared;
        if let Some(lane) = self.lanes.get_mut(&running.function) {
            lane.starting -= 1;
            lane.prepared.insert(sequence);
        }
        self.gates.insert(running.function);
    }

    /// The next attempt that may go into its function's queue.
    pub(crate) fn admit(&mut self, now: Timestamp) -> Option<(u64, u32)> {
        while let Some(function) = self.gates.first().copied() {
            let lane = self.lanes.get_mut(&function).filter(|lane| lane.is_open(now));
            let Some((lane, sequence)) = lane.and_then(|lane| lane.prepared.pop_first().map(|s| (lane, s)))
            else {
                self.gates.remove(&function);
                continue;
            };
            lane.waiting += 1;
            self.hungry.insert(function);
            if let Some(running) = self.running.get_mut(&sequence) {
                running.stage = Stage::Waiting;
                return Some((sequence, running.attempt));
            }
        }
        None
    }

    /// It has got its slot.
    pub(crate) fn assigned(&mut self, sequence: u64, attempt: u32) {
        let waiting = |running: &&mut Running| (running.attempt, running.stage) == (attempt, Stage::Waiting);
        let Some(running) = self.running.get_mut(&sequence).filter(waiting) else { return };
        running.stage = Stage::Executing;
        if let Some(lane) = self.lanes.get_mut(&running.function) {
            lane.waiting -= 1;
            lane.executing += 1;
            lane.refusals = 0;
            lane.paused_until = Timestamp::ZERO;
        }
        self.hungry.insert(running.function);
        self.gates.insert(running.function);
    }

    pub(crate) fn is_executing(&self, sequence: u64) -> bool {
        self.running.get(&sequence).is_some_and(|running| running.stage == Stage::Executing)
    }

    /// Attempts that are not in a queue yet.
    pub(crate) fn ahead(&self) -> Vec<u64> {
        self.running.iter().filter(|(_, running)| running.is_ahead()).map(|(sequence, _)| *sequence).collect()
    }

    /// It has ended; `false`: there is no such attempt.
    pub(crate) fn end(&mut self, sequence: u64, attempt: u32) -> bool {
        if self.running.get(&sequence).is_none_or(|running| running.attempt != attempt) {
            return false;
        }
        if let Some(running) = self.running.remove(&sequence) {
            self.running_bytes -= running.bytes;
            if let Some(lane) = self.lanes.get_mut(&running.function) {
                lane.left(sequence, running.stage);
            }
            self.hungry.insert(running.function);
            self.gates.insert(running.function);
            // Room for all.
            if self.running.len() < 2 {
                self.hungry.extend(self.lanes.keys());
            }
        }
        true
    }

    /// Takes an attempt back that is not in a queue yet; whether there was one.
    pub(crate) fn take_back(&mut self, sequence: u64) -> bool {
        let ahead = self.running.get(&sequence).filter(|running| running.is_ahead());
        ahead.map(|running| running.attempt).is_some_and(|attempt| self.end(sequence, attempt))
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
            self.gates.insert(function);
        }
    }

    /// A function without anything costs nothing; the next refusal is its first.
    pub(crate) fn tidy(&mut self, function: FunctionId) {
        let idle = |lane: &Lane| {
            lane.ready.is_empty()
                && lane.prepared.is_empty()
                && (lane.starting, lane.waiting, lane.executing) == (0, 0, 0)
        };
        if self.lanes.get(&function).is_some_and(idle) {
            self.lanes.remove(&function);
            self.hungry.remove(&function);
            self.gates.remove(&function);
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Attempts of one function that are ahead of its queue, wait in it, and have a slot.
    #[cfg(test)]
    pub(crate) fn counts(&self, function: FunctionId) -> (u32, u32, u32) {
        self.lanes.get(&function).map_or((0, 0, 0), |lane| {
            (lane.starting + lane.prepared.len() as u32, lane.waiting, lane.executing)
        })
    }
}

impl Running {
    fn is_ahead(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Prepared)
    }
}

impl Lane {
    fn has_room(&self, next: Ready, now: Timestamp, limits: &Limits) -> bool {
        let share = u32::try_from(limits.running_max / 2).unwrap_or(u32::MAX).max(1);
        let ahead = self.starting + u32::try_from(self.prepared.len()).unwrap_or(u32::MAX);
        let ahead_max = if next.once { self.ahead.min(AHEAD_ONCE_MAX) } else { self.ahead };
        self.paused_until <= now && ahead < ahead_max && ahead + self.waiting + self.executing < share
    }

    /// Whether another one may wait in the function's queue.
    fn is_open(&self, now: Timestamp) -> bool {
        self.paused_until <= now && self.waiting < self.executing.max(FEED_MIN)
    }

    fn left(&mut self, sequence: u64, stage: Stage) {
        match stage {
            Stage::Starting => self.starting -= 1,
            Stage::Prepared => drop(self.prepared.remove(&sequence)),
            Stage::Waiting => self.waiting -= 1,
            Stage::Executing => {
                self.executing -= 1;
                let dry = self.waiting < self.executing.max(FEED_MIN) && self.prepared.is_empty();
                if dry && !self.ready.is_empty() {
                    self.ahead = (self.ahead * 2).min(AHEAD_MAX);
                } else if self.prepared.len() as u64 > u64::from(self.ahead / 2) {
                    self.ahead = (self.ahead - 1).max(FEED_MIN);
                }
            }
        }
    }
}
