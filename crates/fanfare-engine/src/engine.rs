//! The state, the dispatch of events to their handlers, and timers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fanfare_policy::{Gift, Ledger, Owners, Placer, Rng};
use fanfare_types::{
    DataPlaneId, FromDataPlane, FromNode, FunctionId, NodeId, Resources, RevisionId, SandboxId, Timestamp,
    ToDataPlane, ToNode,
};

use crate::function::Function;
use crate::nodes::{Node, Unprepared};
use crate::orders::Orders;
use crate::sandbox::{Phase, Sandbox};
use crate::traffic::PendingTraffic;
use crate::{Command, EngineConfig, Event};

/// The control plane's state. See the crate's documentation for where each decision is made.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    /// Boxed: ids only grow, which leaves a map's leaves little more than half full.
    pub(crate) functions: BTreeMap<FunctionId, Box<Function>>,
    /// Boxed for the same reason.
    pub(crate) sandboxes: BTreeMap<SandboxId, Box<Sandbox>>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) data_planes: BTreeMap<DataPlaneId, DataPlane>,
    pub(crate) ledger: Ledger,
    pub(crate) placer: Placer,
    pub(crate) owners: Owners,
    pub(crate) rng: Rng,
    /// Functions whose clock runs: those with sandboxes, load, or a wish for either.
    pub(crate) awake: BTreeSet<FunctionId>,
    /// Functions that want sandboxes for which there is no room, in the order in which they began to.
    pub(crate) starved: BTreeSet<(Timestamp, FunctionId)>,
    /// Functions whose autoscalers alone want sandboxes for which there is no room.
    pub(crate) wishing: BTreeSet<FunctionId>,
    /// What no node of a runtime has had room for since anything was last released.
    pub(crate) full: Vec<(Arc<str>, Resources)>,
    /// Which node was asked to prepare a revision.
    pub(crate) preparing: BTreeMap<RevisionId, NodeId>,
    /// Revisions to be prepared once a node that can has connected.
    pub(crate) unprepared: BTreeMap<RevisionId, Unprepared>,
    /// Data planes of an earlier leader that have not connected yet; slots of adopted sandboxes wait for them.
    pub(crate) awaited_data_planes: BTreeSet<DataPlaneId>,
    /// Nodes of an earlier leader that have not connected yet; sandboxes that nobody waits for wait for theirs.
    pub(crate) awaited_nodes: BTreeSet<NodeId>,
    /// Leases that data planes stated for sandboxes that no node has stated yet.
    pub(crate) claims: BTreeMap<SandboxId, Claim>,
    /// Changes of functions' traffic that have not taken effect.
    pub(crate) pending_traffic: BTreeMap<FunctionId, PendingTraffic>,
    /// The beginning of the term, in which sandboxes of an earlier leader are adopted.
    pub(crate) recovering: bool,
    /// Nodes that have connected in this term: what such a node has and this side does not know was given up.
    pub(crate) nodes_seen: BTreeSet<NodeId>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) sandbox_counter: u64,
    /// Why sandboxes were ordered lately.
    pub(crate) orders: Orders,
    /// Something was released in this step: starved functions get another try at its end.
    pub(crate) room_made: bool,
    /// A function starves: at the end of this step idle sandboxes are asked back.
    pub(crate) room_wanted: bool,
    /// Not before this are they asked back again.
    pub(crate) make_room_at: Timestamp,
    /// Sandboxes that data planes are asked to give up for functions that starve; a limited number.
    pub(crate) gifts: Vec<Gift>,
    /// Sandboxes that are on their way out, and whose room that is.
    pub(crate) promised: BTreeMap<SandboxId, FunctionId>,
    /// Functions whose room was released in this step.
    pub(crate) heirs: Vec<FunctionId>,
    /// So many since then.
    pub(crate) gifts_lately: usize,
    /// The beginning of the second in which they are counted.
    pub(crate) gifts_since: Timestamp,
    /// Not before this are givers looked for again.
    pub(crate) give_way_at: Timestamp,
    timers: BTreeSet<(Timestamp, Timer)>,
}

