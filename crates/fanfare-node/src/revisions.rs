//! Revisions from their first use to the last trace of them.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use fanfare_types::{
    CodeDigest, FromNode, FunctionId, RevisionId, RevisionSpec, SandboxId, SecretName, SecretValue,
    StartFailure, StartFailureKind,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::daemon::{Daemon, Event};
use crate::failure;
use crate::node::Marked;

/// Revisions that are made ready at once; more wait in order. Few: installing dependencies is heavy.
const PREPARES_MAX: usize = 4;

/// A revision that a runtime may keep something for.
#[derive(Debug)]
pub(crate) struct Used {
    runtime: usize,
    code: Option<CodeDigest>,
    /// Sandboxes, those not begun included, and whether it is being made ready.
    uses: usize,
    preparing: bool,
    /// Its code is noted on disk.
    marked: bool,
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

/// A request to remove a code directory, which waits for the runtimes to let go of it.
#[derive(Debug)]
pub(crate) struct Eviction {
    waits_for: HashSet<RevisionId>,
    reply: oneshot::Sender<bool>,
}

impl Daemon {
    pub(crate) fn use_revision(
        &mut self,
        revision: RevisionId,
        runtime: usize,
        code: Option<CodeDigest>,
        marked: bool,
    ) {
        let new = || Used { runtime, code, uses: 0, preparing: false, marked, forgetting: None };
        self.used.entry(revision).or_insert_with(new).uses += 1;
    }

    pub(crate) fn release_revision(&mut self, revision: RevisionId) {
        if let Some(used) = self.used.get_mut(&revision) {
            used.uses -= 1;
        }
        self.forget_if_unwanted(revision);
    }

    /// Notes on disk which code a revision uses, before its first sandbox exists: a later daemon that finds the
    /// sandbox must know what not to remove.
    pub(crate) fn mark(&mut self, spec: &RevisionSpec) -> BoxFuture<'static, ()> {
        let used = self.used.get_mut(&spec.id).filter(|used| !used.marked);
        match (used, spec.code) {
            (Some(used), Some(code)) => {
                used.marked = true;
                self.marks.add(spec.id, code)
            }
            _ => std::future::ready(()).boxed(),
        }
    }

