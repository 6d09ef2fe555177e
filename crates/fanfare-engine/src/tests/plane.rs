//! A data plane of the cluster: the real queues (`fanfare-dispatch`) with a stream, and requests that run until told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fanfare_dispatch::{Command, Event, FunctionQueue, Handle, Outcome};
use fanfare_types::{
    DataPlaneHello, DataPlaneId, Epoch, FromDataPlane, FunctionId, FunctionLoad, FunctionRoute, Reason,
    SandboxId, Timestamp, ToDataPlane,
};

/// A lease as its data plane has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) slots: u32,
    pub(super) in_flight: u32,
}

#[derive(Debug, Default)]
pub(super) struct FakePlane {
    pub(super) connected: bool,
    pub(super) incarnation: u64,
    pub(super) draining: bool,
    /// What its queues hold, condemned sandboxes left out.
    pub(super) held: BTreeMap<SandboxId, Held>,
    pub(super) condemned: BTreeSet<SandboxId>,
    /// What waits, by function.
    pub(super) queued: BTreeMap<FunctionId, u32>,
    pub(super) routes: BTreeMap<FunctionId, u32>,
    pub(super) owners: BTreeMap<FunctionId, DataPlaneId>,
    pub(super) to: VecDeque<ToDataPlane>,
    pub(super) from: VecDeque<FromDataPlane>,
    queues: BTreeMap<FunctionId, Queue>,
    /// It has been told once what there is; requests that came before wait.
    synced: bool,
    early: BTreeMap<FunctionId, u32>,
    /// Functions that this stream has named.
    named: BTreeSet<FunctionId>,
}

#[derive(Debug)]
struct Queue {
    queue: FunctionQueue,
    running: Vec<Running>,
}

/// A request in a sandbox.
#[derive(Clone, Copy, Debug)]
struct Running {
    waiter: u64,
    sandbox: Handle,
    since: Timestamp,
}

/// What a step did beyond the plane itself.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Sandboxes that each took a request.
    pub(super) started: Vec<SandboxId>,
    pub(super) refused: Vec<(FunctionId, Reason)>,
}

impl FakePlane {
    pub(super) fn new(incarnation: u64) -> Self {
        FakePlane { incarnation, ..FakePlane::default() }
    }

    /// A new stream of the same process: everything on the old one is lost.
    pub(super) fn connect(&mut self, id: DataPlaneId, now: Timestamp) -> (DataPlaneHello, Done) {
        self.connected = true;
        self.to.clear();
        self.from.clear();
        self.named.clear();
        let hello = DataPlaneHello {
            name: id.to_string().into(),
            address: id.to_string().into(),
            incarnation: self.incarnation,
            epoch_seen: Epoch(0),
            leases: self.queues.values().flat_map(|q| q.queue.leases()).collect(),
            condemned: self.queues.values().flat_map(|q| q.queue.condemned()).collect(),
        };
        if self.draining {
            self.say(FromDataPlane::Draining);
        }
        let mut done = Done::default();
        for function in self.queues.keys().copied().collect::<Vec<_>>() {
            self.step(function, now, Event::Resync, &mut done);
        }
        (hello, done)
    }

    pub(super) fn say(&mut self, message: FromDataPlane) {
        if self.connected {
            self.from.push_back(message);
        }
    }

    pub(super) fn arrive(&mut self, function: FunctionId, count: u32, now: Timestamp) -> Done {
        let mut done = Done::default();
        if !self.routes.contains_key(&function) {
            if !self.synced {
                *self.early.entry(function).or_default() += count;
            }
            return done;
        }
        for _ in 0..count {
            let Some(queue) = self.queues.get_mut(&function) else { break };
            let waiter = queue.queue.next_waiter();
            let event = Event::Arrive { waiter, deadline: Timestamp::MAX, key: waiter, lane: 0 };
            self.step(function, now, event, &mut done);
        }
        done
    }

    /// A data plane begins to shut down.
    pub(super) fn drain(&mut self, now: Timestamp) -> Done {
        self.draining = true;
        self.say(FromDataPlane::Draining);
        let mut done = Done::default();
        for function in self.queues.keys().copied().collect::<Vec<_>>() {
            self.step(function, now, Event::Drain, &mut done);
        }
        done
    }

