//! Deadlines of responses that are under way.
//!
//! A body is polled only as fast as its client reads, so a timer inside it would let a slow client hold a slot for
//! ever. One task per core watches them all; a response that is complete with its head never comes here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};

use fanfare_dispatch::Outcome;
use fanfare_types::Timestamp;
use tokio::sync::Notify;

use crate::body::Held;
use crate::clock;
use crate::lease::Lease;

/// The deadlines of one core, earliest first.
#[derive(Default)]
pub(crate) struct Deadlines {
    entries: RefCell<BTreeMap<(Timestamp, u64), Weak<Watched>>>,
    next: Cell<u64>,
    /// An entry has become the earliest.
    earlier: Notify,
}

/// A response under way.
pub(crate) struct Watched {
    deadlines: Rc<Deadlines>,
    key: (Timestamp, u64),
    lease: Option<Rc<Lease>>,
    held: RefCell<Option<Held>>,
    expired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Deadlines {
    /// Watches a response until it is dropped: at its deadline its lease, if it has one, ends as timed out, and it no
    /// longer counts as held, though its client may leave it where it is.
    pub(crate) fn watch(
        self: &Rc<Self>,
        deadline: Timestamp,
        lease: Option<Rc<Lease>>,
        held: Held,
    ) -> Rc<Watched> {
        let number = self.next.get();
        self.next.set(number + 1);
        let key = (deadline, number);
        let watched = Rc::new(Watched {
            deadlines: self.clone(),
            key,
            lease,
            held: RefCell::new(Some(held)),
            expired: Cell::new(false),
            waker: RefCell::new(None),
        });
        let mut entries = self.entries.borrow_mut();
        entries.insert(key, Rc::downgrade(&watched));
        if entries.first_key_value().is_some_and(|(first, _)| *first == key) {
            self.earlier.notify_one();
        }
        drop(entries);
        watched
    }

    /// Ends what is over, for as long as the core lives.
    pub(crate) async fn enforce(self: Rc<Self>) {
        loop {
            let first = self.entries.borrow().first_key_value().map(|(key, _)| key.0);
            let Some(first) = first else {
                self.earlier.notified().await;
                continue;
            };
            if first > clock::now() {
                tokio::select! {
                    () = tokio::time::sleep_until(clock::instant(first)) => {}
                    () = self.earlier.notified() => {}
                }
                continue;
            }
            let over = self.entries.borrow_mut().pop_first();
            if let Some(watched) = over.and_then(|(_, watched)| watched.upgrade()) {
                watched.expire();
            }
        }
    }
}

impl Watched {
    pub(crate) fn lease(&self) -> Option<&Rc<Lease>> {
        self.lease.as_ref()
    }

    /// Whether the deadline has passed; the task is woken when it does.
    pub(crate) fn poll_expired(&self, cx: &mut Context<'_>) -> bool {
        if self.expired.get() {
            return true;
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        false
    }

    fn expire(&self) {
        self.expired.set(true);
        if let Some(lease) = &self.lease {
            lease.fail(Outcome::TimedOut);
        }
        drop(self.held.take());
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.deadlines.entries.borrow_mut().remove(&self.key);
    }
}
