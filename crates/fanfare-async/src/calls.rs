//! The state machine.

mod ask;
mod books;
mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fanfare_types::{FunctionId, Timestamp};

use crate::callbacks::Callbacks;
use crate::command::Command;
use crate::event::{Event, Filter, Now};
use crate::feed::Feed;
use crate::id::InvocationId;
use crate::limits::Limits;
use crate::record::{Callback, Cause, Finished, Record, State, StateKind};
use crate::retention::Shelf;

/// Every asynchronous call that one data plane keeps. See [`crate`].
#[derive(Debug)]
pub struct Calls {
    limits: Limits,
    calls: BTreeMap<u64, Record>,
    keys: BTreeMap<(FunctionId, Arc<str>), u64>,
    /// Of the next call.
    sequence: u64,
    open: usize,
    open_bytes: u64,
    feed: Feed,
    timers: BTreeSet<(Timestamp, Timer)>,
    results: Shelf,
    letters: Shelf,
    callbacks: Callbacks,
    draining: bool,
    /// Calls dropped because too many are kept, not for their age.
    crowded_out: u64,
    step: Step,
}

/// What one step leads to, until it is put in order.
#[derive(Debug, Default)]
struct Step {
    bodies: Vec<Command>,
    /// Records that were changed or removed.
    touched: BTreeSet<u64>,
    /// What goes with a record, by its sequence.
    removals: Vec<(u64, Command)>,
    effects: Vec<Command>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Retry(u64),
    Age(u64),
    Callback(u64),
    /// A function's pause is over.
    Lane(FunctionId),
}

