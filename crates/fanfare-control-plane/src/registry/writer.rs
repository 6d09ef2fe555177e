//! The one task that changes what is registered.
//!
//! Changes of different names are under way together and share the store's fsync; those of one name follow each
//! other, so that data planes learn of them in the order in which they became durable.

mod route;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fanfare_store::{Op, Revision, Store, StoreError, Txn};
use fanfare_types::{FunctionId, FunctionName, FunctionSpec, RevisionId, limits};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};

use super::changes::{Plan, Planned, news, patched, unwritable, update};
use super::entry::{note_past, put_function, put_number, revision_key, unchanged};
use super::history::{self, Past, Unstartable, digest};
use super::hosts;
use super::ids::Ids;
use super::load::Kept;
use super::secrets::{self, UnderWay};
use super::subject::{Subject, kept};
use super::{Change, Done, Found, Function, Known, PeerKind, RegistryError, Request, Visible, load};
use crate::ControlPlaneError;
use crate::input::Input;
use crate::leader::Term;
use crate::limits::{
    DATA_PLANES_MAX, NODES_MAX, REGISTRY_IN_FLIGHT_MAX, REREAD_BACKOFF_MAX, REREAD_BACKOFF_MIN,
};
use crate::vault::Vault;

pub(super) struct Writer {
    store: Arc<dyn Store>,
    term: Term,
    known: Arc<RwLock<Known>>,
    engine: mpsc::Sender<Input>,
    ids: Ids,
    /// Keys with a change under way, and what waits for it (changes of this key, and those that depend on it). `Unknown` after a write whose outcome is not known.
    busy: HashMap<Subject, Busy>,
    /// Requests that wait in `busy`.
    waiting: usize,
    under_way: FuturesUnordered<BoxFuture<'static, Finished>>,
    creations_under_way: usize,
    secrets: UnderWay,
    vault: Vault,
}

enum Busy {
    Changing(VecDeque<Request>),
    Unknown,
}

enum Finished {
    Written { subject: Subject, plan: Plan, request: Request, result: Result<Revision, StoreError> },
    Reread { subject: Subject, kept: Result<Kept, ControlPlaneError> },
}

