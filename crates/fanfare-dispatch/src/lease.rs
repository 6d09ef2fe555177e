//! Slots that come and go.

use fanfare_types::{SandboxId, Timestamp};

use crate::slots::State;
use crate::{Command, FunctionQueue, Refusal, Why};

impl FunctionQueue {
    pub(crate) fn grant(
        &mut self,
        now: Timestamp,
        sandbox: SandboxId,
        revision: u32,
        slots: u32,
        fresh: bool,
        out: &mut Vec<Command>,
    ) {
        if slots == 0 {
            return;
        }
        let index = match self.slots.find(sandbox) {
            Some(index) => index,
            None => {
                let state = if self.bridges(revision) { State::Serving } else { State::Stale };
                self.slots.insert(sandbox, revision, state, now)
            }
        };
        self.slots.change(index, |r| r.held = r.held.saturating_add(slots));
        let serves = self.slots.get(index).state == State::Serving;
        if serves && revision == self.revision && self.serving != revision {
            self.serving = revision;
            self.outdate(out);
        }
        self.settle(index, if fresh { Why::Cold } else { Why::Moved }, out);
    }

    /// Whether sandboxes of this revision take requests. One of another revision than the current one is granted
    /// where no sandbox of that has come up, and serves while there is none here.
    fn bridges(&mut self, revision: u32) -> bool {
        if self.removed {
            return false;
        }
        if revision != self.revision && self.slots.serving() + self.slots.chosen() == 0 {
            self.serving = revision;
        }
        revision == self.revision || revision == self.serving
    }

    /// Sandboxes of other revisions than the one that serves leave as they become idle.
    fn outdate(&mut self, out: &mut Vec<Command>) {
        for index in self.slots.indices() {
            let Some(record) = self.slots.at(index) else { continue };
            if record.revision != self.serving && matches!(record.state, State::Serving | State::Chosen) {
                self.slots.change(index, |r| r.state = State::Stale);
                self.settle(index, Why::HandedOver, out);
            }
        }
    }

    /// With no sandbox left that serves, there is nothing to bridge an update with.
    pub(crate) fn settle_revision(&mut self) {
        if self.serving != self.revision && self.slots.serving() == 0 {
            self.serving = self.revision;
        }
    }

    /// Puts the free slots of a sandbox where they are needed: back to the control plane if it asked for them, to
    /// waiting requests, or to the free ones.
    pub(crate) fn settle(&mut self, index: u32, why: Why, out: &mut Vec<Command>) {
        // Each round takes a free slot, ends a choice or a wait, or is the last.
        while let Some(record) = self.slots.at(index) {
            let free = record.free();
            if free == 0 {
                return;
            }
            if record.state == State::Condemned {
                let sandbox = record.id;
                self.slots.change(index, |r| (r.held, r.revoking) = (r.held - free, 0));
                out.push(Command::Release { sandbox, slots: free, retired: false });
                return;
            }
            let whole = record.in_flight == 0;
            let leaving = matches!(record.state, State::Stale | State::Chosen);
            let counted = record.state != State::Stale;
            if record.revoking > 0 {
                let back = free.min(record.revoking);
                let last = leaving && whole && back == free;
                self.slots.change(index, |r| r.revoking -= back);
                self.release(index, back, last, out);
                if last && counted {
                    self.retired_one(out);
                }
            } else if leaving && !whole {
                return;
            } else if leaving || whole && record.held == 1 && self.retiring > 0 {
                self.release(index, free, true, out);
                if counted {
                    self.retired_one(out);
                }
            } else if self.yielding > 0 {
                let back = free.min(self.yielding);
                self.yielding -= back;
                self.release(index, back, false, out);
            } else if let Some(waiter) = self.waiters.pop() {
                self.demand |= self.waiters.is_empty();
                if waiter.deadline <= self.load.now() {
                    // Its tick is still to come. In a sandbox it would only get that killed.
                    self.refuse_late(waiter, out);
                } else {
                    self.assign(index, waiter.number, waiter.lane, why, out);
                }
            } else if self.draining {
                self.release(index, free, false, out);
            } else {
                return;
            }
        }
    }

    /// A sandbox that was chosen for retirement takes requests again, if its revision still does.
    fn spare(&mut self, index: u32) {
        let serving = self.serving;
        self.slots.change(index, |r| {
            r.state = if r.revision == serving { State::Serving } else { State::Stale };
        });
    }

