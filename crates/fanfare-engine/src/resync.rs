//! Connections come and go: what a new stream is told, what a hello corrects, what a loss costs.
//!
//! Nothing depends on having seen every message of an earlier stream. A node states every sandbox it has, a data plane
//! every lease it holds; this side answers with everything the other must know, and both then agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fanfare_types::{
    DataPlaneHello, DataPlaneId, ExitCause, FunctionId, GoneCause, NodeHello, NodeId, Reach, Resources,
    RevisionId, SandboxId, SandboxRecord, Stages, StopMode, Timestamp, ToDataPlane, ToNode,
};

use crate::Command;
use crate::engine::{DataPlane, Engine};
use crate::function::Function;
use crate::nodes::Node;
use crate::sandbox::Phase;

/// What follows from a data plane's leases, in this order.
struct Reconciled {
    /// It cannot hold slots of these.
    to_condemn: Vec<SandboxId>,
    /// On their way out, and perhaps nobody holds slots of these any more.
    returned: Vec<SandboxId>,
}

/// Functions in one message of a resync.
const FUNCTIONS_PER_MESSAGE: usize = 256;

impl Engine {
    /// A node's stream began.
    pub(crate) fn node_connected(
        &mut self,
        now: Timestamp,
        node: NodeId,
        hello: NodeHello,
        out: &mut Vec<Command>,
    ) {
        self.fail_preparations(node, out);
        let first = self.nodes_seen.insert(node);
        let known = self.nodes.insert(
            node,
            Node {
                name: hello.name,
                capacity: hello.capacity,
                runtimes: hello.runtimes,
                told: Default::default(),
                running: Default::default(),
            },
        );
        // What is believed to be on it; nothing, unless its last stream ended only now.
        let believed: Vec<SandboxId> = match known {
            Some(known) => {
                self.forget_told(node, &known.told);
                if let Some(record) = self.nodes.get_mut(&node) {
                    record.running = known.running;
                }
                self.ledger.set_capacity(node, hello.capacity);
                self.sandboxes.iter().filter(|(_, s)| s.node == node).map(|(id, _)| *id).collect()
            }
            None => {
                self.ledger.add_node(node, hello.capacity);
                Vec::new()
            }
        };
        self.note_room();
        self.tell_node(node, ToNode::Welcome { you: node, epoch: self.config.epoch }, out);
        self.retry_unprepared(now, out);
        let stated: BTreeMap<SandboxId, SandboxRecord> =
            hello.sandboxes.into_iter().map(|record| (record.sandbox, record)).collect();
        for id in &believed {
            if !stated.contains_key(id) {
                let cause = GoneCause { exit: ExitCause::NodeLost, log_tail: Arc::from("") };
                self.sandbox_exited(now, *id, &cause, out);
            }
        }
        let ids: Vec<SandboxId> = stated.keys().copied().collect();
        for (id, record) in stated {
            match self.sandboxes.get(&id).map(|sandbox| sandbox.node) {
                Some(its) if its == node => self.confirm(now, node, &record, out),
                // It was ordered from another node, and is that one's to speak of.
                Some(_) => self.tell_node(node, ToNode::Stop { sandbox: id, mode: StopMode::Kill }, out),
                None => self.adopt(now, node, first, record, out),
            }
        }
        if self.awaited_data_planes.is_empty() {
            self.end_quarantine(now, ids, out);
        }
        if self.awaited_nodes.remove(&node) && self.awaited_nodes.is_empty() {
            self.pursue_all(now, out);
        }
        self.retry_wishes(now, out);
    }

    /// A sandbox that both sides know.
    fn confirm(&mut self, now: Timestamp, node: NodeId, record: &SandboxRecord, out: &mut Vec<Command>) {
        let Some(sandbox) = self.sandboxes.get(&record.sandbox) else { return };
        let revision = sandbox.revision;
        match (sandbox.phase, &record.endpoint) {
            (Phase::Stopping, _) => {
                self.tell_node(node, ToNode::Stop { sandbox: record.sandbox, mode: StopMode::Kill }, out);
            }
            (Phase::Starting, Some(endpoint)) => {
                self.sandbox_ready(now, node, record.sandbox, endpoint.clone(), Stages::default(), out);
            }
            _ => {}
        }
        if let Some(spec) = self.functions.get(&revision.function).map(|f| f.spec.clone())
            && self.functions[&revision.function].revision == revision.number
        {
            self.tell_revision(node, revision, &spec, out);
        }
    }

    /// Of which revision a sandbox is, if this side knows it to be on that node.
    #[must_use]
    pub fn revision_on(&self, node: NodeId, sandbox: SandboxId) -> Option<RevisionId> {
        self.sandboxes.get(&sandbox).filter(|known| known.node == node).map(|known| known.revision)
    }

