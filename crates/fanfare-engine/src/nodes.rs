//! What is said to and heard from nodes beside sandboxes: revisions, preparation, CPU use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{
    FunctionId, FunctionSpec, NodeId, Resources, RevisionId, SandboxUsage, StartFailure, StartFailureKind,
    Timestamp, ToNode,
};

use crate::Command;
use crate::engine::{Engine, Timer};
use crate::function::{Function, LastFailure};

/// How long a preparation waits for a node that could do it. Covers start-up, and a node that reconnects.
const PREPARE_NODE_GRACE: Duration = Duration::from_secs(1);

/// A preparation for which no node was there.
#[derive(Debug)]
pub(crate) struct Unprepared {
    /// When it is given up.
    pub(crate) until: Timestamp,
    pub(crate) spec: Arc<FunctionSpec>,
}

/// A node whose stream is up, or was until a moment ago.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) capacity: Resources,
    pub(crate) runtimes: Vec<Arc<str>>,
    /// Revisions that this stream has been told.
    pub(crate) told: BTreeSet<RevisionId>,
    /// Sandboxes that are here, by revision.
    pub(crate) running: BTreeMap<RevisionId, u32>,
}

impl Node {
    /// Whether it could hold a sandbox of it when empty.
    pub(crate) fn could_hold(&self, spec: &FunctionSpec) -> bool {
        self.has_runtime(&spec.runtime) && self.capacity.fits(spec.sizing.request)
    }

    pub(crate) fn has_runtime(&self, runtime: &str) -> bool {
        self.runtimes.iter().any(|r| &**r == runtime)
    }
}

impl Engine {
    /// Tells a node what a revision is, once per stream.
    pub(crate) fn tell_revision(
        &mut self,
        node: NodeId,
        revision: RevisionId,
        spec: &FunctionSpec,
        out: &mut Vec<Command>,
    ) {
        let Some(record) = self.nodes.get_mut(&node) else { return };
        if record.told.insert(revision) {
            if let Some(function) = self.functions.get_mut(&revision.function) {
                function.told.insert(node);
            }
            self.tell_node(node, ToNode::Revision(Arc::new(spec.revision(revision))), out);
        }
    }

    /// A sandbox has come to a node.
    pub(crate) fn count_on_node(&mut self, node: NodeId, revision: RevisionId) {
        if let Some(record) = self.nodes.get_mut(&node) {
            *record.running.entry(revision).or_default() += 1;
        }
    }

    /// A sandbox has left a node.
    pub(crate) fn uncount_on_node(&mut self, node: NodeId, revision: RevisionId) {
        // A lost node took its numbers along.
        let Some(record) = self.nodes.get_mut(&node) else { return };
        if let Some(running) = record.running.get_mut(&revision) {
            *running -= 1;
            if *running == 0 {
                record.running.remove(&revision);
            }
        }
    }

    /// What a node's last stream was told counts no more.
    pub(crate) fn forget_told(&mut self, node: NodeId, told: &BTreeSet<RevisionId>) {
        for revision in told {
            if let Some(function) = self.functions.get_mut(&revision.function) {
                function.told.remove(&node);
            }
        }
    }

    /// Tells nodes to forget revisions of a function that are neither current nor running there.
    pub(crate) fn drop_unused_revisions(&mut self, id: FunctionId, out: &mut Vec<Command>) {
        let Some(function) = self.functions.get(&id) else { return };
        for node in function.told.iter().copied().collect::<Vec<_>>() {
            self.drop_unused_revisions_on(node, id, out);
        }
    }

    /// The same for one node.
    pub(crate) fn drop_unused_revisions_on(&mut self, node: NodeId, id: FunctionId, out: &mut Vec<Command>) {
        let Some(record) = self.nodes.get_mut(&node) else { return };
        // It may be gone altogether: deleted while one of its revisions was being prepared.
        let function = self.functions.get_mut(&id);
        let current =
            function.as_ref().filter(|function| !function.removed).map(|function| function.revision);
        let first = RevisionId { function: id, number: 0 };
        let last = RevisionId { function: id, number: u32::MAX };
        let (mut unused, mut kept) = (Vec::new(), false);
        for revision in record.told.range(first..=last) {
            let wanted = Some(revision.number) == current || self.preparing.get(revision) == Some(&node);
            if !record.running.contains_key(revision) && !wanted {
                unused.push(*revision);
            } else {
                kept = true;
            }
        }
        for revision in unused {
            record.told.remove(&revision);
            out.push(Command::Node { node, message: ToNode::RevisionRemoved(revision) });
        }
        if let Some(function) = function.filter(|_| !kept) {
            function.told.remove(&node);
        }
    }

