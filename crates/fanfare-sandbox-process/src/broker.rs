//! Connections into sandboxes whose listener is in a network namespace of their own.
//!
//! A data plane connects to the broker's socket and names a sandbox; it gets back a connected TCP socket that the
//! sandbox's first process made inside. See [`fanfare_sandbox::Started::endpoint`] for the exchange.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fanfare_types::SandboxId;
use parking_lot::Mutex;
use rustix::net::SendFlags;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::fdmsg;
use crate::sys;

/// Requests worked on at once; further ones are refused.
const REQUESTS_MAX: usize = 4_096;
/// From so many on a sandbox has a share of [`PRESSED_SHARE`]: one that does not accept holds each of its requests for as
/// long as that may take, and must not hold up the others.
const PRESSED: usize = REQUESTS_MAX / 2;
/// Requests of one sandbox while there is pressure; further ones are refused.
const PRESSED_SHARE: usize = 16;
/// How long one request may take, from connection to answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request: a sandbox's id and a newline.
const REQUEST_BYTES_MAX: usize = 32;

/// Where a sandbox's supervisor takes requests for sockets.
pub(crate) type SocketRequests = mpsc::Sender<oneshot::Sender<io::Result<(OwnedFd, SocketAddr)>>>;

/// Finds a sandbox's supervisor.
pub(crate) type Lookup = Arc<dyn Fn(SandboxId) -> Option<SocketRequests> + Send + Sync>;

/// The broker's socket, served until this is dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    task: JoinHandle<()>,
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Broker {
    /// Binds the socket, for this user only, and serves it.
    pub(crate) fn start(path: &Path, lookup: Lookup) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Broker { task: tokio::spawn(serve(listener, lookup)) })
    }
}

/// Serves the socket again when it has gone with the run directory, each time that there is a new launcher.
pub(crate) async fn keep<T>(
    broker: Weak<Mutex<Option<Broker>>>,
    path: PathBuf,
    lookup: Lookup,
    mut launcher: watch::Receiver<Option<T>>,
) {
    while launcher.changed().await.is_ok() {
        let Some(broker) = broker.upgrade() else { return };
        if launcher.borrow().is_none() || path.exists() {
            continue;
        }
        match Broker::start(&path, lookup.clone()) {
            Ok(started) => {
                let mut current = broker.lock();
                // Without one the runtime has been shut down, and its socket removed.
                match *current {
                    Some(_) => *current = Some(started),
                    None => drop(std::fs::remove_file(&path)),
                }
            }
            Err(error) => tracing::error!(%error, "the broker cannot be started again"),
        }
    }
}

/// Requests under way, by sandbox.
#[derive(Debug, Default)]
struct Room(Mutex<HashMap<SandboxId, usize>>);

/// One request's place in there.
struct Place<'a> {
    room: &'a Room,
    sandbox: SandboxId,
}

impl Room {
    /// `None` where the sandbox has its share. `all` are under way, whatever their sandboxes.
    fn take(&self, sandbox: SandboxId, all: usize) -> Option<Place<'_>> {
        let mut held = self.0.lock();
        let of = held.entry(sandbox).or_default();
        if all > PRESSED && *of >= PRESSED_SHARE {
            return None;
        }
        *of += 1;
        Some(Place { room: self, sandbox })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut held = self.room.0.lock();
        if let Some(of) = held.get_mut(&self.sandbox) {
            *of -= 1;
            if *of == 0 {
                held.remove(&self.sandbox);
            }
        }
    }
}

async fn serve(listener: UnixListener, lookup: Lookup) {
    let all = Arc::new(Semaphore::new(REQUESTS_MAX));
    let room = Arc::<Room>::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors: the next connection is not there before some are closed.
                tracing::warn!(%error, "the broker cannot accept");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let Ok(permit) = all.clone().try_acquire_owned() else {
            // Closed without an answer: to be asked again.
            continue;
        };
        let (lookup, room, all) = (lookup.clone(), room.clone(), all.clone());
        tokio::spawn(async move {
            let under_way = move || REQUESTS_MAX - all.available_permits();
            let answered = answer(stream, &lookup, &room, under_way);
            if tokio::time::timeout(REQUEST_TIMEOUT, answered).await.is_err() {
                tracing::debug!("a request for a connection into a sandbox timed out");
            }
            drop(permit);
        });
    }
}

async fn answer(mut stream: UnixStream, lookup: &Lookup, room: &Room, under_way: impl Fn() -> usize) {
    let result = match asked(&mut stream).await {
        Ok(sandbox) => {
            // Closed without an answer: to be asked again.
            let Some(_place) = room.take(sandbox, under_way()) else { return };
            request(sandbox, lookup).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = &result {
        tracing::debug!(%error, "no connection into a sandbox");
    }
    let (byte, fds): (&[u8], Vec<BorrowedFd<'_>>) = match &result {
        Ok(socket) => (b"0", vec![socket.as_fd()]),
        Err(_) => (b"1", Vec::new()),
    };
    // A data plane that has gone needs no answer.
    let send = || fdmsg::send(&stream, byte, &fds, SendFlags::DONTWAIT);
    let _ = stream.async_io(Interest::WRITABLE, send).await;
}

/// Which sandbox a peer that may ask is asking for.
async fn asked(stream: &mut UnixStream) -> io::Result<SandboxId> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {peer}")));
    }
    let mut line = Vec::with_capacity(REQUEST_BYTES_MAX);
    while !line.ends_with(b"\n") {
        if line.len() == REQUEST_BYTES_MAX || stream.read_buf(&mut line).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a request"));
        }
    }
    let text = String::from_utf8_lossy(&line);
    text.trim_end().parse().map_err(io::Error::other)
}

async fn request(sandbox: SandboxId, lookup: &Lookup) -> io::Result<OwnedFd> {
    let gone = || io::Error::new(io::ErrorKind::NotFound, format!("{sandbox} does not listen"));
    let supervisor = lookup(sandbox).ok_or_else(gone)?;
    let (sender, receiver) = oneshot::channel();
    supervisor.try_send(sender).map_err(|_| gone())?;
    let (socket, address) = receiver.await.map_err(|_| gone())??;
    connect(socket, address).await
}

/// Connects a non-blocking socket over the sandbox's own loopback interface.
async fn connect(socket: OwnedFd, address: SocketAddr) -> io::Result<OwnedFd> {
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => {
            let waiting = sys::async_fd(socket, Interest::WRITABLE)?;
            waiting.writable().await?.retain_ready();
            let socket = waiting.into_inner();
            rustix::net::sockopt::socket_error(&socket)??;
            return Ok(socket);
        }
        Err(e) => return Err(e.into()),
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_that_accepts_nothing_leaves_room_for_the_others() {
        let room = Room::default();
        let (deaf, other) = (SandboxId(1), SandboxId(2));
        let held: Vec<_> = (0..=PRESSED).map(|all| room.take(deaf, all).unwrap()).collect();
        assert!(room.take(deaf, PRESSED + 1).is_none(), "it has more than its share");
        let share: Vec<_> = (1..=PRESSED_SHARE).map(|n| room.take(other, PRESSED + n).unwrap()).collect();
        assert!(room.take(other, PRESSED + PRESSED_SHARE + 1).is_none());
        drop(held);
        drop(room.take(deaf, PRESSED + PRESSED_SHARE).unwrap());
        drop(share);
        assert!(room.0.lock().is_empty());
    }
}
