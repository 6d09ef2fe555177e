//! The life of a client's connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fanfare_http1::Answering;
use fanfare_types::limits::REQUEST_HEAD_BYTES_MAX;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{Request, Response};
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::body::Body;
use crate::client_stream::ClientStream;
use crate::clock;
use crate::core::Core;
use crate::headers::{self, Client};
use crate::http2::{self, Refusals};
use crate::incoming::Incoming;
use crate::request::serve;
use crate::shared::{Counted, Shared};
use crate::transport::{self, Protocol, Transport};

/// Serves a connection until its client leaves, it is of no use, or the data plane drains.
pub(crate) async fn connection(
    core: Rc<Core>,
    stream: TcpStream,
    client: SocketAddr,
    draining: CancellationToken,
) {
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
    let Some(mut stream) = opened else { return };
    let idle_max = shared.options.header_read_timeout;
    let protocol = tokio::select! {
        biased;
        protocol = stream.protocol() => protocol,
        () = member.asked_to_leave() => return,
        () = leave(&draining, &activity, idle_max, Protocol::Http1, &shared) => return,
    };
    let Ok(protocol) = protocol else { return };
    let client = Rc::new(Client::new(client, stream.is_tls()));
    let leaves_at_once = async {
        tokio::select! {
            () = member.asked_to_leave() => member.is_of_no_use(),
            () = leave(&draining, &activity, idle_max, protocol, &shared) => false,
        }
    };
    let asked = activity.clone();
    match protocol {
        Protocol::Http1 => {
            let state = client.state.clone();
            let stream = ClientStream::new(stream, state.clone(), shared.clone());
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let state = client.state.clone();
                state.begin(request.version(), headers::expects_leave(request.headers()));
                let request = request.map(Incoming::Http1);
                let (core, client, under_way) = (core.clone(), client.clone(), asked.begin());
                async move {
                    // Made where it stays: the server moves what it is given, and this is some 10 KiB.
                    let answered = Box::pin(serve(core, client, under_way, request)).await;
                    answered.map(|response| state.turn.answering(response))
                }
            });
            let connection = http1(idle_max).serve_connection(TokioIo::new(stream), service).with_upgrades();
            let mut connection = pin!(connection);
            let result = until_done(connection.as_mut(), leaves_at_once, &activity, idle_max).await;
            // Before the connection is closed.
            if result.is_err_and(|error| error.is_user()) {
                state.cut();
            }
        }
        Protocol::Http2 => {
            let stream = Refusals::new(stream, shared.clone());
            let serve = move |client, request| serve(core.clone(), client, asked.begin(), request);
            let connection = http2::Connection::new(stream, client, serve, idle_max);
            // What was to be said of its end was said.
            let _ = until_done(pin!(connection), leaves_at_once, &activity, idle_max).await;
        }
    }
}

/// A connection that can end without the loss of a request that it has taken.
trait Graceful: Future<Output = Result<(), Self::Error>> {
    type Error: std::fmt::Display;

    fn shut_down(self: Pin<&mut Self>);
}

impl<S> Graceful for http1::UpgradeableConnection<TokioIo<ClientStream>, S>
where
    S: HttpService<hyper::body::Incoming, ResBody = Answering<Body>>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Error = hyper::Error;

    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S, F> Graceful for http2::Connection<S>
where
    S: Fn(Rc<Client>, Request<Incoming>) -> F + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    type Error = h2::Error;

    fn shut_down(self: Pin<&mut Self>) {
        self.get_mut().graceful_shutdown();
    }
}

/// Drives a connection to its end, which `leaves_at_once` may bring about: `true` for without a word.
async fn until_done<C: Graceful>(
    mut connection: Pin<&mut C>,
    leaves_at_once: impl Future<Output = bool>,
    activity: &Activity,
    idle_max: Duration,
) -> Result<(), C::Error> {
    // Polled when it is woken, and not whenever a byte has come: that was 3 % of a warm request.
    let mut leaves_at_once: FuturesUnordered<_> = std::iter::once(leaves_at_once).collect();
    let result = tokio::select! {
        biased;
        result = connection.as_mut() => result,
        Some(at_once) = leaves_at_once.next() => {
            if at_once {
                return Ok(());
            }
            connection.as_mut().shut_down();
            tokio::select! {
                result = connection.as_mut() => result,
                // A client that has stopped reading, or keeps a stream open without a request, does not end by itself.
                () = activity.rests(idle_max) => Ok(()),
            }
        }
    };
    if let Err(error) = &result {
        // The client left, was too slow, or speaks something else; or an answer was cut on purpose.
        tracing::debug!(%error, "a connection ended early");
    }
    result
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

fn http1(idle_max: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(idle_max)
        // The number of fields is limited by the server's own default, `limits::REQUEST_FIELDS_MAX`. To read a head with
        // any other limit takes two allocations, of 16 KiB for 256 fields: 3 % of a warm request.
        .max_buf_size(REQUEST_HEAD_BYTES_MAX);
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
    protocol: Protocol,
    shared: &Shared,
) {
    tokio::select! {
        () = draining.cancelled() => {
            if protocol == Protocol::Http1 {
                activity.rests(transport::draining_rest(shared)).await;
            }
        }
        () = activity.rests(idle_max) => {}
    }
}
