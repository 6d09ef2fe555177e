//! Listening sockets that a service manager passes (`sd_listen_fds(3)`): systemd's socket activation.

#![allow(unsafe_code)]

use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};

use crate::exit::Failure;

/// The first descriptor that is passed.
const FIRST: RawFd = 3;
/// Sockets that one process is passed at most; more than there are cores.
const SOCKETS_MAX: RawFd = 253;

/// What was passed to this process; nothing for most. To be called once, before anything opens a descriptor.
pub(crate) fn listeners() -> Result<Vec<TcpListener>, Failure> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<RawFd>().ok());
    let own = number("LISTEN_PID") == Some(rustix::process::getpid().as_raw_nonzero().get());
    let count = number("LISTEN_FDS").filter(|_| own).unwrap_or(0);
    if !(0..=SOCKETS_MAX).contains(&count) {
        return Err(Failure::usage(format!("LISTEN_FDS is {count}; 0 to {SOCKETS_MAX} can be taken")));
    }
    (FIRST..FIRST + count).map(listener).collect()
}

fn listener(fd: RawFd) -> Result<TcpListener, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("descriptor {fd} was passed, and is no listening TCP socket: {why}"))
    };
    // SAFETY: only looked at; if it is not open, the system says so.
    let passed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_setfd(passed, rustix::io::FdFlags::CLOEXEC).map_err(|e| refused(&e))?;
    match rustix::net::sockopt::socket_acceptconn(passed) {
        Ok(true) => {}
        Ok(false) => return Err(refused(&"it does not listen")),
        Err(error) => return Err(refused(&error)),
    }
    // SAFETY: it is open, and by `LISTEN_PID` this process's own; nobody else in it knows its number.
    let listener = unsafe { TcpListener::from_raw_fd(fd) };
    listener.local_addr().map_err(|e| refused(&e))?;
    Ok(listener)
}
