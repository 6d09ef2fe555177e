//! A slot in use.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use fanfare_dispatch::Outcome;
use fanfare_types::{FunctionId, Timestamp};

use crate::clock;
use crate::core::Core;
use crate::function::{Function, Slot};
use crate::upstream::Connection;

/// A slot with a request in it. Ends exactly once: by [`Lease::complete`] or [`Lease::fail`], or, where neither came,
/// as the last owner drops it. That is a client that left: the sandbox is condemned if user code may have begun.
pub(crate) struct Lease {
    core: Rc<Core>,
    function: Arc<Function>,
    pub(crate) slot: Slot,
    /// When the request's time is over.
    pub(crate) deadline: Timestamp,
    sent: Cell<bool>,
    borrowed: Cell<bool>,
    ended: Cell<bool>,
}

impl Lease {
    pub(crate) fn new(core: Rc<Core>, function: Arc<Function>, slot: Slot, deadline: Timestamp) -> Self {
        let (sent, borrowed, ended) = (Cell::new(false), Cell::new(false), Cell::new(false));
        Lease { core, function, slot, deadline, sent, borrowed, ended }
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
    }

    /// After all nothing was sent.
    pub(crate) fn unsent(&self) {
        self.sent.set(false);
    }

    /// The response is here completely; with the connection if it can be used again.
    pub(crate) fn complete(&self, connection: Option<Connection>) {
        let outcome = if connection.is_some() { Outcome::Clean } else { Outcome::KeepAliveBroken };
        self.end(outcome, connection);
    }

    /// There will be no (more of the) response.
    pub(crate) fn fail(&self, outcome: Outcome) {
        self.end(outcome, None);
    }

    fn end(&self, outcome: Outcome, connection: Option<Connection>) {
        if self.ended.replace(true) {
            return;
        }
        let now = clock::now();
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