    /// The first running request, in the order of sandboxes.
    pub(super) fn first_running(&self) -> Option<SandboxId> {
        self.queues.values().flat_map(|q| &q.running).map(|r| r.sandbox.sandbox).min()
    }

    /// One request in the sandbox ends.
    pub(super) fn finish(&mut self, sandbox: SandboxId, outcome: Outcome, now: Timestamp) -> Done {
        let mut done = Done::default();
        let holds = |q: &Queue| q.running.iter().position(|r| r.sandbox.sandbox == sandbox);
        let found = self.queues.iter().find_map(|(id, q)| holds(q).map(|index| (*id, index)));
        let Some((function, index)) = found else { return done };
        let Some(queue) = self.queues.get_mut(&function) else { return done };
        let Running { sandbox, since, .. } = queue.running.remove(index);
        self.step(function, now, Event::Finish { sandbox, outcome, started: since }, &mut done);
        done
    }

    /// What the control plane said.
    pub(super) fn hears(&mut self, message: ToDataPlane, now: Timestamp) -> Done {
        let mut done = Done::default();
        match message {
            ToDataPlane::Functions(routes) => {
                routes.into_iter().for_each(|route| self.function(route, now, &mut done));
            }
            ToDataPlane::FunctionRemoved(function) => self.remove(function, now, &mut done),
            ToDataPlane::Synced => {
                self.synced = true;
                self.early.clear();
                let unnamed = self.routes.keys().filter(|id| !self.named.contains(id)).copied();
                for function in unnamed.collect::<Vec<_>>() {
                    self.remove(function, now, &mut done);
                }
            }
            ToDataPlane::Grant { function, sandbox, slots, .. } if !self.routes.contains_key(&function) => {
                self.say(FromDataPlane::Released { sandbox, slots, retired: true });
            }
            ToDataPlane::Grant { function, revision, sandbox, slots, stages, .. } => {
                let fresh = stages.is_some();
                self.step(function, now, Event::Grant { sandbox, revision, slots, fresh }, &mut done);
            }
            ToDataPlane::Revoke { sandbox, slots } => {
                if let Some(function) = self.function_of(sandbox) {
                    self.step(function, now, Event::Revoke { sandbox, slots }, &mut done);
                }
            }
            ToDataPlane::Gone { sandbox, .. } => {
                if let Some(function) = self.function_of(sandbox) {
                    self.step(function, now, Event::Gone { sandbox }, &mut done);
                    self.cut(function, sandbox, now, &mut done);
                }
            }
            ToDataPlane::Retire { function, sandboxes } => {
                self.tell(function, now, Event::Retire { sandboxes }, &mut done);
            }
            ToDataPlane::Yield { function, slots } => {
                self.tell(function, now, Event::Yield { slots }, &mut done);
            }
            ToDataPlane::Unavailable { function, reason, detail, log_tail } => {
                let event = Event::Unavailable { reason, detail, log_tail };
                self.tell(function, now, event, &mut done);
            }
            ToDataPlane::Owners(owners) => {
                for (function, owner) in owners {
                    match owner {
                        Some(owner) => self.owners.insert(function, owner),
                        None => self.owners.remove(&function),
                    };
                }
            }
            ToDataPlane::Welcome { .. }
            | ToDataPlane::Peers(_)
            | ToDataPlane::Mark(_)
            | ToDataPlane::Explain { .. }
            | ToDataPlane::Entrust { .. }
            | ToDataPlane::Webhook(_)
            | ToDataPlane::WebhookRemoved(_)
            | ToDataPlane::WebhooksSynced => {}
        }
        done
    }

    /// The load of every active function; `execution_s` in place of what was measured.
    pub(super) fn report(&mut self, execution_s: Option<f64>, now: Timestamp) {
        let mut loads = Vec::new();
        for (_, queue) in self.queues.iter_mut().filter(|(id, _)| self.routes.contains_key(id)) {
            loads.extend(queue.queue.report(now).map(|load| FunctionLoad { execution_s, ..load }));
        }
        self.say(FromDataPlane::Report(loads));
    }

