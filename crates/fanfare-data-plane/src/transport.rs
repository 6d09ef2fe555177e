//! A client's connection below HTTP: with TLS or without, and with which version of HTTP above, as what it says first
//! tells.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// The first byte of a TLS handshake record. No method begins with it.
const HANDSHAKE: u8 = 22;
/// How long a connection without a request stays when the data plane drains. Somebody waits for its end.
const DRAINING_REST: Duration = Duration::from_millis(100);
/// The same where a successor is in its place, and nobody does.
const HANDED_OVER_REST: Duration = Duration::from_secs(5);
/// How long a handshake may go on then at least: a client of good will needs a few round trips.
const DRAINING_HANDSHAKE: Duration = Duration::from_secs(1);

/// What clients of HTTP/2 say first (RFC 9113, section 3.4). No request of another version begins so.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug)]
pub(crate) struct Transport {
    /// What was read to find out the version, to be read again.
    ahead: Bytes,
    stream: Stream,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Transport {
    /// Finds out what the client speaks, which where there is no certificate needs no word of it, and does its
    /// handshake. `None`: it is of no use.
    pub(crate) async fn open(
        stream: TcpStream,
        shared: &Shared,
        draining: &CancellationToken,
    ) -> Option<Self> {
        let Some(tls) = &shared.tls else { return Some(Transport::plain(stream)) };
        let mut first = [0];
        let peeked = tokio::select! {
            peeked = timeout(shared.options.header_read_timeout, stream.peek(&mut first)) => peeked.ok()?,
            () = drained(shared, draining, Duration::ZERO) => return None,
        };
        if peeked.ok()? == 0 || first[0] != HANDSHAKE {
            return Some(Transport::plain(stream));
        }
        tokio::select! {
            // Boxed: a connection without TLS should not have room for it.
            stream = Box::pin(tls.accept(stream)) => {
                Some(Transport { ahead: Bytes::new(), stream: Stream::Tls(stream?) })
            }
            () = drained(shared, draining, DRAINING_HANDSHAKE) => None,
        }
    }

    /// Without TLS.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Transport { ahead: Bytes::new(), stream: Stream::Plain(stream) }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Finds out which version of HTTP the client speaks. Takes as long as the client does to say enough.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) async fn protocol(&mut self) -> io::Result<Protocol> {
        let mut said = Vec::with_capacity(PREFACE.len());
        let protocol = loop {
            let mut rest = (&mut self.stream).take((PREFACE.len() - said.len()) as u64);
            if rest.read_buf(&mut said).await? == 0 || !PREFACE.starts_with(&said) {
                break Protocol::Http1;
            }
            if said.len() == PREFACE.len() {
                break Protocol::Http2;
            }
        };
        self.ahead = said.into();
        Ok(protocol)
    }

    /// Says something at once, or not at all.
    pub(crate) fn say(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> bool {
        match &mut self.stream {
            Stream::Plain(stream) => matches!(stream.try_write(bytes), Ok(n) if n == bytes.len()),
            Stream::Tls(stream) => {
                let said = Pin::new(&mut **stream).poll_write(cx, bytes);
                let said = matches!(said, Poll::Ready(Ok(n)) if n == bytes.len());
                said && !matches!(Pin::new(stream).poll_flush(cx), Poll::Ready(Err(_)))
            }
        }
    }
}

/// How long a connection without a request stays when the data plane drains.
pub(crate) fn draining_rest(shared: &Shared) -> Duration {
    if shared.handed_over.load(Ordering::Relaxed) { HANDED_OVER_REST } else { DRAINING_REST }
}

/// Resolves when a connection that has not come to a request should end because the data plane drains.
async fn drained(shared: &Shared, draining: &CancellationToken, least: Duration) {
    draining.cancelled().await;
    sleep(draining_rest(shared).max(least)).await;
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ahead.is_empty() {
            let taken = this.ahead.split_to(this.ahead.len().min(buf.remaining()));
            buf.put_slice(&taken);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
