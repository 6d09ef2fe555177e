//! What is registered: functions, secrets, and the numbers of nodes and data planes.
//!
//! Reads come from memory. Changes go through one task, the [`writer`], which sends a transaction for each to the
//! store, many at once but one per name, and makes it visible when it is durable.

mod changes;
mod entry;
mod failure;
mod history;
mod hosts;
mod ids;
mod load;
mod secrets;
mod subject;
mod traffic;
mod writer;

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod hosts_tests;
#[cfg(test)]
mod secrets_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod traffic_tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use fanfare_api::{DirigentPatch, FieldError, TrafficChange};
use fanfare_store::{Revision, Store};
use fanfare_types::{
    CodeDigest, DataPlaneId, FunctionId, FunctionName, FunctionSpec, NodeId, RevisionId, SecretName,
    SecretValue, StartFailure, Tag, Target, Traffic,
};
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};

pub(crate) use history::{Past, Unstartable, unix_ms};
pub(crate) use load::for_each;
pub(crate) use secrets::{Secret, SecretReader, WEBHOOK, secrets_kept};
pub(crate) use traffic::Routing;
use traffic::Unit;

use crate::ControlPlaneError;
use crate::input::Input;
use crate::leader::Term;
use crate::limits::REGISTRY_QUEUE_MAX;
use crate::vault::Vault;

/// A registered function.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) id: RevisionId,
    pub(crate) spec: Arc<FunctionSpec>,
    /// When the current revision was registered, by the wall clock of that time. For display: orders nothing.
    pub(crate) created_unix_ms: u64,
    /// Why its current revision cannot start, if that is known.
    pub(crate) failed: Option<Arc<Unstartable>>,
    /// Its current revision has been proved to start at some time.
    pub(crate) has_started: bool,
    /// Earlier revisions that are kept, oldest first.
    pub(crate) past: Vec<Arc<Past>>,
    /// While the current revision cannot start: the one that serves in its place, if any works.
    pub(crate) stand_in: Option<Arc<StandIn>>,
    /// Where requests go that are not all for the latest revision.
    pub(crate) routing: Option<Arc<Routing>>,
    stored: Revision,
}

/// An earlier revision that serves.
#[derive(Debug)]
pub(crate) struct StandIn {
    pub(crate) number: u32,
    pub(crate) spec: Arc<FunctionSpec>,
}

impl Function {
    /// A revision that is registered now.
    fn new(id: RevisionId, spec: Arc<FunctionSpec>) -> Self {
        let (created_unix_ms, stored) = (history::unix_ms(), Revision::default());
        Function {
            id,
            spec,
            created_unix_ms,
            failed: None,
            has_started: false,
            past: Vec::new(),
            stand_in: None,
            routing: None,
            stored,
        }
    }

    /// Its current revision, as it is remembered when it is replaced.
    pub(crate) fn as_past(&self) -> Past {
        Past {
            number: self.id.number,
            created_unix_ms: self.created_unix_ms,
            digest: history::digest(&self.spec),
            code: self.spec.code,
            secrets: self.spec.given.secret_names().into(),
            failed: self.failed.clone(),
            has_started: self.has_started,
        }
    }

    /// The revision that requests go to: the current one, unless it cannot start and an earlier one works.
    pub(crate) fn serving(&self) -> (RevisionId, &Arc<FunctionSpec>) {
        match self.stand_in.as_deref() {
            Some(stand_in) => (RevisionId { number: stand_in.number, ..self.id }, &stand_in.spec),
            None => (self.id, &self.spec),
        }
    }

    /// Per cent of the requests that name no tag.
    pub(crate) fn shares(&self) -> Vec<(Target, u32)> {
        self.routing.as_ref().map_or_else(|| vec![(Target::Latest, 100)], |routing| routing.shares.clone())
    }

    pub(crate) fn tags(&self) -> &[(Tag, Target)] {
        self.routing.as_ref().map_or(&[], |routing| routing.tags.as_slice())
    }

    /// Whatever runs one of its revisions: the function itself, and its units.
    pub(crate) fn parts(&self) -> Vec<FunctionId> {
        std::iter::once(self.id.function).chain(self.units().iter().map(|unit| unit.id.function)).collect()
    }

    fn units(&self) -> &[Unit] {
        self.routing.as_ref().map_or(&[], |routing| routing.units.as_slice())
    }

    /// Adds an earlier revision that was read.
    fn remember(&mut self, past: Past, spec: &Arc<FunctionSpec>) {
        if let Some(routing) = &mut self.routing
            && routing.names(past.number)
        {
            let units = &mut Arc::make_mut(routing).units;
            units
                .iter_mut()
                .filter(|unit| unit.id.number == past.number)
                .for_each(|unit| unit.spec = spec.clone());
        }
        self.past.push(Arc::new(past));
    }

