//! The state, and what the control plane says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fanfare_types::{
    CodeDigest, FunctionId, RevisionId, RevisionSpec, SandboxId, SandboxRecord, StartFailure,
    StartFailureKind, StopMode, ToNode,
};

use crate::Order;
use crate::revisions::Used;
use crate::sandboxes::Sandbox;
use crate::turns::Turns;

/// Creations that may wait: more than a control plane with reservations can order.
pub const CREATIONS_QUEUED_MAX: usize = 65_536;
/// Sandboxes that are being stopped at once; more wait in order.
pub const STOPS_MAX: usize = 256;

/// The sandboxes of one node, and the revisions that they run.
#[derive(Debug)]
pub struct Roster {
    pub(crate) runtimes: Vec<Arc<str>>,
    /// Revisions that this stream has told of.
    pub(crate) specs: BTreeMap<RevisionId, Arc<RevisionSpec>>,
    /// Functions without a revision whose last one is still in use here.
    pub(crate) deleted: BTreeSet<FunctionId>,
    pub(crate) used: BTreeMap<RevisionId, Used>,
    pub(crate) prepares: VecDeque<Arc<RevisionSpec>>,
    pub(crate) preparing: usize,
    pub(crate) sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// Those not begun, and those under way.
    pub(crate) creations: Turns,
    pub(crate) stops: VecDeque<(SandboxId, StopMode)>,
    pub(crate) stopping: usize,
}

impl Roster {
    /// An empty node with runtimes of these names, which starts so many sandboxes at once, and so many of those that
    /// nobody waits for.
    #[must_use]
    pub fn new(runtimes: Vec<Arc<str>>, creations_max: usize, unwaited_max: usize) -> Self {
        Roster {
            runtimes,
            specs: BTreeMap::new(),
            deleted: BTreeSet::new(),
            used: BTreeMap::new(),
            prepares: VecDeque::new(),
            preparing: 0,
            sandboxes: BTreeMap::new(),
            creations: Turns::new(creations_max, unwaited_max),
            stops: VecDeque::new(),
            stopping: 0,
        }
    }

    /// Takes over a ready sandbox that a runtime found, of a revision with that code. One that is not ready is not
    /// taken.
    pub fn adopt(&mut self, runtime: usize, record: SandboxRecord, code: Option<CodeDigest>) {
        let Some(endpoint) = record.endpoint else { return };
        self.use_revision(record.revision, runtime, code, true);
        self.sandboxes.insert(record.sandbox, Sandbox::ready(record.revision, runtime, endpoint));
    }

    /// A new stream begins: it will tell of every revision that it needs.
    pub fn begin_stream(&mut self) {
        self.specs.clear();
    }

    /// The control plane said something. What is not about sandboxes or revisions is the shell's own business.
    pub fn hear(&mut self, message: ToNode, out: &mut Vec<Order>) {
        match message {
            ToNode::Revision(spec) => {
                self.deleted.remove(&spec.id.function);
                self.specs.insert(spec.id, spec);
            }
            ToNode::RevisionRemoved(revision) => self.removed(revision, out),
            ToNode::Prepare(revision) => self.prepare(revision, out),
            ToNode::Create { sandbox, revision, waited } => self.create(sandbox, revision, waited, out),
            ToNode::Hasten(sandbox) => self.hasten(sandbox, out),
            ToNode::Stop { sandbox, mode } => self.stop(sandbox, mode, out),
            ToNode::Welcome { .. } | ToNode::Secrets { .. } | ToNode::Logs { .. } => {}
        }
    }

    /// Begins nothing more: the node shuts down. What is under way is still answered for.
    pub fn close(&mut self) {
        self.creations.close();
        self.prepares.clear();
        self.stops.clear();
    }

    /// Every sandbox, as a hello states it, in the order of ids.
    pub fn sandboxes(&self) -> impl ExactSizeIterator<Item = SandboxRecord> + '_ {
        self.sandboxes.iter().map(|(id, sandbox)| SandboxRecord {
            sandbox: *id,
            revision: sandbox.revision,
            endpoint: sandbox.endpoint(),
        })
    }

    /// What this stream has told of a revision.
    #[must_use]
    pub fn told(&self, revision: RevisionId) -> Option<&Arc<RevisionSpec>> {
        self.specs.get(&revision)
    }

    /// Whether a runtime may keep something for the revision.
    #[must_use]
    pub fn uses(&self, revision: RevisionId) -> bool {
        self.used.contains_key(&revision)
    }

    /// The runtime that has, or would make, sandboxes of the revision.
    #[must_use]
    pub fn runtime_of(&self, revision: RevisionId) -> Option<usize> {
        let told = || self.specs.get(&revision).and_then(|spec| self.find(&spec.runtime));
        self.used.get(&revision).map(|used| used.runtime).or_else(told)
    }

    pub(crate) fn find(&self, runtime: &str) -> Option<usize> {
        self.runtimes.iter().position(|name| **name == *runtime)
    }
}

pub(crate) fn failure(kind: StartFailureKind, detail: String) -> StartFailure {
    StartFailure { kind, detail, log_tail: String::new() }
}
