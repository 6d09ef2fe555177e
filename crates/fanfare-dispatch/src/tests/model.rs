//! Random events against a model that only counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fanfare_types::{Balance, Reason, SandboxId, Timestamp};
use proptest::prelude::*;

use super::route;
use crate::slots::State;
use crate::{Command, Event, FunctionQueue, Handle, Outcome};

#[derive(Clone, Copy, Debug)]
enum Op {
    Arrive { timeout_ms: u64, key: u64 },
    Finish { nth: usize, outcome: Outcome },
    Requeue { nth: usize },
    Leave { nth: usize },
    Advance { ms: u64, tick: bool },
    Grant { slots: u32, new: bool, nth: usize, old_revision: bool },
    Revoke { nth: usize, slots: u32 },
    Yield { slots: u32 },
    Retire { sandboxes: u32 },
    Gone { nth: usize },
    Unavailable,
    Update { concurrency: u32 },
    Removed,
    Resync,
    Report,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        8 => Just(Outcome::Clean),
        1 => Just(Outcome::KeepAliveBroken),
        1 => Just(Outcome::NeverSent),
        1 => Just(Outcome::Proven),
        1 => Just(Outcome::TimedOut),
        1 => Just(Outcome::Abandoned),
        1 => Just(Outcome::Broken),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let nth = 0..16_usize;
    prop_oneof![
        20 => (1..2_000_u64, any::<u64>()).prop_map(|(timeout_ms, key)| Op::Arrive { timeout_ms, key }),
        16 => (nth.clone(), outcome()).prop_map(|(nth, outcome)| Op::Finish { nth, outcome }),
        2 => nth.clone().prop_map(|nth| Op::Requeue { nth }),
        3 => nth.clone().prop_map(|nth| Op::Leave { nth }),
        4 => (0..400_u64, prop::bool::weighted(0.7)).prop_map(|(ms, tick)| Op::Advance { ms, tick }),
        8 => (1..4_u32, any::<bool>(), nth.clone(), prop::bool::weighted(0.2))
            .prop_map(|(slots, new, nth, old_revision)| Op::Grant { slots, new, nth, old_revision }),
        3 => (nth.clone(), prop_oneof![1..4_u32, Just(u32::MAX)])
            .prop_map(|(nth, slots)| Op::Revoke { nth, slots }),
        2 => (0..4_u32).prop_map(|slots| Op::Yield { slots }),
        2 => (0..4_u32).prop_map(|sandboxes| Op::Retire { sandboxes }),
        2 => nth.prop_map(|nth| Op::Gone { nth }),
        1 => Just(Op::Unavailable),
        1 => (1..6_u32).prop_map(|concurrency| Op::Update { concurrency }),
        1 => Just(Op::Removed),
        1 => Just(Op::Resync),
        2 => Just(Op::Report),
    ]
}

fn balance() -> impl Strategy<Value = Balance> {
    prop::sample::select(vec![
        Balance::Knative,
        Balance::LeastLoaded,
        Balance::RoundRobin,
        Balance::Random,
        Balance::ChRlu,
        Balance::Hermod,
    ])
}

const QUEUE_LIMIT: u32 = 6;

#[derive(Clone, Copy, Debug)]
struct Running {
    waiter: u64,
    sandbox: Handle,
    started: Timestamp,
    deadline: Timestamp,
}

struct Model {
    queue: FunctionQueue,
    balance: Balance,
    now: Timestamp,
    revision: u32,
    next_sandbox: u64,
    /// Slots granted and not given back, of sandboxes that are not gone.
    held: BTreeMap<SandboxId, u32>,
    condemned: BTreeSet<SandboxId>,
    running: Vec<Running>,
    waiting: BTreeMap<u64, Timestamp>,
    answered: BTreeSet<u64>,
    deadlines: BTreeMap<u64, Timestamp>,
    request_seconds: f64,
    window_start: Timestamp,
    active: bool,
}

