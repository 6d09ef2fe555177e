//! A cluster in virtual time: nodes that start sandboxes when told, data planes that run requests in leased slots, and
//! links that keep order but lose their tail when cut.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::limits::REPORT_INTERVAL;
use fanfare_types::{
    Condemned, Contract, DataPlaneHello, DataPlaneId, Epoch, ExitCause, FromDataPlane, FromNode, FunctionId,
    FunctionLoad, FunctionName, FunctionSpec, GoneCause, HeldLease, NodeHello, NodeId, Reason, Resources,
    RevisionId, SandboxId, SandboxRecord, SandboxUsage, Scaling, Sizing, Stages, StartFailure,
    StartFailureKind, StopMode, Timeouts, Timestamp, ToDataPlane, ToNode,
};

use crate::{Command, Engine, EngineConfig, Event};

/// A sandbox as its node has it.
#[derive(Debug)]
pub(super) struct NodeSandbox {
    pub(super) revision: RevisionId,
    pub(super) ready: bool,
    pub(super) concurrency: u32,
    /// Requests that user code works on, whether or not anybody still waits for the answer.
    pub(super) running: u32,
}

#[derive(Debug, Default)]
pub(super) struct FakeNode {
    pub(super) connected: bool,
    pub(super) incarnation: u64,
    pub(super) capacity: Resources,
    pub(super) sandboxes: BTreeMap<SandboxId, NodeSandbox>,
    pub(super) revisions: BTreeMap<RevisionId, u32>,
    pub(super) to: VecDeque<ToNode>,
    from: VecDeque<FromNode>,
}

/// A lease as its data plane has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) function: FunctionId,
    pub(super) slots: u32,
    pub(super) in_flight: u32,
    pub(super) revoke: u32,
    pub(super) retiring: bool,
}

#[derive(Debug, Default)]
pub(super) struct FakePlane {
    pub(super) connected: bool,
    pub(super) incarnation: u64,
    /// It has been told once what there is.
    synced: bool,
    pub(super) draining: bool,
    pub(super) held: BTreeMap<SandboxId, Held>,
    pub(super) condemned: BTreeSet<SandboxId>,
    pub(super) queued: BTreeMap<FunctionId, u32>,
    pub(super) routes: BTreeMap<FunctionId, u32>,
    /// Functions that this stream has named.
    named: BTreeSet<FunctionId>,
    pub(super) owners: BTreeMap<FunctionId, DataPlaneId>,
    retire: BTreeMap<FunctionId, u32>,
    yields: BTreeMap<FunctionId, u32>,
    to: VecDeque<ToDataPlane>,
    from: VecDeque<FromDataPlane>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) now: Timestamp,
    pub(super) nodes: BTreeMap<NodeId, FakeNode>,
    pub(super) planes: BTreeMap<DataPlaneId, FakePlane>,
    pub(super) served: u64,
    pub(super) refused: Vec<(FunctionId, Reason)>,
    pub(super) prepared: Vec<(RevisionId, Result<(), StartFailure>)>,
    pub(super) drained: BTreeSet<FunctionId>,
    pub(super) created: u64,
    /// What data planes say of execution times.
    pub(super) execution_s: Option<f64>,
    /// Work that the ready sandboxes share evenly, as nodes say it with each report; `None`: they say nothing.
    pub(super) cpu_milli: Option<f64>,
    next_report: Timestamp,
    epoch: u64,
}

pub(super) const F: FunctionId = FunctionId(1);
pub(super) const G: FunctionId = FunctionId(2);
pub(super) const N: NodeId = NodeId(1);
pub(super) const D: DataPlaneId = DataPlaneId(1);
pub(super) const E: DataPlaneId = DataPlaneId(2);

pub(super) fn spec(name: &str, concurrency: u32, scaling: Scaling) -> FunctionSpec {
    FunctionSpec {
        name: FunctionName::new(name).unwrap(),
        runtime: Arc::from("fake"),
        contract: Contract::Fake,
        code: None,
        env: vec![],
        sizing: Sizing { concurrency, request: Resources::new(100, 100), ..Sizing::default() },
        timeouts: Timeouts::default(),
        scaling,
        queue_limit: 1000,
        balance: Default::default(),
    }
}

