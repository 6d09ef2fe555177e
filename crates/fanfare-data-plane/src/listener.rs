//! Accepting connections, and draining them.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::connection::connection;
use crate::core::Core;

const BACKLOG: i32 = 4_096;
/// Pause after the system could not give a connection, for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Connections that are accepted before those that were are looked at: where there are too many, descriptors are given
/// back as fast as they are taken.
const ACCEPTS_MAX: usize = 16;
/// How long a client may leave what was sent to it unacknowledged, or its window shut, before the connection is cut.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// One listener per core on the same address, among which the kernel distributes connections.
///
/// # Errors
/// The address cannot be listened on; also when another process does so already, which `SO_REUSEPORT` alone would
/// let pass.
pub(crate) fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<std::net::TcpListener>> {
    if address.port() != 0 {
        drop(socket(address, false)?);
    }
    let first = socket(address, true)?;
    let bound = first.local_addr()?;
    let mut listeners = vec![first];
    for _ in 1..count {
        listeners.push(socket(bound, true)?);
    }
    Ok(listeners)
}

/// At least one listener per core from those that are there; cores share where there are fewer.
///
/// # Errors
/// There is none, or one cannot be shared.
pub(crate) fn share(
    mut listeners: Vec<std::net::TcpListener>,
    count: usize,
) -> io::Result<Vec<std::net::TcpListener>> {
    if listeners.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no listening socket was given"));
    }
    for next in 0..count.saturating_sub(listeners.len()) {
        listeners.push(listeners[next].try_clone()?);
    }
    for listener in &listeners {
        listener.set_nonblocking(true)?;
        socket2::SockRef::from(listener).set_tcp_user_timeout(Some(SEND_TIMEOUT))?;
    }
    Ok(listeners)
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    if shared {
        // Connections inherit it.
        socket.set_tcp_user_timeout(Some(SEND_TIMEOUT))?;
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}

/// Serves connections from its `turn` on until `shutdown`, then lets those that are open finish.
pub(crate) async fn run(
    core: Rc<Core>,
    listener: TcpListener,
    turn: CancellationToken,
    shutdown: CancellationToken,
) {
    let connections = TaskTracker::new();
    let draining = CancellationToken::new();
    tokio::task::spawn_local(core.deadlines.clone().enforce());
    tokio::select! {
        () = turn.cancelled() => {}
        () = shutdown.cancelled() => {}
    }
    let mut in_a_row = 0;
    loop {
        if in_a_row == ACCEPTS_MAX {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
        in_a_row += 1;
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, client)) => {
                let connection = connection(core.clone(), stream, client, draining.clone());
                tokio::task::spawn_local(connections.track_future(connection));
            }
            // The client has left before it was accepted.
            Err(e)
                if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {}
            Err(error) => {
                if let Some(times) = core.shared.not_accepted.happened(clock::now()) {
                    tracing::error!(%error, times, "cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    for (stream, client) in waiting(&core, listener) {
        let connection = connection(core.clone(), stream, client, draining.clone());
        tokio::task::spawn_local(connections.track_future(connection));
    }
    draining.cancel();
    connections.close();
    core.upgraded.close();
    let finished = async {
        connections.wait().await;
        core.upgraded.wait().await;
        // What is still told the control plane depends on them.
        core.left_behind.close();
        core.left_behind.wait().await;
    };
    if tokio::time::timeout(drain_timeout(&core), finished).await.is_err() {
        let connections = connections.len() + core.upgraded.len();
        tracing::warn!(connections, "requests did not finish in time; closing them");
    }
}

/// Closes the listener. Connections that the system has accepted already are served, unless a successor has them.
fn waiting(core: &Core, listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    if core.shared.handed_over.load(Ordering::Relaxed) {
        return Vec::new();
    }
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    let mut waiting = Vec::new();
    while waiting.len() < BACKLOG as usize
        && let Ok((stream, client)) = listener.accept()
    {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        waiting.extend(stream.ok().map(|stream| (stream, client)));
    }
    waiting
}

/// How long what is there may go on: with a successor in its place nobody waits for this data plane's end.
fn drain_timeout(core: &Core) -> Duration {
    let limit = core.shared.options.drain_timeout;
    if !core.shared.handed_over.load(Ordering::Relaxed) {
        return limit;
    }
    let functions = core.shared.directory.functions();
    functions.iter().map(|function| function.longest_request()).max().unwrap_or_default().max(limit)
}