/// A data plane whose stream is up, or was until a moment ago.
#[derive(Debug)]
pub(crate) struct DataPlane {
    pub(crate) name: Arc<str>,
    pub(crate) address: Arc<str>,
    pub(crate) incarnation: u64,
    /// It shuts down: no more grants.
    pub(crate) draining: bool,
}

/// What data planes state of a sandbox before its node does.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    pub(crate) leases: Vec<(DataPlaneId, u32)>,
    /// One of them wants it killed.
    pub(crate) condemned: bool,
}

/// What to do when a deadline passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Sample the function's load and, each tick, decide its scale.
    Scale(FunctionId),
    /// Requests still wait though few sandboxes were ordered, because executions were thought to be short.
    Recheck(FunctionId),
    /// Try again after failed starts.
    Retry(FunctionId),
    /// Requests have waited with no node that could run them.
    NoNode(FunctionId),
    /// What a change of the function's traffic waits for should be there by now.
    Traffic(FunctionId),
    /// No node that could prepare the revision has connected.
    Unprepared(RevisionId),
    /// Idle sandboxes may be asked back again.
    MakeRoom,
    /// The sandbox should have left its phase by now.
    Overdue(SandboxId),
    /// Every data plane of the earlier leader should have spoken by now.
    LeaseRecovery,
}

