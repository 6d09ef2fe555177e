//! The one task that changes what is registered.
//!
//! Changes of different names are under way together and share the store's fsync; those of one name follow each
//! other, so that data planes learn of them in the order in which they became durable.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fanfare_store::{Entry, Op, Revision, Store, StoreError, Txn};
use fanfare_types::{FunctionId, FunctionName, FunctionSpec, RevisionId, StartFailure, limits};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};

use super::entry::{function_key, peer_key, put_function, put_number, read_function, read_number, unchanged};
use super::ids::Ids;
use super::{Change, Done, Function, Known, PeerKind, RegistryError, Request, Visible};
use crate::ControlPlaneError;
use crate::input::Input;
use crate::leader::Term;
use crate::limits::{
    DATA_PLANES_MAX, NODES_MAX, REGISTRY_IN_FLIGHT_MAX, REREAD_BACKOFF_MAX, REREAD_BACKOFF_MIN,
};

pub(super) struct Writer {
    store: Arc<dyn Store>,
    term: Term,
    known: Arc<RwLock<Known>>,
    engine: mpsc::Sender<Input>,
    ids: Ids,
    /// Keys with a change under way, and what waits for it. `Unknown` after a write whose outcome is not known.
    busy: HashMap<Subject, Busy>,
    /// Requests that wait in `busy`.
    waiting: usize,
    under_way: FuturesUnordered<BoxFuture<'static, Finished>>,
    creations_under_way: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Function(FunctionName),
    Peer(PeerKind, Arc<str>),
}

enum Busy {
    Changing(VecDeque<Request>),
    Unknown,
}

/// What a transaction will have done.
#[derive(Debug)]
enum Plan {
    Set {
        id: RevisionId,
        spec: Arc<FunctionSpec>,
        previous: Option<Arc<FunctionSpec>>,
    },
    /// What is known of the revision's start has changed.
    Note(Option<Arc<StartFailure>>),
    Remove(FunctionId),
    Number(u32),
}

enum Finished {
    Written { subject: Subject, plan: Plan, request: Request, result: Result<Revision, StoreError> },
    Reread { subject: Subject, entry: Result<Option<Entry>, StoreError> },
}

impl Subject {
    fn of(change: &Change) -> Subject {
        match change {
            Change::Create(spec) | Change::Put(spec) => Subject::Function(spec.name.clone()),
            Change::Delete(name) | Change::Rollback(name) | Change::Proved(name, ..) => {
                Subject::Function(name.clone())
            }
            Change::Peer(kind, name) => Subject::Peer(*kind, name.clone()),
        }
    }

    fn key(&self) -> String {
        match self {
            Subject::Function(name) => function_key(name),
            Subject::Peer(kind, name) => peer_key(*kind, name),
        }
    }
}

impl Writer {
    pub(super) fn new(
        store: Arc<dyn Store>,
        term: Term,
        known: Arc<RwLock<Known>>,
        engine: mpsc::Sender<Input>,
        ids: Ids,
    ) -> Self {
        Writer {
            store,
            term,
            known,
            engine,
            ids,
            busy: HashMap::new(),
            waiting: 0,
            under_way: FuturesUnordered::new(),
            creations_under_way: 0,
        }
    }

    /// Runs until every handle is gone and every change is answered, or the term is over.
    pub(super) async fn run(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        deposed: oneshot::Sender<ControlPlaneError>,
    ) {
        let mut open = true;
        while open || !self.under_way.is_empty() {
            let room = self.under_way.len() + self.waiting < REGISTRY_IN_FLIGHT_MAX;
            let outcome = tokio::select! {
                biased;
                Some(finished) = self.under_way.next(), if !self.under_way.is_empty() => self.finish(finished).await,
                request = requests.recv(), if open && room => match request {
                    Some(request) => self.begin(request).await,
                    None => {
                        open = false;
                        Ok(())
                    }
                },
            };
            if let Err(error) = outcome {
                tracing::error!(%error, "this control plane no longer leads");
                // Nobody listens when the control plane is stopping anyway.
                let _ = deposed.send(error);
                return;
            }
        }
    }

