//! A slot in use.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use fanfare_dispatch::Outcome;
use fanfare_types::{FunctionId, Timestamp};

use crate::clock;
use crate::core::Core;
use crate::function::{Function, Place, Slot};
use crate::progress::Progress;
use crate::records::Entry;
use crate::trail;
use crate::upstream::Connection;

/// A slot with a request in it. Ends exactly once: by [`Lease::complete`] or [`Lease::fail`], or, where neither came,
/// as the last owner drops it. That is a client that left: the sandbox is condemned if user code may have begun, unless
/// [`crate::proof`] finds that it has ended.
pub(crate) struct Lease {
    core: Rc<Core>,
    function: Arc<Function>,
    pub(crate) slot: Slot,
    /// When the request's time is over.
    pub(crate) deadline: Timestamp,
    /// Where its silence is limited.
    pub(crate) progress: Option<Arc<Progress>>,
    /// There may be other requests in the sandbox.
    shared: bool,
    /// Nobody waits for the answer any more.
    proving: Cell<bool>,
    sent: Cell<bool>,
    borrowed: Cell<bool>,
    ended: Cell<Option<(Outcome, Timestamp)>>,
    /// What is remembered of the request, once its answer has begun.
    entry: RefCell<Option<Entry>>,
}

impl Lease {
    pub(crate) fn new(core: Rc<Core>, function: Arc<Function>, slot: Slot, place: &Place) -> Self {
        Lease {
            core,
            function,
            slot,
            deadline: place.deadline,
            progress: place.idle.map(|limit| Arc::new(Progress::new(limit))),
            shared: place.shared,
            proving: Cell::new(false),
            sent: Cell::new(false),
            borrowed: Cell::new(false),
            ended: Cell::new(None),
            entry: RefCell::new(None),
        }
    }

    /// Whose request it is.
    pub(crate) fn function(&self) -> FunctionId {
        self.function.id
    }

    /// An idle connection to the sandbox; `None` when one has to be made. Either counts as the slot's connection.
    pub(crate) fn connection(&self, now: Timestamp) -> Option<Connection> {
        if self.borrowed.replace(true) {
            // The one before it did not work.
            self.slot.upstream.give_back(self.core.index, None, now);
        }
        self.slot.upstream.lend(self.core.index, now)
    }

    /// From here on user code may run.
    pub(crate) fn sending(&self) {
        self.sent.set(true);
        if let Some(progress) = &self.progress {
            progress.touch();
        }
    }

    /// After all nothing was sent.
    pub(crate) fn unsent(&self) {
        self.sent.set(false);
    }

    /// The response is here completely; with the connection if it can be used again.
    pub(crate) fn complete(&self, connection: Option<Connection>) {
        let outcome = match connection {
            _ if self.proving.get() => Outcome::Proven,
            Some(_) => Outcome::Clean,
            None => Outcome::KeepAliveBroken,
        };
        self.end(outcome, connection);
    }

    /// There will be no (more of the) response. While it is being found out whether user code has ended, nothing
    /// follows from that yet.
    pub(crate) fn fail(&self, outcome: Outcome) {
        if !self.proving.get() {
            self.end(outcome, None);
        }
    }

    /// Nobody waits for the (rest of the) answer any more. Whether it should be found out if user code has ended: not
    /// where it has the sandbox to itself, which is killed and replaced sooner than that.
    pub(crate) fn begin_proof(&self) -> bool {
        let worth = self.shared
            && self.sent.get()
            && self.ended.get().is_none()
            && self.slot.upstream.gone().is_none();
        worth && !self.proving.replace(true)
    }

    /// It has not, within the time it was given.
    pub(crate) fn unproven(&self) {
        let late = clock::now() >= self.deadline;
        self.end(if late { Outcome::TimedOut } else { Outcome::Abandoned }, None);
    }

    /// The request's answer has begun: what is remembered of it ends with the lease.
    pub(crate) fn carry(&self, entry: Entry) {
        match self.ended.get() {
            Some((outcome, at)) => self.remember(entry, outcome, at),
            None => drop(self.entry.replace(Some(entry))),
        }
    }

    fn remember(&self, entry: Entry, outcome: Outcome, at: Timestamp) {
        let gone = self.slot.upstream.gone().map(|cause| cause.exit.reason());
        trail::settle(&self.core, entry, outcome, gone, at);
    }

    /// The core that it belongs to.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    fn end(&self, outcome: Outcome, connection: Option<Connection>) {
        if self.ended.get().is_some() {
            return;
        }
        let now = clock::now();
        self.ended.set(Some((outcome, now)));
        if let Some(entry) = self.entry.take() {
            self.remember(entry, outcome, now);
        }
        // The connection first, so that it is there for whoever gets the slot.
        if self.borrowed.take() {
            self.slot.upstream.give_back(self.core.index, connection, now);
        }
        self.function.finish(&self.core.shared, &self.slot, outcome, now);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let outcome = if self.sent.get() { Outcome::Abandoned } else { Outcome::NeverSent };
        self.end(outcome, None);
    }
}