impl Calls {
    /// Without any call.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let results = Shelf::new(limits.results_max, limits.results_bytes_max, limits.results_keep);
        let letters = Shelf::new(limits.letters_max, limits.letters_bytes_max, limits.letters_keep);
        Calls {
            limits,
            calls: BTreeMap::new(),
            keys: BTreeMap::new(),
            sequence: 1,
            open: 0,
            open_bytes: 0,
            feed: Feed::default(),
            timers: BTreeSet::new(),
            results,
            letters,
            callbacks: Callbacks::default(),
            draining: false,
            crowded_out: 0,
            step: Step::default(),
        }
    }

    /// With what a log holds, in whatever order; `sequence` is that of the next call. Attempts that had begun were cut
    /// short by the end of whoever ran them.
    #[must_use]
    pub fn restore(
        limits: Limits,
        records: impl IntoIterator<Item = Record>,
        sequence: u64,
        now: Now,
        commands: &mut Vec<Command>,
    ) -> Self {
        let mut calls = Calls::new(limits);
        calls.sequence = sequence.max(1);
        for record in records {
            calls.sequence = calls.sequence.max(record.id.sequence + 1);
            calls.shelve(&record);
            calls.count(&record);
            calls.arm(&record);
            if let Some(key) = &record.key {
                calls.keys.insert((record.function, key.key.clone()), record.id.sequence);
            }
            if record.state == State::Queued {
                calls.feed.ready(record.function, record.id.sequence, record.ready());
            }
            calls.calls.insert(record.id.sequence, record);
        }
        calls.settle_replays(now);
        let cut: Vec<u64> =
            calls.all().filter(|r| r.state == State::Running).map(|r| r.id.sequence).collect();
        for sequence in cut {
            calls.interrupted(now, sequence);
        }
        calls.settle(now, commands);
        calls
    }

    /// Something happened.
    pub fn step(&mut self, now: Now, event: Event, commands: &mut Vec<Command>) {
        match event {
            Event::Durable { sequence, attempt } => self.feed.prepared(sequence, attempt),
            Event::Assigned { sequence, attempt } => self.feed.assigned(sequence, attempt),
            Event::Ended { sequence, attempt, end } => {
                // What is not under way any more was cancelled meanwhile.
                if self.feed.end(sequence, attempt) {
                    self.ended(now, sequence, end);
                }
            }
            Event::CalledBack { sequence, taken } => self.called_back(now, sequence, taken),
            Event::Tick => {}
            Event::Drain => {
                self.draining = true;
                for sequence in self.feed.ahead() {
                    self.feed.take_back(sequence);
                    self.change(now, sequence, |record| {
                        record.attempts -= 1;
                        record.state = State::Retrying(now.at);
                    });
                }
            }
        }
        self.settle(now, commands);
    }

    /// When [`Event::Tick`] is due; `None`: nothing depends on time.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let timer = self.timers.first().map(|(at, _)| *at);
        [timer, self.results.next(), self.letters.next()].into_iter().flatten().min()
    }

    /// A call, if it is kept.
    #[must_use]
    pub fn get(&self, id: InvocationId) -> Option<&Record> {
        self.calls.get(&id.sequence).filter(|record| record.id == id)
    }

    /// A call by its place in the order.
    #[must_use]
    pub fn at(&self, sequence: u64) -> Option<&Record> {
        self.calls.get(&sequence)
    }

    /// Every call, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Record> {
        self.calls.values()
    }

    /// The first calls after a place in the order that a filter lets through, and whether there are more.
    #[must_use]
    pub fn list(&self, filter: &Filter, after: u64, limit: usize) -> (Vec<&Record>, bool) {
        let wanted = |record: &&Record| {
            filter.function.as_ref().is_none_or(|name| *name == record.name)
                && filter.state.is_none_or(|state| state == self.kind(record))
                && !(filter.unreplayed && record.replayed_as.is_some())
        };
        let rest = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let mut found: Vec<_> = self
            .calls
            .range(rest)
            .map(|(_, record)| record)
            .filter(wanted)
            .take(limit.saturating_add(1))
            .collect();
        let more = found.len() > limit;
        found.truncate(limit);
        (found, more)
    }

    /// A call's state as it is shown: an attempt that has no slot yet is not running.
    #[must_use]
    pub fn kind(&self, record: &Record) -> StateKind {
        match record.state.kind() {
            StateKind::Running if !self.feed.is_executing(record.id.sequence) => StateKind::Queued,
            kind => kind,
        }
    }

    /// Whether a call's attempt has its slot.
    #[must_use]
    pub fn is_executing(&self, sequence: u64) -> bool {
        self.feed.is_executing(sequence)
    }

    /// The sequence of the next call, to be kept with the records.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Calls that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Attempts under way.
    #[must_use]
    pub fn running(&self) -> usize {
        self.feed.running()
    }

    /// Calls that were dropped because there were too many, since the data plane began.
    #[must_use]
    pub fn crowded_out(&self) -> u64 {
        self.crowded_out
    }

    /// Attempts of one function that are ahead of its queue, wait in it, and have a slot.
    #[cfg(test)]
    pub(crate) fn feed_counts(&self, function: FunctionId) -> (u32, u32, u32) {
        self.feed.counts(function)
    }

    /// Changes a record, and all that depends on it. The only place where records change.
    fn change(&mut self, now: Now, sequence: u64, change: impl FnOnce(&mut Record)) {
        let Some(mut record) = self.calls.remove(&sequence) else { return };
        self.unshelve(&record);
        self.uncount(&record);
        self.disarm(&record);
        let ended_before = record.state.is_final();
        change(&mut record);
        if record.state.is_final() && !ended_before {
            record.finished = Some(Finished { at: now.at, shown_ms: now.shown_ms });
            if record.settings.callback.is_some() {
                record.callback = Callback::Waiting { tries: 0, at: now.at };
            }
            if !record.state.is_letter()
                && let Some(payload) = record.payload.take()
            {
                self.step
                    .removals
                    .push((sequence, Command::DropPayload { key: payload.key, bytes: payload.bytes }));
            }
            if record.result_bytes.is_some() {
                self.step.bodies.push(Command::PutResult(sequence));
            }
            self.feed.forget(record.function, sequence);
            self.step.effects.push(Command::Finished(sequence));
        }
        self.shelve(&record);
        self.count(&record);
        self.arm(&record);
        self.calls.insert(sequence, record);
        self.step.touched.insert(sequence);
    }

    /// Does what time and room allow, and puts what the step led to in order.
    fn settle(&mut self, now: Now, commands: &mut Vec<Command>) {
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now.at) {
            self.timers.remove(&(at, timer));
            self.fire(now, timer);
        }
        if !self.draining {
            loop {
                while let Some(sequence) = self.feed.next(now.at, &self.limits) {
                    self.prepare(now, sequence);
                }
                // What goes through its gate makes room behind it.
                let Some((sequence, attempt)) = self.feed.admit(now.at) else { break };
                self.step.effects.push(Command::Start { sequence, attempt });
            }
            while let Some(sequence) = self.callbacks.next() {
                self.step.effects.push(Command::CallBack(sequence));
            }
        }
        self.evict(now.at);
        let step = std::mem::take(&mut self.step);
        commands.extend(step.bodies);
        // Each record with what goes with it, a replay before what it repeats: however few of them a crash lets
        // through, the request stays with one of the two.
        let mut removals = step.removals;
        removals.sort_by_key(|(sequence, _)| std::cmp::Reverse(*sequence));
        let mut removals = removals.into_iter().peekable();
        for sequence in step.touched.into_iter().rev() {
            if self.calls.contains_key(&sequence) {
                commands.push(Command::Put(sequence));
            }
            while let Some((_, removal)) = removals.next_if(|(owner, _)| *owner >= sequence) {
                commands.push(removal);
            }
        }
        commands.extend(step.effects);
    }

    fn fire(&mut self, now: Now, timer: Timer) {
        match timer {
            Timer::Retry(sequence) => {
                if let Some(record) = self.calls.get(&sequence) {
                    self.feed.ready(record.function, sequence, record.ready());
                }
            }
            Timer::Age(sequence) => {
                // One that is in its function's queue may end in its own time.
                let waits = |record: &Record| matches!(record.state, State::Queued | State::Retrying(_));
                let ahead = self.feed.take_back(sequence);
                if ahead || self.calls.get(&sequence).is_some_and(waits) {
                    self.change(now, sequence, |record| {
                        record.attempts -= u32::from(ahead);
                        record.state = State::Dead(Cause::MaxAge);
                    });
                }
            }
            Timer::Callback(sequence) => {
                if let Some(record) = self.calls.get(&sequence)
                    && let (Callback::Waiting { tries, .. }, Some(url)) =
                        (&record.callback, &record.settings.callback)
                {
                    self.callbacks.due(sequence, url, *tries);
                }
            }
            Timer::Lane(function) => self.feed.wake(function),
        }
    }

    fn prepare(&mut self, now: Now, sequence: u64) {
        let Some(record) = self.calls.get(&sequence) else { return };
        let (function, attempt) = (record.function, record.attempts + 1);
        self.feed.begin(function, sequence, attempt);
        self.change(now, sequence, |record| {
            record.state = State::Running;
            record.attempts = attempt;
        });
        self.step.effects.push(Command::Prepare { sequence, attempt });
    }
}
