//! A request's record while it is made: it ends exactly once.

use std::rc::Rc;

use fanfare_dispatch::Outcome;
use fanfare_types::{Reason, RequestEnd, Timestamp};
use http::{HeaderValue, StatusCode};

use crate::clock;
use crate::core::Core;
use crate::function::{Place, Slot};
use crate::problem::Problem;
use crate::records::{Entry, Given};
use crate::trace::Trace;

/// Follows a request up to the head of its answer. One that is dropped before has lost its client.
pub(crate) struct Trail {
    core: Rc<Core>,
    entry: Option<Entry>,
}

impl Trail {
    pub(crate) fn new(core: Rc<Core>, id: &HeaderValue, accepted: Timestamp) -> Self {
        Trail { core, entry: Some(Entry::new(id.as_bytes(), accepted)) }
    }

    /// It is an attempt of an asynchronous invocation, by whose name it is found, too.
    pub(crate) fn attempt_of(&mut self, invocation: Option<Box<[u8]>>) {
        if let Some(entry) = &mut self.entry {
            entry.invocation = invocation;
        }
    }

    /// It arrived at a function.
    pub(crate) fn arrived(&mut self, function: fanfare_types::FunctionId, place: &Place) {
        if let Some(entry) = &mut self.entry {
            entry.function = Some(function);
            entry.ahead = place.ahead;
            entry.in_flight = place.in_flight;
            entry.balance = place.balance;
        }
    }

    /// It has its place in a trace.
    pub(crate) fn traced(&mut self, trace: Option<Box<Trace>>) {
        if let Some(entry) = &mut self.entry {
            entry.trace = trace;
        }
    }

    /// It was given a slot.
    pub(crate) fn given(&mut self, slot: &Slot) {
        if let Some(entry) = &mut self.entry {
            entry.attempts += 1;
            entry.slot = Some(Given {
                sandbox: slot.upstream.sandbox,
                node: slot.upstream.node,
                revision: slot.upstream.revision,
                why: slot.why,
                at: slot.at,
                stages: slot.stages.clone(),
            });
        }
    }

    /// The head of its answer is there; who passes on the rest takes the record over.
    pub(crate) fn answered(&mut self, status: StatusCode, at: Timestamp) -> Option<Entry> {
        let mut entry = self.entry.take()?;
        entry.answered = Some(at);
        entry.status = status.as_u16();
        Some(entry)
    }

    /// The platform answers with a problem.
    pub(crate) fn refused(&mut self, problem: &Problem, function: Option<fanfare_types::FunctionId>) {
        if let Some(mut entry) = self.entry.take() {
            entry.function = entry.function.or(function);
            entry.status = problem.status();
            entry.blame(problem.reason, problem.detail());
            end(&self.core, entry, RequestEnd::Refused, clock::now());
        }
    }

    /// Nothing to remember: somebody else does, or it was no request for a function.
    pub(crate) fn forget(&mut self) {
        self.entry = None;
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            end(&self.core, entry, RequestEnd::ClientLeft, clock::now());
        }
    }
}

/// Remembers a request whose answer had begun and whose slot ended so.
pub(crate) fn settle(core: &Core, mut entry: Entry, outcome: Outcome, gone: Option<Reason>, at: Timestamp) {
    let how = match outcome {
        Outcome::Clean | Outcome::KeepAliveBroken => RequestEnd::Answered,
        Outcome::NeverSent | Outcome::Proven | Outcome::Abandoned => RequestEnd::ClientLeft,
        Outcome::TimedOut => {
            entry.blame(Reason::RequestTimeout, "its time ran out in the middle of the answer");
            RequestEnd::Cut
        }
        Outcome::Broken => {
            entry.blame(gone.unwrap_or(Reason::ConnectionClosed), "the answer broke off in its middle");
            RequestEnd::Cut
        }
    };
    end(core, entry, how, at);
}

fn end(core: &Core, mut entry: Entry, how: RequestEnd, at: Timestamp) {
    entry.end = how;
    entry.ended = at;
    if let (Some(tracer), Some(trace)) = (&core.shared.tracer, entry.trace.take()) {
        tracer.export(&entry, &trace);
    }
    core.shared.records.push(core.index, entry);
}
