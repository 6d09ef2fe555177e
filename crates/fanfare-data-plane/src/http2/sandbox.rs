//! Connections to sandboxes that speak HTTP/2 without TLS (h2c), as gRPC servers do. One carries many requests.
//!
//! A request is known not to have reached user code where the peer says so (`REFUSED_STREAM`, or a `GOAWAY` that names
//! an earlier stream as the last; RFC 9113, sections 6.8 and 8.7), or where no byte was written on the connection since
//! it was handed over. Then it may be sent again, as long as its body can be had again: the beginning of a body is
//! kept until the answer begins.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fanfare_http1::{OnInformational, RequestBody};
use fanfare_types::limits::REQUEST_HEAD_BYTES_MAX;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

use super::body::{self, Received};
use crate::payload::Payload;
use crate::replay::Replay;
use crate::stream::Stream;

/// Bytes of one answer that may wait here for a client that reads slowly.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same of all answers of one connection: no slow client may hold up the others, however many slots there are.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * fanfare_types::limits::CONCURRENCY_MAX;
/// Requests that are sent before the peer has said how many it takes at once.
const FIRST_STREAMS_MAX: usize = 100;

/// A connection that any number of requests use at once.
#[derive(Clone, Debug)]
pub(crate) struct Http2 {
    send: SendRequest<Bytes>,
    state: Arc<State>,
    /// The core that drives it.
    pub(crate) core: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that the system took on this connection.
    written: AtomicU64,
    closed: AtomicBool,
}

/// Why a request got no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It provably never reached user code; with its body if that can be had again.
    Unprocessed(String, Option<RequestBody<Payload>>),
    /// This protocol has no way to say it.
    Head(String),
    /// The client's body broke off.
    Body(String),
    /// It may have reached user code.
    Broken(h2::Error),
}

/// The body of an answer. With it ends the slot, and so the sending of what is left of the request's own.
pub(crate) struct Answer {
    received: Received,
    _upload: Upload,
    request: Replay,
}

impl Answer {
    /// Whether the request's body broke off, which resets the answer, too.
    pub(crate) fn request_broke_off(&self) -> bool {
        self.request.failed().is_some()
    }
}

/// The sending of a request's body, which ends with this.
#[derive(Debug)]
struct Upload(Option<AbortHandle>);

impl Http2 {
    /// Begins to speak HTTP/2 on a fresh stream, which the calling core drives from then on.
    pub(crate) async fn open(stream: Stream, core: usize) -> Result<Self, h2::Error> {
        let state = Arc::<State>::default();
        let stream = Counted { stream, state: state.clone() };
        let handshake = client::Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_max_send_streams(FIRST_STREAMS_MAX)
            .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
            .handshake(stream);
        let (send, connection) = handshake.await?;
        let driven = state.clone();
        tokio::task::spawn_local(async move {
            // What that means for the requests on it they learn themselves.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a sandbox ended");
            }
            driven.closed.store(true, Ordering::Relaxed);
        });
        Ok(Http2 { send, state, core })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn is(&self, other: &Http2) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Sends a request and waits for the head of its answer; what comes before that is told at once.
    pub(crate) async fn send(
        mut self,
        mut head: Request<()>,
        body: RequestBody<Payload>,
        informational: Arc<dyn OnInformational>,
    ) -> Result<Response<Answer>, Failure> {
        let replay = Replay::new(body);
        say_length(&mut head, &replay);
        let before = self.state.written.load(Ordering::Relaxed);
        let started = match poll_fn(|cx| self.send.poll_ready(cx)).await {
            Ok(()) => self.send.send_request(head, replay.is_end_stream()),
            Err(error) => Err(error),
        };
        let (response, mut stream) = match started {
            Ok(started) => started,
            Err(error) => return Err(Failure::Unprocessed(error.to_string(), replay.again())),
        };
        let mut upload = Upload(None);
        if !replay.is_end_stream() {
            let replay = replay.clone();
            let sending = async move {
                // Whoever waits for the answer learns why there is none.
                if let Err(error) = body::send(replay, &mut stream).await {
                    tracing::debug!(%error, "a request's body was not sent to its end");
                }
            };
            upload.0 = Some(tokio::task::spawn_local(sending).abort_handle());
        }
        let error = match answer(response, &*informational).await {
            Ok(response) => {
                replay.settle();
                let (parts, stream) = response.into_parts();
                let received = Received::of_answer(stream, &parts.headers);
                let answer = Answer { received, _upload: upload, request: replay };
                return Ok(Response::from_parts(parts, answer));
            }
            Err(error) => error,
        };
        if let Some(why) = replay.failed() {
            return Err(Failure::Body(why));
        }
        if self.state.written.load(Ordering::Relaxed) == before || is_unprocessed(&error) {
            return Err(Failure::Unprocessed(error.to_string(), replay.again()));
        }
        Err(Failure::Broken(error))
    }
}

/// Says how long a body is, where that is known and not said. Nothing is said of none, where none is usual.
fn say_length(head: &mut Request<()>, body: &Replay) {
    let usual = [Method::POST, Method::PUT, Method::PATCH].contains(head.method());
    if let Some(bytes) = body.size_hint().exact().filter(|bytes| *bytes > 0 || usual) {
        head.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(bytes));
    }
}

/// Waits for the head of an answer.
async fn answer(
    mut response: ResponseFuture,
    informational: &dyn OnInformational,
) -> Result<Response<RecvStream>, h2::Error> {
    poll_fn(|cx| {
        while let Poll::Ready(Some(said)) = response.poll_informational(cx) {
            let said = said?;
            informational.informational(said.status(), said.headers());
        }
        Pin::new(&mut response).poll(cx)
    })
    .await
}

/// Whether the peer says that it has not looked at the request.
fn is_unprocessed(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (error.is_go_away() || refused)
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        Pin::new(&mut self.get_mut().received).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.received.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.received.size_hint()
    }
}

/// A stream that counts what is written.
#[derive(Debug)]
struct Counted {
    stream: Stream,
    state: Arc<State>,
}

impl Counted {
    fn count(&self, written: usize) -> usize {
        self.state.written.fetch_add(written as u64, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_body_says_how_long_it_is() {
        let cases = [
            (Method::POST, "body", true, Some("4")),
            (Method::GET, "body", true, Some("4")),
            (Method::POST, "", true, Some("0")),
            (Method::GET, "", true, None),
            (Method::POST, "body", false, None),
        ];
        for (method, body, counted, expected) in cases {
            let mut head = Request::new(());
            *head.method_mut() = method.clone();
            let body = RequestBody::new(Payload::kept(Bytes::from_static(body.as_bytes()), counted));
            say_length(&mut head, &Replay::new(body));
            let said = head.headers().get(CONTENT_LENGTH).map(|length| length.to_str().unwrap());
            assert_eq!(said, expected, "{method}");
        }
    }
}
