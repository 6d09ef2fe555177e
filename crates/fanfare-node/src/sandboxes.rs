//! Sandboxes from their order to their end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use fanfare_sandbox::{SandboxExit, Started};
use fanfare_types::{
    ExitCause, FromNode, GoneCause, RevisionId, RevisionSpec, SandboxId, SandboxRecord, StartFailure,
    StartFailureKind, StopMode,
};
use futures_util::FutureExt;

use crate::daemon::{Daemon, Event};
use crate::failure;
use crate::node::Marked;

/// Creations that may wait: more than a control plane with reservations can order.
const CREATIONS_QUEUED_MAX: usize = 65_536;
/// Sandboxes that are being stopped at once; more wait in order.
const STOPS_MAX: usize = 256;

/// One sandbox of this node.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) revision: RevisionId,
    /// The place of its runtime.
    runtime: usize,
    state: State,
    /// It was told to stop, so, after it had begun.
    stopping: Option<StopMode>,
}

#[derive(Debug)]
enum State {
    /// Not begun; whether a request waits for it.
    Queued {
        spec: Arc<RevisionSpec>,
        waited: bool,
    },
    /// Begun. Its end may be reported before its beginning is.
    Starting {
        ended: Option<SandboxExit>,
    },
    Ready(Arc<str>),
}

impl Sandbox {
    pub(crate) fn endpoint(&self) -> Option<Arc<str>> {
        match &self.state {
            State::Ready(endpoint) => Some(endpoint.clone()),
            State::Queued { .. } | State::Starting { .. } => None,
        }
    }
}

impl Sandbox {
    /// What it is to run, where it has not begun.
    fn queued(&mut self) -> Option<(&mut Self, Arc<RevisionSpec>)> {
        match &self.state {
            State::Queued { spec, .. } => {
                let spec = spec.clone();
                Some((self, spec))
            }
            State::Starting { .. } | State::Ready(_) => None,
        }
    }
}

impl Daemon {
    /// Takes over what the runtimes found, and forgets what else was remembered.
    pub(crate) fn adopt(&mut self, recovered: Vec<(usize, SandboxRecord)>, marked: Marked) {
        for (runtime, record) in recovered {
            let Some(endpoint) = record.endpoint else {
                tracing::warn!(sandbox = %record.sandbox, "a runtime recovered a sandbox that is not ready; ending it");
                tokio::spawn(self.runtimes.0[runtime].stop(record.sandbox, StopMode::Kill));
                continue;
            };
            self.use_revision(record.revision, runtime, marked.get(&record.revision).copied(), true);
            let sandbox =
                Sandbox { revision: record.revision, runtime, state: State::Ready(endpoint), stopping: None };
            self.sandboxes.insert(record.sandbox, sandbox);
        }
        for revision in marked.into_keys() {
            if !self.used.contains_key(&revision) {
                self.marks.remove(revision);
            }
        }
    }

    pub(crate) fn create(&mut self, id: SandboxId, revision: RevisionId, waited: bool) {
        if self.sandboxes.contains_key(&id) {
            tracing::warn!(sandbox = %id, "ordered again; it exists");
            return;
        }
        let refuse = |daemon: &mut Self, detail: String| {
            daemon.send(FromNode::Failed { sandbox: id, failure: failure(StartFailureKind::Node, detail) });
        };
        let Some(spec) = self.specs.get(&revision).cloned() else {
            return refuse(self, format!("the node was not told of revision {revision}"));
        };
        let Some(runtime) = self.runtimes.find(&spec.runtime) else {
            return refuse(self, format!("the node has no runtime {:?}", spec.runtime));
        };
        if self.creations.waiting() >= CREATIONS_QUEUED_MAX {
            return refuse(self, format!("{CREATIONS_QUEUED_MAX} creations wait on the node already"));
        }
        self.use_revision(revision, runtime, spec.code, false);
        let sandbox = Sandbox { revision, runtime, state: State::Queued { spec, waited }, stopping: None };
        self.sandboxes.insert(id, sandbox);
        self.queue_creation(id);
        self.begin_creations();
    }

    /// A request waits for it by now.
    pub(crate) fn hasten(&mut self, id: SandboxId) {
        if let Some(Sandbox { revision, state: State::Queued { waited, .. }, .. }) =
            self.sandboxes.get_mut(&id)
        {
            *waited = true;
            self.creations.hasten(id, revision.function);
            self.begin_creations();
        }
    }

    /// Has it wait for its turn, unless it has been cancelled.
    pub(crate) fn queue_creation(&mut self, id: SandboxId) {
        if let Some(Sandbox { revision, state: State::Queued { waited, .. }, .. }) = self.sandboxes.get(&id) {
            self.creations.push(id, revision.function, *waited);
        }
    }

