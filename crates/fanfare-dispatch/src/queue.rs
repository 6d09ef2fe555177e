//! The queue of one function.

use fanfare_types::{Condemned, FunctionId, FunctionLoad, FunctionRoute, HeldLease, SandboxId, Timestamp};

use crate::load::LoadMeter;
use crate::slots::{Slots, State};
use crate::uploads::share;
use crate::waiters::{Waiter, Waiters};
use crate::{Command, Event, Handle, Outcome, Refusal, Why};

/// The queue of one function on one data plane: the slots it may use and the requests that wait for one.
///
/// Holds no heap memory while nothing is held and nothing waits.
#[derive(Debug)]
pub struct FunctionQueue {
    pub(crate) function: FunctionId,
    /// The revision that the function's settings name.
    pub(crate) revision: u32,
    /// The revision that requests go to. The two differ from an update until the first sandbox of the new revision
    /// is here, so that an update leaves no gap.
    pub(crate) serving: u32,
    queue_limit: u32,
    seed: u64,
    next_waiter: u64,
    pub(crate) in_flight: u32,
    /// Slots still to be given back for [`Event::Yield`].
    pub(crate) yielding: u32,
    /// Sandboxes still to be given back for [`Event::Retire`].
    pub(crate) retiring: u32,
    pub(crate) removed: bool,
    pub(crate) draining: bool,
    pub(crate) slots: Slots,
    pub(crate) waiters: Waiters,
    pub(crate) load: LoadMeter,
    /// The step must tell the control plane the load.
    pub(crate) demand: bool,
}

/// A request that wants a slot.
#[derive(Clone, Copy)]
struct Asking {
    waiter: u64,
    deadline: Timestamp,
    key: u64,
    lane: u32,
}

impl FunctionQueue {
    /// A queue without slots. `seed` feeds the balancing policies that draw lots.
    #[must_use]
    pub fn new(route: &FunctionRoute, seed: u64) -> Self {
        let mut slots = Slots::new();
        slots.set_balance(route.balance, route.concurrency, seed);
        FunctionQueue {
            function: route.id,
            revision: route.revision,
            serving: route.revision,
            queue_limit: route.queue_limit,
            seed,
            next_waiter: 0,
            in_flight: 0,
            yielding: 0,
            retiring: 0,
            removed: false,
            draining: false,
            slots,
            waiters: Waiters::default(),
            load: LoadMeter::default(),
            demand: false,
        }
    }

    /// A number for a request that is about to arrive; greater than all before it.
    pub fn next_waiter(&mut self) -> u64 {
        self.next_waiter += 1;
        self.next_waiter
    }

