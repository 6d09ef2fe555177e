//! What is said to and heard from nodes beside sandboxes: revisions, preparation, CPU use.

use std::collections::BTreeSet;
use std::sync::Arc;

use fanfare_types::{
    FunctionId, FunctionSpec, NodeId, Resources, RevisionId, SandboxUsage, StartFailure, StartFailureKind,
    Timestamp, ToNode,
};

use crate::Command;
use crate::engine::Engine;
use crate::function::LastFailure;

/// A node whose stream is up, or was until a moment ago.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) capacity: Resources,
    pub(crate) runtimes: Vec<Arc<str>>,
    /// Revisions that this stream has been told.
    pub(crate) revisions: BTreeSet<RevisionId>,
}

impl Node {
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
        if record.revisions.insert(revision) {
            self.tell_node(node, ToNode::Revision(Arc::new(spec.revision(revision))), out);
        }
    }

    /// Tells nodes to forget revisions of a function that are neither current nor running there.
    pub(crate) fn drop_unused_revisions(&mut self, id: FunctionId, out: &mut Vec<Command>) {
        let current = self.functions.get(&id).filter(|f| !f.removed).map(|f| f.revision);
        let mut running: BTreeSet<(NodeId, RevisionId)> = BTreeSet::new();
        if let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) {
            running.extend(
                active.sandboxes.iter().filter_map(|s| self.sandboxes.get(s)).map(|s| (s.node, s.revision)),
            );
        }
        let first = RevisionId { function: id, number: 0 };
        let last = RevisionId { function: id, number: u32::MAX };
        for (node, record) in &mut self.nodes {
            let unused: Vec<RevisionId> = record
                .revisions
                .range(first..=last)
                .filter(|r| Some(r.number) != current && !running.contains(&(*node, **r)))
                .copied()
                .collect();
            for revision in unused {
                record.revisions.remove(&revision);
                out.push(Command::Node { node: *node, message: ToNode::RevisionRemoved(revision) });
            }
        }
    }

    /// Asks the node with the most room to prove that the revision starts.
    pub(crate) fn prepare_requested(&mut self, revision: RevisionId, out: &mut Vec<Command>) {
        let Some(function) = self.functions.get(&revision.function).filter(|f| f.revision == revision.number)
        else {
            let detail = "the function was updated or deleted meanwhile".to_owned();
            out.push(Command::Prepared { revision, result: Err(node_failure(detail)) });
            return;
        };
        if self.preparing.contains_key(&revision) {
            return;
        }
        let spec = function.spec.clone();
        let able = self.nodes.iter().filter(|(_, n)| n.has_runtime(&spec.runtime));
        let node = able
            .map(|(id, _)| *id)
            .max_by_key(|id| self.ledger.free(*id).map_or(0, |free| free.memory_bytes));
        match node {
            Some(node) => {
                self.preparing.insert(revision, node);
                self.tell_revision(node, revision, &spec, out);
                self.tell_node(node, ToNode::Prepare(revision), out);
            }
            None => {
                let detail = format!("no connected node has the runtime {}", spec.runtime);
                out.push(Command::Prepared { revision, result: Err(node_failure(detail)) });
            }
        }
    }

    /// A node answered about a revision.
    pub(crate) fn prepared(
        &mut self,
        now: Timestamp,
        revision: RevisionId,
        failure: Option<StartFailure>,
        out: &mut Vec<Command>,
    ) {
        if self.preparing.remove(&revision).is_none() {
            return;
        }
        if let Some(function) =
            self.functions.get_mut(&revision.function).filter(|f| f.revision == revision.number)
        {
            function.last_failure = failure.clone().map(|failure| Box::new(LastFailure { at: now, failure }));
        }
        out.push(Command::Prepared { revision, result: failure.map_or(Ok(()), Err) });
    }

    /// Preparations that a lost node will not answer.
    pub(crate) fn fail_preparations(&mut self, node: NodeId, out: &mut Vec<Command>) {
        let lost: Vec<RevisionId> =
            self.preparing.iter().filter(|(_, n)| **n == node).map(|(r, _)| *r).collect();
        for revision in lost {
            self.preparing.remove(&revision);
            let detail = "the node that prepared it was lost".to_owned();
            out.push(Command::Prepared { revision, result: Err(node_failure(detail)) });
        }
    }

    pub(crate) fn usage(&mut self, _now: Timestamp, usages: &[SandboxUsage]) {
        for usage in usages {
            if let Some(sandbox) = self.sandboxes.get_mut(&usage.sandbox) {
                sandbox.cpu_milli = usage.cpu_milli as f32;
            }
        }
    }
}

fn node_failure(detail: String) -> StartFailure {
    StartFailure { kind: StartFailureKind::Node, detail, log_tail: String::new() }
}
