//! What is kept of revisions on disk and in memory, and when it goes.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use fanfare_roster::Order;
use fanfare_types::{
    CodeDigest, FunctionId, RevisionId, RevisionSpec, SecretName, SecretValue, StartFailureKind,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::daemon::{Daemon, Event};
use crate::failure;
use crate::node::Marked;

/// A request to remove a code directory, which waits for the runtimes to let go of it.
#[derive(Debug)]
pub(crate) struct Eviction {
    waits_for: BTreeSet<RevisionId>,
    reply: oneshot::Sender<bool>,
}

impl Daemon {
    pub(crate) fn prepare(&self, runtime: usize, spec: Arc<RevisionSpec>, note: bool) {
        let runtime = self.runtimes.0[runtime].clone();
        let mark = self.mark(note, spec.id, spec.code);
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

    pub(crate) fn forget(&self, runtime: usize, revision: RevisionId, noted: bool) {
        let runtime = self.runtimes.0[runtime].clone();
        let unmark = noted.then(|| self.marks.removal(revision));
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

    /// Hands values on to the runtime that has sandboxes of the revision, or is to make them.
    pub(crate) fn take_secrets(&mut self, revision: RevisionId, values: Vec<(SecretName, SecretValue)>) {
        let Some(runtime) = self.roster.runtime_of(revision) else {
            return tracing::debug!(%revision, "was told of secrets of a revision that is not wanted here");
        };
        self.secrets.insert(revision, values.clone());
        self.runtimes.0[runtime].secrets(revision, values);
    }

    /// A revision that is neither in use nor known to the stream needs no secrets.
    pub(crate) fn drop_secrets(&mut self, revision: RevisionId) {
        let wanted = self.roster.uses(revision) || self.roster.told(revision).is_some();
        if !wanted && self.secrets.remove(&revision).is_some() {
            self.runtimes.0.iter().for_each(|runtime| runtime.secrets(revision, Vec::new()));
        }
    }

    /// A new stream begins: what it does not tell of, and nothing uses, is not wanted.
    pub(crate) fn begin_anew(&mut self) {
        self.roster.begin_stream();
        let told: Vec<_> = self.secrets.keys().copied().collect();
        told.into_iter().for_each(|revision| self.drop_secrets(revision));
    }

    /// The runtime has forgotten a revision, and nothing has begun with it again yet.
    pub(crate) fn forgotten(&mut self, revision: RevisionId) {
        self.drop_secrets(revision);
        if let (Some(values), Some(_)) = (self.secrets.get(&revision), self.roster.told(revision))
            && let Some(runtime) = self.roster.runtime_of(revision)
        {
            // They were forgotten with the rest, and will not be told again.
            self.runtimes.0[runtime].secrets(revision, values.clone());
        }
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
    pub(crate) fn evict(&mut self, code: CodeDigest, reply: oneshot::Sender<bool>, orders: &mut Vec<Order>) {
        match self.roster.let_go(code, orders) {
            Some(waits_for) if !waits_for.is_empty() => self.evictions.push(Eviction { waits_for, reply }),
            // In use, or nothing is held of it. The asker may have given up.
            held => drop(reply.send(held.is_some())),
        }
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

    pub(crate) fn add(&self, revision: RevisionId, code: CodeDigest) -> BoxFuture<'static, ()> {
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
