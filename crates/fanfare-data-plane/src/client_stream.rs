//! A client's connection of HTTP/1 as the server reads and writes it, where the server by itself would say too little.
//!
//! - The end of what a client says is either its departure or all it has to say (`nc -N`, `socat`). The server takes it
//!   for the former. HTTP/1.1 clients are asked: they must be able to pass over a `100 Continue` at any time before the
//!   answer, to which a socket that was closed says that it is, and one that was closed for writing says nothing.
//!   HTTP/1.0 clients cannot be asked, and are taken to have left.
//! - What is no request is answered by the server itself, without a reason. There is no hook for that, but an answer
//!   while there is no request is the server's own, and is replaced by one that has all.
//! - An answer to a request that was not read to its end ends the connection, and must not be lost by that.
//! - An answer that ends with the connection and breaks off must not look complete: the connection is reset.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use fanfare_http1::{Heard, Linger, OnInformational, OwnWords, Turn};
use http::{HeaderMap, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::interim::Interim;
use crate::problem;
use crate::shared::Shared;
use crate::transport::Transport;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What the connection and the requests on it know of each other. On one core, so the order of accesses is the
/// program's; atomic only because the server wants connections that could be sent elsewhere.
#[derive(Debug, Default)]
pub(crate) struct ClientState {
    pub(crate) turn: Arc<Turn>,
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
        self.turn.begin();
        let informed = matches!(version, Version::HTTP_11 | Version::HTTP_2);
        self.waiting.store(informed, Ordering::Relaxed);
        self.interim.begin(informed && expects);
    }

    /// Nobody listens any more to what comes before the answer.
    pub(crate) fn ignore_informational(&self) {
        self.waiting.store(false, Ordering::Relaxed);
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
    own_words: OwnWords,
    /// Since the client has said all it has to say: resolves when it has left.
    leaves: Option<Pin<Box<dyn Future<Output = io::Error> + Send>>>,
    heard: Heard,
    /// Since the server has closed the connection.
    linger: Option<Linger>,
    /// Informational responses that are being written.
    interim: Bytes,
}

impl ClientStream {
    pub(crate) fn new(stream: Transport, state: Arc<ClientState>, shared: Arc<Shared>) -> Self {
        ClientStream {
            stream,
            state,
            shared,
            dirty: false,
            own_words: OwnWords::default(),
            leaves: None,
            heard: Heard::default(),
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
        let Ok(leaves) = closed(self.stream.socket()) else { return Poll::Ready(Ok(())) };
        self.state.ended.store(true, Ordering::Relaxed);
        self.leaves = Some(Box::pin(leaves));
        self.poll_left(cx)
    }

    /// Never ready with anything but the error of a socket that was closed: reading would go on to say that it has
    /// ended.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(leaves) = &mut self.leaves else { return Poll::Pending };
        leaves.as_mut().poll(cx).map(Err)
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

    fn poll_server(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(cx))?;
        self.dirty = true;
        if bufs.first().is_none_or(|first| **first != *CONTINUE) {
            self.state.ignore_informational();
        }
        let refuse = |status| problem::of_server(&self.shared, status, &self.heard, &self.state.turn);
        self.own_words.poll_write(cx, &mut self.stream, bufs, &self.state.turn, refuse)
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.leaves.is_some() {
            return this.poll_left(cx);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.heard.read(&this.state.turn, &buf.filled()[before..]);
        if buf.filled().len() > before || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        this.poll_ended(cx)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_server(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_server(cx, bufs)
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
            if !this.own_words.are_there() && !this.state.unread.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        this.linger.get_or_insert_default().poll(cx, &mut this.stream).map(Ok)
    }
}

/// Resolves when the peer of a socket says that it is closed.
fn closed(stream: &TcpStream) -> io::Result<impl Future<Output = io::Error> + use<>> {
    // A registration of its own: that of the stream is ready for ever once the peer has said its last.
    let socket = TcpStream::from_std(std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?))?;
    Ok(async move {
        loop {
            if let Err(error) = socket.ready(Interest::ERROR).await {
                return error;
            }
            // Not ready again before it is told again.
            let error = socket.try_io(Interest::ERROR, || match socket.take_error()? {
                Some(error) => Ok(error),
                None => Err(io::ErrorKind::WouldBlock.into()),
            });
            match error {
                Ok(error) => return error,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return error,
                Err(_) => {}
            }
        }
    })
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if self.state.reset.load(Ordering::Relaxed) {
            // If that fails the connection ends as any other.
            let _ = socket2::SockRef::from(self.stream.socket()).set_linger(Some(Duration::ZERO));
        }
    }
}