    /// A node was silent for too long: everything on it is gone.
    pub(crate) fn node_lost(&mut self, now: Timestamp, node: NodeId, out: &mut Vec<Command>) {
        let Some(known) = self.nodes.remove(&node) else { return };
        self.forget_told(node, &known.told);
        self.fail_preparations(node, out);
        self.ledger.set_schedulable(node, false);
        let lost: Vec<SandboxId> =
            self.sandboxes.iter().filter(|(_, s)| s.node == node).map(|(id, _)| *id).collect();
        let cause = GoneCause { exit: ExitCause::NodeLost, log_tail: Arc::from("") };
        for sandbox in lost {
            self.sandbox_exited(now, sandbox, &cause, out);
        }
        self.ledger.remove_node(node);
    }

    /// A data plane's stream began.
    pub(crate) fn data_plane_connected(
        &mut self,
        now: Timestamp,
        id: DataPlaneId,
        hello: DataPlaneHello,
        out: &mut Vec<Command>,
    ) {
        if self.data_planes.get(&id).is_some_and(|known| known.incarnation != hello.incarnation) {
            // Another process: what its predecessor had in flight may still be running.
            self.data_plane_lost(now, id, out);
        }
        let DataPlaneHello { name, address, incarnation, leases, condemned, .. } = hello;
        let newcomer =
            self.data_planes.insert(id, DataPlane { name, address, incarnation, draining: false }).is_none();
        self.tell_data_plane(id, ToDataPlane::Welcome { you: id, epoch: self.config.epoch }, out);
        let named = |f: &Function| f.reach != Reach::Unit;
        let of = |units: bool| self.functions.iter().filter(move |(_, f)| !f.removed && named(f) != units);
        // Units first: whoever is told of one that names them must know them.
        let routes: Vec<_> = of(true).chain(of(false)).map(|(function, f)| f.route(*function)).collect();
        for chunk in routes.chunks(FUNCTIONS_PER_MESSAGE) {
            self.tell_data_plane(id, ToDataPlane::Functions(chunk.to_vec()), out);
        }
        let held: BTreeMap<SandboxId, u32> =
            leases.iter().map(|lease| (lease.sandbox, lease.slots)).collect();
        let Reconciled { mut to_condemn, returned } = self.reconcile_leases(id, &held, out);
        to_condemn.extend(condemned.into_iter().filter(|sandbox| self.still_there(id, *sandbox, out)));
        self.condemn_all(now, &to_condemn, out);
        // Those that are condemned are killed by now; these are idle.
        for sandbox in returned {
            self.stop_if_returned(now, sandbox, out);
        }
        if newcomer {
            self.data_plane_joined(id, out);
        } else {
            self.tell_owners(id, out);
        }
        self.tell_peers(out);
        self.repeat_requests(id, out);
        self.tell_data_plane(id, ToDataPlane::Synced, out);
        self.awaited_data_planes.remove(&id);
        if self.awaited_data_planes.is_empty() {
            self.end_all_quarantine(now, out);
        }
        self.pursue_all(now, out);
    }

    /// Takes a data plane's word for what it holds: whatever else was on its way to it never arrived. Sandboxes that it
    /// cannot hold slots of are to be condemned, and nothing granted before that.
    fn reconcile_leases(
        &mut self,
        data_plane: DataPlaneId,
        held: &BTreeMap<SandboxId, u32>,
        out: &mut Vec<Command>,
    ) -> Reconciled {
        let void = GoneCause { exit: ExitCause::Stopped, log_tail: Arc::from("") };
        let (mut to_condemn, mut returned) = (Vec::new(), Vec::new());
        self.drop_claims(data_plane);
        for (sandbox, slots) in held {
            if self.recovering && !self.sandboxes.contains_key(sandbox) && sandbox.epoch() < self.config.epoch
            {
                self.claims.entry(*sandbox).or_default().leases.push((data_plane, *slots));
                continue;
            }
            let valid = self.sandboxes.get(sandbox).is_some_and(|s| {
                let others = s.leased() - s.leased_to(data_plane);
                s.phase != Phase::Starting && *slots <= s.concurrency.saturating_sub(others)
            });
            if !valid {
                self.tell_data_plane(
                    data_plane,
                    ToDataPlane::Gone { sandbox: *sandbox, cause: void.clone() },
                    out,
                );
                if self.sandboxes.contains_key(sandbox) {
                    to_condemn.push(*sandbox);
                }
            }
        }
        let ids: Vec<SandboxId> = self.sandboxes.keys().copied().collect();
        for id in ids {
            let Some(sandbox) = self.sandboxes.get(&id) else { continue };
            let before = sandbox.leased_to(data_plane);
            let now_held = held.get(&id).copied().unwrap_or(0).min(sandbox.concurrency);
            if before == now_held {
                continue;
            }
            let others = sandbox.leased() - before;
            let (retiring, fits) =
                (sandbox.phase == Phase::Retiring, others + now_held <= sandbox.concurrency);
            self.unlease(id, data_plane, u32::MAX);
            if now_held > 0 && fits {
                self.lease(id, data_plane, now_held);
            }
            if retiring {
                returned.push(id);
            }
        }
        Reconciled { to_condemn, returned }
    }