impl World {
    pub(super) fn new() -> Self {
        World {
            engine: Engine::new(EngineConfig::new(Epoch(1))),
            now: Timestamp::from_secs(100),
            nodes: BTreeMap::new(),
            planes: BTreeMap::new(),
            served: 0,
            refused: vec![],
            prepared: vec![],
            drained: BTreeSet::new(),
            created: 0,
            execution_s: None,
            cpu_milli: None,
            next_report: Timestamp::from_secs(101),
            epoch: 1,
        }
    }

    /// One node with room for `sandboxes`, one data plane, one function of this concurrency.
    pub(super) fn small(sandboxes: u64, concurrency: u32, scaling: Scaling) -> Self {
        let mut world = World::new();
        world.add_node(N, sandboxes);
        world.add_plane(D);
        world.set_function(F, 1, spec("f", concurrency, scaling));
        world.settle();
        world
    }

    pub(super) fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        self.engine.step(self.now, event, &mut out);
        for command in out {
            match command {
                Command::Node { node, message } => self.nodes.get_mut(&node).unwrap().to.push_back(message),
                Command::DataPlane { data_plane, message } => {
                    self.planes.get_mut(&data_plane).unwrap().to.push_back(message);
                }
                Command::Prepared { revision, result } => self.prepared.push((revision, result)),
                Command::FunctionDrained(function) => {
                    self.drained.insert(function);
                }
            }
        }
    }

    pub(super) fn set_function(&mut self, function: FunctionId, number: u32, spec: FunctionSpec) {
        self.step(Event::FunctionSet { id: RevisionId { function, number }, spec: Arc::new(spec) });
    }

    pub(super) fn add_node(&mut self, id: NodeId, sandboxes: u64) {
        let capacity = Resources::new(100 * sandboxes, 100 * sandboxes);
        self.nodes.insert(id, FakeNode { capacity, incarnation: 1, ..FakeNode::default() });
        self.connect_node(id);
    }

    pub(super) fn connect_node(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.connected = true;
        node.to.clear();
        node.from.clear();
        node.revisions.clear();
        let sandboxes = node.sandboxes.iter().map(|(sandbox, s)| SandboxRecord {
            sandbox: *sandbox,
            revision: s.revision,
            endpoint: s.ready.then(|| Arc::from("unix:/x")),
        });
        let hello = NodeHello {
            name: id.to_string().into(),
            incarnation: node.incarnation,
            epoch_seen: Epoch(0),
            capacity: node.capacity,
            runtimes: vec![Arc::from("fake")],
            sandboxes: sandboxes.collect(),
        };
        self.step(Event::NodeConnected { node: id, hello });
    }

    pub(super) fn add_plane(&mut self, id: DataPlaneId) {
        self.planes.insert(id, FakePlane { incarnation: 1, ..FakePlane::default() });
        self.connect_plane(id);
    }

    /// A new stream of the same process: everything on the old one is lost.
    pub(super) fn connect_plane(&mut self, id: DataPlaneId) {
        let plane = self.planes.get_mut(&id).unwrap();
        plane.connected = true;
        plane.to.clear();
        plane.from.clear();
        plane.named.clear();
        plane.retire.clear();
        plane.yields.clear();
        plane.held.values_mut().for_each(|held| held.revoke = 0);
        let leases = plane.held.iter().filter(|(_, h)| h.slots > 0);
        let hello = DataPlaneHello {
            name: id.to_string().into(),
            address: id.to_string().into(),
            incarnation: plane.incarnation,
            epoch_seen: Epoch(0),
            leases: leases.map(|(sandbox, h)| HeldLease { sandbox: *sandbox, slots: h.slots }).collect(),
            condemned: plane.condemned.iter().copied().collect(),
        };
        self.step(Event::DataPlaneConnected { data_plane: id, hello });
        if self.planes[&id].draining {
            self.say(id, FromDataPlane::Draining);
        }
        let waiting: Vec<FunctionId> = self.planes[&id].queued.keys().copied().collect();
        for function in waiting {
            self.say_demand(id, function);
        }
    }

    /// The process dies and another one of its name connects; its requests go on running where they are.
    pub(super) fn restart_plane(&mut self, id: DataPlaneId) {
        let plane = self.planes.get_mut(&id).unwrap();
        *plane = FakePlane { incarnation: plane.incarnation + 1, ..FakePlane::default() };
        self.connect_plane(id);
    }

    /// The control plane's process is replaced; nodes and data planes live on.
    pub(super) fn restart_engine(&mut self, functions: &[(FunctionId, u32, FunctionSpec)]) {
        self.epoch += 1;
        let mut config = EngineConfig::new(Epoch(self.epoch));
        config.known_data_planes = self.planes.keys().copied().collect();
        config.known_nodes = self.nodes.keys().copied().collect();
        self.engine = Engine::new(config);
        self.nodes.values_mut().for_each(|node| node.connected = false);
        self.planes.values_mut().for_each(|plane| plane.connected = false);
        for (function, number, spec) in functions {
            let id = RevisionId { function: *function, number: *number };
            self.step(Event::FunctionKept { id, spec: Arc::new(spec.clone()) });
        }
    }

    pub(super) fn arrive(&mut self, plane: DataPlaneId, function: FunctionId, count: u32) {
        let there = self.planes.get_mut(&plane).unwrap();
        if there.synced && !there.routes.contains_key(&function) {
            return;
        }
        *there.queued.entry(function).or_default() += count;
        self.dispatch(plane);
        self.say_demand(plane, function);
    }

    /// Starts queued requests in free slots.
    pub(super) fn dispatch(&mut self, id: DataPlaneId) {
        let plane = self.planes.get_mut(&id).unwrap();
        for (sandbox, held) in &mut plane.held {
            let waiting = plane.queued.entry(held.function).or_default();
            let free = if held.retiring {
                0
            } else {
                held.slots.saturating_sub(held.in_flight.saturating_add(held.revoke))
            };
            let started = free.min(*waiting);
            *waiting -= started;
            held.in_flight += started;
            for node in self.nodes.values_mut() {
                if let Some(running) = node.sandboxes.get_mut(sandbox) {
                    running.running += started;
                    assert!(
                        running.running <= running.concurrency,
                        "{sandbox} runs {} at once",
                        running.running
                    );
                }
            }
        }
    }

    pub(super) fn say(&mut self, id: DataPlaneId, message: FromDataPlane) {
        self.planes.get_mut(&id).unwrap().from.push_back(message);
    }

    /// A data plane begins to shut down: it gives back what no request of its own waits for.
    pub(super) fn drain(&mut self, id: DataPlaneId) {
        let plane = self.planes.get_mut(&id).unwrap();
        plane.draining = true;
        if plane.connected {
            self.say(id, FromDataPlane::Draining);
        }
        self.give_back(id);
    }

    /// Ends up to `count` running requests of a data plane.
    pub(super) fn finish(&mut self, id: DataPlaneId, count: u32) {
        let mut left = count;
        let sandboxes: Vec<SandboxId> = self.planes[&id].held.keys().copied().collect();
        for sandbox in sandboxes {
            let held = self.planes.get_mut(&id).unwrap().held.get_mut(&sandbox).unwrap();
            let done = left.min(held.in_flight);
            held.in_flight -= done;
            left -= done;
            self.served += u64::from(done);
            for node in self.nodes.values_mut() {
                if let Some(s) = node.sandboxes.get_mut(&sandbox) {
                    s.running -= done;
                }
            }
        }
        self.give_back(id);
        self.dispatch(id);
        let functions: Vec<FunctionId> = self.planes[&id].queued.keys().copied().collect();
        for function in functions {
            self.say_demand(id, function);
        }
    }

    /// One running request times out: its data plane condemns the sandbox; user code runs on until it is killed.
    pub(super) fn time_out(&mut self, id: DataPlaneId) {
        let plane = self.planes.get_mut(&id).unwrap();
        let Some(sandbox) = plane.held.iter().find(|(_, h)| h.in_flight > 0).map(|(s, _)| *s) else { return };
        plane.held.remove(&sandbox);
        plane.condemned.insert(sandbox);
        if plane.connected {
            plane.from.push_back(FromDataPlane::Condemned { sandbox, why: Condemned::Timeout });
        }
    }

    /// Honours revokes, retirements and yields with what is free.
    fn give_back(&mut self, id: DataPlaneId) {
        let plane = self.planes.get_mut(&id).unwrap();
        let mut released = Vec::new();
        for (function, wanted) in &mut plane.retire {
            let mine = |h: &Held| h.function == *function && !h.retiring;
            let idle: Vec<SandboxId> =
                plane.held.iter().filter(|(_, h)| mine(h) && h.in_flight == 0).map(|(s, _)| *s).collect();
            for sandbox in idle.into_iter().take(*wanted as usize) {
                let held = plane.held.remove(&sandbox).unwrap();
                released.push((sandbox, held.slots, true));
                *wanted -= 1;
            }
        }
        for (function, wanted) in &mut plane.yields {
            for (sandbox, held) in plane.held.iter_mut().filter(|(_, h)| h.function == *function) {
                let give = held.slots.saturating_sub(held.in_flight).min(*wanted);
                if give > 0 {
                    held.slots -= give;
                    *wanted -= give;
                    released.push((*sandbox, give, false));
                }
            }
        }
        for (sandbox, held) in &mut plane.held {
            let unneeded = plane.draining && plane.queued.get(&held.function).copied().unwrap_or(0) == 0;
            let wanted = if unneeded { u32::MAX } else { held.revoke };
            let give = held.slots.saturating_sub(held.in_flight).min(wanted);
            if give > 0 {
                held.slots -= give;
                held.revoke =
                    if held.revoke == u32::MAX { u32::MAX } else { held.revoke.saturating_sub(give) };
                released.push((*sandbox, give, false));
            }
        }
        plane.held.retain(|_, h| h.slots > 0);
        if plane.connected {
            for (sandbox, slots, retired) in released {
                plane.from.push_back(FromDataPlane::Released { sandbox, slots, retired });
            }
        }
    }

    fn load(&self, id: DataPlaneId, function: FunctionId) -> FunctionLoad {
        let plane = &self.planes[&id];
        let mine = || plane.held.values().filter(|h| h.function == function);
        let in_flight = mine().map(|h| h.in_flight).sum::<u32>();
        let queued = plane.queued.get(&function).copied().unwrap_or(0);
        let idle = mine().filter(|h| h.in_flight == 0).count();
        FunctionLoad {
            function,
            in_flight,
            queued,
            idle_sandboxes: u32::try_from(idle).unwrap(),
            concurrency_avg: f64::from(in_flight + queued),
            execution_s: self.execution_s,
            ..FunctionLoad::default()
        }
    }

    fn say_demand(&mut self, id: DataPlaneId, function: FunctionId) {
        let load = self.load(id, function);
        let plane = self.planes.get_mut(&id).unwrap();
        if plane.connected {
            plane.from.push_back(FromDataPlane::Demand(load));
        }
    }

    fn say_reports(&mut self) {
        let ids: Vec<DataPlaneId> = self.planes.keys().copied().collect();
        for id in ids {
            let functions: BTreeSet<FunctionId> = self.planes[&id].routes.keys().copied().collect();
            let loads: Vec<FunctionLoad> = functions
                .into_iter()
                .map(|f| FunctionLoad { interval_s: 1.0, ..self.load(id, f) })
                .filter(|l| l.in_flight + l.queued > 0)
                .collect();
            let plane = self.planes.get_mut(&id).unwrap();
            if plane.connected {
                plane.from.push_back(FromDataPlane::Report(loads));
            }
        }
        self.say_usage();
    }

    fn say_usage(&mut self) {
        let Some(cpu_milli) = self.cpu_milli else { return };
        let ready = self.nodes.values().flat_map(|n| n.sandboxes.values()).filter(|s| s.ready).count();
        for node in self.nodes.values_mut().filter(|n| n.connected) {
            let usages = node
                .sandboxes
                .iter()
                .filter(|(_, s)| s.ready)
                .map(|(sandbox, _)| SandboxUsage { sandbox: *sandbox, cpu_milli: cpu_milli / ready as f64 });
            node.from.push_back(FromNode::Usage(usages.collect()));
        }
    }

    /// Delivers one message towards a node or data plane, or from one; false when nothing is under way.
    pub(super) fn deliver_one(&mut self, pick: usize) -> bool {
        let nodes: Vec<NodeId> = self.nodes.iter().filter(|(_, n)| n.connected).map(|(id, _)| *id).collect();
        let planes: Vec<DataPlaneId> =
            self.planes.iter().filter(|(_, p)| p.connected).map(|(id, _)| *id).collect();
        let mut choices: Vec<(u8, u32)> = Vec::new();
        for id in &nodes {
            let node = &self.nodes[id];
            choices.extend((!node.to.is_empty()).then_some((0, id.0)));
            choices.extend((!node.from.is_empty()).then_some((1, id.0)));
        }
        for id in &planes {
            let plane = &self.planes[id];
            choices.extend((!plane.to.is_empty()).then_some((2, id.0)));
            choices.extend((!plane.from.is_empty()).then_some((3, id.0)));
        }
        if choices.is_empty() {
            return false;
        }
        match choices[pick % choices.len()] {
            (0, id) => {
                let message = self.nodes.get_mut(&NodeId(id)).unwrap().to.pop_front().unwrap();
                self.node_hears(NodeId(id), message);
            }
            (1, id) => {
                let message = self.nodes.get_mut(&NodeId(id)).unwrap().from.pop_front().unwrap();
                self.step(Event::FromNode { node: NodeId(id), message });
            }
            (2, id) => {
                let message = self.planes.get_mut(&DataPlaneId(id)).unwrap().to.pop_front().unwrap();
                self.plane_hears(DataPlaneId(id), message);
            }
            (_, id) => {
                let message = self.planes.get_mut(&DataPlaneId(id)).unwrap().from.pop_front().unwrap();
                self.step(Event::FromDataPlane { data_plane: DataPlaneId(id), message, received: self.now });
            }
        }
        true
    }

    /// Delivers everything, until nothing is under way.
    pub(super) fn settle(&mut self) {
        let mut steps = 0;
        while self.deliver_one(0) {
            steps += 1;
            assert!(steps < 20_000, "messages without end");
        }
    }

    fn node_hears(&mut self, id: NodeId, message: ToNode) {
        let created = &mut self.created;
        let node = self.nodes.get_mut(&id).unwrap();
        match message {
            ToNode::Revision(spec) => {
                node.revisions.insert(spec.id, spec.sizing.concurrency);
            }
            ToNode::RevisionRemoved(revision) => {
                node.revisions.remove(&revision);
            }
            ToNode::Create { sandbox, revision } => {
                *created += 1;
                let concurrency =
                    *node.revisions.get(&revision).expect("a revision is told before its first use");
                let fresh = NodeSandbox { revision, ready: false, concurrency, running: 0 };
                assert!(node.sandboxes.insert(sandbox, fresh).is_none(), "{sandbox} created twice");
            }
            ToNode::Stop { sandbox, mode } => {
                let begun = node.sandboxes.get(&sandbox).is_some_and(|s| s.ready);
                let waited_for: u32 =
                    self.planes.values().filter_map(|p| p.held.get(&sandbox)).map(|h| h.in_flight).sum();
                assert!(
                    mode != StopMode::Graceful || waited_for == 0,
                    "{sandbox} is stopped with {waited_for} in it"
                );
                if mode == StopMode::IfNotBegun && begun {
                    return;
                }
                self.end_sandbox(id, sandbox, ExitCause::Stopped);
            }
            ToNode::Prepare(revision) => {
                node.from.push_back(FromNode::Prepared { revision, failure: None });
            }
            ToNode::Welcome { .. } | ToNode::Logs { .. } => {}
        }
    }

    /// A sandbox is gone from its node: whatever ran in it has ended; connections break.
    pub(super) fn end_sandbox(&mut self, id: NodeId, sandbox: SandboxId, exit: ExitCause) {
        for plane in self.planes.values_mut() {
            if let Some(held) = plane.held.get_mut(&sandbox) {
                held.in_flight = 0;
            }
        }
        let node = self.nodes.get_mut(&id).unwrap();
        node.sandboxes.remove(&sandbox);
        if node.connected {
            let cause = GoneCause { exit, log_tail: Arc::from("last words") };
            node.from.push_back(FromNode::Exited { sandbox, cause });
        }
    }

    /// Lets one starting sandbox come up, or fail.
    pub(super) fn start_one(&mut self, id: NodeId, pick: usize, succeeds: bool) -> bool {
        let node = self.nodes.get_mut(&id).unwrap();
        let starting: Vec<SandboxId> =
            node.sandboxes.iter().filter(|(_, s)| !s.ready).map(|(id, _)| *id).collect();
        if starting.is_empty() {
            return false;
        }
        let sandbox = starting[pick % starting.len()];
        let message = if succeeds {
            node.sandboxes.get_mut(&sandbox).unwrap().ready = true;
            FromNode::Ready { sandbox, endpoint: Arc::from("unix:/x"), stages: Stages::default() }
        } else {
            node.sandboxes.remove(&sandbox);
            let failure = StartFailure {
                kind: StartFailureKind::HandlerNotFound,
                detail: "no handler".into(),
                log_tail: "tail".into(),
            };
            FromNode::Failed { sandbox, failure }
        };
        if node.connected {
            node.from.push_back(message);
        }
        true
    }

    /// Every starting sandbox comes up, and everything is delivered, until nothing changes.
    pub(super) fn start_all(&mut self) {
        loop {
            self.settle();
            let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
            let mut any = false;
            for id in ids {
                while self.start_one(id, 0, true) {
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    }

    fn plane_hears(&mut self, id: DataPlaneId, message: ToDataPlane) {
        let plane = self.planes.get_mut(&id).unwrap();
        match message {
            ToDataPlane::Functions(routes) => {
                plane.named.extend(routes.iter().map(|r| r.id));
                plane.routes.extend(routes.into_iter().map(|r| (r.id, r.revision)));
            }
            ToDataPlane::FunctionRemoved(function) => {
                plane.routes.remove(&function);
                plane.queued.remove(&function);
            }
            ToDataPlane::Grant { function, sandbox, slots, .. } if !plane.routes.contains_key(&function) => {
                self.say(id, FromDataPlane::Released { sandbox, slots, retired: true });
                return;
            }
            ToDataPlane::Grant { function, sandbox, slots, .. } => {
                let held = plane.held.entry(sandbox).or_insert(Held { function, ..Held::default() });
                held.slots += slots;
                self.dispatch(id);
                self.say_demand(id, function);
                self.give_back(id);
                return;
            }
            ToDataPlane::Revoke { sandbox, slots } => {
                if let Some(held) = plane.held.get_mut(&sandbox) {
                    held.revoke = held.revoke.saturating_add(slots);
                }
            }
            ToDataPlane::Retire { function, sandboxes } => {
                plane.retire.insert(function, sandboxes);
            }
            ToDataPlane::Yield { function, slots } => {
                plane.yields.insert(function, slots);
            }
            ToDataPlane::Gone { sandbox, .. } => {
                plane.held.remove(&sandbox);
                plane.condemned.remove(&sandbox);
            }
            ToDataPlane::Unavailable { function, reason, .. } => {
                for _ in 0..std::mem::take(plane.queued.entry(function).or_default()) {
                    self.refused.push((function, reason));
                }
                self.say_demand(id, function);
                return;
            }
            ToDataPlane::Owners(owners) => {
                for (function, owner) in owners {
                    match owner {
                        Some(owner) => plane.owners.insert(function, owner),
                        None => plane.owners.remove(&function),
                    };
                }
            }
            ToDataPlane::Synced => {
                plane.synced = true;
                plane.routes.retain(|function, _| plane.named.contains(function));
                plane.queued.retain(|function, _| plane.named.contains(function));
            }
            ToDataPlane::Welcome { .. } | ToDataPlane::Peers(_) => {}
        }
        self.give_back(id);
    }

    /// Moves time on, firing timers and reports when they are due; delivers and starts everything on the way.
    pub(super) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            self.start_all();
            let due =
                self.engine.next_deadline().unwrap_or(Timestamp::MAX).max(self.now).min(self.next_report);
            if due > end {
                break;
            }
            self.now = due;
            if self.now >= self.next_report {
                self.next_report = self.now + REPORT_INTERVAL;
                self.say_reports();
            } else {
                self.step(Event::Tick);
            }
        }
        self.now = end;
        self.start_all();
    }

    /// Moves time on without starting anything.
    pub(super) fn jump(&mut self, duration: Duration) {
        self.now = self.now + duration;
        if self.now >= self.next_report {
            self.next_report = self.now + REPORT_INTERVAL;
            self.say_reports();
        }
        self.step(Event::Tick);
    }

    /// Lets the function see one cold start of this length.
    pub(super) fn cold_starts_take(&mut self, duration: Duration) {
        self.engine.functions.get_mut(&F).unwrap().active_mut().cold_start = Some(duration);
    }

    pub(super) fn ready(&self, function: FunctionId) -> u32 {
        self.engine.function_status(function).map_or(0, |s| s.ready)
    }
}
