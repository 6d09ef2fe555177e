//! Where it serves: on the socket that it inherits, or on `$PORT`.

#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

/// The descriptor that `LISTEN_FDS=1` means.
const INHERITED: i32 = 3;

/// A listening socket of either kind, non-blocking.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// To be called once.
    pub(super) fn take() -> io::Result<Self> {
        if std::env::var("LISTEN_FDS").is_ok_and(|count| count == "1") {
            // SAFETY: by the protocol of `LISTEN_FDS` the descriptor is open and this process's; nothing else in this
            // process, which has only begun, knows its number.
            let inherited = unsafe { OwnedFd::from_raw_fd(INHERITED) };
            let unix = UnixListener::from(inherited);
            unix.set_nonblocking(true)?;
            // An address of the other kind cannot be told.
            return Ok(match unix.local_addr() {
                Ok(_) => Listener::Unix(unix),
                Err(_) => Listener::Tcp(TcpListener::from(OwnedFd::from(unix))),
            });
        }
        let port = std::env::var("PORT").ok().and_then(|port| port.parse::<u16>().ok());
        let port = port.ok_or_else(|| io::Error::other("PORT is not set to a port"))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        Ok(Listener::Tcp(listener))
    }
}