    /// A data plane condemned this sandbox and has not heard the end of it. Whether it is there to be condemned here.
    fn still_there(&mut self, data_plane: DataPlaneId, id: SandboxId, out: &mut Vec<Command>) -> bool {
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            // Without a slot it is still to be told of the end.
            sandbox.lease(data_plane, 0);
            return true;
        }
        if self.recovering && id.epoch() < self.config.epoch {
            let claim = self.claims.entry(id).or_default();
            claim.condemned = true;
            if claim.leases.iter().all(|(holder, _)| *holder != data_plane) {
                claim.leases.push((data_plane, 0));
            }
        } else {
            let cause = GoneCause { exit: ExitCause::Stopped, log_tail: Arc::from("") };
            self.tell_data_plane(data_plane, ToDataPlane::Gone { sandbox: id, cause }, out);
        }
        false
    }

    /// Condemns all of them before anything is replaced: that may grant slots, which none of these has.
    fn condemn_all(&mut self, now: Timestamp, sandboxes: &[SandboxId], out: &mut Vec<Command>) {
        let mut functions = BTreeSet::new();
        for id in sandboxes {
            functions.extend(self.sandboxes.get(id).map(|sandbox| sandbox.revision.function));
            self.condemn(now, *id, out);
        }
        for function in functions {
            self.pursue(now, function, Default::default(), out);
        }
    }

    fn drop_claims(&mut self, data_plane: DataPlaneId) {
        for claim in self.claims.values_mut() {
            claim.leases.retain(|(id, _)| *id != data_plane);
        }
        self.claims.retain(|_, claim| claim.condemned || !claim.leases.is_empty());
    }

    /// Says again what a data plane was asked for on a stream that may have lost it.
    fn repeat_requests(&mut self, data_plane: DataPlaneId, out: &mut Vec<Command>) {
        let mut messages = Vec::new();
        for id in &self.awake {
            let Some(active) = self.functions.get_mut(id).and_then(|f| f.active.as_mut()) else { continue };
            if let Some(plane) = active.planes.iter_mut().find(|p| p.data_plane == data_plane) {
                plane.granted_since = 0;
                plane.yield_asked = 0;
                messages.push(ToDataPlane::Retire { function: *id, sandboxes: plane.retire_asked });
            }
        }
        for (id, sandbox) in &self.sandboxes {
            if sandbox.phase == Phase::Retiring && sandbox.leased_to(data_plane) > 0 {
                messages.push(ToDataPlane::Revoke { sandbox: *id, slots: u32::MAX });
            }
        }
        for message in messages {
            self.tell_data_plane(data_plane, message, out);
        }
    }

    /// A data plane was silent for too long, or its process was replaced. Requests that it had in flight may still be
    /// running, so sandboxes whose slots it held are condemned.
    pub(crate) fn data_plane_lost(&mut self, now: Timestamp, id: DataPlaneId, out: &mut Vec<Command>) {
        if self.data_planes.remove(&id).is_none() {
            return;
        }
        // All of them, before anything is granted anew.
        let held: Vec<(SandboxId, FunctionId)> = self
            .sandboxes
            .iter()
            .filter(|(_, s)| s.leased_to(id) > 0)
            .map(|(sandbox, s)| (*sandbox, s.revision.function))
            .collect();
        let mut affected: BTreeSet<FunctionId> = BTreeSet::new();
        for (sandbox, function) in held {
            self.unlease(sandbox, id, u32::MAX);
            self.condemn(now, sandbox, out);
            affected.insert(function);
        }
        for function in &self.awake {
            if let Some(active) = self.functions.get_mut(function).and_then(|f| f.active.as_mut()) {
                let before = active.planes.len();
                active.planes.retain(|p| p.data_plane != id);
                if active.planes.len() != before {
                    affected.insert(*function);
                }
            }
        }
        for claim in self.claims.values_mut() {
            claim.condemned |= claim.leases.iter().any(|(holder, _)| *holder == id);
        }
        self.drop_claims(id);
        self.data_plane_left(id, out);
        self.tell_peers(out);
        for function in affected {
            self.pursue(now, function, Default::default(), out);
        }
    }

    pub(crate) fn tell_peers(&self, out: &mut Vec<Command>) {
        let peers: Vec<_> = self
            .data_planes
            .iter()
            .filter(|(_, d)| !d.draining)
            .map(|(id, d)| (*id, d.address.clone()))
            .collect();
        self.tell_all_data_planes(&ToDataPlane::Peers(peers), out);
    }

    /// After a change of connections every active function's wish may have become possible.
    pub(crate) fn pursue_all(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        let ids: Vec<FunctionId> = self.awake.iter().copied().collect();
        for id in ids {
            self.pursue(now, id, Default::default(), out);
        }
    }

    /// What all nodes together offer.
    pub(crate) fn capacity(&self) -> Resources {
        self.nodes.values().fold(Resources::ZERO, |sum, n| sum.saturating_add(n.capacity))
    }
}