    /// Asks the node with the most room to prove that a revision starts, be it the current one or another.
    pub(crate) fn prepare_requested(
        &mut self,
        now: Timestamp,
        revision: RevisionId,
        spec: Arc<FunctionSpec>,
        out: &mut Vec<Command>,
    ) {
        if self.functions.get(&revision.function).is_none_or(|function| function.removed) {
            self.unprepared.remove(&revision);
            let detail = "the function was deleted meanwhile".to_owned();
            out.push(unprepared(revision, node_failure(detail)));
            return;
        }
        if self.preparing.contains_key(&revision) {
            return;
        }
        let able = self.nodes.iter().filter(|(_, n)| n.could_hold(&spec));
        let node = able
            .map(|(id, _)| *id)
            .max_by_key(|id| self.ledger.free(*id).map_or(0, |free| free.memory_bytes));
        match node {
            Some(node) => {
                self.unprepared.remove(&revision);
                self.preparing.insert(revision, node);
                self.tell_revision(node, revision, &spec, out);
                self.tell_node(node, ToNode::Prepare(revision), out);
            }
            None => {
                let until = now + PREPARE_NODE_GRACE;
                let until = self.unprepared.entry(revision).or_insert(Unprepared { until, spec }).until;
                self.arm(until, Timer::Unprepared(revision));
            }
        }
    }

    /// A node has come: it may be what preparations wait for.
    pub(crate) fn retry_unprepared(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        let waiting: Vec<_> = self.unprepared.iter().map(|(id, wanted)| (*id, wanted.spec.clone())).collect();
        for (revision, spec) in waiting {
            self.prepare_requested(now, revision, spec, out);
        }
    }

    /// No node has come that could prepare the revision.
    pub(crate) fn unprepared_timer(&mut self, now: Timestamp, revision: RevisionId, out: &mut Vec<Command>) {
        if self.unprepared.get(&revision).is_none_or(|wanted| now < wanted.until) {
            return;
        }
        let Some(Unprepared { spec, .. }) = self.unprepared.remove(&revision) else { return };
        let Some(failure) = self.unplaceable(&spec) else {
            // A node has come that could.
            return self.prepare_requested(now, revision, spec, out);
        };
        let current = |f: &Function| f.revision == revision.number;
        if let Some(function) = self.functions.get_mut(&revision.function).filter(|f| current(f)) {
            function.last_failure = Some(Box::new(LastFailure { at: now, failure: failure.clone() }));
        }
        out.push(unprepared(revision, failure));
    }

    /// A node answered about a revision.
    pub(crate) fn prepared(
        &mut self,
        now: Timestamp,
        revision: RevisionId,
        failure: Option<StartFailure>,
        out: &mut Vec<Command>,
    ) {
        let Some(node) = self.preparing.remove(&revision) else { return };
        let mut has_started = false;
        if let Some(function) =
            self.functions.get_mut(&revision.function).filter(|f| f.revision == revision.number)
        {
            has_started = function.has_started;
            function.has_started |= failure.is_none();
            function.last_failure = failure.clone().map(|failure| Box::new(LastFailure { at: now, failure }));
        }
        out.push(Command::Prepared { revision, result: failure.map_or(Ok(()), Err), has_started });
        self.drop_unused_revisions_on(node, revision.function, out);
    }

    /// Preparations that a lost node will not answer.
    pub(crate) fn fail_preparations(&mut self, node: NodeId, out: &mut Vec<Command>) {
        let lost: Vec<RevisionId> =
            self.preparing.iter().filter(|(_, n)| **n == node).map(|(r, _)| *r).collect();
        for revision in lost {
            self.preparing.remove(&revision);
            let detail = "the node that prepared it was lost".to_owned();
            out.push(unprepared(revision, node_failure(detail)));
        }
    }

    pub(crate) fn usage(&mut self, _now: Timestamp, usages: &[SandboxUsage]) {
        for usage in usages {
            if let Some(sandbox) = self.sandboxes.get_mut(&usage.sandbox) {
                sandbox.cpu_milli = Some(usage.cpu_milli as f32);
            }
        }
    }
}

/// What does not depend on whether the revision has started.
fn unprepared(revision: RevisionId, failure: StartFailure) -> Command {
    Command::Prepared { revision, result: Err(failure), has_started: false }
}

fn node_failure(detail: String) -> StartFailure {
    StartFailure { kind: StartFailureKind::Node, detail, log_tail: String::new() }
}
