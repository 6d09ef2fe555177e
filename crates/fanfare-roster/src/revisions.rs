//! Revisions from their first use to the last trace of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use fanfare_types::{
    CodeDigest, FromNode, FunctionId, RevisionId, RevisionSpec, SandboxId, StartFailure, StartFailureKind,
};

use crate::roster::failure;
use crate::{Order, Roster};

/// Revisions that are made ready at once; more wait in order. Few: installing dependencies is heavy.
const PREPARES_MAX: usize = 4;

/// A revision that a runtime may keep something for.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) runtime: usize,
    code: Option<CodeDigest>,
    /// Sandboxes, those not begun included, and whether it is being made ready.
    uses: usize,
    preparing: bool,
    /// Its code is noted on disk.
    noted: bool,
    /// The runtime is forgetting it; this is to begin again afterwards.
    forgetting: Option<Vec<Parked>>,
}

#[derive(Debug)]
enum Parked {
    Create(SandboxId),
    Prepare(Arc<RevisionSpec>),
}

impl Used {
    /// Whether a creation has to wait until the runtime has forgotten the revision.
    pub(crate) fn park(&mut self, sandbox: SandboxId) -> bool {
        self.forgetting.as_mut().map(|parked| parked.push(Parked::Create(sandbox))).is_some()
    }
}

impl Roster {
    pub(crate) fn use_revision(
        &mut self,
        revision: RevisionId,
        runtime: usize,
        code: Option<CodeDigest>,
        noted: bool,
    ) {
        let new = || Used { runtime, code, uses: 0, preparing: false, noted, forgetting: None };
        self.used.entry(revision).or_insert_with(new).uses += 1;
    }

    pub(crate) fn release_revision(&mut self, revision: RevisionId, out: &mut Vec<Order>) {
        if let Some(used) = self.used.get_mut(&revision) {
            used.uses -= 1;
        }
        self.forget_if_unwanted(revision, out);
    }

    /// Whether the code of a revision is to be noted before its first sandbox exists.
    pub(crate) fn note(&mut self, spec: &RevisionSpec) -> bool {
        let used = self.used.get_mut(&spec.id).filter(|used| !used.noted && spec.code.is_some());
        used.is_some_and(|used| !std::mem::replace(&mut used.noted, true))
    }

    pub(crate) fn prepare(&mut self, revision: RevisionId, out: &mut Vec<Order>) {
        let mut refuse = |detail: String| {
            let failure = Some(failure(StartFailureKind::Node, detail));
            out.push(Order::Say(FromNode::Prepared { revision, failure }));
        };
        let Some(spec) = self.specs.get(&revision).cloned() else {
            return refuse(format!("the node was not told of revision {revision}"));
        };
        let Some(runtime) = self.find(&spec.runtime) else {
            return refuse(format!("the node has no runtime {:?}", spec.runtime));
        };
        if self.used.get(&revision).is_some_and(|used| used.preparing) {
            // Whoever asks again, after a reconnection, gets the answer of the attempt that is under way.
            return;
        }
        self.use_revision(revision, runtime, spec.code, false);
        if let Some(used) = self.used.get_mut(&revision) {
            used.preparing = true;
        }
        self.prepares.push_back(spec);
        self.begin_prepares(out);
    }

    fn begin_prepares(&mut self, out: &mut Vec<Order>) {
        while self.preparing < PREPARES_MAX {
            let Some(spec) = self.prepares.pop_front() else { return };
            let Some(used) = self.used.get_mut(&spec.id) else { continue };
            if let Some(parked) = &mut used.forgetting {
                parked.push(Parked::Prepare(spec));
                continue;
            }
            self.preparing += 1;
            let runtime = used.runtime;
            let note = self.note(&spec);
            out.push(Order::Prepare { runtime, spec, note });
        }
    }

    /// A preparation has ended.
    pub fn prepared(&mut self, revision: RevisionId, result: Result<(), StartFailure>, out: &mut Vec<Order>) {
        self.preparing -= 1;
        if let Some(used) = self.used.get_mut(&revision) {
            used.preparing = false;
        }
        out.push(Order::Say(FromNode::Prepared { revision, failure: result.err() }));
        self.begin_prepares(out);
        self.release_revision(revision, out);
    }

    pub(crate) fn removed(&mut self, revision: RevisionId, out: &mut Vec<Order>) {
        self.specs.remove(&revision);
        if !self.specs.keys().any(|other| other.function == revision.function) {
            self.deleted.insert(revision.function);
        }
        self.forget_if_unwanted(revision, out);
        self.delete_if_unused(revision.function, out);
    }

    /// Nothing of a function that has no revision any more is left to write.
    fn delete_if_unused(&mut self, function: FunctionId, out: &mut Vec<Order>) {
        if !self.used.keys().any(|used| used.function == function) && self.deleted.remove(&function) {
            out.push(Order::Deleted(function));
        }
    }

    /// Nobody uses it, and this stream does not know it (any more): should it be wanted again, it will be told anew.
    fn forget_if_unwanted(&mut self, revision: RevisionId, out: &mut Vec<Order>) {
        let unused = self.used.get(&revision).is_some_and(|used| used.uses == 0 && used.forgetting.is_none());
        if unused && !self.specs.contains_key(&revision) {
            self.forget(revision, out);
        }
    }

    fn forget(&mut self, revision: RevisionId, out: &mut Vec<Order>) {
        let Some(used) = self.used.get_mut(&revision) else { return };
        used.forgetting = Some(Vec::new());
        out.push(Order::Forget { runtime: used.runtime, revision, noted: used.noted });
    }

    /// The runtime has forgotten a revision.
    pub fn forgotten(&mut self, revision: RevisionId, out: &mut Vec<Order>) {
        let Some(used) = self.used.get_mut(&revision) else { return };
        used.noted = false;
        let parked = used.forgetting.take().unwrap_or_default();
        if used.uses == 0 {
            self.used.remove(&revision);
            self.delete_if_unused(revision.function, out);
        }
        // Prepares in their old order, ahead of what came later.
        for work in parked.into_iter().rev() {
            match work {
                Parked::Create(sandbox) => self.queue_creation(sandbox),
                Parked::Prepare(spec) => self.prepares.push_front(spec),
            }
        }
        self.begin_creations(out);
        self.begin_prepares(out);
    }

    /// Has the runtimes let go of a code directory: the revisions that they have to forget first, none of which is in
    /// use; `None` where one is.
    pub fn let_go(&mut self, code: CodeDigest, out: &mut Vec<Order>) -> Option<BTreeSet<RevisionId>> {
        let users = || self.used.iter().filter(|(_, used)| used.code == Some(code));
        if users().any(|(_, used)| used.uses > 0) {
            return None;
        }
        let waits_for: BTreeSet<RevisionId> = users().map(|(revision, _)| *revision).collect();
        let not_yet = users().filter(|(_, used)| used.forgetting.is_none());
        for revision in not_yet.map(|(revision, _)| *revision).collect::<Vec<_>>() {
            self.forget(revision, out);
        }
        Some(waits_for)
    }
}
