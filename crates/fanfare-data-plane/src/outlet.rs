//! The way to the control plane, as functions see it.

use fanfare_link::Sender;
use fanfare_types::FromDataPlane;
use fanfare_types::limits::LINK_QUEUE_MESSAGES_MAX;
use parking_lot::Mutex;

/// The sending half of one stream to the control plane.
///
/// A function speaks through the outlet of the stream whose hello stated its leases, and through no other: what it
/// says before that is part of the hello, and what it says between then and the hello's departure is held back.
pub(crate) struct Outlet {
    link: Option<Sender<FromDataPlane>>,
    held_back: Mutex<Option<Vec<FromDataPlane>>>,
}

impl Outlet {
    /// Leads nowhere: the next hello will say it all.
    pub(crate) fn nowhere() -> Self {
        Outlet { link: None, held_back: Mutex::new(None) }
    }

    /// Leads to a stream whose hello is still to be sent.
    pub(crate) fn before_hello(link: Sender<FromDataPlane>) -> Self {
        Outlet { link: Some(link), held_back: Mutex::new(Some(Vec::new())) }
    }

    /// Never blocks. A message that a broken stream loses is made good by the next hello.
    pub(crate) fn send(&self, message: FromDataPlane) {
        let Some(link) = &self.link else { return };
        let mut held_back = self.held_back.lock();
        match &mut *held_back {
            Some(messages) if messages.len() < LINK_QUEUE_MESSAGES_MAX => messages.push(message),
            // Too much to hold: begin anew.
            Some(_) => link.close(),
            // Errors mean that the link is closed, which its receiver finds out.
            None => drop(link.send(message)),
        }
    }

    /// Sends the hello, and then what was held back.
    pub(crate) fn open(&self, hello: FromDataPlane) {
        let Some(link) = &self.link else { return };
        let mut held_back = self.held_back.lock();
        for message in std::iter::once(hello).chain(held_back.take().unwrap_or_default()) {
            if link.send(message).is_err() {
                return;
            }
        }
    }
}