impl Engine {
    /// An engine at the beginning of a term. Feed it every kept function first, then connections.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Engine {
            functions: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            data_planes: BTreeMap::new(),
            ledger: Ledger::new(),
            placer: Placer::new(config.placement),
            owners: Owners::new(),
            rng: fanfare_policy::seeded(config.seed),
            awake: BTreeSet::new(),
            starved: BTreeSet::new(),
            wishing: BTreeSet::new(),
            full: Vec::new(),
            preparing: BTreeMap::new(),
            unprepared: BTreeMap::new(),
            awaited_data_planes: config.known_data_planes.iter().copied().collect(),
            awaited_nodes: config.known_nodes.iter().copied().collect(),
            claims: BTreeMap::new(),
            pending_traffic: BTreeMap::new(),
            recovering: true,
            nodes_seen: BTreeSet::new(),
            started_at: None,
            sandbox_counter: 0,
            orders: Orders::default(),
            room_made: false,
            room_wanted: false,
            make_room_at: Timestamp::ZERO,
            gifts: Vec::new(),
            promised: BTreeMap::new(),
            heirs: Vec::new(),
            gifts_lately: 0,
            gifts_since: Timestamp::ZERO,
            give_way_at: Timestamp::ZERO,
            timers: BTreeSet::new(),
            config,
        }
    }

    /// Takes one event at time `now` and appends what is to be done, in order, to `out`.
    ///
    /// `now` never goes backwards between calls.
    pub fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        if self.started_at.is_none() {
            self.started_at = Some(now);
            self.arm(now + self.config.lease_recovery, Timer::LeaseRecovery);
        }
        match event {
            Event::Tick => {}
            Event::FunctionSet { id, spec } => self.function_set(now, id, spec, out),
            Event::FunctionKept { id, spec } => self.function_kept(now, id, spec, out),
            Event::UnitSet { id, spec } => self.unit_set(now, id, spec, false, out),
            Event::UnitKept { id, spec } => self.unit_set(now, id, spec, true, out),
            Event::TrafficSet { function, traffic } => self.traffic_set(now, function, traffic, out),
            Event::TrafficKept { function, traffic } => self.traffic_kept(function, traffic),
            Event::FailureKept { id, failure } => self.failure_kept(now, id, failure),
            Event::FunctionRemoved(function) => self.function_removed(now, function, out),
            Event::PrepareRequested { id, spec } => self.prepare_requested(now, id, spec, out),
            Event::NodeConnected { node, hello } => self.node_connected(now, node, hello, out),
            Event::NodeLost(node) => self.node_lost(now, node, out),
            Event::FromNode { node, message } => self.node_said(now, node, message, out),
            Event::DataPlaneConnected { data_plane, hello } => {
                self.data_plane_connected(now, data_plane, hello, out);
            }
            Event::DataPlaneLost(data_plane) => self.data_plane_lost(now, data_plane, out),
            Event::FromDataPlane { data_plane, message, received } => {
                self.data_plane_said(now, data_plane, message, now.since(received), out);
            }
        }
        self.fire_timers(now, out);
        self.serve_heirs(now, out);
        if std::mem::take(&mut self.room_made) {
            self.retry_starved(now, out);
        }
        if std::mem::take(&mut self.room_wanted) {
            self.make_room(now, out);
        }
    }

    /// When the next [`Event::Tick`] is due, if any.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Tells how long the step that ordered `sandbox` took: its `place` stage.
    pub fn note_placed(&mut self, sandbox: SandboxId, took: Duration) {
        let record = self.sandboxes.get_mut(&sandbox);
        if let Some(stages) = record.and_then(|record| record.stages.as_mut()) {
            stages.place = took;
        }
    }

    fn node_said(&mut self, now: Timestamp, node: NodeId, message: FromNode, out: &mut Vec<Command>) {
        let foreign = |id| self.sandboxes.get(&id).is_some_and(|s| s.node != node);
        match message {
            // Only its own node speaks for a sandbox.
            FromNode::Ready { sandbox, .. }
            | FromNode::Failed { sandbox, .. }
            | FromNode::Exited { sandbox, .. }
                if foreign(sandbox) => {}
            // A hello begins a stream; the shell turns it into `NodeConnected`.
            FromNode::Hello(hello) => self.node_connected(now, node, hello, out),
            FromNode::Ready { sandbox, endpoint, stages } => {
                self.sandbox_ready(now, node, sandbox, endpoint, stages, out);
            }
            FromNode::Failed { sandbox, failure } => self.sandbox_failed(now, sandbox, failure, out),
            FromNode::Exited { sandbox, cause } => self.sandbox_exited(now, sandbox, &cause, out),
            FromNode::Prepared { revision, failure } => self.prepared(now, revision, failure, out),
            FromNode::Usage(usages) => self.usage(now, &usages),
            // The shell's own business.
            FromNode::Left | FromNode::Heartbeat => {}
        }
    }

    fn data_plane_said(
        &mut self,
        now: Timestamp,
        data_plane: DataPlaneId,
        message: FromDataPlane,
        deciding: Duration,
        out: &mut Vec<Command>,
    ) {
        match message {
            FromDataPlane::Hello(hello) => self.data_plane_connected(now, data_plane, hello, out),
            FromDataPlane::Demand(load) => self.demand(now, data_plane, load, deciding, out),
            FromDataPlane::Report(loads) => self.report(now, data_plane, &loads, out),
            FromDataPlane::Released { sandbox, slots, retired } => {
                self.released(now, data_plane, sandbox, slots, retired, out);
            }
            FromDataPlane::Condemned { sandbox, .. } => {
                self.condemned_by(now, data_plane, sandbox, out);
            }
            FromDataPlane::Failed(failures) => self.requests_failed(now, failures),
            FromDataPlane::Draining => self.data_plane_draining(data_plane, out),
            // The shell's own business.
            FromDataPlane::Reached(_)
            | FromDataPlane::Explained { .. }
            | FromDataPlane::Entrusted { .. }
            | FromDataPlane::Left
            | FromDataPlane::Heartbeat => {}
        }
    }

    pub(crate) fn arm(&mut self, at: Timestamp, timer: Timer) {
        self.timers.insert((at, timer));
    }

    /// Says when a sandbox has been in its phase for too long; [`Timestamp::MAX`]: never.
    pub(crate) fn arm_overdue(&mut self, id: SandboxId, at: Timestamp) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        let before = std::mem::replace(&mut sandbox.overdue_at, at);
        self.timers.remove(&(before, Timer::Overdue(id)));
        if at != Timestamp::MAX {
            self.arm(at, Timer::Overdue(id));
        }
    }

    fn fire_timers(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Scale(function) => self.scale_timer(now, function, out),
                Timer::Recheck(function) => self.recheck_timer(now, function, out),
                Timer::Retry(function) => self.retry_timer(now, function, out),
                Timer::NoNode(function) => self.no_node_timer(now, function, out),
                Timer::Traffic(function) => self.traffic_timer(now, function, out),
                Timer::Unprepared(revision) => self.unprepared_timer(now, revision, out),
                Timer::MakeRoom => self.room_wanted = true,
                Timer::Overdue(sandbox) => self.overdue(now, sandbox, out),
                Timer::LeaseRecovery => self.lease_recovery_over(now, out),
            }
        }
    }

    /// Sends to a node if its stream is up; a node without one learns the state when it reconnects.
    pub(crate) fn tell_node(&self, node: NodeId, message: ToNode, out: &mut Vec<Command>) {
        if self.nodes.contains_key(&node) {
            out.push(Command::Node { node, message });
        }
    }

    pub(crate) fn tell_data_plane(
        &self,
        data_plane: DataPlaneId,
        message: ToDataPlane,
        out: &mut Vec<Command>,
    ) {
        if self.data_planes.contains_key(&data_plane) {
            out.push(Command::DataPlane { data_plane, message });
        }
    }

    pub(crate) fn tell_all_data_planes(&self, message: &ToDataPlane, out: &mut Vec<Command>) {
        for data_plane in self.data_planes.keys() {
            out.push(Command::DataPlane { data_plane: *data_plane, message: message.clone() });
        }
    }

    /// Keeps a new sandbox: its record, its function's counts, its reservation is made already.
    pub(crate) fn keep_sandbox(&mut self, id: SandboxId, sandbox: Sandbox) {
        let Some(function) = self.functions.get_mut(&sandbox.revision.function) else { return };
        let current = sandbox.revision.number == function.revision;
        let active = function.active_mut();
        active.sandboxes.insert(id);
        if current {
            active.count(&sandbox);
        } else if sandbox.phase == Phase::Ready {
            active.old_ready += 1;
        }
        self.count_on_node(sandbox.node, sandbox.revision);
        let overdue_at = sandbox.overdue_at;
        self.sandboxes.insert(id, Box::new(sandbox));
        self.arm_overdue(id, overdue_at);
        self.refresh_free(id);
    }

    /// Moves a sandbox to another phase, with its function's counts.
    pub(crate) fn set_phase(&mut self, id: SandboxId, phase: Phase) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        let before = std::mem::replace(&mut sandbox.phase, phase);
        if let Some(function) = self.functions.get_mut(&sandbox.revision.function) {
            let current = sandbox.revision.number == function.revision;
            let active = function.active_mut();
            if current {
                active.uncount(sandbox, before);
                *active.counts.of(phase) += 1;
                active.counts.condemned += u32::from(phase == Phase::Retiring && sandbox.condemned);
            } else {
                active.old_ready -= u32::from(before == Phase::Ready);
                active.old_ready += u32::from(phase == Phase::Ready);
            }
        }
        self.arm_overdue(id, Timestamp::MAX);
        self.refresh_free(id);
    }

    /// Puts a sandbox into or out of its function's sets of those with free slots.
    pub(crate) fn refresh_free(&mut self, id: SandboxId) {
        let Some(sandbox) = self.sandboxes.get(&id) else { return };
        let Some(function) = self.functions.get_mut(&sandbox.revision.function) else { return };
        let free = sandbox.unleased() > 0 && !function.removed;
        let current = sandbox.revision.number == function.revision;
        let active = function.active_mut();
        for (set, member) in [(&mut active.free, free && current), (&mut active.old_free, free && !current)] {
            if member {
                set.insert(id);
            } else {
                set.remove(&id);
            }
        }
    }

    /// Forgets a sandbox that has ended: record, counts, reservation, timer.
    pub(crate) fn forget_sandbox(&mut self, id: SandboxId) -> Option<Sandbox> {
        let sandbox = *self.sandboxes.remove(&id)?;
        self.timers.remove(&(sandbox.overdue_at, Timer::Overdue(id)));
        self.ledger.release(sandbox.node, sandbox.request);
        self.note_room();
        self.uncount_on_node(sandbox.node, sandbox.revision);
        if let Some(function) = self.functions.get_mut(&sandbox.revision.function) {
            let current = sandbox.revision.number == function.revision;
            let active = function.active_mut();
            active.sandboxes.remove(&id);
            active.free.remove(&id);
            active.old_free.remove(&id);
            if current {
                active.uncount(&sandbox, sandbox.phase);
            } else {
                active.old_ready -= u32::from(sandbox.phase == Phase::Ready);
            }
        }
        self.heirs.extend(self.promised.remove(&id));
        Some(sandbox)
    }
}
