//! A client's connection as the server reads and writes it, where the server by itself would say too little.
//!
//! - The end of what a client says is either its departure or all it has to say (`nc -N`, `socat`). The server takes it
//!   for the former. HTTP/1.1 clients are asked: they must be able to pass over a `100 Continue` at any time before the
//!   answer, to which a socket that was closed says that it is, and one that was closed for writing says nothing.
//!   HTTP/1.0 clients cannot be asked, and are taken to have left.
//! - What is no request is answered by the server itself, without a reason. There is no hook for that, but where it is
//!   the first thing that is said on a connection, the answer is recognised and replaced by one that has all.
//! - An answer to a request that was not read to its end ends the connection, and must not be lost by that.
//! - An answer that ends with the connection and breaks off must not look complete: the connection is reset.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use fanfare_http1::{Linger, OnInformational};
use http::{HeaderMap, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::interim::Interim;
use crate::problem;
use crate::shared::Shared;
use crate::transport::Transport;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// First pause before it is looked whether the client has closed its socket; doubles to the maximum.
const RECHECK_MIN: Duration = Duration::from_millis(5);
const RECHECK_MAX: Duration = Duration::from_secs(5);

/// What the connection and the requests on it know of each other. On one core, so the order of accesses is the
/// program's; atomic only because the server wants connections that could be sent elsewhere.
#[derive(Debug, Default)]
pub(crate) struct ClientState {
    /// There was a request.
    asked: AtomicBool,
    http2: AtomicBool,
    /// A request can be answered with `100 Continue` now.
    waiting: AtomicBool,
    /// The client has said all it has to say.
    ended: AtomicBool,
    /// The end of the connection is the end of the answer.
    unframed: AtomicBool,
    reset: AtomicBool,
    /// The connection ends with an answer to a request that was not read to its end.
    unread: AtomicBool,
    pub(crate) interim: Interim,
}

impl ClientState {
    /// A request has come, whose client `expects` leave to send its body or does not.
    pub(crate) fn begin(&self, version: Version, expects: bool) {
        self.asked.store(true, Ordering::Relaxed);
        self.http2.store(version == Version::HTTP_2, Ordering::Relaxed);
        self.waiting.store(version == Version::HTTP_11, Ordering::Relaxed);
        self.interim.begin(version == Version::HTTP_11 && expects);
    }

    /// Whether it is known to speak HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Whether the client has said all it has to say: a body that is not complete will not be.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// An answer begins whose end is the end of the connection.
    pub(crate) fn unframed(&self) {
        self.unframed.store(true, Ordering::Relaxed);
    }

    /// The connection ends before all is read that its client says.
    pub(crate) fn unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// An answer has broken off.
    pub(crate) fn cut(&self) {
        self.reset.store(self.unframed.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl OnInformational for ClientState {
    fn informational(&self, status: StatusCode, fields: &HeaderMap) {
        self.interim.take(status, fields, self.waiting.load(Ordering::Relaxed));
    }
}

pub(crate) struct ClientStream {
    stream: Transport,
    state: Arc<ClientState>,
    shared: Arc<Shared>,
    /// Something was given to be written and not yet flushed.
    dirty: bool,
    /// Since the client has said all it has to say: when to look whether it has left.
    recheck: Option<(Pin<Box<Sleep>>, Duration)>,
    refusal: Option<Refusal>,
    /// Since the server has closed the connection.
    linger: Option<Linger>,
    /// Informational responses that are being written.
    interim: Bytes,
}

/// An answer in place of the server's own.
struct Refusal {
    bytes: Vec<u8>,
    written: usize,
}

impl ClientStream {
    pub(crate) fn new(stream: Transport, state: Arc<ClientState>, shared: Arc<Shared>) -> Self {
        ClientStream {
            stream,
            state,
            shared,
            dirty: false,
            recheck: None,
            refusal: None,
            linger: None,
            interim: Bytes::new(),
        }
    }

    /// The client says nothing more. Whether it listens is found out if that is possible.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing may be said in the middle of an answer.
        let askable = self.state.waiting.load(Ordering::Relaxed) && !self.dirty && self.interim.is_empty();
        if !askable || !self.stream.say(cx, CONTINUE) {
            return Poll::Ready(Ok(()));
        }
        self.state.ended.store(true, Ordering::Relaxed);
        self.recheck = Some((Box::pin(sleep(RECHECK_MIN)), RECHECK_MIN));
        self.poll_left(cx)
    }

    /// Never ready with anything but the error of a socket that was closed.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((timer, pause)) = &mut self.recheck {
            ready!(timer.as_mut().poll(cx));
            // Reading would go on to say that it has ended.
            if let Some(error) = self.stream.socket().take_error()? {
                return Poll::Ready(Err(error));
            }
            *pause = (*pause * 2).min(RECHECK_MAX);
            timer.as_mut().reset(Instant::now() + *pause);
        }
        Poll::Pending
    }

    /// Writes informational responses, where that is between two answers of the server.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.interim.is_empty() {
            match self.state.interim.written() {
                Some(bytes) if !self.dirty && self.state.waiting.load(Ordering::Relaxed) => {
                    self.interim = bytes.into();
                }
                // Too late for them.
                _ => return Poll::Ready(Ok(())),
            }
        }
        while !self.interim.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.interim))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.interim.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes note of what the server is about to write; `false` when something else is written instead.
    fn write_begins(&mut self, bytes: &[u8]) -> bool {
        self.dirty = true;
        if bytes != CONTINUE {
            self.state.waiting.store(false, Ordering::Relaxed);
        }
        if self.refusal.is_none() && !self.state.asked.load(Ordering::Relaxed) {
            self.refusal = refused(bytes).map(|status| {
                let bytes = problem::of_server(&self.shared, status);
                Refusal { bytes, written: 0 }
            });
        }
        self.refusal.is_none()
    }
}

