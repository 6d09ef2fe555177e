//! What the roster orders, done.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use fanfare_roster::Order;
use fanfare_types::{
    CodeDigest, RevisionId, RevisionSpec, SandboxId, SandboxRecord, StartFailureKind, StopMode,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::daemon::{Daemon, Event};
use crate::failure;
use crate::node::Marked;

impl Daemon {
    /// Takes over what the runtimes found, and forgets what else was remembered.
    pub(crate) fn adopt(&mut self, recovered: Vec<(usize, SandboxRecord)>, marked: Marked) {
        for (runtime, record) in recovered {
            if record.endpoint.is_none() {
                tracing::warn!(sandbox = %record.sandbox, "a runtime recovered a sandbox that is not ready; ending it");
                tokio::spawn(self.runtimes.0[runtime].stop(record.sandbox, StopMode::Kill));
                continue;
            }
            let code = marked.get(&record.revision).copied();
            self.roster.adopt(runtime, record, code);
        }
        for revision in marked.into_keys() {
            if !self.roster.uses(revision) {
                self.marks.remove(revision);
            }
        }
    }

    pub(crate) fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Say(message) => self.send(message),
                Order::Create { runtime, sandbox, spec, note } => self.create(runtime, sandbox, spec, note),
                Order::Stop { runtime, sandbox, mode } => self.stop(runtime, sandbox, mode),
                Order::Prepare { runtime, spec, note } => self.prepare(runtime, spec, note),
                Order::Forget { runtime, revision, noted } => self.forget(runtime, revision, noted),
                Order::Deleted(function) => self.logs.deleted(function),
                Order::Odd { sandbox, what } => tracing::warn!(%sandbox, what),
            }
        }
    }

    /// Notes on disk which code a revision uses, before its first sandbox exists: a later daemon that finds the
    /// sandbox must know what not to remove.
    pub(crate) fn mark(
        &self,
        note: bool,
        revision: RevisionId,
        code: Option<CodeDigest>,
    ) -> BoxFuture<'static, ()> {
        match code.filter(|_| note) {
            Some(code) => self.marks.add(revision, code),
            None => std::future::ready(()).boxed(),
        }
    }

    fn create(&self, runtime: usize, id: SandboxId, spec: Arc<RevisionSpec>, note: bool) {
        let runtime = self.runtimes.0[runtime].clone();
        let mark = self.mark(note, spec.id, spec.code);
        let events = self.events.clone();
        tokio::spawn(async move {
            mark.await;
            let created = AssertUnwindSafe(runtime.create(id, spec)).catch_unwind().await;
            let result = match created {
                Ok(result) => result,
                Err(_) => {
                    runtime.stop(id, StopMode::Kill).await;
                    Err(failure(StartFailureKind::Node, "the runtime panicked".into()))
                }
            };
            // Nobody listens any more only after the daemon has ended.
            let _ = events.send(Event::Created { sandbox: id, result });
        });
    }

    fn stop(&self, runtime: usize, id: SandboxId, mode: StopMode) {
        let runtime = self.runtimes.0[runtime].clone();
        let events = self.events.clone();
        tokio::spawn(async move {
            if AssertUnwindSafe(runtime.stop(id, mode)).catch_unwind().await.is_err() {
                tracing::error!(sandbox = %id, "the runtime panicked while it stopped a sandbox");
            }
            let _ = events.send(Event::Stopped(id));
        });
    }
}
