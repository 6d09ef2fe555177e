//! The beginning of a term: which sandboxes of an earlier leader are adopted, and whose their slots are.
//!
//! Nodes state sandboxes and data planes state leases in any order. Until every data plane that the earlier leader knew
//! has spoken, or had time to, the slots of an adopted sandbox that nobody claims yet are neither granted nor taken for
//! free: it is quarantined.

use std::sync::Arc;

use fanfare_types::limits::CONCURRENCY_MAX;
use fanfare_types::{
    ExitCause, GoneCause, NodeId, SandboxId, SandboxRecord, ScalingPolicy, StopMode, Timestamp, ToDataPlane,
    ToNode,
};

use crate::Command;
use crate::engine::Engine;
use crate::function::Function;
use crate::sandbox::{Phase, Sandbox};

impl Engine {
    /// A sandbox that an earlier leader ordered.
    ///
    /// Only at the beginning of the term and from a node's first stream in it: of anything later, requests that nobody
    /// accounts for may still run in it.
    pub(crate) fn adopt(
        &mut self,
        now: Timestamp,
        node: NodeId,
        first: bool,
        record: SandboxRecord,
        out: &mut Vec<Command>,
    ) {
        let claim = self.claims.remove(&record.sandbox).unwrap_or_default();
        let claimed: u64 = claim.leases.iter().map(|(_, slots)| u64::from(*slots)).sum();
        let function = self.functions.get(&record.revision.function).filter(|f| !f.removed);
        // How many slots one of an earlier revision had is not known any more; it is granted none that nobody claims.
        let concurrency = |f: &Function| {
            let current = f.revision == record.revision.number;
            if current { f.spec.sizing.concurrency } else { CONCURRENCY_MAX }
        };
        let function = function.filter(|f| {
            first
                && self.recovering
                && record.endpoint.is_some()
                && record.sandbox.epoch() < self.config.epoch
                && claimed <= u64::from(concurrency(f))
        });
        let Some(function) = function else {
            let cause = GoneCause { exit: ExitCause::Stopped, log_tail: Arc::from("") };
            for (data_plane, _) in claim.leases {
                let message = ToDataPlane::Gone { sandbox: record.sandbox, cause: cause.clone() };
                self.tell_data_plane(data_plane, message, out);
            }
            self.tell_node(node, ToNode::Stop { sandbox: record.sandbox, mode: StopMode::Kill }, out);
            return;
        };
        let spec = function.spec.clone();
        let current = function.revision == record.revision.number;
        let concurrency = concurrency(function);
        let request = spec.sizing.request;
        self.ledger.reserve(node, request);
        let sandbox = Sandbox {
            revision: record.revision,
            node,
            phase: Phase::Ready,
            quarantined: true,
            condemned: false,
            written_off: false,
            for_demand: false,
            waited: false,
            called_back: false,
            concurrency,
            request,
            ordered_at: now,
            ready_at: now,
            overdue_at: Timestamp::MAX,
            endpoint: record.endpoint,
            stages: None,
            cpu_milli: None,
            leases: claim.leases.into_iter().collect(),
        };
        self.keep_sandbox(record.sandbox, sandbox);
        let hold = match &spec.scaling.policy {
            ScalingPolicy::Kpa(kpa) => kpa.stable_window,
            ScalingPolicy::Hpa(hpa) => hpa.stabilization_window,
            ScalingPolicy::Fixed(_) => Default::default(),
        };
        if let Some(function) = self.functions.get_mut(&record.revision.function) {
            function.has_started |= current;
            let active = function.active_mut();
            active.hold_until = now + hold;
            // One of an earlier revision serves until the update that it outlived is through.
            let found = active.counts.ready + active.old_ready;
            active.desired = active.desired.max(found.min(spec.scaling.max));
            active.autoscaler.adopt(now, found);
        }
        self.wake(now, record.revision.function);
        if current {
            self.tell_revision(node, record.revision, &spec, out);
        }
        let ready = self.functions.get(&record.revision.function).and_then(|f| f.active.as_ref());
        if current {
            self.retire_old_revisions(now, record.revision.function, out);
        } else if ready.is_some_and(|active| active.counts.ready > 0) {
            self.retire(now, record.sandbox, out);
        }
        if claim.condemned {
            self.condemned(now, record.sandbox, out);
        }
    }

    /// Every data plane of the earlier leader has spoken, or had time to: what is unclaimed now stays so.
    ///
    /// An unclaimed slot may hold a request of a data plane that died without this leader's knowledge, so it is never
    /// granted: the sandbox keeps to its claimed slots until it can be replaced, and without any it is killed.
    pub(crate) fn end_quarantine(&mut self, now: Timestamp, ids: Vec<SandboxId>, out: &mut Vec<Command>) {
        for id in ids {
            let Some(sandbox) = self.sandboxes.get_mut(&id).filter(|s| s.quarantined) else { continue };
            sandbox.quarantined = false;
            let (had, left) = (sandbox.concurrency, sandbox.leased());
            sandbox.concurrency = left;
            sandbox.written_off = left < had;
            let current = self.functions.get(&sandbox.revision.function).map(|f| f.revision);
            if left == 0 {
                self.condemned(now, id, out);
            } else if left < had && current == Some(sandbox.revision.number) {
                self.retire(now, id, out);
            }
        }
    }

    pub(crate) fn end_all_quarantine(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        let quarantined = self.sandboxes.iter().filter(|(_, s)| s.quarantined);
        let ids = quarantined.map(|(id, _)| *id).collect();
        self.end_quarantine(now, ids, out);
    }

    /// The beginning of the term is over.
    pub(crate) fn lease_recovery_over(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        self.recovering = false;
        self.awaited_data_planes.clear();
        self.awaited_nodes.clear();
        let void = GoneCause { exit: ExitCause::NodeLost, log_tail: Arc::from("") };
        for (sandbox, claim) in std::mem::take(&mut self.claims) {
            for (data_plane, _) in claim.leases {
                self.tell_data_plane(data_plane, ToDataPlane::Gone { sandbox, cause: void.clone() }, out);
            }
        }
        self.end_all_quarantine(now, out);
        self.pursue_all(now, out);
    }
}