/// The status of the server's own answer that `bytes` begin with. Other protocols begin otherwise.
fn refused(bytes: &[u8]) -> Option<StatusCode> {
    let code = bytes.strip_prefix(b"HTTP/1.1 ").or_else(|| bytes.strip_prefix(b"HTTP/1.0 "))?.get(..3)?;
    StatusCode::from_bytes(code).ok().filter(StatusCode::is_client_error)
}

impl Refusal {
    fn poll_write(&mut self, cx: &mut Context<'_>, stream: &mut Transport) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, &self.bytes[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.recheck.is_some() {
            return this.poll_left(cx);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        this.poll_ended(cx)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_interim(cx))?;
        if this.write_begins(buf) {
            return Pin::new(&mut this.stream).poll_write(cx, buf);
        }
        if let Some(refusal) = &mut this.refusal {
            ready!(refusal.poll_write(cx, &mut this.stream))?;
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_interim(cx))?;
        if this.write_begins(bufs.first().map_or(&[], |first| &**first)) {
            return Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        }
        if let Some(refusal) = &mut this.refusal {
            ready!(refusal.poll_write(cx, &mut this.stream))?;
        }
        Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        this.dirty = false;
        this.poll_interim(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            // Closing a connection with something unread resets it, and the client might never see the answer.
            if this.refusal.is_none() && !this.state.unread.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        this.linger.get_or_insert_default().poll(cx, &mut this.stream).map(Ok)
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if self.state.reset.load(Ordering::Relaxed) {
            // If that fails the connection ends as any other.
            let _ = socket2::SockRef::from(self.stream.socket()).set_linger(Some(Duration::ZERO));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_the_server_is_taken_for_one() {
        let cases: [(&[u8], Option<u16>); 7] = [
            (b"HTTP/1.1 400 Bad Request\r\n", Some(400)),
            (b"HTTP/1.0 431 \r\n", Some(431)),
            (b"HTTP/1.1 200 OK\r\n", None),
            (b"HTTP/1.1 100 Continue\r\n", None),
            (b"HTTP/1.1 4", None),
            (b"\0\0\x12\x04\0\0\0\0\0", None),
            (b"", None),
        ];
        for (bytes, status) in cases {
            assert_eq!(refused(bytes).map(|status| status.as_u16()), status, "{bytes:?}");
        }
    }
}
