//! Room: which node a sandbox goes to, and whose idle sandboxes make room for others.
//!
//! Every sandbox reserves its function's request in one ledger from the order until its node says that nothing of it
//! is left. Where requests wait and there is no room, idle sandboxes of other functions are asked back (policy:
//! `fanfare_policy::evict`), for all functions that starve together, and these are tried again, in order of waiting,
//! whenever anything is released. Where nothing is idle, who has the most gives way (`give_way.rs`). A wish of
//! the autoscaler alone evicts nobody: it is tried again with its next tick, and when a node joins.
//!
//! A full cluster must not cost a look at every node and every function for each request that waits: what was found
//! to have no room is remembered until something is released, and asking back has its interval.

use std::ops::Bound;
use std::time::Duration;

use fanfare_policy::{IdleFunction, PlaceReason, Placed, choose_victims, evictable};
use fanfare_types::{FunctionId, FunctionSpec, NodeId, Resources, SandboxId, Stages, Timestamp, ToNode};
use smallvec::SmallVec;

use crate::Command;
use crate::engine::{Engine, Timer};
use crate::sandbox::{Phase, Sandbox};

/// Starved functions that one step tries again in vain; the rest has its turn with the next release or report.
const STARVED_TRIES_PER_STEP: u32 = 64;
/// Requests without room that are remembered; the oldest makes way.
const FULL_MAX: usize = 16;
/// Idle sandboxes are asked back at most this often: it takes a look at every active function.
const MAKE_ROOM_INTERVAL: Duration = Duration::from_millis(10);

/// Why a sandbox is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderCause {
    /// So many of them, the first, are for requests that wait; the autoscaler alone wants the others.
    pub(crate) demand: u32,
    /// So many, the first, have a request each that waits: a minimum may make `demand` more.
    pub(crate) waited: u32,
    pub(crate) deciding: Duration,
}

/// Sandboxes that were ordered together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered {
    pub(crate) first: SandboxId,
    pub(crate) count: u32,
    /// The first one's, and why that.
    pub(crate) node: NodeId,
    pub(crate) placed: PlaceReason,
    /// How long requests had waited for room.
    pub(crate) room_after: Duration,
}

impl Engine {
    /// Orders up to `count` sandboxes of the current revision; those that found room.
    pub(crate) fn order(
        &mut self,
        now: Timestamp,
        id: FunctionId,
        count: u32,
        cause: OrderCause,
        out: &mut Vec<Command>,
    ) -> Option<Ordered> {
        let function = self.functions.get(&id)?;
        let spec = function.spec.clone();
        let revision = function.revision_id(id);
        let starved_since = function.active.as_ref().and_then(|active| active.starved_since);
        let room_after = starved_since.map_or(Duration::ZERO, |since| now.since(since));
        let overdue_at = now + spec.timeouts.start + super::lifecycle::START_OVERDUE_MARGIN;
        let mut made: Option<Ordered> = None;
        for ordered in 0..count {
            let Some(Placed { node, reason }) = self.place(&spec) else {
                self.starve(now, id, count - ordered, cause.demand.saturating_sub(ordered));
                return made;
            };
            self.sandbox_counter += 1;
            let sandbox = SandboxId::new(self.config.epoch, self.sandbox_counter);
            let first = Ordered { first: sandbox, count: 0, node, placed: reason, room_after };
            made.get_or_insert(first).count += 1;
            self.tell_revision(node, revision, &spec, out);
            let waited = ordered < cause.waited;
            self.tell_node(node, ToNode::Create { sandbox, revision, waited }, out);
            self.keep_sandbox(
                sandbox,
                Sandbox {
                    revision,
                    node,
                    phase: Phase::Starting,
                    quarantined: false,
                    condemned: false,
                    written_off: false,
                    for_demand: ordered < cause.demand,
                    waited,
                    called_back: false,
                    concurrency: spec.sizing.concurrency,
                    request: spec.sizing.request,
                    ordered_at: now,
                    ready_at: Timestamp::ZERO,
                    overdue_at,
                    endpoint: None,
                    stages: Some(Box::new(Stages { decide: cause.deciding, ..Stages::default() })),
                    cpu_milli: None,
                    leases: SmallVec::new(),
                },
            );
        }
        self.no_longer_starved(id);
        made
    }

    /// A node with room for one sandbox, which is reserved there.
    fn place(&mut self, spec: &FunctionSpec) -> Option<Placed> {
        let request = spec.sizing.request;
        if self.full.iter().any(|(runtime, least)| *runtime == spec.runtime && request.fits(*least)) {
            return None;
        }
        let nodes = &self.nodes;
        let allowed = |node| nodes.get(&node).is_some_and(|n| n.has_runtime(&spec.runtime));
        let placed = self.placer.place(&mut self.ledger, request, &allowed, &mut self.rng);
        if placed.is_none() {
            if self.full.len() == FULL_MAX {
                self.full.remove(0);
            }
            self.full.push((spec.runtime.clone(), request));
        }
        placed
    }

    /// Something was released, or a node offers what it did not.
    pub(crate) fn note_room(&mut self) {
        self.full.clear();
        self.room_made = true;
    }