    /// One order less: as many chosen sandboxes as there are orders stay chosen, those that will be idle soonest.
    fn retired_one(&mut self, out: &mut Vec<Command>) {
        self.retiring -= 1;
        if self.slots.chosen() <= self.retiring {
            return;
        }
        let in_state = |i: &u32| self.slots.at(*i).filter(|r| r.state == State::Chosen);
        let mut chosen: Vec<_> =
            self.slots.indices().iter().filter_map(|i| in_state(i).map(|r| (r.in_flight, *i))).collect();
        chosen.sort_unstable();
        for (_, index) in chosen.into_iter().skip(self.retiring as usize) {
            self.spare(index);
            self.settle(index, Why::HandedOver, out);
        }
    }

    fn release(&mut self, index: u32, slots: u32, retired: bool, out: &mut Vec<Command>) {
        self.slots.change(index, |r| r.held -= slots);
        let record = self.slots.get(index);
        let (sandbox, empty) = (record.id, record.held == 0);
        out.push(Command::Release { sandbox, slots, retired });
        if empty {
            self.forget(index, out);
        }
    }

    fn forget(&mut self, index: u32, out: &mut Vec<Command>) {
        let sandbox = self.slots.remove(index);
        out.push(Command::Forget { sandbox });
        self.settle_revision();
        if self.slots.is_empty() {
            self.waiters.shrink();
        }
    }

    pub(crate) fn revoke(&mut self, sandbox: SandboxId, slots: u32, out: &mut Vec<Command>) {
        // An unknown sandbox's slots are on their way back already.
        let Some(index) = self.slots.find(sandbox) else { return };
        self.slots.change(index, |r| r.revoking = r.revoking.saturating_add(slots).min(r.held));
        self.settle(index, Why::HandedOver, out);
    }

    pub(crate) fn yield_slots(&mut self, slots: u32, out: &mut Vec<Command>) {
        self.yielding = slots;
        for index in self.longest_idle_first() {
            if self.yielding == 0 {
                break;
            }
            self.settle(index, Why::HandedOver, out);
        }
    }

    pub(crate) fn retire(&mut self, sandboxes: u32, out: &mut Vec<Command>) {
        self.retiring = sandboxes;
        let mut busy = Vec::new();
        for index in self.longest_idle_first() {
            let Some(record) = self.slots.at(index) else { continue };
            if record.in_flight > 0 {
                busy.push((record.in_flight, index));
            } else if self.retiring > 0 {
                self.slots.change(index, |r| r.state = State::Chosen);
                self.settle(index, Why::HandedOver, out);
            }
        }
        // A sandbox with several slots may never be idle by itself: choose those that will be soonest. One with a
        // single slot is idle after every request, and the first to be so is taken.
        busy.sort_unstable();
        let mut choose = self.retiring;
        for (_, index) in busy {
            let Some(record) = self.slots.at(index) else { continue };
            let chosen = choose > 0 && record.held > 1;
            choose -= u32::from(chosen);
            if chosen {
                self.slots.change(index, |r| r.state = State::Chosen);
            } else if self.slots.state(index) == State::Chosen {
                self.spare(index);
            }
            self.settle(index, Why::HandedOver, out);
        }
        self.settle_revision();
    }

    /// Sandboxes that serve or are chosen for retirement.
    fn longest_idle_first(&self) -> Vec<u32> {
        let mut indices = self.slots.indices();
        indices.retain(|i| matches!(self.slots.get(*i).state, State::Serving | State::Chosen));
        indices.sort_by_key(|i| {
            let record = self.slots.get(*i);
            (record.in_flight > 0, record.idle_since)
        });
        indices
    }

    pub(crate) fn gone(&mut self, sandbox: SandboxId, out: &mut Vec<Command>) {
        if let Some(index) = self.slots.find(sandbox) {
            self.forget(index, out);
        }
    }

    pub(crate) fn remove(&mut self, out: &mut Vec<Command>) {
        self.removed = true;
        self.refuse_all(&Refusal::Removed, out);
        for index in self.slots.indices() {
            if matches!(self.slots.state(index), State::Serving | State::Chosen) {
                self.slots.change(index, |r| r.state = State::Stale);
                self.settle(index, Why::HandedOver, out);
            }
        }
    }

    pub(crate) fn resync(&mut self, out: &mut Vec<Command>) {
        (self.retiring, self.yielding) = (0, 0);
        for index in self.slots.indices() {
            if self.slots.at(index).is_some() {
                self.slots.change(index, |r| r.revoking = 0);
            }
            if self.slots.state(index) == State::Chosen {
                self.spare(index);
                self.settle(index, Why::HandedOver, out);
            }
        }
        self.demand |= !self.waiters.is_empty();
    }

    pub(crate) fn drain(&mut self, out: &mut Vec<Command>) {
        self.draining = true;
        for index in self.slots.indices() {
            self.settle(index, Why::HandedOver, out);
        }
    }
}
