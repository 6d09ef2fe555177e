//! What is counted, timed and kept because of a record, always as the record is.

use fanfare_types::Timestamp;

use crate::command::Command;
use crate::record::{Callback, Record, State};
use crate::retention::Shelf;

use super::{Calls, Timer};

impl Calls {
    pub(super) fn count(&mut self, record: &Record) {
        if record.is_open() {
            self.open += 1;
            self.open_bytes += record.payload_bytes();
        }
    }

    pub(super) fn uncount(&mut self, record: &Record) {
        if record.is_open() {
            self.open -= 1;
            self.open_bytes -= record.payload_bytes();
        }
    }

    pub(super) fn timers_of(record: &Record) -> impl Iterator<Item = (Timestamp, Timer)> {
        let sequence = record.id.sequence;
        let age = (!record.state.is_final()).then_some((record.expires(), Timer::Age(sequence)));
        let retry = match record.state {
            State::Retrying(at) => Some((at, Timer::Retry(sequence))),
            _ => None,
        };
        let callback = match record.callback {
            Callback::Waiting { at, .. } => Some((at, Timer::Callback(sequence))),
            _ => None,
        };
        [age, retry, callback].into_iter().flatten()
    }

    pub(super) fn arm(&mut self, record: &Record) {
        self.timers.extend(Calls::timers_of(record));
    }

    pub(super) fn disarm(&mut self, record: &Record) {
        for timer in Calls::timers_of(record) {
            self.timers.remove(&timer);
        }
    }

    pub(super) fn shelf(&mut self, record: &Record) -> Option<(&mut Shelf, Timestamp, u64)> {
        let finished = record.finished.filter(|_| !record.is_open())?;
        let bytes = record.payload_bytes() + record.result_bytes.unwrap_or(0);
        let shelf = if record.state.is_letter() { &mut self.letters } else { &mut self.results };
        Some((shelf, finished.at, bytes))
    }

    pub(super) fn shelve(&mut self, record: &Record) {
        if let Some((shelf, finished, bytes)) = self.shelf(record) {
            shelf.add(finished, record.id.sequence, bytes);
        }
    }

    pub(super) fn unshelve(&mut self, record: &Record) {
        if let Some((shelf, finished, bytes)) = self.shelf(record) {
            shelf.remove(finished, record.id.sequence, bytes);
        }
    }

    pub(super) fn evict(&mut self, now: Timestamp) {
        while let Some(sequence) = self.results.overdue(now).or_else(|| self.letters.overdue(now)) {
            let Some(record) = self.calls.remove(&sequence) else { return };
            if let Some((shelf, finished, _)) = self.shelf(&record)
                && finished + shelf.keep() > now
            {
                self.crowded_out += 1;
            }
            self.unshelve(&record);
            if let Some(key) = &record.key {
                let name = (record.function, key.key.clone());
                if self.keys.get(&name) == Some(&sequence) {
                    self.keys.remove(&name);
                }
            }
            self.step.touched.insert(sequence);
            self.step.removals.push((sequence, Command::Remove(sequence)));
            if let Some(payload) = record.payload {
                let drop = Command::DropPayload { key: payload.key, bytes: payload.bytes };
                self.step.removals.push((sequence, drop));
            }
            if let Some(bytes) = record.result_bytes {
                let put = Command::PutResult(sequence);
                // One that is dropped as it comes was never written.
                match self.step.bodies.iter().position(|body| *body == put) {
                    Some(index) => drop(self.step.bodies.remove(index)),
                    None => self.step.removals.push((sequence, Command::DropResult { sequence, bytes })),
                }
            }
        }
    }
}
