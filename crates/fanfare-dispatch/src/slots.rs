//! The sandboxes whose slots are held, and which of the slots are free.

use std::collections::BTreeMap;

use fanfare_types::{Balance, HeldLease, SandboxId, Timestamp};

use crate::Handle;
use crate::balanced::Balanced;

const NONE: u32 = u32::MAX;
/// Free sandboxes that are looked at for one that was used in the same lane.
const LANE_SEARCH_MAX: u32 = 8;

/// What may be done with a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// This place in the table is empty.
    Vacant,
    /// It takes requests.
    Serving,
    /// It is chosen to be retired: no more requests; all slots go back when it is idle.
    Chosen,
    /// It runs what is no longer wanted: as `Chosen`, and never reversed.
    Stale,
    /// User code may run on in it: never used again. The requests in it finish; it is kept until it is gone.
    Condemned,
}

/// One sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    pub(crate) idle_since: Timestamp,
    pub(crate) revision: u32,
    /// Slots leased here.
    pub(crate) held: u32,
    /// Slots with a request in them.
    pub(crate) in_flight: u32,
    /// Slots to give back as they become free.
    pub(crate) revoking: u32,
    /// Where it was used last.
    pub(crate) lane: u32,
    pub(crate) state: State,
    /// Neighbours in the list of sandboxes with a free slot; `next` also links vacant places.
    previous: u32,
    next: u32,
    listed: bool,
    /// Place among the balancer's candidates.
    pub(crate) candidate: u32,
}

impl Record {
    pub(crate) fn free(&self) -> u32 {
        self.held - self.in_flight
    }

    fn usable(&self) -> u32 {
        if self.state == State::Serving { self.free() } else { 0 }
    }

    fn idle(&self) -> bool {
        self.in_flight == 0 && !matches!(self.state, State::Vacant | State::Condemned)
    }
}

