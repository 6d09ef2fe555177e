//! Room: which node a sandbox goes to, and whose idle sandboxes make room for others.
//!
//! Every sandbox reserves its function's request in one ledger from the order until its node says that nothing of it
//! is left. Where requests wait and there is no room, idle sandboxes of other functions are asked back (policy:
//! `fanfare_policy::evict`), and the function is tried again, in order of waiting, whenever anything is released. A wish
//! of the autoscaler alone evicts nobody: it is tried again with its next tick.

use std::collections::BTreeMap;

use fanfare_policy::{IdleFunction, choose_victims};
use fanfare_types::{FunctionId, Resources, SandboxId, Timestamp, ToNode};
use smallvec::SmallVec;

use crate::Command;
use crate::engine::{Engine, Timer};
use crate::sandbox::{Phase, Sandbox};

/// Starved functions that one step tries again; the rest has its turn with the next release or tick.
const STARVED_TRIES_PER_STEP: usize = 64;

/// Why a sandbox is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderCause {
    pub(crate) for_demand: bool,
    pub(crate) deciding: std::time::Duration,
}

impl Engine {
    /// Orders up to `count` sandboxes of the current revision; the number that found room.
    pub(crate) fn order(
        &mut self,
        now: Timestamp,
        id: FunctionId,
        count: u32,
        cause: OrderCause,
        out: &mut Vec<Command>,
    ) -> u32 {
        let Some(function) = self.functions.get(&id) else { return 0 };
        let spec = function.spec.clone();
        let revision = function.revision_id(id);
        let overdue_at = now + spec.timeouts.start + super::lifecycle::START_OVERDUE_MARGIN;
        for ordered in 0..count {
            let nodes = &self.nodes;
            let allowed = |node| nodes.get(&node).is_some_and(|n| n.has_runtime(&spec.runtime));
            let placed = self.placer.place(&mut self.ledger, spec.sizing.request, &allowed, &mut self.rng);
            let Ok(placed) = placed else {
                self.starve(now, id, count - ordered, cause, out);
                return ordered;
            };
            self.sandbox_counter += 1;
            let sandbox = SandboxId::new(self.config.epoch, self.sandbox_counter);
            self.tell_revision(placed.node, revision, &spec, out);
            self.tell_node(placed.node, ToNode::Create { sandbox, revision }, out);
            self.keep_sandbox(
                sandbox,
                Sandbox {
                    revision,
                    node: placed.node,
                    phase: Phase::Starting,
                    quarantined: false,
                    for_demand: cause.for_demand,
                    concurrency: spec.sizing.concurrency,
                    request: spec.sizing.request,
                    ordered_at: now,
                    ready_at: Timestamp::ZERO,
                    decide: cause.deciding,
                    place: std::time::Duration::ZERO,
                    endpoint: None,
                    stages: None,
                    cpu_milli: 0.0,
                    leases: SmallVec::new(),
                },
            );
            self.arm(overdue_at, Timer::Overdue(sandbox));
        }
        self.no_longer_starved(id);
        count
    }

    /// Remembers that a function lacks room, and asks idle sandboxes of others back.
    fn starve(
        &mut self,
        now: Timestamp,
        id: FunctionId,
        missing: u32,
        cause: OrderCause,
        out: &mut Vec<Command>,
    ) {
        let Some(function) = self.functions.get_mut(&id) else { return };
        let request = function.spec.sizing.request;
        let active = function.active_mut();
        if !std::mem::replace(&mut active.lacks_room, true) {
            let there = active.coming_or_ready();
            let (cpu_milli, memory_bytes) = (request.cpu_milli, request.memory_bytes);
            let reason =
                format!("no room for {missing} more of {cpu_milli} mCPU and {memory_bytes} bytes each");
            active.record(now, there, reason);
        }
        if !cause.for_demand {
            return;
        }
        if active.starved_since.is_none() {
            active.starved_since = Some(now);
            self.starved.insert((now, id));
        }
        let need =
            Resources::new(request.cpu_milli * u64::from(missing), request.memory_bytes * u64::from(missing));
        self.make_room(now, id, need, request, out);
        let grace = self.config.no_node_grace;
        self.arm(now + grace, Timer::NoNode(id));
    }

    pub(crate) fn no_longer_starved(&mut self, id: FunctionId) {
        let Some(active) = self.functions.get_mut(&id).and_then(|f| f.active.as_mut()) else { return };
        active.lacks_room = false;
        if let Some(since) = active.starved_since.take() {
            self.starved.remove(&(since, id));
        }
    }

    /// Asks idle sandboxes of other functions back until `need` is covered, or else as much as one sandbox takes.
    fn make_room(
        &mut self,
        now: Timestamp,
        for_function: FunctionId,
        need: Resources,
        at_least: Resources,
        out: &mut Vec<Command>,
    ) {
        let mut coming = Resources::ZERO;
        let mut idle = Vec::new();
        for id in &self.awake {
            let Some(function) = self.functions.get(id) else { continue };
            let Some(active) = &function.active else { continue };
            let request = function.spec.sizing.request;
            let asked: u32 = active.planes.iter().map(|p| p.retire_asked).sum();
            let on_the_way = u64::from(asked + active.counts.retiring + active.counts.stopping);
            coming += Resources::new(request.cpu_milli * on_the_way, request.memory_bytes * on_the_way);
            let idle_sandboxes =
                active.totals().idle_sandboxes.min(active.counts.ready).saturating_sub(asked);
            if *id != for_function && idle_sandboxes > 0 {
                idle.push(IdleFunction {
                    function: *id,
                    idle_sandboxes,
                    ready: active.counts.ready.saturating_sub(asked),
                    min: function.spec.scaling.min,
                    idle_since: active.idle_since,
                    request,
                });
            }
        }
        if coming.fits(need) {
            return;
        }
        let missing = need.saturating_sub(coming);
        let mut victims = choose_victims(&idle, missing, now, self.config.keep_alive_min);
        if victims.is_empty() && !coming.fits(at_least) {
            victims = choose_victims(&idle, at_least, now, self.config.keep_alive_min);
        }
        let mut asks: BTreeMap<FunctionId, (u32, String)> = BTreeMap::new();
        for victim in &victims {
            asks.insert(victim.function, (victim.sandboxes, format!("evicted: {}", victim.reason)));
        }
        for (function, (sandboxes, reason)) in asks {
            if let Some(active) = self.functions.get_mut(&function).and_then(|f| f.active.as_mut()) {
                let already: u32 = active.planes.iter().map(|p| p.retire_asked).sum();
                let left = active.counts.ready.saturating_sub(already + sandboxes);
                active.record(now, left, reason);
                active.desired = active.desired.min(left);
                self.ask_retire(now, function, already + sandboxes, out);
            }
        }
    }

    /// Gives functions that lack room another try, longest waiting first.
    pub(crate) fn retry_starved(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        let waiting: Vec<FunctionId> =
            self.starved.iter().take(STARVED_TRIES_PER_STEP).map(|(_, id)| *id).collect();
        for id in waiting {
            self.pursue(now, id, std::time::Duration::ZERO, out);
        }
        self.room_made = false;
    }
}
