//! Connections to the API: bounded in number, in what they may send before they are heard, and in how they end.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::limits::REQUEST_HEAD_BYTES_MAX;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{App, router};
use crate::ControlPlaneError;
use crate::limits::{API_CONNECTIONS_MAX, API_DRAIN_TIMEOUT, API_HEAD_TIMEOUT};

/// Pause after the system could not accept a connection (no descriptors left): it would fail at once again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Requests under way on one HTTP/2 connection.
const HTTP2_STREAMS_MAX: u32 = 256;

/// Serves until `shutdown`, then gives open requests a moment to end.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: CancellationToken,
) -> Result<(), ControlPlaneError> {
    let router = router(app);
    let room = Arc::new(Semaphore::new(API_CONNECTIONS_MAX));
    let connections = TaskTracker::new();
    loop {
        // The semaphore is never closed; when all permits are out, connections wait in the listener's backlog.
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = room.clone().acquire_owned() => permit,
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the control API");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, shutdown) = (router.clone(), shutdown.clone());
        connections.spawn(async move {
            serve_connection(stream, router, shutdown).await;
            drop(permit);
        });
    }
    connections.close();
    if tokio::time::timeout(API_DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "requests to the control API were cut off");
    }
    Ok(())
}

async fn serve_connection(stream: TcpStream, router: axum::Router, shutdown: CancellationToken) {
    // Answers are small and waited for; an error means that the peer has gone already.
    let _ = stream.set_nodelay(true);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(API_HEAD_TIMEOUT)
        .max_buf_size(REQUEST_HEAD_BYTES_MAX);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(HTTP2_STREAMS_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(API_DRAIN_TIMEOUT, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection to the control API ended early");
    }
}