    /// Sends a change to the store, or has it wait for the one before it.
    async fn begin(&mut self, request: Request) -> Result<(), ControlPlaneError> {
        let subject = Subject::of(&request.change);
        match self.busy.get_mut(&subject) {
            Some(Busy::Changing(queue)) => {
                queue.push_back(request);
                self.waiting += 1;
                return Ok(());
            }
            Some(Busy::Unknown) => {
                answer(request, Err(outcome_unknown("an earlier change")));
                return Ok(());
            }
            None => {}
        }
        let (plan, txn) = match self.plan(&request.change).await {
            Ok(Ok(planned)) => planned,
            Ok(Err(decided)) => {
                answer(request, decided);
                return Ok(());
            }
            Err(StoreError::Deposed) => return Err(ControlPlaneError::Deposed),
            Err(error) => {
                answer(request, Err(RegistryError::Unavailable(error.to_string())));
                return Ok(());
            }
        };
        self.creations_under_way += usize::from(matches!(plan, Plan::Set { previous: None, .. }));
        self.busy.insert(subject.clone(), Busy::Changing(VecDeque::new()));
        let commit = self.store.commit(txn);
        self.under_way.push(Box::pin(async move {
            let result = commit.await.map(|committed| committed.revision);
            Finished::Written { subject, plan, request, result }
        }));
        Ok(())
    }

    /// What a change comes down to, given what is known: a transaction, or an answer at once.
    #[allow(clippy::type_complexity, reason = "private, and each layer is decided by another party")]
    async fn plan(
        &mut self,
        change: &Change,
    ) -> Result<Result<(Plan, Txn), Result<Done, RegistryError>>, StoreError> {
        let subject = Subject::of(change);
        let function = match &subject {
            Subject::Function(name) => self.known.read().functions.get(name).cloned(),
            Subject::Peer(..) => None,
        };
        let before = function.as_ref().map(|f| f.stored);
        let (plan, op) = match (change, function) {
            (Change::Create(_), Some(_)) => return Ok(Err(Err(RegistryError::Exists))),
            (Change::Put(spec), Some(found)) if found.spec == *spec => {
                return Ok(Err(Ok(Done::Unchanged(found.id))));
            }
            (Change::Put(spec), Some(found)) => update(&found, spec.clone()),
            (Change::Rollback(_), Some(found)) => match &found.previous {
                Some(previous) => update(&found, previous.clone()),
                None => {
                    let current = found.id.number;
                    return Ok(Err(Err(RegistryError::NothingBefore { current })));
                }
            },
            (Change::Create(spec) | Change::Put(spec), None) => {
                if self.known.read().functions.len() + self.creations_under_way >= limits::FUNCTIONS_MAX {
                    return Ok(Err(Err(RegistryError::Full {
                        what: "functions",
                        limit: limits::FUNCTIONS_MAX,
                    })));
                }
                let id = RevisionId {
                    function: FunctionId(self.ids.take(&*self.store, &self.term.fence).await?),
                    number: 1,
                };
                (Plan::Set { id, spec: spec.clone(), previous: None }, put_function(id, spec, None, None))
            }
            // Of a revision that has been replaced meanwhile nothing is kept.
            (Change::Proved(_, id, _), Some(found)) if found.id != *id => return Ok(Err(Ok(Done::Noted))),
            // Another try may pass: that says nothing of the revision.
            (Change::Proved(_, _, Some(failed)), Some(_)) if failed.kind.may_pass() => {
                return Ok(Err(Ok(Done::Noted)));
            }
            (Change::Proved(_, _, failed), Some(found)) => {
                if failed.as_ref() == found.failed.as_deref() {
                    return Ok(Err(Ok(Done::Noted)));
                }
                let op = put_function(found.id, &found.spec, found.previous.as_deref(), failed.as_ref());
                (Plan::Note(failed.clone().map(Arc::new)), op)
            }
            (Change::Delete(_) | Change::Rollback(_) | Change::Proved(..), None) => {
                return Ok(Err(Err(RegistryError::NotFound)));
            }
            (Change::Delete(_), Some(found)) => {
                (Plan::Remove(found.id.function), Ok(Op::Delete(subject.key())))
            }
            (Change::Peer(kind, name), _) => {
                if let Some(id) = self.known.read().peer(*kind, name) {
                    return Ok(Err(Ok(Done::Peer(id))));
                }
                let (what, limit) = match kind {
                    PeerKind::Node => ("nodes", NODES_MAX),
                    PeerKind::DataPlane => ("data planes", DATA_PLANES_MAX),
                };
                if self.known.read().peer_count(*kind) >= limit {
                    return Ok(Err(Err(RegistryError::Full { what, limit })));
                }
                let id = self.ids.take(&*self.store, &self.term.fence).await?;
                (Plan::Number(id), Ok(put_number(subject.key(), id)))
            }
        };
        let op = match op {
            Ok(op) => op,
            Err(error) => return Ok(Err(Err(RegistryError::Unavailable(error.to_string())))),
        };
        let require = vec![unchanged(subject.key(), before)];
        Ok(Ok((plan, Txn { fence: Some(self.term.fence.clone()), require, ops: vec![op] })))
    }