    /// Takes one event and appends what follows from it. `now` should not go back; where events of several cores
    /// come out of order by a little, they count as simultaneous.
    pub fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        self.load.advance(now, self.present());
        match event {
            Event::Arrive { waiter, deadline, key, lane } => {
                self.arrive(now, Asking { waiter, deadline, key, lane }, out);
            }
            Event::Requeue { waiter, deadline, key, lane } => {
                self.take_or_wait(now, Asking { waiter, deadline, key, lane }, true, out);
            }

            Event::Finish { sandbox, outcome, started } => self.finish(now, sandbox, outcome, started, out),
            Event::Uploading { waiter, client } => self.uploading(waiter, client, out),
            Event::Uploaded { waiter } => self.waiters.uploads.end(waiter),
            Event::Left { waiter } => self.left(waiter),
            Event::Tick => self.expire(now, out),
            Event::Route(route) => self.route(&route),
            Event::Removed => self.remove(out),
            Event::Grant { sandbox, revision, slots, fresh } => {
                self.grant(now, sandbox, revision, slots, fresh, out);
            }
            Event::Revoke { sandbox, slots } => self.revoke(sandbox, slots, out),
            Event::Yield { slots } => self.yield_slots(slots, out),
            Event::Retire { sandboxes } => self.retire(sandboxes, out),
            Event::Gone { sandbox } => self.gone(sandbox, out),
            Event::Unavailable { reason, detail, log_tail } => {
                self.refuse_all(&Refusal::Unavailable { reason, detail, log_tail }, out);
            }
            Event::Resync => self.resync(out),
            Event::Drain => self.drain(out),
        }
        if std::mem::take(&mut self.demand) {
            out.push(Command::Demand);
        }
    }

    /// The load now; leaves the window of [`FunctionQueue::report`] as it is.
    #[must_use]
    pub fn load(&self, now: Timestamp) -> FunctionLoad {
        FunctionLoad {
            function: self.function,
            in_flight: self.in_flight,
            queued: self.waiters.len(),
            idle_sandboxes: self.slots.idle(),
            concurrency_avg: self.load.mean(now, self.present()),
            arrivals: self.load.arrivals,
            interval_s: self.load.interval_s(now),
            execution_s: self.load.execution_s(),
        }
    }

    /// The load since the last report, and the beginning of the next window; `None` when there was none. After
    /// `None`, [`Command::Activate`] says when to ask again.
    pub fn report(&mut self, now: Timestamp) -> Option<FunctionLoad> {
        self.load.advance(now, self.present());
        if self.present() == 0 && !self.load.had_load() {
            self.load.active = false;
            return None;
        }
        let load = self.load(now);
        self.load.begin(now);
        Some(load)
    }

    /// Every lease held, for the hello of a new stream; of condemned sandboxes the slots that still have a request in
    /// them. [`Event::Resync`] must follow before anything else.
    pub fn leases(&self) -> impl Iterator<Item = HeldLease> + '_ {
        self.slots.leases()
    }

    /// Sandboxes condemned here that are not known to be gone, for the same hello.
    pub fn condemned(&self) -> impl Iterator<Item = SandboxId> + '_ {
        self.slots.condemned()
    }

    /// The place of a sandbox that slots are held of.
    #[must_use]
    pub fn handle(&self, sandbox: SandboxId) -> Option<Handle> {
        self.slots.find(sandbox).map(|index| self.slots.handle(index))
    }

    /// Requests in sandboxes.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Requests that wait.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.waiters.len()
    }

    /// When the next waiting request's time runs out.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.waiters.next_deadline()
    }

    /// Nothing is held, nothing waits, nothing is in a sandbox.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.waiters.is_empty() && self.in_flight == 0
    }

    fn present(&self) -> u32 {
        self.in_flight + self.waiters.len()
    }

    fn arrive(&mut self, now: Timestamp, asking: Asking, out: &mut Vec<Command>) {
        if self.removed {
            out.push(Command::Refuse { waiter: asking.waiter, why: Refusal::Removed });
            return;
        }
        if !self.load.active {
            self.load.active = true;
            self.load.begin(now);
            out.push(Command::Activate);
        }
        self.load.arrivals = self.load.arrivals.saturating_add(1);
        self.take_or_wait(now, asking, false, out);
    }

    fn take_or_wait(
        &mut self,
        now: Timestamp,
        asking: Asking,
        accepted_before: bool,
        out: &mut Vec<Command>,
    ) {
        let Asking { waiter, deadline, key, lane } = asking;
        let late = deadline <= now;
        if !late && let Some(index) = self.slots.choose(key, lane) {
            self.assign(index, waiter, lane, Why::Warm, out);
            return;
        }
        let refusal = if self.removed {
            Some(Refusal::Removed)
        } else if late {
            Some(Refusal::QueueTimeout { waited: std::time::Duration::ZERO })
        } else if !accepted_before && self.waiters.len() >= self.queue_limit {
            Some(Refusal::QueueFull { limit: self.queue_limit })
        } else {
            None
        };
        if let Some(why) = refusal {
            out.push(Command::Refuse { waiter, why });
            return;
        }
        self.waiters.insert(Waiter::new(waiter, deadline, now, lane));
        self.demand = true;
    }

    pub(crate) fn assign(&mut self, index: u32, waiter: u64, lane: u32, why: Why, out: &mut Vec<Command>) {
        self.slots.change(index, |r| {
            r.in_flight += 1;
            r.lane = lane;
        });
        self.in_flight += 1;
        out.push(Command::Assign { waiter, sandbox: self.slots.handle(index), why });
    }

    fn finish(
        &mut self,
        now: Timestamp,
        sandbox: Handle,
        outcome: Outcome,
        started: Timestamp,
        out: &mut Vec<Command>,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let condemned = match outcome {
            Outcome::Clean | Outcome::KeepAliveBroken => {
                self.load.executed(now.since(started));
                None
            }
            Outcome::NeverSent | Outcome::Proven => None,
            Outcome::TimedOut => Some(Condemned::Timeout),
            Outcome::Abandoned => Some(Condemned::Abandoned),
            Outcome::Broken => Some(Condemned::Broken),
        };
        // A sandbox that is gone took its slots with it.
        let Some(index) = self.slots.resolve(sandbox) else { return };
        self.slots.change(index, |r| {
            r.in_flight -= 1;
            if r.in_flight == 0 {
                r.idle_since = now;
            }
        });
        if let Some(why) = condemned {
            self.condemn(index, why, out);
        }
        self.settle(index, Why::HandedOver, out);
    }

    fn condemn(&mut self, index: u32, why: Condemned, out: &mut Vec<Command>) {
        if self.slots.get(index).state == State::Condemned {
            return;
        }
        self.slots.change(index, |r| r.state = State::Condemned);
        out.push(Command::Condemn { sandbox: self.slots.handle(index), why });
        self.settle_revision();
    }

    fn uploading(&mut self, waiter: u64, client: u128, out: &mut Vec<Command>) {
        let limit = share(self.queue_limit);
        if self.waiters.has(waiter) && !self.waiters.uploads.begin(waiter, client, limit) {
            self.left(waiter);
            out.push(Command::Refuse { waiter, why: Refusal::ShareFull { limit } });
        }
    }

    fn left(&mut self, waiter: u64) {
        if self.waiters.leave(waiter) && self.waiters.is_empty() {
            self.drained();
        }
    }

    fn expire(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        let waiting = !self.waiters.is_empty();
        while let Some(waiter) = self.waiters.pop_expired(now) {
            self.refuse_late(waiter, out);
        }
        if waiting && self.waiters.is_empty() {
            self.drained();
        }
    }

    pub(crate) fn refuse_late(&self, waiter: Waiter, out: &mut Vec<Command>) {
        let waited = self.load.now().since(waiter.since);
        out.push(Command::Refuse { waiter: waiter.number, why: Refusal::QueueTimeout { waited } });
    }

    fn route(&mut self, route: &FunctionRoute) {
        self.revision = route.revision;
        self.queue_limit = route.queue_limit;
        self.removed = false;
        self.slots.set_balance(route.balance, route.concurrency, self.seed);
        self.settle_revision();
    }

    pub(crate) fn refuse_all(&mut self, why: &Refusal, out: &mut Vec<Command>) {
        let waiting = !self.waiters.is_empty();
        while let Some(waiter) = self.waiters.pop() {
            out.push(Command::Refuse { waiter: waiter.number, why: why.clone() });
        }
        if waiting {
            self.drained();
        }
    }

    /// The queue has drained.
    fn drained(&mut self) {
        self.demand = true;
        if self.slots.is_empty() {
            self.waiters.shrink();
        }
    }
}
