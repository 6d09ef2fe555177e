//! Connections to sandboxes that speak HTTP/2 without TLS (h2c), as gRPC servers do. One carries many requests.
//!
//! A request is known not to have reached user code where the peer says so (`REFUSED_STREAM`, or a `GOAWAY` that names
//! an earlier stream as the last; RFC 9113, sections 6.8 and 8.7), or where no byte was written on the connection since
//! it was handed over. Then it may be sent again, as long as its body can be had again: the beginning of a body is
//! kept until the answer begins.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use fanfare_http1::RequestBody;
use fanfare_types::limits::REQUEST_HEAD_BYTES_MAX;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::listener::LocalExecutor;
use crate::payload::Payload;
use crate::replay::Replay;
use crate::stream::Stream;

/// Bytes of one answer that may wait here for a client that reads slowly.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same of all answers of one connection: no slow client may hold up the others, however many slots there are.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * fanfare_types::limits::CONCURRENCY_MAX;

/// A connection that any number of requests use at once.
#[derive(Clone, Debug)]
pub(crate) struct Http2 {
    send: http2::SendRequest<Replay>,
    /// Bytes that the system took on this connection.
    written: Arc<AtomicU64>,
    /// The core that drives it.
    pub(crate) core: usize,
}

/// Why a request got no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It provably never reached user code; with its body if that can be had again.
    Unprocessed(String, Option<RequestBody<Payload>>),
    /// The client's body broke off.
    Body(String),
    /// It may have reached user code.
    Broken(hyper::Error),
}

impl Http2 {
    /// Begins to speak HTTP/2 on a fresh stream, which the calling core drives from then on.
    pub(crate) async fn open(stream: Stream, core: usize) -> Result<Self, hyper::Error> {
        let written = Arc::<AtomicU64>::default();
        let stream = TokioIo::new(Counted { stream, written: written.clone() });
        let handshake = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
            .handshake(stream);
        let (send, connection) = handshake.await?;
        tokio::task::spawn_local(async move {
            // What that means for the requests on it they learn themselves.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a sandbox ended");
            }
        });
        Ok(Http2 { send, written, core })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.send.is_closed()
    }

    pub(crate) fn is(&self, other: &Http2) -> bool {
        Arc::ptr_eq(&self.written, &other.written)
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn send(
        mut self,
        head: Request<()>,
        body: RequestBody<Payload>,
    ) -> Result<Response<Incoming>, Failure> {
        let replay = Replay::new(body);
        let written = self.written.load(Ordering::Relaxed);
        let mut failed = match self.send.try_send_request(head.map(|()| replay.clone())).await {
            Ok(response) => {
                replay.settle();
                return Ok(response);
            }
            Err(failed) => failed,
        };
        let untouched = failed.take_message().is_some() || self.written.load(Ordering::Relaxed) == written;
        let error = failed.into_error();
        if let Some(why) = replay.failed() {
            return Err(Failure::Body(why));
        }
        if untouched || is_unprocessed(&error) {
            return Err(Failure::Unprocessed(describe(&error), replay.again()));
        }
        Err(Failure::Broken(error))
    }
}

/// Whether the peer says that it has not looked at the request.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let Some(error) = http2_error(error) else { return false };
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (error.is_go_away() || refused)
}

fn http2_error(error: &hyper::Error) -> Option<&h2::Error> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        source = error.source();
    }
    None
}

/// The error with what is behind it.
pub(crate) fn describe(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// A stream that counts what is written.
#[derive(Debug)]
struct Counted {
    stream: Stream,
    written: Arc<AtomicU64>,
}

impl Counted {
    fn count(&self, written: usize) -> usize {
        self.written.fetch_add(written as u64, Ordering::Relaxed);
        written
    }
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, buf))?;
        Poll::Ready(Ok(this.count(written)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, bufs))?;
        Poll::Ready(Ok(this.count(written)))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
