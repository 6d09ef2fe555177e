//! What control planes keep durably: who leads, functions, and who has ever connected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fanfare_types::{DataPlaneId, Epoch, FunctionId, FunctionSpec, NodeId, RevisionId};

/// A linearisable store, as every implementation of it must be.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) epoch: Epoch,
    /// Counts the leader's signs of life.
    pub(crate) beats: u64,
    pub(crate) functions: BTreeMap<FunctionId, (RevisionId, Arc<FunctionSpec>)>,
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) planes: BTreeSet<DataPlaneId>,
    next_function: u32,
}

impl Store {
    /// Begins a new term.
    pub(crate) fn take(&mut self) -> Epoch {
        self.epoch = Epoch(self.epoch.0 + 1);
        self.beats += 1;
        self.epoch
    }

    pub(crate) fn register(&mut self, spec: Arc<FunctionSpec>) -> RevisionId {
        self.next_function += 1;
        let id = RevisionId { function: FunctionId(self.next_function), number: 1 };
        self.functions.insert(id.function, (id, spec));
        id
    }

    pub(crate) fn update(&mut self, function: FunctionId, spec: Arc<FunctionSpec>) -> Option<RevisionId> {
        let (id, kept) = self.functions.get_mut(&function)?;
        id.number += 1;
        *kept = spec;
        Some(*id)
    }
}
