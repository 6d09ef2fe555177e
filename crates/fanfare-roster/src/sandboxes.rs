//! Sandboxes from their order to their end.

use std::sync::Arc;

use fanfare_types::{
    ExitCause, FromNode, GoneCause, RevisionId, RevisionSpec, SandboxId, Stages, StartFailure,
    StartFailureKind, StopMode,
};

use crate::roster::failure;
use crate::{CREATIONS_QUEUED_MAX, Order, Roster, STOPS_MAX};

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
        ended: Option<(ExitCause, String)>,
    },
    Ready(Arc<str>),
}

impl Sandbox {
    pub(crate) fn ready(revision: RevisionId, runtime: usize, endpoint: Arc<str>) -> Self {
        Sandbox { revision, runtime, state: State::Ready(endpoint), stopping: None }
    }

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

impl Roster {
    pub(crate) fn create(&mut self, id: SandboxId, revision: RevisionId, waited: bool, out: &mut Vec<Order>) {
        if self.sandboxes.contains_key(&id) {
            out.push(Order::Odd { sandbox: id, what: "ordered again; it exists" });
            return;
        }
        let mut refuse = |detail: String| {
            let failure = failure(StartFailureKind::Node, detail);
            out.push(Order::Say(FromNode::Failed { sandbox: id, failure }));
        };
        let Some(spec) = self.specs.get(&revision).cloned() else {
            return refuse(format!("the node was not told of revision {revision}"));
        };
        let Some(runtime) = self.find(&spec.runtime) else {
            return refuse(format!("the node has no runtime {:?}", spec.runtime));
        };
        if self.creations.waiting() >= CREATIONS_QUEUED_MAX {
            return refuse(format!("{CREATIONS_QUEUED_MAX} creations wait on the node already"));
        }
        self.use_revision(revision, runtime, spec.code, false);
        let sandbox = Sandbox { revision, runtime, state: State::Queued { spec, waited }, stopping: None };
        self.sandboxes.insert(id, sandbox);
        self.queue_creation(id);
        self.begin_creations(out);
    }

    /// A request waits for it by now.
    pub(crate) fn hasten(&mut self, id: SandboxId, out: &mut Vec<Order>) {
        if let Some(Sandbox { revision, state: State::Queued { waited, .. }, .. }) =
            self.sandboxes.get_mut(&id)
        {
            *waited = true;
            self.creations.hasten(id, revision.function);
            self.begin_creations(out);
        }
    }

    /// Has it wait for its turn, unless it has been cancelled.
    pub(crate) fn queue_creation(&mut self, id: SandboxId) {
        if let Some(Sandbox { revision, state: State::Queued { waited, .. }, .. }) = self.sandboxes.get(&id) {
            self.creations.push(id, revision.function, *waited);
        }
    }

    pub(crate) fn begin_creations(&mut self, out: &mut Vec<Order>) {
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
            let runtime = sandbox.runtime;
            let note = self.note(&spec);
            out.push(Order::Create { runtime, sandbox: id, spec, note });
        }
    }