    fn no_such_revision(&self, number: u32) -> RegistryError {
        let kept = self.past.iter().map(|past| past.number).chain([self.id.number]).collect();
        RegistryError::NoSuchRevision { number, kept }
    }
}

/// What became visible, in the order in which it became durable.
#[derive(Debug)]
pub(crate) enum Visible {
    Set {
        id: RevisionId,
        spec: Arc<FunctionSpec>,
    },
    Unit {
        id: RevisionId,
        spec: Arc<FunctionSpec>,
    },
    Traffic {
        function: FunctionId,
        traffic: Option<Arc<Traffic>>,
    },
    /// A function, or a unit.
    Removed(FunctionId),
    /// The secret has another value.
    Secret(SecretName),
    /// There is no such secret any more.
    SecretRemoved(SecretName),
}

/// What a caller wants changed.
#[derive(Debug)]
pub(crate) enum Change {
    /// Register a function that must not exist.
    Create(Arc<FunctionSpec>),
    /// Register a function, or a new revision of it.
    Put(Arc<FunctionSpec>),
    /// Change a function's scaling as a form says, whatever it is by then.
    Patch(FunctionName, DirigentPatch),
    /// Register again, as a new revision, what this one was; unless one is named, the newest before the current one that
    /// is not known to be broken.
    Rollback(FunctionName, Option<u32>),
    /// Share a function's requests so.
    Traffic(FunctionName, TrafficChange),
    /// Keep why this revision cannot start, or that it can.
    Proved(FunctionName, RevisionId, Found),
    /// Delete a function.
    Delete(FunctionName),
    /// Give a secret a value; see [`Registry::set_secret`].
    SetSecret(SecretName, SecretValue),
    /// Delete a secret.
    DeleteSecret(SecretName),
    /// Keep a secret for a webhook that uses it from now on.
    ClaimSecret(SecretName, FunctionName),
    /// Give a node or a data plane its number.
    Peer(PeerKind, Arc<str>),
}

/// What was found of a revision's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Starts,
    Fails {
        failure: StartFailure,
        /// A sandbox of it is known to have been ready before.
        has_started: bool,
    },
}

/// Nodes and data planes are numbered alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PeerKind {
    Node,
    DataPlane,
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Created(RevisionId),
    Updated(RevisionId),
    /// It was registered exactly so already.
    Unchanged(RevisionId),
    Deleted,
    /// Requests are shared otherwise.
    Routed,
    /// What was proved of a revision is kept.
    Noted,
    /// The secret has a new value.
    SecretSet {
        version: u64,
    },
    /// The peer's number.
    Peer(u32),
}

/// Why nothing was changed (or, for `Unavailable`, may have been).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegistryError {
    #[error("it exists already")]
    Exists,
    #[error("there is no such thing of that name")]
    NotFound,
    #[error("no other revision that works is kept beside revision {current}")]
    NothingBefore { current: u32 },
    #[error("there is no revision {number}; there are {}", numbers(kept))]
    NoSuchRevision { number: u32, kept: Vec<u32> },
    #[error("revision {number} does not start: {}", failed.failure.detail)]
    Broken { number: u32, failed: Arc<Unstartable> },
    #[error("there is no secret {name:?}")]
    NoSuchSecret { name: String, field: String },
    #[error("it is used by {}", by.join(", "))]
    InUse { by: Vec<String> },
    #[error("{0}")]
    Field(Box<FieldError>),
    #[error("the host {host} is that of {holder}")]
    HostTaken { host: String, holder: String },
    #[error("there are {limit} {what} already")]
    Full { what: &'static str, limit: usize },
    #[error("{0}")]
    Unavailable(String),
}

fn numbers(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The handle; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    known: Arc<RwLock<Known>>,
    requests: mpsc::Sender<Request>,
    vault: Vault,
}

/// What is durable, as far as this process has been told.
#[derive(Debug, Default)]
pub(crate) struct Known {
    functions: BTreeMap<FunctionName, Function>,
    peers: BTreeMap<PeerKind, BTreeMap<Arc<str>, u32>>,
    secrets: BTreeMap<SecretName, Secret>,
    /// What webhooks use; of one whose write has failed, what it may use.
    claims: BTreeMap<FunctionName, BTreeSet<SecretName>>,
}

#[derive(Debug)]
struct Request {
    change: Change,
    answer: oneshot::Sender<Result<Done, RegistryError>>,
}

