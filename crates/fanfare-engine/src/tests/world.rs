//! A cluster in virtual time: nodes that start sandboxes when told, data planes that run requests in leased slots, and
//! links that keep order but lose their tail when cut.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fanfare_dispatch::Outcome;
use fanfare_types::limits::REPORT_INTERVAL;
use fanfare_types::{
    Contract, DataPlaneId, Epoch, ExitCause, FromNode, FunctionId, FunctionName, FunctionSpec, GoneCause,
    NodeHello, NodeId, Reason, Resources, RevisionId, SandboxId, SandboxRecord, SandboxUsage, Scaling,
    Sizing, Stages, StartFailure, StartFailureKind, StopMode, Timeouts, Timestamp, ToDataPlane, ToNode,
};

use super::plane::{Done, FakePlane};
use crate::sandbox::Phase;
use crate::{Command, Engine, EngineConfig, Event};

/// A sandbox as its node has it.
#[derive(Debug)]
pub(super) struct NodeSandbox {
    pub(super) revision: RevisionId,
    pub(super) ready: bool,
    /// Its node knows that a request waits for it.
    pub(super) waited: bool,
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

#[derive(Debug)]
pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) now: Timestamp,
    pub(super) nodes: BTreeMap<NodeId, FakeNode>,
    pub(super) planes: BTreeMap<DataPlaneId, FakePlane>,
    pub(super) served: u64,
    pub(super) refused: Vec<(FunctionId, Reason)>,
    pub(super) prepared: Vec<(RevisionId, Result<(), StartFailure>)>,
    /// Of each of them: whether the engine has said that it had started before.
    pub(super) had_started: Vec<bool>,
    pub(super) recovered: Vec<RevisionId>,
    /// Why nodes cannot prepare anything.
    pub(super) unprepared: Option<StartFailure>,
    pub(super) drained: BTreeSet<FunctionId>,
    pub(super) created: u64,
    /// Changes of traffic that have taken effect.
    pub(super) switched: u64,
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
        given: fanfare_types::Given::default(),
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
            had_started: vec![],
            recovered: vec![],
            unprepared: None,
            drained: BTreeSet::new(),
            created: 0,
            switched: 0,
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
        let before: BTreeMap<_, _> =
            self.engine.sandboxes.iter().map(|(id, s)| (*id, (s.phase, s.overdue_at))).collect();
        self.engine.step(self.now, event, &mut out);
        for command in &out {
            if let Command::Node { message: ToNode::Stop { sandbox, .. }, .. } = command
                && let Some(record) = self.engine.sandboxes.get(sandbox)
                && let Some((phase, overdue_at)) = before.get(sandbox)
            {
                let in_time = matches!(phase, Phase::Ready | Phase::Retiring) && *overdue_at > self.now;
                assert!(!in_time || record.leased() == 0, "requests in {sandbox} are killed: {record:?}");
            }
        }
        self.hand_out(out);
    }

    /// Puts what the engine ordered on its way.
    pub(super) fn hand_out(&mut self, out: Vec<Command>) {
        for command in out {
            match command {
                Command::Node { node, message } => self.nodes.get_mut(&node).unwrap().to.push_back(message),
                Command::DataPlane { data_plane, message } => {
                    self.planes.get_mut(&data_plane).unwrap().to.push_back(message);
                }
                Command::Prepared { revision, result, has_started } => {
                    self.prepared.push((revision, result));
                    self.had_started.push(has_started);
                }
                Command::Recovered { revision, .. } => self.recovered.push(revision),
                Command::FunctionDrained(function) => {
                    self.drained.insert(function);
                }
                Command::TrafficSwitched(_) => self.switched += 1,
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
            logs: 0,
        };
        self.step(Event::NodeConnected { node: id, hello });
    }

    pub(super) fn add_plane(&mut self, id: DataPlaneId) {
        self.planes.insert(id, FakePlane::new(1));
        self.connect_plane(id);
    }

    pub(super) fn connect_plane(&mut self, id: DataPlaneId) {
        let (hello, done) = self.planes.get_mut(&id).unwrap().connect(id, self.now);
        self.account(done);
        self.step(Event::DataPlaneConnected { data_plane: id, hello });
    }

    /// The process dies and another one of its name connects; its requests go on running where they are.
    pub(super) fn restart_plane(&mut self, id: DataPlaneId) {
        let plane = self.planes.get_mut(&id).unwrap();
        *plane = FakePlane::new(plane.incarnation + 1);
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
        let done = self.planes.get_mut(&plane).unwrap().arrive(function, count, self.now);
        self.account(done);
    }

    /// A data plane begins to shut down.
    pub(super) fn drain(&mut self, id: DataPlaneId) {
        let done = self.planes.get_mut(&id).unwrap().drain(self.now);
        self.account(done);
    }

    /// Ends up to `count` running requests of a data plane. Those in a sandbox that has ended unheard find it broken.
    pub(super) fn finish(&mut self, id: DataPlaneId, count: u32) {
        for _ in 0..count {
            let Some(sandbox) = self.planes[&id].first_running() else { return };
            self.finish_in(id, sandbox);
        }
    }

    /// The same for one in this sandbox.
    pub(super) fn finish_in(&mut self, id: DataPlaneId, sandbox: SandboxId) {
        let mut outcome = Outcome::Broken;
        for node in self.nodes.values_mut() {
            if let Some(there) = node.sandboxes.get_mut(&sandbox) {
                there.running -= 1;
                outcome = Outcome::Clean;
                self.served += 1;
            }
        }
        let done = self.planes.get_mut(&id).unwrap().finish(sandbox, outcome, self.now);
        self.account(done);
    }

    /// One running request times out: its data plane condemns the sandbox; user code runs on until it is killed.
    pub(super) fn time_out(&mut self, id: DataPlaneId) {
        let Some(sandbox) = self.planes[&id].first_running() else { return };
        self.time_out_in(id, sandbox);
    }

    /// The same for one in this sandbox.
    pub(super) fn time_out_in(&mut self, id: DataPlaneId, sandbox: SandboxId) {
        let done = self.planes.get_mut(&id).unwrap().finish(sandbox, Outcome::TimedOut, self.now);
        self.account(done);
    }

    /// Requests begin to run; others were answered.
    fn account(&mut self, done: Done) {
        self.refused.extend(done.refused);
        for sandbox in done.started {
            for node in self.nodes.values_mut() {
                if let Some(there) = node.sandboxes.get_mut(&sandbox) {
                    there.running += 1;
                    assert!(there.running <= there.concurrency, "{sandbox} runs {} at once", there.running);
                }
            }
        }
    }

    fn say_reports(&mut self) {
        for plane in self.planes.values_mut() {
            plane.report(self.execution_s, self.now);
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
            ToNode::Hasten(sandbox) => {
                if let Some(hastened) = node.sandboxes.get_mut(&sandbox) {
                    assert!(!hastened.waited, "{sandbox} is hastened twice");
                    hastened.waited = true;
                }
            }
            ToNode::Create { sandbox, revision, waited } => {
                *created += 1;
                let concurrency =
                    *node.revisions.get(&revision).expect("a revision is told before its first use");
                let fresh = NodeSandbox { revision, ready: false, waited, concurrency, running: 0 };
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
                let failure = self.unprepared.clone();
                node.from.push_back(FromNode::Prepared { revision, failure });
            }
            // The shell adds these, where there are any.
            ToNode::Secrets { .. } => panic!("the engine knows no secrets"),
            ToNode::Welcome { .. } | ToNode::Logs { .. } => {}
        }
    }

    /// A sandbox is gone from its node: whatever ran in it has ended; connections break.
    pub(super) fn end_sandbox(&mut self, id: NodeId, sandbox: SandboxId, exit: ExitCause) {
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
        let done = self.planes.get_mut(&id).unwrap().hears(message, self.now);
        self.account(done);
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
