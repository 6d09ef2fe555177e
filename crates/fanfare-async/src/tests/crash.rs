//! Crashes at any point, and a ledger of what user code ran.

use std::collections::{BTreeMap, VecDeque};

use fanfare_types::Reason;
use proptest::prelude::*;

use super::{Log, Write, answered, at, offer, once, split};
use crate::{Calls, Command, Delivery, End, Event, InvocationId, Limits, Offer, Settings, State};

/// One thing that the world does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Offer {
        function: u32,
        once: bool,
        callback: bool,
    },
    /// The oldest step's writes become durable, and its effects happen.
    Durable,
    /// An attempt under way gets on: gets a slot, or ends so.
    Attempt {
        which: usize,
        how: u8,
    },
    CallBack {
        which: usize,
        taken: bool,
    },
    Cancel {
        which: usize,
    },
    Replay {
        which: usize,
    },
    Wait,
    /// So many of the waiting writes of the oldest step have become durable; the rest is lost.
    Crash {
        part: usize,
    },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (1..4_u32, any::<bool>(), any::<bool>())
            .prop_map(|(function, once, callback)| Act::Offer { function, once, callback }),
        8 => Just(Act::Durable),
        8 => (any::<usize>(), any::<u8>()).prop_map(|(which, how)| Act::Attempt { which, how }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, taken)| Act::CallBack { which, taken }),
        1 => any::<usize>().prop_map(|which| Act::Cancel { which }),
        1 => any::<usize>().prop_map(|which| Act::Replay { which }),
        4 => Just(Act::Wait),
        1 => any::<usize>().prop_map(|part| Act::Crash { part }),
    ];
    prop::collection::vec(act, 1..200)
}

/// A data plane whose disk may lag and whose process may die, and the world around it.
struct World {
    calls: Calls,
    log: Log,
    now_ms: u64,
    /// Steps whose writes are not durable yet, with what they acknowledge.
    pending: VecDeque<(Vec<Write>, Vec<Command>, Option<InvocationId>)>,
    /// Attempts under way.
    attempts: Vec<(u64, u32, bool)>,
    callbacks: Vec<u64>,
    /// Acknowledged, with their delivery.
    accepted: BTreeMap<InvocationId, Delivery>,
    /// Attempts that user code ran, by call.
    ledger: BTreeMap<u64, Vec<u32>>,
    /// Final states that were told.
    ends: BTreeMap<u64, State>,
    crashes: u32,
}

impl World {
    fn new() -> Self {
        World {
            calls: Calls::new(Limits::default()),
            log: Log::default(),
            now_ms: 0,
            pending: VecDeque::new(),
            attempts: vec![],
            callbacks: vec![],
            accepted: BTreeMap::new(),
            ledger: BTreeMap::new(),
            ends: BTreeMap::new(),
            crashes: 0,
        }
    }

    fn settle(&mut self, commands: Vec<Command>, acknowledged: Option<InvocationId>) {
        let (writes, mut effects) = split(&self.calls, commands);
        for start in effects.extract_if(.., |effect| matches!(effect, Command::Start { .. })) {
            let Command::Start { sequence, attempt } = start else { continue };
            let durable = self.log.records.get(&sequence).is_some_and(|record| record.attempts >= attempt);
            assert!(durable, "the number is on disk before the attempt begins");
            self.attempts.push((sequence, attempt, false));
        }
        self.pending.push_back((writes, effects, acknowledged));
    }

    fn step(&mut self, event: Event) {
        let mut commands = Vec::new();
        self.calls.step(at(self.now_ms), event, &mut commands);
        self.settle(commands, None);
    }

    fn durable(&mut self) {
        let Some((writes, effects, acknowledged)) = self.pending.pop_front() else { return };
        self.log.apply(writes);
        if let Some(id) = acknowledged {
            self.accepted.insert(id, self.log.records[&id.sequence].settings.delivery);
        }
        for effect in effects {
            match effect {
                Command::Prepare { sequence, attempt } => self.step(Event::Durable { sequence, attempt }),
                Command::Abort { sequence, attempt } => {
                    self.attempts.retain(|(s, a, _)| (*s, *a) != (sequence, attempt));
                }
                Command::CallBack(sequence) => self.callbacks.push(sequence),
                Command::Finished(sequence) => {
                    let state = self.log.records[&sequence].state;
                    assert!(state.is_final());
                    let told = self.ends.insert(sequence, state);
                    assert_eq!(told, None, "a call ends once");
                }
                _ => unreachable!("{effect:?} is a write"),
            }
        }
    }

    fn attempt(&mut self, which: usize, how: u8) {
        if self.attempts.is_empty() {
            return;
        }
        let index = which % self.attempts.len();
        let (sequence, attempt, assigned) = self.attempts[index];
        if !assigned && !how.is_multiple_of(4) {
            // User code runs from here on.
            self.attempts[index].2 = true;
            self.ledger.entry(sequence).or_default().push(attempt);
            self.step(Event::Assigned { sequence, attempt });
            return;
        }
        self.attempts.swap_remove(index);
        let detail = "it happens".into();
        let end = if !assigned {
            let reason = if how.is_multiple_of(32) { Reason::FunctionNotFound } else { Reason::NoCapacity };
            End::Refused { reason, detail, retry_after: None }
        } else {
            match how % 8 {
                0 | 1 => answered(500),
                2 => answered(400),
                3 => End::Broken { reason: Reason::RequestTimeout, detail, by_platform: false },
                4 => End::Broken { reason: Reason::NodeLost, detail, by_platform: true },
                _ => answered(200),
            }
        };
        self.step(Event::Ended { sequence, attempt, end });
    }

