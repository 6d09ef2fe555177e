//! Connections to the API: bounded in number, in what they may send before they are heard, and in how they end.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fanfare_http1::{Rest, Settled, Turn, Watched};
use fanfare_types::limits::REQUEST_HEAD_BYTES_MAX;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::lingering::{Lingering, Refuse};
use super::{App, guard, router};
use crate::ControlPlaneError;
use crate::limits::{
    API_CONNECTIONS_DIRIGENT_MAX, API_CONNECTIONS_MAX, API_DRAIN_TIMEOUT, API_HEAD_TIMEOUT, API_IDLE_TIMEOUT,
};

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
    let room = match app.images {
        Some(_) => API_CONNECTIONS_DIRIGENT_MAX,
        None => API_CONNECTIONS_MAX,
    };
    let (router, room) = (router(app.clone()), Arc::new(Semaphore::new(room)));
    let refuse: Refuse = Arc::new(move |status, heard, turn| guard::of_server(&app, status, heard, turn));
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
        let (router, refuse, shutdown) = (router.clone(), refuse.clone(), shutdown.clone());
        connections.spawn(async move {
            serve_connection(stream, router, refuse, shutdown, API_IDLE_TIMEOUT).await;
            drop(permit);
        });
    }
    connections.close();
    if tokio::time::timeout(API_DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "requests to the control API were cut off");
    }
    Ok(())
}

/// What one connection is used for. One that asks for nothing must not keep others out: there is room for so many.
#[derive(Default)]
struct Activity {
    begun: AtomicU64,
    under_way: AtomicU64,
}

impl Activity {
    fn begin(self: &Arc<Self>) -> UnderWay {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.clone())
    }

    /// Resolves when nothing was asked for in a whole interval, nor is being worked on.
    async fn idle(&self, interval: Duration) {
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            tokio::time::sleep(interval).await;
            if self.under_way.load(Ordering::Relaxed) == 0 && self.begun.load(Ordering::Relaxed) == begun {
                return;
            }
        }
    }
}

/// A request whose answer has not begun.
struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: axum::Router,
    refuse: Refuse,
    shutdown: CancellationToken,
    idle_max: Duration,
) {
    // Answers are small and waited for; an error means that the peer has gone already.
    let _ = stream.set_nodelay(true);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(API_HEAD_TIMEOUT)
        .max_buf_size(REQUEST_HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        // A peer that has gone without a word cannot be told goodbye either.
        .keep_alive_interval(idle_max)
        .keep_alive_timeout(idle_max)
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32);
    let activity = Arc::new(Activity::default());
    let (inner, asked) = (TowerToHyperService::new(router), activity.clone());
    let early = Arc::new(AtomicBool::new(false));
    let turn = Arc::<Turn>::default();
    let stream = Lingering::new(stream, turn.clone(), refuse, early.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let under_way = asked.begin();
        turn.begin();
        let (early, turn, version) = (early.clone(), turn.clone(), request.version());
        // Reading what a client holds back would be the leave to send it.
        let may_read = !request.headers().contains_key(EXPECT);
        let (parts, body) = request.into_parts();
        let (body, rest) = match version {
            Version::HTTP_2 => (Watched::unwatched(body), Rest::none()),
            _ => Watched::new(body),
        };
        let answer = inner.call(Request::from_parts(parts, body));
        async move {
            let _under_way = under_way;
            let mut response: Response<axum::body::Body> = answer.await?;
            if rest.settle(may_read).await == Settled::Unread {
                early.store(true, Ordering::Relaxed);
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(turn.answering(response))
        }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        // An answer that goes on, such as a log that is followed, is not cut by this.
        () = activity.idle(idle_max) => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = &mut connection => ended,
                () = shutdown.cancelled() => return,
            }
        }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use fanfare_api::Problem;
    use fanfare_types::Reason;

    use super::*;

    const IDLE_MAX: Duration = Duration::from_millis(100);

    async fn connection(router: axum::Router) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (served, _) = listener.accept().await.unwrap();
        let refuse: Refuse = Arc::new(|_, _, _| Problem::new(Reason::BadRequest, ""));
        tokio::spawn(serve_connection(served, router, refuse, CancellationToken::new(), IDLE_MAX));
        client
    }

    #[tokio::test]
    async fn connections_that_ask_for_nothing_are_closed() {
        let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".as_slice();
        for said in [b"".as_slice(), b"PRI * HTTP/2.0\r\n", settings] {
            let mut client = connection(axum::Router::new()).await;
            client.write_all(said).await.unwrap();
            let mut rest = Vec::new();
            let end = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut rest));
            end.await.expect("an end").unwrap();
        }
    }

    #[tokio::test]
    async fn an_answer_takes_as_long_as_it_takes() {
        async fn slow() -> axum::body::Body {
            tokio::time::sleep(3 * IDLE_MAX).await;
            let piece = |n| async move {
                tokio::time::sleep(IDLE_MAX).await;
                (n < 5).then_some((Ok::<_, std::convert::Infallible>("x"), n + 1))
            };
            axum::body::Body::from_stream(futures_util::stream::unfold(0, piece))
        }
        let router = axum::Router::new().route("/", axum::routing::get(slow));
        let mut client = connection(router).await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.ends_with("1\r\nx\r\n0\r\n\r\n") && answer.matches("\r\nx\r\n").count() == 5,
            "{answer}"
        );
    }
}