    fn function(&mut self, route: FunctionRoute, now: Timestamp, done: &mut Done) {
        let id = route.id;
        self.named.insert(id);
        self.routes.insert(id, route.revision);
        if self.queues.contains_key(&id) {
            return self.step(id, now, Event::Route(route), done);
        }
        let queue = FunctionQueue::new(&route, u64::from(id.0));
        self.queues.insert(id, Queue { queue, running: Vec::new() });
        if self.draining {
            self.step(id, now, Event::Drain, done);
        }
        if let Some(count) = self.early.remove(&id) {
            let early = self.arrive(id, count, now);
            done.started.extend(early.started);
        }
        self.refresh();
    }

    /// Its requests finish; what it holds goes back.
    fn remove(&mut self, id: FunctionId, now: Timestamp, done: &mut Done) {
        self.routes.remove(&id);
        self.owners.remove(&id);
        self.step(id, now, Event::Removed, done);
    }

    fn tell(&mut self, function: FunctionId, now: Timestamp, event: Event, done: &mut Done) {
        if self.routes.contains_key(&function) {
            self.step(function, now, event, done);
        }
    }

    fn function_of(&self, sandbox: SandboxId) -> Option<FunctionId> {
        self.queues.iter().find(|(_, q)| q.queue.handle(sandbox).is_some()).map(|(id, _)| *id)
    }

    /// Requests in a sandbox that has ended get its cause for an answer.
    fn cut(&mut self, function: FunctionId, sandbox: SandboxId, now: Timestamp, done: &mut Done) {
        let Some(queue) = self.queues.get_mut(&function) else { return };
        let (cut, running) = std::mem::take(&mut queue.running)
            .into_iter()
            .partition::<Vec<_>, _>(|running| running.sandbox.sandbox == sandbox);
        queue.running = running;
        for Running { sandbox, since, .. } in cut {
            let event = Event::Finish { sandbox, outcome: Outcome::Broken, started: since };
            self.step(function, now, event, done);
        }
    }

    fn step(&mut self, function: FunctionId, now: Timestamp, event: Event, done: &mut Done) {
        let Some(Queue { queue, running }) = self.queues.get_mut(&function) else { return };
        let mut commands = Vec::new();
        queue.step(now, event, &mut commands);
        let load = queue.load(now);
        let mut said = Vec::new();
        for command in commands {
            match command {
                Command::Assign { waiter, sandbox, .. } => {
                    running.push(Running { waiter, sandbox, since: now });
                    done.started.push(sandbox.sandbox);
                }
                Command::Refuse { why, .. } => done.refused.push((function, why.reason())),
                Command::Release { sandbox, slots, retired } => {
                    said.push(FromDataPlane::Released { sandbox, slots, retired });
                }
                Command::Condemn { sandbox, why } => {
                    said.push(FromDataPlane::Condemned { sandbox: sandbox.sandbox, why });
                }
                Command::Demand => said.push(FromDataPlane::Demand(load)),
                Command::Forget { .. } | Command::Activate => {}
            }
        }
        running.sort_by_key(|r| (r.sandbox.sandbox, r.waiter));
        said.into_iter().for_each(|message| self.say(message));
        if self.queues.get(&function).is_some_and(|q| q.queue.is_idle())
            && !self.routes.contains_key(&function)
        {
            self.queues.remove(&function);
        }
        self.refresh();
    }

    fn refresh(&mut self) {
        self.held.clear();
        self.condemned.clear();
        self.queued.clear();
        for (id, Queue { queue, running }) in &self.queues {
            self.queued.insert(*id, queue.queued());
            self.condemned.extend(queue.condemned());
            for lease in queue.leases() {
                let in_flight = running.iter().filter(|r| r.sandbox.sandbox == lease.sandbox).count();
                let held = Held { slots: lease.slots, in_flight: u32::try_from(in_flight).unwrap() };
                self.held.insert(lease.sandbox, held);
            }
        }
    }
}