    fn crash(&mut self, part: usize) {
        // Whole steps, and of the next one a first part: bodies one by one, records with what follows them.
        let begins = |write: &Write| !matches!(write, Write::DropPayload(_) | Write::DropResult(_));
        let mut left = part % 12;
        while left > 0
            && let Some((writes, ..)) = self.pending.pop_front()
        {
            let mut through = Vec::new();
            for write in writes {
                if begins(&write) {
                    if left == 0 {
                        break;
                    }
                    left -= 1;
                }
                through.push(write);
            }
            self.log.apply(through);
        }
        self.log.sweep();
        self.pending.clear();
        self.attempts.clear();
        self.callbacks.clear();
        self.crashes += 1;
        // Ends that were written but not told are told to whoever asks.
        for (sequence, record) in &self.log.records {
            if record.state.is_final() {
                self.ends.entry(*sequence).or_insert(record.state);
            }
        }
        let records: Vec<_> = self.log.records.values().cloned().collect();
        let mut commands = Vec::new();
        self.calls =
            Calls::restore(Limits::default(), records, self.log.sequence, at(self.now_ms), &mut commands);
        self.settle(commands, None);
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Offer { function, once: at_most, callback } => {
                let base = if at_most { once() } else { offer(function) };
                let callback = callback.then(|| "http://h/".into());
                let offer =
                    Offer { settings: Settings { callback, ..base.settings }, nonce: self.now_ms, ..base };
                let mut commands = Vec::new();
                let accepted = self.calls.offer(at(self.now_ms), offer, &mut commands).unwrap();
                let crate::Accepted::New(id) = accepted else { panic!("there are no keys") };
                self.settle(commands, Some(id));
            }
            Act::Durable => self.durable(),
            Act::Attempt { which, how } => self.attempt(which, how),
            Act::CallBack { which, taken } => {
                if !self.callbacks.is_empty() {
                    let index = which % self.callbacks.len();
                    let sequence = self.callbacks.swap_remove(index);
                    self.step(Event::CalledBack { sequence, taken });
                }
            }
            Act::Cancel { which } => {
                if let Some(id) = pick(&self.calls, which) {
                    let mut commands = Vec::new();
                    let _ = self.calls.cancel(at(self.now_ms), id, &mut commands);
                    self.settle(commands, None);
                }
            }
            Act::Replay { which } => {
                if let Some(id) = pick(&self.calls, which) {
                    let mut commands = Vec::new();
                    let replayed = self.calls.replay(at(self.now_ms), id, 1, &mut commands);
                    self.settle(commands, replayed.ok());
                }
            }
            Act::Wait => {
                if let Some(wake) = self.calls.next_wake()
                    // Not as far as results are dropped.
                    && wake.as_secs() < self.now_ms / 1_000 + 3_600
                {
                    self.now_ms = self.now_ms.max(wake.as_nanos().div_ceil(1_000_000));
                    self.step(Event::Tick);
                }
            }
            Act::Crash { part } => self.crash(part),
        }
    }

    /// Lets everything come to its end, without further crashes.
    fn finish(&mut self) {
        for round in 0..100_000 {
            while !self.pending.is_empty() {
                self.durable();
            }
            if let Some(sequence) = self.callbacks.pop() {
                self.step(Event::CalledBack { sequence, taken: true });
            } else if !self.attempts.is_empty() {
                self.attempt(0, 5);
            } else if self.calls.open() > 0 {
                self.act(Act::Wait);
            } else {
                self.log.check();
                return;
            }
            assert!(round < 99_999, "it does not come to an end");
        }
    }

    fn check(&self) {
        for (id, delivery) in &self.accepted {
            let record = self.log.records.get(&id.sequence).unwrap_or_else(|| panic!("{id} is lost"));
            assert_eq!(record.id, *id);
            assert!(record.state.is_final(), "{record:?}");
            assert_eq!(self.ends[&id.sequence], record.state, "one end, for good");
            let ran = self.ledger.get(&id.sequence).map_or(&[][..], Vec::as_slice);
            assert!(
                ran.is_sorted_by(|a, b| a < b),
                "a repetition has a higher number: {ran:?} of {record:?}"
            );
            match delivery {
                Delivery::AtMostOnce => assert!(ran.len() <= 1, "{ran:?} of {record:?}"),
                Delivery::AtLeastOnce => {
                    let need = record.state == State::Succeeded || record.state == State::Failed;
                    assert!(!need || !ran.is_empty(), "{record:?}");
                }
            }
            if self.crashes == 0 && ran.len() > 1 {
                assert!(record.failures + record.interruptions > 0, "{ran:?} of {record:?}");
            }
        }
    }
}

fn pick(calls: &Calls, which: usize) -> Option<InvocationId> {
    let count = calls.all().count();
    calls.all().nth(which.checked_rem(count)?).map(|record| record.id)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_crash_loses_a_call_or_repeats_one_that_may_not_be(acts in acts()) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
        }
        world.finish();
        world.check();
    }
}
