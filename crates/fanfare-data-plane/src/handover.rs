//! Handing the listening sockets to a successor, so that a data plane is replaced without refusing a connection.
//!
//! A data plane offers its listening sockets on a unix socket that only its own user (and root) may use. A successor
//! takes them, learns everything from the control plane, and then asks for the turn. With the word `go` the predecessor
//! stops accepting and drains, and the successor begins to accept; connections that come in between wait in the sockets'
//! backlogs, which neither closes. A successor that dies before it has the turn costs nothing.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Sockets that can be handed over; one per core, and as many as one message may carry.
const SOCKETS_MAX: usize = 253;
/// Bytes of a data plane's name that travel with them.
const NAME_BYTES_MAX: usize = 256;
/// How long the other side may take for a word.
const WORD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a successor may take to learn everything from the control plane.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);
/// Asks for the turn.
const READY: u8 = b'R';
/// Gives it.
const GO: u8 = b'G';

/// The listening sockets of a data plane that is to be replaced.
#[derive(Debug)]
pub struct Inheritance {
    listeners: Vec<TcpListener>,
    name: Arc<str>,
    predecessor: std::os::unix::net::UnixStream,
}

impl Inheritance {
    /// Takes over from the data plane that offers its sockets at `path`. `None`: there is none.
    ///
    /// # Errors
    /// There is one, and it does not hand them over.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let predecessor = match std::os::unix::net::UnixStream::connect(path) {
            Ok(stream) => stream,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        predecessor.set_read_timeout(Some(WORD_TIMEOUT))?;
        let (name, sockets) = receive(&predecessor)?;
        predecessor.set_nonblocking(true)?;
        let listeners: Vec<TcpListener> = sockets.into_iter().map(TcpListener::from).collect();
        for listener in &listeners {
            listener.local_addr()?;
            listener.set_nonblocking(true)?;
        }
        if listeners.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the other data plane sent no socket"));
        }
        Ok(Some(Inheritance { listeners, name, predecessor }))
    }

    /// The name under which the predecessor is known to the control plane. Its successor needs another one, as both
    /// are there for a while.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the sockets listen.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<std::net::SocketAddr> {
        self.listeners[0].local_addr()
    }

    pub(crate) fn into_parts(self) -> (Vec<TcpListener>, Predecessor) {
        (self.listeners, Predecessor(self.predecessor))
    }
}

/// The data plane whose sockets were taken.
#[derive(Debug)]
pub(crate) struct Predecessor(std::os::unix::net::UnixStream);

impl Predecessor {
    /// Asks for the turn, and resolves with it.
    pub(crate) async fn turn(self) -> io::Result<()> {
        let mut stream = UnixStream::from_std(self.0)?;
        stream.write_u8(READY).await?;
        match timeout(WORD_TIMEOUT, stream.read_u8()).await? {
            Ok(GO) => Ok(()),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown word")),
            Err(error) => Err(error),
        }
    }
}

/// Offers sockets at a path until it is told to stop, or has given them away.
pub(crate) async fn offer(
    shared: &Shared,
    path: &Path,
    sockets: &[TcpListener],
    stop: &CancellationToken,
) -> io::Result<()> {
    let place = Place::bind(path)?;
    loop {
        let (stream, _) = tokio::select! {
            accepted = place.listener.accept() => accepted?,
            () = stop.cancelled() => return Ok(()),
        };
        let given = tokio::select! {
            given = give(shared, stream, sockets) => given,
            () = stop.cancelled() => return Ok(()),
        };
        match given {
            Ok(()) => {
                tracing::info!("a successor has taken over");
                place.leave();
                shared.handed_over.store(true, Ordering::Relaxed);
                stop.cancel();
                return Ok(());
            }
            Err(error) => tracing::warn!(%error, "the listening sockets were asked for, and not taken over"),
        }
    }
}

async fn give(shared: &Shared, mut stream: UnixStream, sockets: &[TcpListener]) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != rustix::process::geteuid().as_raw() && peer != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("user {peer} may not have them"),
        ));
    }
    let name = shared.options.name.as_bytes();
    let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    stream.async_io(Interest::WRITABLE, || send(&stream, name, &fds)).await?;
    match timeout(TURN_TIMEOUT, stream.read_u8()).await? {
        Ok(READY) => timeout(WORD_TIMEOUT, stream.write_u8(GO)).await?,
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown word")),
        Err(error) => Err(error),
    }
}

fn send(stream: impl AsFd, name: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if name.len() > NAME_BYTES_MAX || fds.len() > SOCKETS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more sockets than can be handed over"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(name)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == name.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn receive(stream: impl AsFd) -> io::Result<(Arc<str>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut name = [0; NAME_BYTES_MAX];
    let mut buffers = [IoSliceMut::new(&mut name)];
    let received = rustix::net::recvmsg(stream, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut sockets = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            sockets.extend(descriptors);
        }
    }
    if received == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other data plane hung up"));
    }
    let name = std::str::from_utf8(&name[..received]).map_err(io::Error::other)?;
    Ok((name.into(), sockets))
}

/// A path with a socket of ours.
struct Place {
    path: PathBuf,
    listener: UnixListener,
    identity: (u64, u64),
}

impl Place {
    /// Puts a socket there, in place of whatever was.
    fn bind(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let beside = path.with_extension(std::process::id().to_string());
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Nobody can connect before it is in its place, and then only who may.
        let listener = UnixListener::bind(&beside)?;
        std::fs::set_permissions(&beside, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let identity = identity(&beside)?;
        std::fs::rename(&beside, path)?;
        Ok(Place { path: path.to_owned(), listener, identity })
    }

    /// Leaves the path to the successor.
    fn leave(mut self) {
        self.identity = (0, 0);
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Drop for Place {
    fn drop(&mut self) {
        // Whatever is there by now may be another's.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
