//! Requests for functions that another data plane owns.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fanfare_http1::{RequestBody, RequestHead};
use fanfare_types::{FunctionId, Reason, Timestamp};
use http::header::{HeaderName, HeaderValue};
use http::{Response, request};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};

use crate::body::{Body, Held, Recycle, Upstream};
use crate::clock;
use crate::core::Core;
use crate::headers::{self, Client};
use crate::payload::Payload;
use crate::problem::Problem;
use crate::stream::{Socket, Stream};
use crate::upstream::Connection;

/// Carries the cluster's token on a forwarded request. Its receiver forwards no further, whatever the token; with the
/// right one it takes the client's address as given.
pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("x-fanfare-forwarded");
/// Names the unit that was chosen for a forwarded request, which is chosen once. Believed with the token alone.
const UNIT: HeaderName = HeaderName::from_static("x-fanfare-unit");
/// Idle connections kept to one peer, per core.
const IDLE_MAX: usize = 64;
/// A connection older than this is not trusted.
const IDLE_AGE_MAX: Duration = Duration::from_secs(10);
/// A peer that does not accept within this is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The owner's answer to a deadline, and not ours, is to reach the client.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);

/// Idle connections to one peer, the newest last, and since when they are idle.
type Idle = Vec<(Timestamp, Connection)>;

/// Idle connections of one core to other data planes.
#[derive(Clone, Default)]
pub(crate) struct PeerPool {
    idle: Rc<RefCell<HashMap<Arc<str>, Idle>>>,
}

impl PeerPool {
    fn take(&self, address: &str) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let pool = idle.get_mut(address)?;
        let now = clock::now();
        while let Some((since, connection)) = pool.pop() {
            if now.since(since) > IDLE_AGE_MAX {
                // Those below are older still.
                break;
            }
            if connection.get_ref().is_quiet() {
                return Some(connection);
            }
        }
        idle.remove(address);
        None
    }

    fn put(&self, address: &Arc<str>, connection: Connection) {
        let now = clock::now();
        let mut idle = self.idle.borrow_mut();
        // Peers that are gone, and those that are no longer needed.
        idle.retain(|_, pool| pool.last().is_some_and(|(since, _)| now.since(*since) <= IDLE_AGE_MAX));
        let pool = idle.entry(address.clone()).or_default();
        if pool.len() < IDLE_MAX {
            connection.get_ref().rests();
            pool.push((now, connection));
        }
    }
}

/// Whether a request comes from another data plane of this cluster.
pub(crate) fn is_forwarded(core: &Core, parts: &request::Parts) -> bool {
    match (&core.shared.options.cluster_token, parts.headers.get(FORWARDED)) {
        (Some(token), Some(given)) => same(token.as_bytes(), given.as_bytes()),
        _ => false,
    }
}

/// Compares without telling by its duration where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// The unit that another data plane of this cluster has chosen for a request.
pub(crate) fn chosen_unit(core: &Core, parts: &request::Parts) -> Option<FunctionId> {
    let given = parts.headers.get(UNIT).filter(|_| is_forwarded(core, parts))?;
    given.to_str().ok()?.parse().ok().map(FunctionId)
}

/// What came of forwarding.
pub(crate) enum Forwarded {
    Answered(Response<Body>),
    Failed(Problem),
    /// The owner cannot be reached, and nothing was sent to it: serve the request here.
    ServeHere(RequestBody<Payload>, Held),
}

/// Sends a request for this unit on to the data plane at this address, once. Target and fields are the client's; the answer is the
/// owner's, problem documents and timings included.
pub(crate) async fn forward(
    core: &Rc<Core>,
    (address, unit): (&Arc<str>, FunctionId),
    client: &Client,
    parts: &request::Parts,
    mut body: RequestBody<Payload>,
    deadline: Timestamp,
    held: Held,
) -> Forwarded {
    let mut fields = parts.headers.clone();
    let token = core.shared.options.cluster_token.as_ref().and_then(|t| HeaderValue::from_str(t).ok());
    let Some(mut token) = token else { return Forwarded::ServeHere(body, held) };
    token.set_sensitive(true);
    fields.insert(FORWARDED, token);
    fields.insert(UNIT, HeaderValue::from(unit.0));
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let informational = Some(&client.informational);
    let head = RequestHead { informational, ..RequestHead::new(&parts.method, target, &fields) };
    let deadline = deadline + DEADLINE_GRACE;
    loop {
        let pooled = core.peers.take(address);
        let reused = pooled.is_some();
        let connection = match pooled {
            Some(connection) => connection,
            None => match connect(address).await {
                Ok(connection) => connection,
                Err(error) => {
                    tracing::warn!(%address, %error, "the owner of a function cannot be reached; serving it here");
                    return Forwarded::ServeHere(body, held);
                }
            },
        };
        let (pool, to) = (core.peers.clone(), address.clone());
        let recycle: Recycle = Box::new(move |connection| pool.put(&to, connection));
        let exchange = client.state.interim.until_answered(connection.send(head, body, recycle));
        match timeout_at(clock::instant(deadline), exchange).await {
            Err(_) => {
                let detail = "the data plane that owns the function did not answer in time";
                return Forwarded::Failed(Problem::new(Reason::RequestTimeout, detail));
            }
            Ok(Err(failed)) => match failed.body {
                Some(whole) if failed.error.written_bytes() == 0 => {
                    body = whole;
                    if !reused {
                        return Forwarded::ServeHere(body, held);
                    }
                }
                _ => {
                    let detail = format!("the data plane that owns the function failed: {}", failed.error);
                    return Forwarded::Failed(Problem::new(Reason::ConnectionClosed, detail));
                }
            },
            Ok(Ok(response)) => {
                core.shared.forwarded.fetch_add(1, Ordering::Relaxed);
                return answer(core, response.map(Upstream::Http1), deadline, held).await;
            }
        }
    }
}

async fn answer(core: &Rc<Core>, response: Response<Upstream>, deadline: Timestamp, held: Held) -> Forwarded {
    let (mut parts, rest) = response.into_parts();
    headers::strip_hop_by_hop(&mut parts.headers);
    match Body::of(core, rest, None, deadline, held).await {
        Ok(body) => Forwarded::Answered(Response::from_parts(parts, body)),
        Err(error) => {
            let detail = format!("the data plane that owns the function failed: {error}");
            Forwarded::Failed(Problem::new(Reason::ConnectionClosed, detail))
        }
    }
}

async fn connect(address: &str) -> std::io::Result<Connection> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await??;
    stream.set_nodelay(true)?;
    Ok(Connection::new(Stream::new(Socket::Tcp(stream))))
}
