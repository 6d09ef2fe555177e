//! A slot in use.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use fanfare_dispatch::Outcome;

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
    sent: Cell<bool>,
    borrowed: Cell<bool>,
    ended: Cell<bool>,
}

impl Lease {
    pub(crate) fn new(core: Rc<Core>, function: Arc<Function>, slot: Slot) -> Self {
        let (sent, borrowed, ended) = (Cell::new(false), Cell::new(false), Cell::new(false));
        Lease { core, function, slot, sent, borrowed, ended }
    }

    /// An idle connection to the sandbox; `None` when one has to be made. Either counts as the slot's connection.
    pub(crate) fn connection(&self) -> Option<Connection> {
        self.close_connection();
        self.borrowed.set(true);
        self.slot.upstream.lend(self.core.index, clock::now())
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
        // The connection first, so that it is there for whoever gets the slot.
        if self.borrowed.take() {
            self.slot.upstream.give_back(self.core.index, connection, clock::now());
        }
        self.function.finish(&self.core.shared, &self.slot, outcome);
    }

    fn close_connection(&self) {
        if self.borrowed.take() {
            self.slot.upstream.give_back(self.core.index, None, clock::now());
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let outcome = if self.sent.get() { Outcome::Abandoned } else { Outcome::NeverSent };
        self.end(outcome, None);
    }
}
