//! Which nodes get which secrets: those of the revisions that they are told of, and of the sandboxes that the engine
//! knows to be on them.
//!
//! The engine knows nothing of values. Its orders pass here on their way out, and what a revision uses is sent after the
//! word that tells the node of it, so that it is there before anything is to be done.

use std::collections::{BTreeMap, BTreeSet};

use fanfare_types::{FunctionId, FunctionSpec, NodeId, RevisionId, SecretName, ToNode};

use crate::registry::SecretReader;

/// Earlier revisions of a function whose secrets are remembered beside the latest: their sandboxes may still be there.
const REVISIONS_REMEMBERED: u32 = 64;

/// What was told to whom on the present streams.
#[derive(Debug)]
pub(crate) struct Deliveries {
    values: SecretReader,
    /// Of revisions that use secrets.
    uses: BTreeMap<RevisionId, Vec<SecretName>>,
    /// Revisions that use secrets and that a node was told of.
    told: BTreeMap<NodeId, BTreeSet<RevisionId>>,
}

impl Deliveries {
    pub(crate) fn new(values: SecretReader, uses: Vec<(RevisionId, Vec<SecretName>)>) -> Self {
        Deliveries { values, uses: uses.into_iter().collect(), told: BTreeMap::new() }
    }

    /// There is such a revision.
    pub(crate) fn learn(&mut self, id: RevisionId, spec: &FunctionSpec) {
        let names = spec.given.secret_names();
        if names.is_empty() {
            return;
        }
        let from = RevisionId { number: id.number.saturating_sub(REVISIONS_REMEMBERED), ..id };
        let first = RevisionId { number: 0, ..id };
        let old: Vec<_> = self.uses.range(first..from).map(|(id, _)| *id).collect();
        old.iter().for_each(|id| drop(self.uses.remove(id)));
        self.uses.insert(id, names);
    }

    /// There is no such function any more.
    pub(crate) fn forget(&mut self, function: FunctionId) {
        let all = RevisionId { function, number: 0 }..=RevisionId { function, number: u32::MAX };
        let gone: Vec<_> = self.uses.range(all).map(|(id, _)| *id).collect();
        gone.iter().for_each(|id| drop(self.uses.remove(id)));
    }

    /// A message is on its way to a node; what is to follow it.
    pub(crate) fn passing(&mut self, node: NodeId, message: &ToNode) -> Option<ToNode> {
        match message {
            ToNode::Revision(spec) => {
                let names = spec.given.secret_names();
                if names.is_empty() {
                    return None;
                }
                self.uses.insert(spec.id, names);
                self.tell(node, spec.id)
            }
            ToNode::RevisionRemoved(id) => {
                if let Some(told) = self.told.get_mut(&node) {
                    told.remove(id);
                }
                None
            }
            _ => None,
        }
    }

    /// A node has sandboxes of these `revisions`; what it must hear for them that it has not heard on this stream.
    pub(crate) fn found(&mut self, node: NodeId, revisions: &BTreeSet<RevisionId>) -> Vec<ToNode> {
        let told = self.told.get(&node).cloned().unwrap_or_default();
        revisions.difference(&told).filter_map(|revision| self.tell(node, *revision)).collect()
    }

    /// A node's stream is at its end, or at its beginning.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.told.remove(&node);
    }

    /// A secret has another value; who must hear it.
    pub(crate) fn changed(&self, name: &SecretName) -> Vec<(NodeId, ToNode)> {
        let uses = |id: &&RevisionId| self.uses.get(*id).is_some_and(|names| names.contains(name));
        // Made once for each revision, however many nodes there are; clones share the values.
        let revisions: BTreeSet<RevisionId> = self.told.values().flatten().filter(uses).copied().collect();
        let messages = revisions.into_iter().filter_map(|id| Some((id, self.values_of(id)?)));
        let messages: BTreeMap<RevisionId, ToNode> = messages.collect();
        let told = self.told.iter().flat_map(|(node, told)| told.iter().map(|id| (*node, id)));
        told.filter_map(|(node, id)| Some((node, messages.get(id)?.clone()))).collect()
    }

    fn tell(&mut self, node: NodeId, revision: RevisionId) -> Option<ToNode> {
        let message = self.values_of(revision)?;
        self.told.entry(node).or_default().insert(revision);
        Some(message)
    }

    /// What the secrets of a revision hold: those that exist.
    fn values_of(&self, revision: RevisionId) -> Option<ToNode> {
        let names = self.uses.get(&revision)?.iter();
        let values = names.filter_map(|name| Some((name.clone(), self.values.value(name)?))).collect();
        Some(ToNode::Secrets { revision, values })
    }
}
