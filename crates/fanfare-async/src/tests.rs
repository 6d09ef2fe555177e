//! Tables, and crashes.

mod crash;
mod properties;
mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use fanfare_types::{DataPlaneId, FunctionId, FunctionName, Timestamp};

use crate::limits;
use crate::{Calls, Command, Delivery, End, Event, Limits, Now, Offer, Record, Settings};

/// A log in memory: what is durable, by sequence.
#[derive(Clone, Debug, Default)]
struct Log {
    records: BTreeMap<u64, Record>,
    payloads: BTreeMap<u64, u64>,
    results: BTreeMap<u64, u64>,
    sequence: u64,
}

/// A write as it was ordered: records as they were then.
#[derive(Clone, Debug)]
enum Write {
    Record(Box<Record>),
    Remove(u64),
    Payload(u64, u64),
    DropPayload(u64),
    Result(u64, u64),
    DropResult(u64),
}

impl Log {
    fn apply(&mut self, writes: Vec<Write>) {
        for write in writes {
            match write {
                Write::Record(record) => {
                    self.sequence = self.sequence.max(record.id.sequence + 1);
                    self.records.insert(record.id.sequence, *record);
                }
                Write::Remove(sequence) => drop(self.records.remove(&sequence)),
                Write::Payload(key, bytes) => drop(self.payloads.insert(key, bytes)),
                Write::DropPayload(key) => {
                    assert!(self.payloads.remove(&key).is_some(), "a request is dropped once");
                }
                Write::Result(key, bytes) => drop(self.results.insert(key, bytes)),
                Write::DropResult(key) => {
                    assert!(self.results.remove(&key).is_some(), "a result is dropped once");
                }
            }
        }
    }

    /// Removes bodies whose record a crash took: requests after the last record, results of calls that have not ended.
    fn sweep(&mut self) {
        let last = self.records.last_key_value().map_or(0, |(sequence, _)| *sequence);
        self.payloads.retain(|key, _| *key <= last);
        let records = &self.records;
        self.results.retain(|key, _| records.get(key).is_none_or(|record| record.result_bytes.is_some()));
    }

    /// Every record has what it names, and nothing is there that no record names.
    fn check(&self) {
        let payloads: BTreeMap<u64, u64> =
            self.records.values().filter_map(|r| r.payload).map(|p| (p.key, p.bytes)).collect();
        assert_eq!(payloads, self.payloads);
        let results: BTreeMap<u64, u64> =
            self.records.values().filter_map(|r| Some((r.id.sequence, r.result_bytes?))).collect();
        assert_eq!(results, self.results);
    }
}

/// What is to be written, and then what is to be done.
fn split(calls: &Calls, commands: Vec<Command>) -> (Vec<Write>, Vec<Command>) {
    let mut writes = Vec::new();
    let mut effects = Vec::new();
    for command in commands {
        if command.is_write() {
            assert!(effects.is_empty(), "writes come first");
        }
        let record = |sequence| calls.at(sequence).expect("it is there to be written");
        match command {
            Command::PutPayload(sequence) => {
                writes.push(Write::Payload(sequence, record(sequence).payload.map_or(0, |p| p.bytes)));
            }
            Command::PutResult(sequence) => {
                writes.push(Write::Result(sequence, record(sequence).result_bytes.unwrap()));
            }
            Command::Put(sequence) => writes.push(Write::Record(Box::new(record(sequence).clone()))),
            Command::DropPayload { key, .. } => writes.push(Write::DropPayload(key)),
            Command::DropResult { sequence, .. } => writes.push(Write::DropResult(sequence)),
            Command::Remove(sequence) => writes.push(Write::Remove(sequence)),
            other => effects.push(other),
        }
    }
    (writes, effects)
}

fn at(ms: u64) -> Now {
    Now { at: Timestamp::from_millis(ms), shown_ms: 1_000_000 + ms }
}

fn settings() -> Settings {
    Settings {
        delivery: Delivery::AtLeastOnce,
        attempts_max: limits::ATTEMPTS_DEFAULT,
        age_max: limits::AGE_DEFAULT,
        callback: None,
        request_id: None,
    }
}

fn offer(function: u32) -> Offer {
    Offer {
        data_plane: DataPlaneId(1),
        nonce: 7,
        function: FunctionId(function),
        name: FunctionName::new(&format!("f{function}")).unwrap(),
        settings: settings(),
        key: None,
        payload_bytes: 10,
    }
}

fn once() -> Offer {
    Offer { settings: Settings { delivery: Delivery::AtMostOnce, attempts_max: 1, ..settings() }, ..offer(1) }
}

fn answered(status: u16) -> End {
    End::Answered { status, reason: None, retry_after: None, bytes: Some(5) }
}

/// The machine with a log in memory that is never behind.
struct Bench {
    calls: Calls,
    log: Log,
    now_ms: u64,
}

impl Bench {
    fn new() -> Self {
        Bench::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        Bench { calls: Calls::new(limits), log: Log::default(), now_ms: 0 }
    }

    fn settle(&mut self, commands: Vec<Command>) -> Vec<Command> {
        let (writes, effects) = split(&self.calls, commands);
        self.log.apply(writes);
        self.log.check();
        // Durable already.
        let mut done = Vec::new();
        for effect in effects {
            match effect {
                Command::Prepare { sequence, attempt } => {
                    done.extend(self.step(Event::Durable { sequence, attempt }));
                }
                effect => done.push(effect),
            }
        }
        done
    }

    fn offer(&mut self, offer: Offer) -> (crate::InvocationId, Vec<Command>) {
        let mut commands = Vec::new();
        let accepted = self.calls.offer(at(self.now_ms), offer, &mut commands).unwrap();
        let effects = self.settle(commands);
        match accepted {
            crate::Accepted::New(id) | crate::Accepted::Known(id) => (id, effects),
        }
    }

    fn step(&mut self, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        self.calls.step(at(self.now_ms), event, &mut commands);
        self.settle(commands)
    }

    fn end(&mut self, sequence: u64, attempt: u32, end: End) -> Vec<Command> {
        self.step(Event::Ended { sequence, attempt, end })
    }

    fn assign(&mut self, sequence: u64, attempt: u32) -> Vec<Command> {
        self.step(Event::Assigned { sequence, attempt })
    }

    /// Lets time pass up to the next thing that depends on it; what then happens.
    fn wait(&mut self) -> (Duration, Vec<Command>) {
        let wake = self.calls.next_wake().expect("something depends on time");
        let before = self.now_ms;
        self.now_ms = wake.as_nanos().div_ceil(1_000_000);
        (Duration::from_millis(self.now_ms - before), self.step(Event::Tick))
    }

    fn crash(&mut self, limits: Limits) -> Vec<Command> {
        let mut commands = Vec::new();
        let records: Vec<_> = self.log.records.values().cloned().collect();
        self.calls = Calls::restore(limits, records, self.log.sequence, at(self.now_ms), &mut commands);
        self.settle(commands)
    }

    fn state(&self, id: crate::InvocationId) -> crate::State {
        self.calls.get(id).unwrap().state
    }
}