    /// Remembers that a function lacks room for `missing` sandboxes, of which requests wait for `demand`.
    fn starve(&mut self, now: Timestamp, id: FunctionId, missing: u32, demand: u32) {
        let Some(function) = self.functions.get_mut(&id) else { return };
        let spec = function.spec.clone();
        let active = function.active_mut();
        if !std::mem::replace(&mut active.lacks_room, true) {
            let there = active.coming_or_ready();
            let mut reason = format!("no room for {missing} more");
            // It takes a look at every node: not for each of many that starve at once.
            if now >= self.make_room_at {
                let allowed = |node| self.nodes.get(&node).is_some_and(|n| n.has_runtime(&spec.runtime));
                reason = format!("{reason}: {}", self.ledger.no_room(spec.sizing.request, &allowed));
            }
            active.record(now, there, reason);
        }
        active.missing = demand;
        active.lacking = missing;
        if demand == 0 {
            if let Some(since) = active.starved_since.take() {
                self.starved.remove(&(since, id));
            }
            self.wishing.insert(id);
            return;
        }
        self.wishing.remove(&id);
        if active.starved_since.is_none() {
            active.starved_since = Some(now);
            self.starved.insert((now, id));
        }
        if !std::mem::replace(&mut active.no_node_armed, true) {
            let grace = self.no_node_grace(id);
            self.arm(now + grace, Timer::NoNode(id));
        }
        self.room_wanted = true;
    }

    pub(crate) fn no_longer_starved(&mut self, id: FunctionId) {
        let Some(active) = self.functions.get_mut(&id).and_then(|f| f.active.as_mut()) else { return };
        active.lacks_room = false;
        active.missing = 0;
        active.lacking = 0;
        self.wishing.remove(&id);
        if let Some(since) = active.starved_since.take() {
            self.starved.remove(&(since, id));
        }
    }

    /// Asks back as many idle sandboxes as make room for what starves, in order of waiting.
    pub(crate) fn make_room(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        if self.starved.is_empty() {
            return;
        }
        if now < self.make_room_at {
            self.arm(self.make_room_at, Timer::MakeRoom);
            return;
        }
        self.make_room_at = now + MAKE_ROOM_INTERVAL;
        let (idle, coming) = self.idle_and_coming();
        let there = coming.saturating_add(evictable(&idle, now, self.config.keep_alive_min));
        let missing = self.needed(there).saturating_sub(coming);
        let victims = match missing {
            Resources::ZERO => Vec::new(),
            _ => choose_victims(&idle, missing, now, self.config.keep_alive_min),
        };
        let freed = victims.iter().fold(coming, |sum, victim| {
            let request =
                self.functions.get(&victim.function).map_or(Resources::ZERO, |f| f.spec.sizing.request);
            sum.saturating_add(request.saturating_mul(victim.sandboxes))
        });
        for victim in victims {
            let function = self.functions.get_mut(&victim.function);
            if let Some(active) = function.and_then(|f| f.active.as_mut()) {
                let asked: u32 = active.planes.iter().map(|p| p.retire_asked).sum();
                let left = active.counts.ready.saturating_sub(asked + victim.sandboxes);
                active.record(now, left, format!("evicted: {}", victim.reason));
                active.desired = active.desired.min(left);
                self.ask_retire(now, victim.function, asked + victim.sandboxes, out);
            }
        }
        self.give_way(now, freed, out);
    }

    /// Idle sandboxes of functions that do not starve, and what is on its way back already and near.
    fn idle_and_coming(&self) -> (Vec<IdleFunction>, Resources) {
        let mut idle = Vec::new();
        let mut coming = Resources::ZERO;
        for id in &self.awake {
            let Some(function) = self.functions.get(id) else { continue };
            let Some(active) = &function.active else { continue };
            let request = function.spec.sizing.request;
            let asked: u32 = active.planes.iter().map(|p| p.retire_asked).sum();
            coming = coming.saturating_add(request.saturating_mul(asked + active.counts.returning()));
            let idle_sandboxes =
                active.totals().idle_sandboxes.min(active.counts.ready).saturating_sub(asked);
            if active.starved_since.is_none() && idle_sandboxes > 0 {
                idle.push(IdleFunction {
                    function: *id,
                    idle_sandboxes,
                    ready: active.counts.ready.saturating_sub(asked),
                    min: function.never_fewer(*id),
                    idle_since: active.idle_since,
                    request,
                });
            }
        }
        (idle, coming.saturating_sub(self.draining()))
    }

    /// How much of what could be `there` the starved functions need, whole sandboxes only. What no node could ever
    /// hold is worth nobody's sandbox.
    fn needed(&self, there: Resources) -> Resources {
        let mut left = there;
        for (_, id) in &self.starved {
            let Some(function) = self.functions.get(id).filter(|f| self.could_ever_fit(&f.spec)) else {
                continue;
            };
            let request = function.spec.sizing.request;
            let missing = function.active.as_ref().map_or(0, |a| a.missing);
            let fitting = u32::try_from(left.times(request)).unwrap_or(u32::MAX);
            left = left.saturating_sub(request.saturating_mul(fitting.min(missing)));
        }
        there.saturating_sub(left)
    }

    /// Gives functions that lack room another try, longest waiting first.
    pub(crate) fn retry_starved(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        let mut in_vain = 0;
        let mut last = None;
        while in_vain < STARVED_TRIES_PER_STEP {
            let start = last.map_or(Bound::Unbounded, Bound::Excluded);
            let Some(next) = self.starved.range((start, Bound::Unbounded)).next().copied() else { break };
            last = Some(next);
            self.pursue(now, next.1, Duration::ZERO, out);
            in_vain += u32::from(self.starved.contains(&next));
        }
        self.room_made = false;
    }

    /// Gives autoscalers' wishes that lacked room another try, until one still does.
    pub(crate) fn retry_wishes(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        let mut last = None;
        loop {
            let start = last.map_or(Bound::Unbounded, Bound::Excluded);
            let Some(next) = self.wishing.range((start, Bound::Unbounded)).next().copied() else { return };
            last = Some(next);
            self.pursue(now, next, Duration::ZERO, out);
            if self.wishing.contains(&next) {
                return;
            }
        }
    }
}