/// A table of sandboxes with everything derived from it (free slots, idle, serving and chosen sandboxes, the free list,
/// the balancer's candidates) kept in step by [`Slots::change`].
#[derive(Debug)]
pub(crate) struct Slots {
    records: Vec<Record>,
    by_id: BTreeMap<SandboxId, u32>,
    vacant: u32,
    /// The sandbox that became free last: used first, so that the others age out.
    free_first: u32,
    free_slots: u32,
    idle: u32,
    serving: u32,
    chosen: u32,
    balance: Balance,
    concurrency: u32,
    seed: u64,
    /// Exists while sandboxes do, where the free list is not enough.
    balanced: Option<Box<Balanced>>,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Slots {
            balance: Balance::LeastLoaded,
            concurrency: 1,
            seed: 0,
            records: Vec::new(),
            by_id: BTreeMap::new(),
            vacant: NONE,
            free_first: NONE,
            free_slots: 0,
            idle: 0,
            serving: 0,
            chosen: 0,
            balanced: None,
        }
    }

    /// Free slots that a request may take.
    #[cfg(test)]
    pub(crate) fn free_slots(&self) -> u32 {
        self.free_slots
    }

    /// Sandboxes held without a request in them.
    pub(crate) fn idle(&self) -> u32 {
        self.idle
    }

    /// Sandboxes that take requests.
    pub(crate) fn serving(&self) -> u32 {
        self.serving
    }

    /// Sandboxes chosen to be retired.
    pub(crate) fn chosen(&self) -> u32 {
        self.chosen
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn find(&self, sandbox: SandboxId) -> Option<u32> {
        self.by_id.get(&sandbox).copied()
    }

    /// The place of a handle, if it still names the same sandbox.
    pub(crate) fn resolve(&self, handle: Handle) -> Option<u32> {
        let record = self.records.get(handle.index as usize)?;
        (record.id == handle.sandbox && record.state != State::Vacant).then_some(handle.index)
    }

    pub(crate) fn handle(&self, index: u32) -> Handle {
        Handle { sandbox: self.get(index).id, index }
    }

    pub(crate) fn get(&self, index: u32) -> &Record {
        &self.records[index as usize]
    }

    /// The record at a place that may have become vacant meanwhile.
    pub(crate) fn at(&self, index: u32) -> Option<&Record> {
        self.records.get(index as usize).filter(|r| r.state != State::Vacant)
    }

    pub(crate) fn state(&self, index: u32) -> State {
        self.at(index).map_or(State::Vacant, |r| r.state)
    }

    /// Places of all sandboxes, in the order of their ids.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.by_id.values().copied().collect()
    }

    /// What is held.
    pub(crate) fn leases(&self) -> impl Iterator<Item = HeldLease> + '_ {
        let leases = self.by_id.iter().map(|(id, index)| (*id, self.get(*index).held));
        leases.filter(|(_, slots)| *slots > 0).map(|(sandbox, slots)| HeldLease { sandbox, slots })
    }

    pub(crate) fn condemned(&self) -> impl Iterator<Item = SandboxId> + '_ {
        self.by_id.iter().filter(|(_, index)| self.is_condemned(**index)).map(|(id, _)| *id)
    }

    fn is_condemned(&self, index: u32) -> bool {
        matches!(self.get(index).state, State::Condemned)
    }

    /// Adds a sandbox without slots.
    pub(crate) fn insert(&mut self, sandbox: SandboxId, revision: u32, state: State, now: Timestamp) -> u32 {
        let record = Record {
            id: sandbox,
            idle_since: now,
            revision,
            held: 0,
            in_flight: 0,
            revoking: 0,
            lane: NONE,
            state: State::Vacant,
            previous: NONE,
            next: NONE,
            listed: false,
            candidate: NONE,
        };
        let index = if self.vacant == NONE {
            self.records.push(record);
            u32::try_from(self.records.len() - 1).unwrap_or(NONE)
        } else {
            let index = self.vacant;
            self.vacant = self.get(index).next;
            self.records[index as usize] = record;
            index
        };
        self.by_id.insert(sandbox, index);
        self.prepare_balanced();
        self.change(index, |r| r.state = state);
        index
    }

    /// Takes a sandbox out; the table's memory goes with the last one.
    pub(crate) fn remove(&mut self, index: u32) -> Handle {
        let handle = self.handle(index);
        self.change(index, |r| r.state = State::Vacant);
        self.by_id.remove(&handle.sandbox);
        if self.by_id.is_empty() {
            self.by_id = BTreeMap::new();
            self.records = Vec::new();
            self.vacant = NONE;
            self.balanced = None;
        } else {
            self.records[index as usize].next = self.vacant;
            self.vacant = index;
        }
        handle
    }

    /// Changes a record and what is derived from it.
    pub(crate) fn change(&mut self, index: u32, change: impl FnOnce(&mut Record)) {
        let record = &mut self.records[index as usize];
        let (usable, idle, state) = (record.usable(), record.idle(), record.state);
        change(record);
        self.free_slots = self.free_slots - usable + record.usable();
        self.idle = self.idle - u32::from(idle) + u32::from(record.idle());
        let counts = |state| (u32::from(state == State::Serving), u32::from(state == State::Chosen));
        let (before, after) = (counts(state), counts(record.state));
        self.serving = self.serving - before.0 + after.0;
        self.chosen = self.chosen - before.1 + after.1;
        match (record.listed, record.usable() > 0) {
            (false, true) => self.link(index),
            (true, false) => self.unlink(index),
            _ => {}
        }
        if let Some(balanced) = &mut self.balanced {
            balanced.update(index, &mut self.records);
        }
    }

    /// A sandbox with a free slot, chosen as the function's settings say.
    pub(crate) fn choose(&mut self, key: u64, lane: u32) -> Option<u32> {
        if self.free_slots == 0 {
            return None;
        }
        let chosen = self.balanced.as_mut().and_then(|b| b.choose(key));
        // A balancer may decline (bounded load); a free slot is still better than waiting.
        chosen.filter(|index| self.get(*index).usable() > 0).or_else(|| self.first_free(lane))
    }

    /// The sandbox that became free last, or of the [`LANE_SEARCH_MAX`] that did so last one that was used in `lane`.
    fn first_free(&self, lane: u32) -> Option<u32> {
        let first = (self.free_first != NONE).then_some(self.free_first)?;
        let mut at = first;
        for _ in 0..LANE_SEARCH_MAX {
            let record = self.get(at);
            if record.lane == lane {
                return Some(at);
            }
            if record.next == NONE {
                break;
            }
            at = record.next;
        }
        Some(first)
    }

    /// Uses this way of choosing from now on.
    pub(crate) fn set_balance(&mut self, balance: Balance, concurrency: u32, seed: u64) {
        if (self.balance, self.concurrency) == (balance, concurrency) {
            return;
        }
        (self.balance, self.concurrency, self.seed) = (balance, concurrency, seed);
        self.balanced = None;
        if !self.is_empty() {
            self.prepare_balanced();
        }
    }

    /// With one slot per sandbox, the ways that look only at load all mean "any free one", and Knative's means "the
    /// first free one" up to three: the free list does both without a scan.
    fn free_list_suffices(&self) -> bool {
        match self.balance {
            Balance::Knative => self.concurrency <= 3,
            Balance::LeastLoaded | Balance::Hermod => self.concurrency == 1,
            Balance::RoundRobin | Balance::Random | Balance::ChRlu => false,
        }
    }

    fn prepare_balanced(&mut self) {
        if self.free_list_suffices() || self.balanced.is_some() {
            return;
        }
        let mut balanced = Box::new(Balanced::new(self.balance, self.seed));
        for record in &mut self.records {
            record.candidate = NONE;
        }
        for index in self.by_id.values() {
            balanced.update(*index, &mut self.records);
        }
        self.balanced = Some(balanced);
    }

    /// Places held in memory.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.records.capacity() + usize::from(self.balanced.is_some())
    }

    /// The free list and the candidates are what the records say.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut listed = Vec::new();
        let (mut at, mut previous) = (self.free_first, NONE);
        while at != NONE {
            assert_eq!(self.get(at).previous, previous);
            listed.push(at);
            (previous, at) = (at, self.get(at).next);
        }
        listed.sort_unstable();
        let mut usable: Vec<u32> =
            self.by_id.values().copied().filter(|i| self.get(*i).usable() > 0).collect();
        usable.sort_unstable();
        assert_eq!(listed, usable);
        let (mut at, mut vacant) = (self.vacant, 0);
        while at != NONE {
            assert_eq!(self.get(at).state, State::Vacant);
            (vacant, at) = (vacant + 1, self.get(at).next);
        }
        assert_eq!(vacant + self.by_id.len(), self.records.len(), "a place is lost");
        if let Some(balanced) = &self.balanced {
            balanced.check(&self.records);
        }
    }

    fn link(&mut self, index: u32) {
        let next = self.free_first;
        let record = &mut self.records[index as usize];
        (record.listed, record.previous, record.next) = (true, NONE, next);
        if next != NONE {
            self.records[next as usize].previous = index;
        }
        self.free_first = index;
    }

    fn unlink(&mut self, index: u32) {
        let record = &mut self.records[index as usize];
        let (previous, next) = (record.previous, record.next);
        record.listed = false;
        if previous == NONE {
            self.free_first = next;
        } else {
            self.records[previous as usize].next = next;
        }
        if next != NONE {
            self.records[next as usize].previous = previous;
        }
    }
}