impl Registry {
    /// Reads everything there is and begins to take changes. `engine` hears of those; `deposed` of the end of the
    /// term.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        term: Term,
        vault: Vault,
        engine: mpsc::Sender<Input>,
        deposed: oneshot::Sender<ControlPlaneError>,
    ) -> Result<Registry, ControlPlaneError> {
        let known = Arc::new(RwLock::new(load::known(&*store).await?));
        let ids = ids::Ids::load(&*store).await?;
        let (requests, queue) = mpsc::channel(REGISTRY_QUEUE_MAX);
        let writer = writer::Writer::new(store, term, known.clone(), vault.clone(), engine, ids);
        tokio::spawn(writer.run(queue, deposed));
        Ok(Registry { known, requests, vault })
    }

    /// Makes a change; resolves when it is durable and visible.
    pub(crate) async fn change(&self, change: Change) -> Result<Done, RegistryError> {
        let (answer, answered) = oneshot::channel();
        let stopped = || RegistryError::Unavailable("the control plane is stopping".to_owned());
        self.requests.send(Request { change, answer }).await.map_err(|_| stopped())?;
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// The number of a node or a data plane, durably its own from now on.
    pub(crate) async fn peer(&self, kind: PeerKind, name: &Arc<str>) -> Result<u32, RegistryError> {
        let known = self.known.read().peer(kind, name);
        if let Some(id) = known {
            return Ok(id);
        }
        match self.change(Change::Peer(kind, name.clone())).await? {
            Done::Peer(id) => Ok(id),
            other => Err(RegistryError::Unavailable(format!("unexpected outcome {other:?}"))),
        }
    }

    pub(crate) fn function(&self, name: &str) -> Option<Function> {
        self.known.read().functions.get(name).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.known.read().functions.len()
    }

    /// Functions in the order of their names, and whether more follow.
    pub(crate) fn page(&self, after: Option<&str>, limit: usize) -> (Vec<Function>, bool) {
        let known = self.known.read();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut found =
            known.functions.range::<str, _>((start, Bound::Unbounded)).map(|(_, function)| function);
        let page: Vec<_> = found.by_ref().take(limit).cloned().collect();
        (page, found.next().is_some())
    }

    /// Every function as it serves, in the order of their names.
    pub(crate) fn all(&self) -> Vec<(RevisionId, Arc<FunctionSpec>)> {
        let known = self.known.read();
        let serving = known.functions.values().map(Function::serving);
        serving.map(|(id, spec)| (id, spec.clone())).collect()
    }

    /// Every revision that is run beside the latest one of its function.
    pub(crate) fn units(&self) -> Vec<(RevisionId, Arc<FunctionSpec>)> {
        let known = self.known.read();
        known.functions.values().flat_map(Function::units).map(|u| (u.id, u.spec.clone())).collect()
    }

    /// Functions whose requests are not all for the latest revision, and where they go.
    pub(crate) fn traffic(&self) -> Vec<(FunctionId, Arc<Traffic>)> {
        let known = self.known.read();
        let routed = known.functions.values().filter_map(|f| Some((f.id.function, f.routing.as_ref()?)));
        routed.map(|(id, routing)| (id, Arc::new(routing.traffic(id)))).collect()
    }

    /// Revisions that are known not to start, and why.
    pub(crate) fn failed(&self) -> Vec<(RevisionId, StartFailure)> {
        let known = self.known.read();
        let failed = known
            .functions
            .values()
            .filter_map(|f| f.failed.as_ref().map(|failed| (f.id, failed.failure.clone())));
        failed.collect()
    }

    /// Digests that a revision refers to which is kept.
    pub(crate) fn code_in_use(&self) -> HashSet<CodeDigest> {
        let known = self.known.read();
        let of = |f: &Function| f.past.iter().map(|past| past.code).chain([f.spec.code]).collect::<Vec<_>>();
        known.functions.values().flat_map(of).flatten().collect()
    }

    pub(crate) fn data_planes(&self) -> Vec<DataPlaneId> {
        let known = self.known.read();
        known
            .peers
            .get(&PeerKind::DataPlane)
            .into_iter()
            .flat_map(BTreeMap::values)
            .map(|id| DataPlaneId(*id))
            .collect()
    }

    /// Every node ever seen.
    pub(crate) fn nodes(&self) -> BTreeSet<(Arc<str>, NodeId)> {
        let known = self.known.read();
        let nodes = known.peers.get(&PeerKind::Node).into_iter().flatten();
        nodes.map(|(name, id)| (name.clone(), NodeId(*id))).collect()
    }
}

impl Known {
    fn peer(&self, kind: PeerKind, name: &str) -> Option<u32> {
        self.peers.get(&kind).and_then(|peers| peers.get(name)).copied()
    }

    fn peer_count(&self, kind: PeerKind) -> usize {
        self.peers.get(&kind).map_or(0, BTreeMap::len)
    }
}
