//! Descriptors that this process was started with.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The listening socket that a supervisor passes as descriptor 3 (`LISTEN_FDS=1`). `None` when there is none, and at
/// every call but the first.
pub(crate) fn listener() -> Option<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if std::env::var("LISTEN_FDS").ok()? != "1" || TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the protocol of `LISTEN_FDS` gives descriptor 3 to this process; `TAKEN` makes this its only owner.
    Some(unsafe { OwnedFd::from_raw_fd(3) })
}
