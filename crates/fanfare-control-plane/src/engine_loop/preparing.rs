//! Proofs that a revision starts: who waits for them, and what they found on its way to the store.

use std::sync::Arc;

use fanfare_engine::Event;
use fanfare_types::{FunctionName, FunctionSpec, NodeId, RevisionId, StartFailure};
use tokio::sync::oneshot;

use super::EngineLoop;
use crate::input::Prepared;
use crate::limits::PREPARE_WAITERS_MAX;
use crate::proofs::Proof;
use crate::registry::Found;

/// A proof that is under way, and who waits for it.
#[derive(Debug)]
pub(super) struct Preparing {
    name: FunctionName,
    waiters: Vec<oneshot::Sender<Prepared>>,
}

impl EngineLoop {
    pub(super) fn prepare(
        &mut self,
        revision: RevisionId,
        spec: Arc<FunctionSpec>,
        answer: oneshot::Sender<Prepared>,
    ) {
        // Those who asked and left make room first.
        if self.preparing_count >= PREPARE_WAITERS_MAX {
            for preparing in self.preparing.values_mut() {
                preparing.waiters.retain(|waiter| !waiter.is_closed());
            }
            self.preparing_count = self.preparing.values().map(|preparing| preparing.waiters.len()).sum();
        }
        if self.preparing_count >= PREPARE_WAITERS_MAX {
            // Dropping the answer says that there was none.
            return;
        }
        self.preparing_count += 1;
        let preparing = || Preparing { name: spec.name.clone(), waiters: Vec::new() };
        self.preparing.entry(revision).or_insert_with(preparing).waiters.push(answer);
        self.step(Event::PrepareRequested { id: revision, spec });
    }

    pub(super) fn prepared(
        &mut self,
        by: Option<NodeId>,
        revision: RevisionId,
        result: Result<(), StartFailure>,
        has_started: bool,
    ) {
        let Some(Preparing { name, waiters }) = self.preparing.remove(&revision) else { return };
        self.preparing_count -= waiters.len();
        let node =
            by.and_then(|id| self.nodes.get(id)).map_or_else(|| Arc::from(""), |peer| peer.name.clone());
        let found = match &result {
            Ok(()) => Found::Starts,
            Err(failure) => Found::Fails { failure: failure.clone(), has_started },
        };
        let answer = result.map(|()| node);
        self.proofs.keep(Proof { name, revision, found, waiters, answer });
    }

    /// A sandbox is ready of a revision whose last start had failed: what is kept of that failure holds no longer.
    pub(super) fn recovered(&mut self, name: FunctionName, revision: RevisionId) {
        let answer = Ok(Arc::from(""));
        self.proofs.keep(Proof { name, revision, found: Found::Starts, waiters: Vec::new(), answer });
    }
}
