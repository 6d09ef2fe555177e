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
use crate::progress::{Late, Progress};

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
    /// Its place among the entries.
    key: Cell<(Timestamp, u64)>,
    deadline: Timestamp,
    lease: Option<Rc<Lease>>,
    held: RefCell<Option<Held>>,
    expired: Cell<Option<Late>>,
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
        let progress = lease.as_ref().and_then(|lease| lease.progress.as_ref());
        let key = (progress.map_or(deadline, |progress| progress.until().min(deadline)), number);
        let watched = Rc::new(Watched {
            deadlines: self.clone(),
            key: Cell::new(key),
            deadline,
            lease,
            held: RefCell::new(Some(held)),
            expired: Cell::new(None),
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
                match watched.late(clock::now()) {
                    Some(late) => watched.expire(late),
                    None => watched.renew(),
                }
            }
        }
    }
}

impl Watched {
    pub(crate) fn lease(&self) -> Option<&Rc<Lease>> {
        self.lease.as_ref()
    }

    /// A byte of it has moved.
    pub(crate) fn touch(&self) {
        if let Some(progress) = self.progress() {
            progress.touch();
        }
    }

    fn progress(&self) -> Option<&Progress> {
        self.lease.as_ref()?.progress.as_deref()
    }

    /// Which of its times has run out.
    fn late(&self, now: Timestamp) -> Option<Late> {
        if now >= self.deadline {
            return Some(Late::Total);
        }
        self.progress().is_some_and(|progress| now >= progress.until()).then_some(Late::Idle)
    }

    /// Something has moved since its place was chosen.
    fn renew(self: &Rc<Self>) {
        let until = self.progress().map_or(self.deadline, |progress| progress.until().min(self.deadline));
        let key = (until, self.key.get().1);
        self.key.set(key);
        self.deadlines.entries.borrow_mut().insert(key, Rc::downgrade(self));
    }

    /// Which of its times has run out; the task is woken when one does.
    pub(crate) fn poll_expired(&self, cx: &mut Context<'_>) -> Option<Late> {
        if let Some(late) = self.expired.get() {
            return Some(late);
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        None
    }

    fn expire(&self, late: Late) {
        self.expired.set(Some(late));
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
        self.deadlines.entries.borrow_mut().remove(&self.key.get());
    }
}