    pub(crate) fn begin_creations(&mut self) {
        while let Some(id) = self.creations.next() {
            let sandbox = self.sandboxes.get_mut(&id);
            let Some((sandbox, spec)) = sandbox.and_then(Sandbox::queued) else {
                self.creations.ended(id);
                continue;
            };
            if self.used.get_mut(&sandbox.revision).is_some_and(|used| used.park(id)) {
                self.creations.ended(id);
                continue;
            }
            sandbox.state = State::Starting { ended: None };
            let runtime = self.runtimes.0[sandbox.runtime].clone();
            let mark = self.mark(&spec);
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
    }

    pub(crate) fn created(&mut self, id: SandboxId, result: Result<Started, StartFailure>) {
        self.creations.ended(id);
        self.begin_creations();
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        let stopping = sandbox.stopping.is_some();
        let State::Starting { ended } = &mut sandbox.state else { return };
        match (result, ended.take()) {
            (Ok(mut started), None) => {
                let protocol = self.specs.get(&sandbox.revision).map(|spec| spec.contract.protocol());
                started.endpoint = protocol.unwrap_or_default().at(started.endpoint);
                sandbox.state = State::Ready(started.endpoint.clone());
                if let Some(mode) = sandbox.stopping {
                    // The order met a runtime that did not know of it yet, or came too late to keep it from starting.
                    self.stops.push_back((id, mode));
                    self.begin_stops();
                } else {
                    let (endpoint, stages) = (started.endpoint, started.stages);
                    self.send(FromNode::Ready { sandbox: id, endpoint, stages });
                }
            }
            (Ok(_), Some(exit)) if stopping => self.end(id, exit.cause, &exit.log_tail),
            (Ok(_), Some(exit)) => {
                // It came up and went down at once: for whoever waits, it never was.
                self.remove(id);
                let kind = StartFailureKind::Exited(exit.cause);
                let detail = format!("the sandbox {} as soon as it was ready", exit.cause);
                let failure = StartFailure { log_tail: exit.log_tail, ..failure(kind, detail) };
                self.send(FromNode::Failed { sandbox: id, failure });
            }
            (Err(failure), _) if stopping => self.end(id, ExitCause::Stopped, &failure.log_tail),
            (Err(failure), _) => {
                self.remove(id);
                self.send(FromNode::Failed { sandbox: id, failure });
            }
        }
    }

    pub(crate) fn exited(&mut self, exit: SandboxExit) {
        let Some(sandbox) = self.sandboxes.get_mut(&exit.sandbox) else { return };
        match &mut sandbox.state {
            State::Starting { ended } => *ended = Some(exit),
            State::Ready(_) => self.end(exit.sandbox, exit.cause, &exit.log_tail),
            State::Queued { .. } => {
                tracing::error!(sandbox = %exit.sandbox, "a runtime reported the end of what was not begun");
            }
        }
    }

    pub(crate) fn stop(&mut self, id: SandboxId, mode: StopMode) {
        match self.sandboxes.get_mut(&id) {
            None => self.send_exited(id, ExitCause::Stopped, ""),
            Some(Sandbox { revision, state: State::Queued { .. }, .. }) => {
                self.creations.cancel(id, revision.function);
                self.end(id, ExitCause::Stopped, "");
            }
            Some(_) if mode == StopMode::IfNotBegun => {}
            // Under way; its end will be told.
            Some(sandbox) if sandbox.stopping == Some(mode) || sandbox.stopping == Some(StopMode::Kill) => {}
            Some(sandbox) => {
                sandbox.stopping = Some(mode);
                self.stops.push_back((id, mode));
                self.begin_stops();
            }
        }
    }

    fn begin_stops(&mut self) {
        while self.stopping < STOPS_MAX {
            let Some((id, mode)) = self.stops.pop_front() else { return };
            let Some(sandbox) = self.sandboxes.get(&id) else { continue };
            self.stopping += 1;
            let runtime = self.runtimes.0[sandbox.runtime].clone();
            let events = self.events.clone();
            tokio::spawn(async move {
                if AssertUnwindSafe(runtime.stop(id, mode)).catch_unwind().await.is_err() {
                    tracing::error!(sandbox = %id, "the runtime panicked while it stopped a sandbox");
                }
                let _ = events.send(Event::Stopped(id));
            });
        }
    }

    pub(crate) fn stopped(&mut self, id: SandboxId) {
        self.stopping -= 1;
        self.begin_stops();
        // The runtime reports an end before it says that the stop is done, and a start by its failure. What is still
        // here as ready, the runtime does not know.
        if let Some(Sandbox { state: State::Ready(_), .. }) = self.sandboxes.get(&id) {
            self.end(id, ExitCause::Stopped, "");
        }
    }

    /// Nothing of it is left.
    fn end(&mut self, id: SandboxId, exit: ExitCause, log_tail: &str) {
        self.remove(id);
        self.send_exited(id, exit, log_tail);
    }

    fn send_exited(&mut self, sandbox: SandboxId, exit: ExitCause, log_tail: &str) {
        let cause = GoneCause { exit, log_tail: log_tail.into() };
        self.send(FromNode::Exited { sandbox, cause });
    }

    fn remove(&mut self, id: SandboxId) {
        if let Some(sandbox) = self.sandboxes.remove(&id) {
            self.release_revision(sandbox.revision);
        }
    }
}
