//! Accepting connections, and draining them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fanfare_types::limits::REQUEST_HEAD_BYTES_MAX;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::activity::Activity;
use crate::client_stream::{ClientState, ClientStream};
use crate::clock;
use crate::core::Core;
use crate::headers::{self, Client};
use crate::request::serve;
use crate::shared::{Counted, Shared};
use crate::transport::{self, Transport};

const BACKLOG: i32 = 4_096;
/// Pause after the system could not give a connection, for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Connections that are accepted before those that were are looked at: where there are too many, descriptors are given
/// back as fast as they are taken.
const ACCEPTS_MAX: usize = 16;
/// How long a client may leave what was sent to it unacknowledged, or its window shut, before the connection is cut.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Streams of one HTTP/2 connection at once.
const H2_STREAMS_MAX: u32 = 1_024;
/// Bytes of an HTTP/2 header list, which counts 32 more for each field; larger ones are refused with 431 by the
/// protocol.
const H2_HEADER_LIST_BYTES_MAX: u32 = 96 * 1024;

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

async fn connection(core: Rc<Core>, stream: TcpStream, client: SocketAddr, draining: CancellationToken) {
    let shared = core.shared.clone();
    let Some(_counted) = counted(&core, &shared) else { return };
    let activity = Rc::new(Activity::default());
    let member = core.crowd.join(activity.clone());
    // It only delays small answers if it fails.
    let _ = stream.set_nodelay(true);
    let opened = tokio::select! {
        opened = Transport::open(stream, &shared, &draining) => opened,
        () = member.asked_to_leave() => return,
    };
    let Some(stream) = opened else { return };
    let client = Rc::new(Client::new(client, stream.is_tls()));
    let asked = activity.clone();
    let state = client.state.clone();
    let stream = ClientStream::new(stream, state.clone(), shared.clone());
    let begun = state.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        begun.begin(request.version(), headers::expects_leave(request.headers()));
        serve(core.clone(), client.clone(), asked.begin(), request)
    });
    let idle_max = shared.options.header_read_timeout;
    let builder = builder(idle_max);
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let leaves_at_once = async {
        tokio::select! {
            () = member.asked_to_leave() => member.is_of_no_use(),
            () = leave(&draining, &activity, idle_max, &state, &shared) => false,
        }
    };
    // Polled when it is woken, and not whenever a byte has come: that was 3 % of a warm request.
    let mut leaves_at_once: FuturesUnordered<_> = std::iter::once(leaves_at_once).collect();
    let result = tokio::select! {
        biased;
        result = connection.as_mut() => result,
        Some(at_once) = leaves_at_once.next() => {
            if at_once {
                return;
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                result = connection.as_mut() => result,
                // A client that has stopped reading, or keeps a stream open without a request, does not end by itself.
                () = activity.rests(idle_max) => Ok(()),
            }
        }
    };
    if let Err(error) = result {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user) {
            state.cut();
        }
        // The client left, was too slow, or speaks something else; or an answer was cut on purpose.
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Counts a connection. Where there are too many, one that is of no use is closed in its favour.
fn counted<'a>(core: &Core, shared: &'a Shared) -> Option<Counted<'a>> {
    let limit = shared.connections_max;
    if let Some(counted) = Counted::within(&shared.connections, limit) {
        return Some(counted);
    }
    shared.crowded_out.fetch_add(1, Ordering::Relaxed);
    if let Some(times) = shared.crowding.happened(clock::now()) {
        tracing::warn!(limit, times, "too many connections of clients; idle ones are closed for new ones");
    }
    core.crowd.make_room().then(|| Counted::in_place_of_another(&shared.connections))
}

fn builder(idle_max: Duration) -> auto::Builder<LocalExecutor> {
    let mut builder = auto::Builder::new(LocalExecutor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(idle_max)
        // The number of fields is limited by the server's own default, `limits::REQUEST_FIELDS_MAX`. To read a head with
        // any other limit takes two allocations, of 16 KiB for 256 fields: 3 % of a warm request.
        .max_buf_size(REQUEST_HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        // A client that has gone without a word cannot be told goodbye either.
        .keep_alive_interval(idle_max)
        .keep_alive_timeout(idle_max)
        .max_concurrent_streams(H2_STREAMS_MAX)
        .max_header_list_size(H2_HEADER_LIST_BYTES_MAX);
    builder
}

/// Resolves when a connection should end: when the data plane drains, or when it has been of no use for `idle_max`.
///
/// HTTP/1 has a timer of its own, but only once the client has said enough to be known to speak it; HTTP/2 has none.
///
/// HTTP/2 can say goodbye without losing a request. HTTP/1 cannot: a request may be on its way when its connection is
/// closed. So a connection of HTTP/1 ends with the answer to its next request, which says so, and is closed between
/// two requests only when it has rested for a moment.
async fn leave(
    draining: &CancellationToken,
    activity: &Activity,
    idle_max: Duration,
    state: &ClientState,
    shared: &Shared,
) {
    tokio::select! {
        () = draining.cancelled() => {
            if !state.is_http2() {
                activity.rests(transport::draining_rest(shared)).await;
            }
        }
        () = activity.rests(idle_max) => {}
    }
}

/// Runs the tasks of HTTP/2 streams on the core of their connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}