impl Model {
    fn new(balance: Balance, concurrency: u32) -> Self {
        Model {
            queue: FunctionQueue::new(&route(1, concurrency, QUEUE_LIMIT, balance), 1),
            balance,
            now: Timestamp::ZERO,
            revision: 1,
            next_sandbox: 0,
            held: BTreeMap::new(),
            condemned: BTreeSet::new(),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            answered: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            request_seconds: 0.0,
            window_start: Timestamp::ZERO,
            active: false,
        }
    }

    fn in_flight(&self, sandbox: SandboxId) -> u32 {
        u32::try_from(self.running.iter().filter(|r| r.sandbox.sandbox == sandbox).count()).unwrap()
    }

    fn nth_held(&self, nth: usize) -> Option<SandboxId> {
        let n = self.held.len();
        (n > 0).then(|| *self.held.keys().nth(nth % n).unwrap())
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Arrive { timeout_ms, key } => {
                let waiter = self.queue.next_waiter();
                let deadline = self.now + Duration::from_millis(timeout_ms);
                self.deadlines.insert(waiter, deadline);
                self.waiting.insert(waiter, deadline);
                self.step(Event::Arrive { waiter, deadline, key, lane: (key % 3) as u32 });
            }
            Op::Finish { nth, outcome } if !self.running.is_empty() => {
                let done = self.running.remove(nth % self.running.len());
                self.finish(done, outcome);
            }
            Op::Requeue { nth } if !self.running.is_empty() => {
                let done = self.running.remove(nth % self.running.len());
                self.answered.remove(&done.waiter);
                self.finish(done, Outcome::Broken);
                self.waiting.insert(done.waiter, done.deadline);
                self.step(Event::Requeue { waiter: done.waiter, deadline: done.deadline, key: 0, lane: 0 });
            }
            Op::Leave { nth } if !self.waiting.is_empty() => {
                let waiter = *self.waiting.keys().nth(nth % self.waiting.len()).unwrap();
                self.waiting.remove(&waiter);
                self.answered.insert(waiter);
                self.step(Event::Left { waiter });
            }
            Op::Advance { ms, tick } => {
                let present = self.running.len() + self.waiting.len();
                self.now = self.now + Duration::from_millis(ms);
                self.request_seconds += present as f64 * ms as f64 / 1e3;
                // Timers are late: things happen between a deadline and its tick.
                if tick {
                    self.step(Event::Tick);
                    let in_time = self.waiting.values().all(|deadline| *deadline > self.now);
                    assert!(in_time, "expired ones are refused");
                }
            }
            Op::Grant { slots, new, nth, old_revision } => {
                let sandbox = match self.nth_held(nth) {
                    Some(sandbox) if !new => sandbox,
                    _ => {
                        self.next_sandbox += 1;
                        SandboxId(self.next_sandbox)
                    }
                };
                self.grant(sandbox, self.revision - u32::from(old_revision && self.revision > 1), slots);
            }
            Op::Revoke { nth, slots } => {
                if let Some(sandbox) = self.nth_held(nth) {
                    self.step(Event::Revoke { sandbox, slots });
                }
            }
            Op::Yield { slots } => drop(self.step(Event::Yield { slots })),
            Op::Retire { sandboxes } => drop(self.step(Event::Retire { sandboxes })),
            Op::Gone { nth } => {
                if let Some(sandbox) = self.nth_held(nth) {
                    self.gone(sandbox);
                }
            }
            Op::Unavailable => {
                let (reason, text) = (Reason::StartFailed, "".into());
                self.step(Event::Unavailable { reason, detail: text, log_tail: "".into() });
                assert!(self.waiting.is_empty());
            }
            Op::Update { concurrency } => {
                self.revision += 1;
                self.step(Event::Route(route(self.revision, concurrency, QUEUE_LIMIT, self.balance)));
            }
            Op::Removed => {
                self.step(Event::Removed);
                assert!(self.waiting.is_empty());
                self.step(Event::Route(route(self.revision, 1, QUEUE_LIMIT, self.balance)));
            }
            Op::Resync => {
                self.check();
                self.step(Event::Resync);
            }
            Op::Report => self.report(),
            Op::Finish { .. } | Op::Requeue { .. } | Op::Leave { .. } => {}
        }
        self.check();
    }

    fn finish(&mut self, done: Running, outcome: Outcome) {
        let condemns = matches!(outcome, Outcome::TimedOut | Outcome::Abandoned | Outcome::Broken);
        let sandbox = done.sandbox.sandbox;
        let first = condemns && self.held.contains_key(&sandbox) && self.condemned.insert(sandbox);
        let out = self.step(Event::Finish { sandbox: done.sandbox, outcome, started: done.started });
        let told = out.iter().any(|c| matches!(c, Command::Condemn { .. }));
        assert_eq!(told, first, "condemned exactly once");
    }

    fn grant(&mut self, sandbox: SandboxId, revision: u32, slots: u32) {
        *self.held.entry(sandbox).or_default() += slots;
        self.step(Event::Grant { sandbox, revision, slots, fresh: true });
    }

    fn gone(&mut self, sandbox: SandboxId) {
        self.held.remove(&sandbox);
        self.condemned.remove(&sandbox);
        self.step(Event::Gone { sandbox });
    }

    fn report(&mut self) {
        let present = self.running.len() + self.waiting.len();
        match self.queue.report(self.now) {
            None => {
                assert!(present == 0 && self.request_seconds == 0.0);
                self.active = false;
            }
            Some(load) if self.active => {
                let interval = self.now.since(self.window_start).as_secs_f64();
                if interval > 0.0 {
                    let mean = self.request_seconds / interval;
                    assert!((load.concurrency_avg - mean).abs() < 1e-6, "{load:?} {mean}");
                }
                assert_eq!(load.in_flight as usize, self.running.len());
                assert_eq!(load.queued as usize, self.waiting.len());
            }
            Some(load) => panic!("not active: {load:?}"),
        }
        self.request_seconds = 0.0;
        self.window_start = self.now;
    }

    fn step(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.queue.step(self.now, event, &mut out);
        assert!(out.iter().filter(|c| **c == Command::Demand).count() <= 1, "{out:?}");
        for command in &out {
            self.obey(command);
        }
        out
    }

    fn obey(&mut self, command: &Command) {
        match command {
            Command::Assign { waiter, sandbox, .. } => {
                let deadline = self.waiting.remove(waiter).expect("assigned without waiting");
                assert!(deadline > self.now, "assigned when its time is over");
                assert!(self.answered.insert(*waiter), "answered twice");
                assert!(self.waiting.keys().all(|other| other > waiter), "overtaken");
                assert!(!self.condemned.contains(&sandbox.sandbox), "condemned");
                let held = self.held.get(&sandbox.sandbox).copied().expect("not held");
                assert!(self.in_flight(sandbox.sandbox) < held, "more requests than slots");
                let (waiter, sandbox, started) = (*waiter, *sandbox, self.now);
                self.running.push(Running { waiter, sandbox, started, deadline });
            }
            Command::Refuse { waiter, .. } => {
                assert!(self.waiting.remove(waiter).is_some(), "refused without waiting");
                assert!(self.answered.insert(*waiter), "answered twice");
            }
            Command::Release { sandbox, slots, retired } => {
                let in_flight = self.in_flight(*sandbox);
                let held = self.held.get_mut(sandbox).expect("released without being held");
                assert!(*slots > 0 && *held >= in_flight + slots, "released while in use");
                *held -= slots;
                assert!(!retired || *held == 0, "retired in part");
                // A condemned one is remembered until it is gone, though nothing is held of it.
                if *held == 0 && !self.condemned.contains(sandbox) {
                    self.held.remove(sandbox);
                }
            }
            Command::Activate => {
                assert!(!self.active);
                self.active = true;
                self.request_seconds = 0.0;
                self.window_start = self.now;
            }
            Command::Condemn { sandbox, .. } => assert!(self.condemned.contains(&sandbox.sandbox)),
            Command::Forget { sandbox } => assert!(!self.held.contains_key(&sandbox.sandbox)),
            Command::Demand => {}
        }
    }

    /// What holds after every step.
    fn check(&self) {
        let queue = &self.queue;
        assert_eq!(queue.in_flight() as usize, self.running.len());
        assert_eq!(queue.queued() as usize, self.waiting.len());
        let stated: BTreeMap<_, _> = queue.leases().map(|lease| (lease.sandbox, lease.slots)).collect();
        let held: BTreeMap<_, _> = self.held.clone().into_iter().filter(|(_, slots)| *slots > 0).collect();
        assert_eq!(stated, held);
        for sandbox in &self.condemned {
            assert_eq!(self.held[sandbox], self.in_flight(*sandbox), "no more than what finishes in it");
        }
        assert!(queue.condemned().eq(self.condemned.iter().copied()));
        if !self.waiting.is_empty() {
            assert_eq!(queue.slots.free_slots(), 0, "somebody waits beside a free slot");
        }
        assert_eq!(queue.next_deadline().is_some(), !self.waiting.is_empty());
        let records: Vec<_> = queue.slots.indices().into_iter().map(|i| queue.slots.get(i)).collect();
        let serving = records.iter().filter(|r| r.state == State::Serving);
        assert_eq!(queue.slots.free_slots(), serving.clone().map(|r| r.free()).sum::<u32>());
        assert_eq!(queue.slots.serving() as usize, serving.clone().count());
        assert!(serving.clone().all(|r| r.revision == queue.serving), "two revisions serve");
        assert!(queue.serving == queue.revision || queue.slots.serving() > 0, "a gap without a bridge");
        let chosen = records.iter().filter(|r| r.state == State::Chosen).count();
        assert_eq!(queue.slots.chosen() as usize, chosen);
        assert!(chosen <= queue.retiring as usize, "chosen without an order");
        let idle = records.iter().filter(|r| r.in_flight == 0 && !matches!(r.state, State::Condemned));
        assert_eq!(queue.slots.idle() as usize, idle.count());
        for record in &records {
            assert_eq!(record.in_flight, self.in_flight(record.id));
            assert_eq!(matches!(record.state, State::Condemned), self.condemned.contains(&record.id));
            assert!(record.revoking <= record.held);
        }
        queue.slots.check();
    }

    /// Everything is asked back, everything finishes; then new capacity serves whoever waits; then nothing is left.
    fn wind_down(mut self) {
        self.step(Event::Yield { slots: 0 });
        self.step(Event::Retire { sandboxes: 0 });
        for sandbox in self.held.keys().copied().collect::<Vec<_>>() {
            self.step(Event::Revoke { sandbox, slots: u32::MAX });
        }
        while let Some(done) = self.running.pop() {
            self.finish(done, Outcome::Clean);
        }
        assert!(self.held.keys().all(|sandbox| self.condemned.contains(sandbox)), "kept {:?}", self.held);
        for sandbox in self.held.keys().copied().collect::<Vec<_>>() {
            self.gone(sandbox);
        }
        self.check();
        self.next_sandbox += 1;
        self.grant(SandboxId(self.next_sandbox), self.revision, 1);
        while let Some(done) = self.running.pop() {
            self.finish(done, Outcome::Clean);
        }
        assert!(self.waiting.is_empty(), "capacity exists, yet {:?} wait", self.waiting);
        assert_eq!(self.answered.len(), self.deadlines.len(), "every request is answered");
        self.step(Event::Revoke { sandbox: SandboxId(self.next_sandbox), slots: 1 });
        self.check();
        assert!(self.queue.is_idle());
        assert_eq!(self.queue.waiters.capacity(), 0, "an idle function holds no memory");
        assert_eq!(self.queue.slots.capacity(), 0, "an idle function holds no memory");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_breaks_a_rule(
        balance in balance(),
        concurrency in 1..6_u32,
        ops in prop::collection::vec(op(), 1..160),
    ) {
        let mut model = Model::new(balance, concurrency);
        for op in ops {
            model.apply(op);
        }
        model.wind_down();
    }
}