    pub(crate) fn prepare(&mut self, revision: RevisionId) {
        let refuse = |daemon: &mut Self, detail: String| {
            let failure = Some(failure(StartFailureKind::Node, detail));
            daemon.send(FromNode::Prepared { revision, failure });
        };
        let Some(spec) = self.specs.get(&revision).cloned() else {
            return refuse(self, format!("the node was not told of revision {revision}"));
        };
        let Some(runtime) = self.runtimes.find(&spec.runtime) else {
            return refuse(self, format!("the node has no runtime {:?}", spec.runtime));
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
        self.begin_prepares();
    }

    fn begin_prepares(&mut self) {
        while self.preparing < PREPARES_MAX {
            let Some(spec) = self.prepares.pop_front() else { return };
            let Some(used) = self.used.get_mut(&spec.id) else { continue };
            if let Some(parked) = &mut used.forgetting {
                parked.push(Parked::Prepare(spec));
                continue;
            }
            self.preparing += 1;
            let runtime = self.runtimes.0[used.runtime].clone();
            let mark = self.mark(&spec);
            let events = self.events.clone();
            let revision = spec.id;
            tokio::spawn(async move {
                mark.await;
                let prepared = AssertUnwindSafe(runtime.prepare(spec)).catch_unwind().await;
                let panicked = |_| Err(failure(StartFailureKind::Node, "the runtime panicked".into()));
                let result = prepared.unwrap_or_else(panicked);
                let _ = events.send(Event::Prepared { revision, result });
            });
        }
    }

    pub(crate) fn prepared(&mut self, revision: RevisionId, result: Result<(), StartFailure>) {
        self.preparing -= 1;
        if let Some(used) = self.used.get_mut(&revision) {
            used.preparing = false;
        }
        self.send(FromNode::Prepared { revision, failure: result.err() });
        self.begin_prepares();
        self.release_revision(revision);
    }

    /// Hands values on to the runtime that has sandboxes of the revision, or is to make them.
    pub(crate) fn take_secrets(&mut self, revision: RevisionId, values: Vec<(SecretName, SecretValue)>) {
        let used = self.used.get(&revision).map(|used| used.runtime);
        let told = || self.specs.get(&revision).and_then(|spec| self.runtimes.find(&spec.runtime));
        let Some(runtime) = used.or_else(told) else {
            return tracing::debug!(%revision, "was told of secrets of a revision that is not wanted here");
        };
        self.secrets.insert(revision, values.clone());
        self.runtimes.0[runtime].secrets(revision, values);
    }

    /// A revision that is neither in use nor known to the stream needs no secrets.
    fn drop_secrets(&mut self, revision: RevisionId) {
        let wanted = self.used.contains_key(&revision) || self.specs.contains_key(&revision);
        if !wanted && self.secrets.remove(&revision).is_some() {
            self.runtimes.0.iter().for_each(|runtime| runtime.secrets(revision, Vec::new()));
        }
    }

    /// A new stream begins: what it does not tell of, and nothing uses, is not wanted.
    pub(crate) fn begin_anew(&mut self) {
        self.specs.clear();
        let told: Vec<_> = self.secrets.keys().copied().collect();
        told.into_iter().for_each(|revision| self.drop_secrets(revision));
    }

    pub(crate) fn removed(&mut self, revision: RevisionId) {
        self.specs.remove(&revision);
        self.drop_secrets(revision);
        if !self.specs.keys().any(|other| other.function == revision.function) {
            self.deleted.insert(revision.function);
        }
        self.forget_if_unwanted(revision);
        self.delete_if_unused(revision.function);
    }

    /// Nothing of a function that has no revision any more is left to write.
    fn delete_if_unused(&mut self, function: FunctionId) {
        if !self.used.keys().any(|used| used.function == function) && self.deleted.remove(&function) {
            self.logs.deleted(function);
        }
    }

    /// Nobody uses it, and this stream does not know it (any more): should it be wanted again, it will be told anew.
    fn forget_if_unwanted(&mut self, revision: RevisionId) {
        let unused = self.used.get(&revision).is_some_and(|used| used.uses == 0 && used.forgetting.is_none());
        if unused && !self.specs.contains_key(&revision) {
            self.forget(revision);
        }
    }

    fn forget(&mut self, revision: RevisionId) {
        let Some(used) = self.used.get_mut(&revision) else { return };
        used.forgetting = Some(Vec::new());
        let runtime = self.runtimes.0[used.runtime].clone();
        let unmark = used.marked.then(|| self.marks.removal(revision));
        let events = self.events.clone();
        tokio::spawn(async move {
            if AssertUnwindSafe(runtime.forget(revision)).catch_unwind().await.is_err() {
                tracing::error!(%revision, "the runtime panicked while it forgot a revision");
            }
            if let Some(unmark) = unmark {
                unmark.await;
            }
            let _ = events.send(Event::Forgotten(revision));
        });
    }

    pub(crate) fn forgotten(&mut self, revision: RevisionId) {
        let Some(used) = self.used.get_mut(&revision) else { return };
        used.marked = false;
        let parked = used.forgetting.take().unwrap_or_default();
        if used.uses == 0 {
            self.used.remove(&revision);
            self.delete_if_unused(revision.function);
            self.drop_secrets(revision);
        }
        if let (Some(values), Some(spec)) = (self.secrets.get(&revision), self.specs.get(&revision))
            && let Some(runtime) = self.runtimes.find(&spec.runtime)
        {
            // They were forgotten with the rest, and will not be told again.
            self.runtimes.0[runtime].secrets(revision, values.clone());
        }
        // Prepares in their old order, ahead of what came later.
        for work in parked.into_iter().rev() {
            match work {
                Parked::Create(sandbox) => self.queue_creation(sandbox),
                Parked::Prepare(spec) => self.prepares.push_front(spec),
            }
        }
        self.begin_creations();
        self.begin_prepares();
        let mut waiting = Vec::new();
        for mut eviction in std::mem::take(&mut self.evictions) {
            eviction.waits_for.remove(&revision);
            if eviction.waits_for.is_empty() {
                // The asker may have given up.
                let _ = eviction.reply.send(true);
            } else {
                waiting.push(eviction);
            }
        }
        self.evictions = waiting;
    }

    /// Agrees to the removal of a code directory once no runtime holds anything of it.
    pub(crate) fn evict(&mut self, code: CodeDigest, reply: oneshot::Sender<bool>) {
        let users: HashMap<_, _> = self.used.iter().filter(|(_, used)| used.code == Some(code)).collect();
        if users.values().any(|used| used.uses > 0) || users.is_empty() {
            let _ = reply.send(users.is_empty());
            return;
        }
        let not_yet: Vec<_> = users
            .iter()
            .filter(|(_, used)| used.forgetting.is_none())
            .map(|(revision, _)| **revision)
            .collect();
        let waits_for = users.into_keys().copied().collect();
        for revision in not_yet {
            self.forget(revision);
        }
        self.evictions.push(Eviction { waits_for, reply });
    }
}

/// Notes on disk: for each revision in use, the code it uses.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    dir: PathBuf,
}

impl Marks {
    /// Opens the directory, and reads what is noted there.
    pub(crate) fn open(dir: PathBuf) -> io::Result<(Self, Marked)> {
        fs::create_dir_all(&dir)?;
        let mut marked = Marked::new();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let code = fs::read_to_string(entry.path()).ok().and_then(|text| text.parse().ok());
            match (entry.file_name().to_str().and_then(parse), code) {
                (Some(revision), Some(code)) => {
                    marked.insert(revision, code);
                }
                // Half written when its writer ended.
                _ => fs::remove_file(entry.path())?,
            }
        }
        Ok((Marks { dir }, marked))
    }

    fn path(&self, revision: RevisionId) -> PathBuf {
        self.dir.join(format!("{}-{}", revision.function.0, revision.number))
    }

    fn add(&self, revision: RevisionId, code: CodeDigest) -> BoxFuture<'static, ()> {
        let path = self.path(revision);
        async move {
            if let Err(error) = tokio::fs::write(&path, code.to_string()).await {
                tracing::warn!(%revision, %error, "cannot note which code a revision uses");
            }
        }
        .boxed()
    }

    fn removal(&self, revision: RevisionId) -> BoxFuture<'static, ()> {
        let path = self.path(revision);
        async move {
            if let Err(error) = tokio::fs::remove_file(&path).await {
                tracing::warn!(%revision, %error, "cannot remove the note of a revision's code");
            }
        }
        .boxed()
    }

    /// Removes a note at start, when nothing else runs.
    pub(crate) fn remove(&self, revision: RevisionId) {
        if let Err(error) = fs::remove_file(self.path(revision)) {
            tracing::warn!(%revision, %error, "cannot remove the note of a revision's code");
        }
    }
}

fn parse(name: &str) -> Option<RevisionId> {
    let (function, number) = name.split_once('-')?;
    Some(RevisionId { function: FunctionId(function.parse().ok()?), number: number.parse().ok()? })
}