    async fn finish(&mut self, finished: Finished) -> Result<(), ControlPlaneError> {
        match finished {
            Finished::Written { subject, plan, request, result } => {
                self.creations_under_way -= usize::from(matches!(plan, Plan::Set { previous: None, .. }));
                match result {
                    Ok(revision) => {
                        let done = self.publish(&subject, plan, revision).await;
                        answer(request, Ok(done));
                    }
                    Err(StoreError::Deposed) => return Err(ControlPlaneError::Deposed),
                    Err(error @ StoreError::TooLarge { .. }) => {
                        answer(request, Err(RegistryError::Unavailable(error.to_string())));
                    }
                    // Nothing else writes these keys, so a conflict too means that what is known is not what is kept.
                    Err(error) => {
                        answer(request, Err(outcome_unknown(&error.to_string())));
                        self.reread(subject);
                        return Ok(());
                    }
                }
                self.next_of(subject).await
            }
            Finished::Reread { subject, entry } => {
                match entry {
                    Ok(entry) => self.correct(&subject, entry).await,
                    // The store is closed: the end.
                    Err(error) => tracing::warn!(%error, key = subject.key(), "its state stays unknown"),
                }
                self.busy.remove(&subject);
                Ok(())
            }
        }
    }

    /// Begins what waits for the change of the same name that has just ended.
    async fn next_of(&mut self, subject: Subject) -> Result<(), ControlPlaneError> {
        let Some(Busy::Changing(mut queue)) = self.busy.remove(&subject) else { return Ok(()) };
        // A request that is answered at once (it exists already, say) makes way for the one behind it.
        while let Some(request) = queue.pop_front() {
            self.waiting -= 1;
            self.begin(request).await?;
            if let Some(Busy::Changing(rest)) = self.busy.get_mut(&subject) {
                *rest = queue;
                break;
            }
        }
        Ok(())
    }

    /// Makes a durable change known to readers, then to the engine.
    async fn publish(&mut self, subject: &Subject, plan: Plan, stored: Revision) -> Done {
        let (done, visible) = {
            let mut known = self.known.write();
            match (subject, plan) {
                (Subject::Function(name), Plan::Set { id, spec, previous }) => {
                    let done = if previous.is_none() { Done::Created(id) } else { Done::Updated(id) };
                    let function = Function { id, spec: spec.clone(), previous, failed: None, stored };
                    known.functions.insert(name.clone(), function);
                    (done, Some(Visible::Set { id, spec }))
                }
                (Subject::Function(name), Plan::Note(failed)) => {
                    // Changes of one name follow each other: it is still the revision that the plan was made for.
                    if let Some(function) = known.functions.get_mut(name) {
                        (function.failed, function.stored) = (failed, stored);
                    }
                    (Done::Noted, None)
                }
                (Subject::Function(name), Plan::Remove(id)) => {
                    known.functions.remove(name);
                    (Done::Deleted, Some(Visible::Removed(id)))
                }
                (Subject::Peer(kind, name), Plan::Number(id)) => {
                    known.peers.entry(*kind).or_default().insert(name.clone(), id);
                    (Done::Peer(id), None)
                }
                // Plans are made from their subjects.
                (_, plan) => unreachable!("{plan:?} for {subject:?}"),
            }
        };
        if let Some(visible) = visible {
            self.tell(visible).await;
        }
        done
    }

