//! `GET /metrics` on an address of its own: clients of functions do not reach it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_types::Reason;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::client_stream::{ClientState, ClientStream};
use crate::metrics;
use crate::problem::Problem;
use crate::request_id::{self, REQUEST_ID};
use crate::shared::Shared;
use crate::transport::Transport;

const BACKLOG: i32 = 64;
/// Connections at once; the next one waits.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may take to ask, and be open at all.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after the system could not give a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Everything that is counted, as text.
pub(crate) fn exposition(shared: &Shared) -> String {
    let dropped = shared.tracer.as_ref().map_or(0, |tracer| tracer.dropped());
    metrics::text(&shared.stats(), &shared.records.meter(), dropped)
}

/// Listens; the address is checked before anything else runs. A successor listens beside its predecessor.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Answers for ever.
pub(crate) async fn serve(shared: Arc<Shared>, listener: std::net::TcpListener) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "metrics cannot be served"),
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // The semaphore is never closed.
    while let Ok(permit) = room.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let state = Arc::<ClientState>::default();
            let stream = ClientStream::new(Transport::plain(stream), state.clone(), shared.clone());
            let service = service_fn(move |request| {
                state.turn.begin();
                let response = state.turn.answering(answer(&shared, &request));
                async move { Ok::<_, Infallible>(response) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
            // However it ends, the next scrape makes a new one.
            let _ = tokio::time::timeout(
                CONNECTION_TIMEOUT,
                builder.serve_connection(TokioIo::new(stream), service),
            )
            .await;
            drop(permit);
        });
    }
}

fn answer(shared: &Shared, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let id = request_id::stray();
    let mut response = if request.uri().path() == "/metrics" && request.method() == Method::GET {
        let mut response = Response::new(Full::new(Bytes::from(exposition(shared))));
        let kind = HeaderValue::from_static("text/plain; version=0.0.4");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    } else {
        Problem::new(Reason::RouteNotFound, "GET /metrics is all there is here").document(&id, None)
    };
    response.headers_mut().insert(REQUEST_ID, id);
    response
}