impl Writer {
    pub(super) fn new(
        store: Arc<dyn Store>,
        term: Term,
        known: Arc<RwLock<Known>>,
        vault: Vault,
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
            secrets: UnderWay::default(),
            vault,
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
        let beside = hosts::beside(&self.known.read(), &request.change);
        for subject in std::iter::once(&subject).chain(&beside) {
            match self.busy.get_mut(subject) {
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
        }
        let (plan, ops) = match self.plan(&request.change).await {
            Ok(Planned::Write(plan, ops)) => match self.refusal(&plan, &request.change) {
                None => (plan, ops),
                Some(why) => {
                    answer(request, Err(why));
                    return Ok(());
                }
            },
            Ok(Planned::Answer(decided)) => {
                answer(request, decided);
                return Ok(());
            }
            Err(ControlPlaneError::Store(StoreError::Deposed)) => return Err(ControlPlaneError::Deposed),
            Err(error) => {
                answer(request, Err(RegistryError::Unavailable(error.to_string())));
                return Ok(());
            }
        };
        self.creations_under_way += usize::from(plan.creates());
        self.secrets.begin(&subject, &plan);
        self.busy.insert(subject.clone(), Busy::Changing(VecDeque::new()));
        let require = vec![unchanged(subject.key(), self.stored(&subject))];
        let commit = self.store.commit(Txn { fence: Some(self.term.fence.clone()), require, ops });
        self.under_way.push(Box::pin(async move {
            let result = commit.await.map(|committed| committed.revision);
            Finished::Written { subject, plan, request, result }
        }));
        Ok(())
    }

    /// Why a function may not become what is planned. What was proved of it is noted whatever it uses.
    fn refusal(&self, plan: &Plan, change: &Change) -> Option<RegistryError> {
        match (plan, change) {
            (_, Change::Proved(..)) => None,
            (Plan::Keep { function, .. }, _) => {
                secrets::refusal(&self.known.read(), &self.vault, function, &self.secrets)
            }
            _ => None,
        }
    }

    /// The store's revision of what is known of the subject. A peer is written once.
    fn stored(&self, subject: &Subject) -> Option<Revision> {
        match subject {
            Subject::Function(name) => self.known.read().functions.get(name).map(|f| f.stored),
            Subject::Secret(name) => self.known.read().secrets.get(name).map(|secret| secret.stored),
            Subject::Peer(..) => None,
        }
    }

    /// What a change comes down to, given what is known.
    async fn plan(&mut self, change: &Change) -> Result<Planned, ControlPlaneError> {
        let subject = Subject::of(change);
        let function = match &subject {
            Subject::Function(name) => self.known.read().functions.get(name).cloned(),
            Subject::Secret(_) | Subject::Peer(..) => None,
        };
        match (change, function) {
            (Change::Create(_), Some(_)) => Ok(Planned::Answer(Err(RegistryError::Exists))),
            (Change::Put(spec), Some(found)) => update(&found, spec.clone()),
            (Change::Patch(_, patch), Some(found)) => match patched(&found, patch) {
                Ok(spec) => update(&found, Arc::new(spec)),
                Err(error) => Ok(Planned::Answer(Err(RegistryError::Field(Box::new(error))))),
            },
            (Change::Rollback(_, to), Some(found)) => self.roll_back(&found, *to).await,
            (Change::Traffic(_, change), Some(found)) => self.route(found, change).await,
            (Change::Create(spec) | Change::Put(spec), None) => self.create(spec.clone()).await,
            (Change::Proved(_, id, of_start), Some(found)) => self.note(found, *id, of_start).await,
            (
                Change::Delete(_)
                | Change::Patch(..)
                | Change::Rollback(..)
                | Change::Traffic(..)
                | Change::Proved(..),
                None,
            ) => Ok(Planned::Answer(Err(RegistryError::NotFound))),
            (Change::Delete(name), Some(found)) => {
                let past = found.past.iter().map(|past| Op::Delete(revision_key(name, past.number)));
                let ops = std::iter::once(Op::Delete(subject.key())).chain(past).collect();
                Ok(Planned::Write(Plan::Remove, ops))
            }
            (Change::SetSecret(name, value), _) => {
                secrets::set(&self.known.read(), &self.vault, name, value, &self.secrets)
            }
            (Change::DeleteSecret(name), _) => Ok(secrets::delete(&self.known.read(), name, &self.secrets)),
            (Change::ClaimSecret(name, webhook), _) => {
                Ok(Planned::Answer(secrets::claim(&mut self.known.write(), name, webhook)))
            }
            (Change::Peer(kind, name), _) => self.number(*kind, name, subject.key()).await,
        }
    }

    async fn create(&mut self, spec: Arc<FunctionSpec>) -> Result<Planned, ControlPlaneError> {
        if let Err(refused) = hosts::check_name(&self.known.read(), &spec.name) {
            return Ok(Planned::Answer(Err(refused)));
        }
        let limit = limits::FUNCTIONS_MAX;
        if self.known.read().functions.len() + self.creations_under_way >= limit {
            return Ok(Planned::Answer(Err(RegistryError::Full { what: "functions", limit })));
        }
        let id = FunctionId(self.ids.take(&*self.store, &self.term.fence).await?);
        let function = Function::new(RevisionId { function: id, number: 1 }, spec);
        let done = Done::Created(function.id);
        let ops = vec![put_function(&function).map_err(unwritable)?];
        Ok(Planned::Write(Plan::Keep { function: Box::new(function), done }, ops))
    }

    /// Registers what revision `to` was, or the one to go back to, anew.
    async fn roll_back(&mut self, found: &Function, to: Option<u32>) -> Result<Planned, ControlPlaneError> {
        let current = found.id.number;
        let number = match to {
            Some(to) if to == current => return Ok(Planned::Answer(Ok(Done::Unchanged(found.id)))),
            Some(to) => to,
            None => match history::before(&found.past, digest(&found.spec)) {
                Some(number) => number,
                None => return Ok(Planned::Answer(Err(RegistryError::NothingBefore { current }))),
            },
        };
        if found.past.iter().all(|past| past.number != number) {
            return Ok(Planned::Answer(Err(found.no_such_revision(number))));
        }
        let spec = load::past_spec(&*self.store, &found.spec.name, number).await?;
        update(found, spec)
    }

    /// Keeps why a revision cannot start, or that it can.
    async fn note(
        &mut self,
        mut function: Function,
        id: RevisionId,
        found: &Found,
    ) -> Result<Planned, ControlPlaneError> {
        let index = function.past.iter().position(|p| p.number == id.number);
        let (known, had_started) = match index {
            Some(index) => (function.past[index].failed.clone(), function.past[index].has_started),
            None => (function.failed.clone(), function.has_started),
        };
        let is_kept =
            function.id.function == id.function && (function.id.number == id.number || index.is_some());
        let (failed, says_nothing) = match found {
            Found::Starts => (None, known.is_none() && had_started),
            Found::Fails { failure, has_started } => {
                let condemned = failure.kind.condemns(*has_started || had_started);
                let is_known = known.as_ref().is_some_and(|known| known.failure == *failure);
                (Some(failure.clone()), !condemned || is_known)
            }
        };
        if !is_kept || says_nothing {
            return Ok(Planned::Answer(Ok(Done::Noted)));
        }
        let has_started = had_started || failed.is_none();
        let failed = failed.map(|failure| Arc::new(Unstartable { at_unix_ms: history::unix_ms(), failure }));
        let mut ops = Vec::new();
        match index {
            None => (function.failed, function.has_started) = (failed, has_started),
            Some(index) => {
                let key = revision_key(&function.spec.name, id.number);
                let Some(entry) = self.store.get(key.clone()).await? else {
                    return Err(ControlPlaneError::Entry { key, detail: "it is not there".to_owned() });
                };
                let past = Past { failed, has_started, ..(*function.past[index]).clone() };
                ops.push(note_past(&key, &entry, &past)?);
                function.past[index] = Arc::new(past);
            }
        }
        function.stand_in = load::stand_in(&*self.store, &function).await?;
        // Written in any case: whoever comes later must meet what this change has made.
        ops.push(put_function(&function).map_err(unwritable)?);
        Ok(Planned::Write(Plan::Keep { function: Box::new(function), done: Done::Noted }, ops))
    }

    async fn number(
        &mut self,
        kind: PeerKind,
        name: &str,
        key: String,
    ) -> Result<Planned, ControlPlaneError> {
        if let Some(id) = self.known.read().peer(kind, name) {
            return Ok(Planned::Answer(Ok(Done::Peer(id))));
        }
        let (what, limit) = match kind {
            PeerKind::Node => ("nodes", NODES_MAX),
            PeerKind::DataPlane => ("data planes", DATA_PLANES_MAX),
        };
        if self.known.read().peer_count(kind) >= limit {
            return Ok(Planned::Answer(Err(RegistryError::Full { what, limit })));
        }
        let id = self.ids.take(&*self.store, &self.term.fence).await?;
        Ok(Planned::Write(Plan::Number(id), vec![put_number(key, id)]))
    }

    async fn finish(&mut self, finished: Finished) -> Result<(), ControlPlaneError> {
        match finished {
            Finished::Written { subject, plan, request, result } => {
                self.creations_under_way -= usize::from(plan.creates());
                self.secrets.end(&subject, &plan);
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
            Finished::Reread { subject, kept } => {
                match kept {
                    Ok(kept) => self.correct(&subject, kept).await,
                    // The store is closed: the end; or what is there is not ours.
                    Err(error) => tracing::error!(%error, key = subject.key(), "its state stays unknown"),
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
        match (subject, plan) {
            (Subject::Function(name), Plan::Keep { mut function, done }) => {
                function.stored = stored;
                self.set(name, Some(*function)).await;
                done
            }
            (Subject::Function(name), Plan::Remove) => {
                self.set(name, None).await;
                Done::Deleted
            }
            (Subject::Secret(name), Plan::KeepSecret { mut secret, done }) => {
                secret.stored = stored;
                self.known.write().secrets.insert(name.clone(), *secret);
                self.tell(Visible::Secret(name.clone())).await;
                done
            }
            (Subject::Secret(name), Plan::RemoveSecret) => {
                self.known.write().secrets.remove(name);
                self.tell(Visible::SecretRemoved(name.clone())).await;
                Done::Deleted
            }
            (Subject::Peer(kind, name), Plan::Number(id)) => {
                self.known.write().peers.entry(*kind).or_default().insert(name.clone(), id);
                Done::Peer(id)
            }
            // Plans are made from their subjects.
            (_, plan) => unreachable!("{plan:?} for {subject:?}"),
        }
    }

    /// What is known of a name is this from now on. Changes of one name follow each other.
    async fn set(&mut self, name: &FunctionName, after: Option<Function>) {
        let before = self.known.read().functions.get(name).cloned();
        let news = news(before.as_ref(), after.as_ref());
        match after {
            Some(function) => self.known.write().functions.insert(name.clone(), function),
            None => self.known.write().functions.remove(name),
        };
        for visible in news {
            self.tell(visible).await;
        }
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
        let store = self.store.clone();
        self.under_way.push(Box::pin(async move {
            let mut pause = REREAD_BACKOFF_MIN;
            loop {
                match kept(&*store, &subject).await {
                    Err(ControlPlaneError::Store(error)) if !matches!(error, StoreError::Closed) => {
                        tracing::warn!(%error, key = subject.key(), "cannot read it again yet");
                        tokio::time::sleep(pause).await;
                        pause = Duration::min(pause * 2, REREAD_BACKOFF_MAX);
                    }
                    kept => return Finished::Reread { subject, kept },
                }
            }
        }));
    }

    /// Brings what is known in line with what is kept.
    async fn correct(&mut self, subject: &Subject, kept: Kept) {
        match (subject, kept) {
            (Subject::Peer(kind, name), Kept::Peer(id)) => {
                if let Some(id) = id {
                    self.known.write().peers.entry(*kind).or_default().insert(name.clone(), id);
                }
            }
            (Subject::Secret(name), Kept::Secret(secret)) => {
                match secret {
                    Some(secret) => self.known.write().secrets.insert(name.clone(), *secret),
                    None => self.known.write().secrets.remove(name),
                };
                self.tell(Visible::Secret(name.clone())).await;
            }
            (Subject::Function(name), Kept::Function(function)) => {
                self.set(name, function.map(|function| *function)).await;
            }
            (subject, _) => unreachable!("something else is kept of {subject:?}"),
        }
    }
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