    async fn tell(&mut self, visible: Visible) {
        // The engine's end is the end of the control plane, which its handle reports.
        let _ = self.engine.send(Input::Function(visible)).await;
    }

    /// Reads a key again whose write may or may not have been made. Until then its name takes no change.
    fn reread(&mut self, subject: Subject) {
        if let Some(Busy::Changing(queue)) = self.busy.insert(subject.clone(), Busy::Unknown) {
            self.waiting -= queue.len();
            for request in queue {
                answer(request, Err(outcome_unknown("an earlier change")));
            }
        }
        let (store, key) = (self.store.clone(), subject.key());
        self.under_way.push(Box::pin(async move {
            let mut pause = REREAD_BACKOFF_MIN;
            loop {
                match store.get(key.clone()).await {
                    Err(error) if !matches!(error, StoreError::Closed) => {
                        tracing::warn!(%error, key, "cannot read it again yet");
                        tokio::time::sleep(pause).await;
                        pause = Duration::min(pause * 2, REREAD_BACKOFF_MAX);
                    }
                    entry => return Finished::Reread { subject, entry },
                }
            }
        }));
    }

    /// Brings what is known in line with what is kept.
    async fn correct(&mut self, subject: &Subject, entry: Option<Entry>) {
        let key = subject.key();
        match subject {
            Subject::Peer(kind, name) => {
                if let Some(id) = entry.and_then(|entry| read_number(&key, &entry).ok()) {
                    self.known.write().peers.entry(*kind).or_default().insert(name.clone(), id);
                }
            }
            Subject::Function(name) => {
                let before = self.known.read().functions.get(name).cloned();
                let kept = match entry.map(|entry| read_function(&key, &entry)).transpose() {
                    Ok(kept) => kept,
                    Err(error) => return tracing::error!(%error, "a function cannot be read"),
                };
                match (before, kept) {
                    (Some(before), None) => {
                        self.known.write().functions.remove(name);
                        self.tell(Visible::Removed(before.id.function)).await;
                    }
                    (before, Some(kept)) if before.as_ref().is_none_or(|f| f.stored != kept.stored) => {
                        if let Some(old) = before.as_ref().filter(|f| f.id.function != kept.id.function) {
                            self.tell(Visible::Removed(old.id.function)).await;
                        }
                        // What is known of a revision's start may differ alone: that is not another revision.
                        let same = before.is_some_and(|f| f.id == kept.id);
                        let visible = Visible::Set { id: kept.id, spec: kept.spec.clone() };
                        self.known.write().functions.insert(name.clone(), kept);
                        if !same {
                            self.tell(visible).await;
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// A new revision of a function that is there.
fn update(found: &Function, spec: Arc<FunctionSpec>) -> (Plan, Result<Op, serde_json::Error>) {
    let id = RevisionId { number: found.id.number + 1, ..found.id };
    let op = put_function(id, &spec, Some(&found.spec), None);
    (Plan::Set { id, spec, previous: Some(found.spec.clone()) }, op)
}

fn answer(request: Request, result: Result<Done, RegistryError>) {
    // Whoever asked may have left; what was done stands.
    let _ = request.answer.send(result);
}

fn outcome_unknown(why: &str) -> RegistryError {
    RegistryError::Unavailable(format!(
        "{why}; whether the change was made is not known yet: look before trying again"
    ))
}