    /// A creation has ended: with where the sandbox is reached and where the time went, or with a failure, and then
    /// nothing of it is left.
    pub fn created(
        &mut self,
        id: SandboxId,
        result: Result<(Arc<str>, Stages), StartFailure>,
        out: &mut Vec<Order>,
    ) {
        self.creations.ended(id);
        self.begin_creations(out);
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        let stopping = sandbox.stopping.is_some();
        let State::Starting { ended } = &mut sandbox.state else { return };
        match (result, ended.take()) {
            (Ok((address, stages)), None) => {
                let protocol = self.specs.get(&sandbox.revision).map(|spec| spec.contract.protocol());
                let endpoint = protocol.unwrap_or_default().at(address);
                sandbox.state = State::Ready(endpoint.clone());
                if let Some(mode) = sandbox.stopping {
                    // The order met a runtime that did not know of it yet, or came too late to keep it from starting.
                    self.stops.push_back((id, mode));
                    self.begin_stops(out);
                } else {
                    out.push(Order::Say(FromNode::Ready { sandbox: id, endpoint, stages }));
                }
            }
            (Ok(_), Some((cause, log_tail))) if stopping => self.end(id, cause, &log_tail, out),
            (Ok(_), Some((cause, log_tail))) => {
                // It came up and went down at once: for whoever waits, it never was.
                self.remove(id, out);
                let kind = StartFailureKind::Exited(cause);
                let detail = format!("the sandbox {cause} as soon as it was ready");
                let failure = StartFailure { log_tail, ..failure(kind, detail) };
                out.push(Order::Say(FromNode::Failed { sandbox: id, failure }));
            }
            (Err(failure), _) if stopping => self.end(id, ExitCause::Stopped, &failure.log_tail, out),
            (Err(failure), _) => {
                self.remove(id, out);
                out.push(Order::Say(FromNode::Failed { sandbox: id, failure }));
            }
        }
    }

    /// A sandbox has ended, whatever ended it.
    pub fn exited(&mut self, id: SandboxId, cause: ExitCause, log_tail: String, out: &mut Vec<Order>) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        match &mut sandbox.state {
            State::Starting { ended } => *ended = Some((cause, log_tail)),
            State::Ready(_) => self.end(id, cause, &log_tail, out),
            State::Queued { .. } => {
                let what = "a runtime reported the end of what was not begun";
                out.push(Order::Odd { sandbox: id, what });
            }
        }
    }

    pub(crate) fn stop(&mut self, id: SandboxId, mode: StopMode, out: &mut Vec<Order>) {
        match self.sandboxes.get_mut(&id) {
            None => say_exited(id, ExitCause::Stopped, "", out),
            Some(Sandbox { revision, state: State::Queued { .. }, .. }) => {
                self.creations.cancel(id, revision.function);
                self.end(id, ExitCause::Stopped, "", out);
            }
            Some(_) if mode == StopMode::IfNotBegun => {}
            // Under way; its end will be told.
            Some(sandbox) if sandbox.stopping == Some(mode) || sandbox.stopping == Some(StopMode::Kill) => {}
            Some(sandbox) => {
                sandbox.stopping = Some(mode);
                self.stops.push_back((id, mode));
                self.begin_stops(out);
            }
        }
    }

    fn begin_stops(&mut self, out: &mut Vec<Order>) {
        while self.stopping < STOPS_MAX {
            let Some((id, mode)) = self.stops.pop_front() else { return };
            let Some(sandbox) = self.sandboxes.get(&id) else { continue };
            self.stopping += 1;
            out.push(Order::Stop { runtime: sandbox.runtime, sandbox: id, mode });
        }
    }

    /// An order to stop has been carried out.
    pub fn stopped(&mut self, id: SandboxId, out: &mut Vec<Order>) {
        self.stopping -= 1;
        self.begin_stops(out);
        // The runtime reports an end before it says that the stop is done, and a start by its failure. What is still
        // here as ready, the runtime does not know.
        if let Some(Sandbox { state: State::Ready(_), .. }) = self.sandboxes.get(&id) {
            self.end(id, ExitCause::Stopped, "", out);
        }
    }

    /// Nothing of it is left.
    fn end(&mut self, id: SandboxId, exit: ExitCause, log_tail: &str, out: &mut Vec<Order>) {
        self.remove(id, out);
        say_exited(id, exit, log_tail, out);
    }

    fn remove(&mut self, id: SandboxId, out: &mut Vec<Order>) {
        if let Some(sandbox) = self.sandboxes.remove(&id) {
            self.release_revision(sandbox.revision, out);
        }
    }
}

fn say_exited(sandbox: SandboxId, exit: ExitCause, log_tail: &str, out: &mut Vec<Order>) {
    let cause = GoneCause { exit, log_tail: log_tail.into() };
    out.push(Order::Say(FromNode::Exited { sandbox, cause }));
}
