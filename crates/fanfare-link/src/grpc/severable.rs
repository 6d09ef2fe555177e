//! Connections that can be cut.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// A TCP connection that ends when its token is cancelled.
///
/// A stream of HTTP/2 whose peer has stopped reading cannot even say that it has ended: its end waits behind the
/// bytes that flow control holds back. Cutting the connection under it tells both sides at once.
pub(super) struct Severable {
    io: TcpStream,
    token: CancellationToken,
    severed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Until the peer has said so much as HTTP/2 begins with: no ping asks for it before.
    preface: Option<Preface>,
}

struct Preface {
    left: usize,
    over: Pin<Box<Sleep>>,
}

/// Bytes of HTTP/2's client preface.
const PREFACE_BYTES: usize = 24;

impl Severable {
    pub(super) fn new(io: TcpStream, token: CancellationToken) -> Self {
        let severed = Box::pin(token.clone().cancelled_owned());
        Severable { io, token, severed, preface: None }
    }

    /// The same for a connection that was accepted: it ends, too, if the peer does not begin within `limit`.
    pub(super) fn accepted(io: TcpStream, token: CancellationToken, limit: Duration) -> Self {
        let over = Box::pin(tokio::time::sleep(limit));
        Severable { preface: Some(Preface { left: PREFACE_BYTES, over }), ..Severable::new(io, token) }
    }
}

impl AsyncRead for Severable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // The HTTP/2 connection always has a read pending, so this is what wakes it.
        if self.severed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        let this = &mut *self;
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        if let Some(preface) = &mut this.preface {
            preface.left = preface.left.saturating_sub(buf.filled().len() - before);
            if preface.left == 0 {
                this.preface = None;
            } else if preface.over.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Severable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Cuts the connection that a call came on.
#[derive(Clone)]
pub(super) struct Severance(pub(super) CancellationToken);

impl Connected for Severable {
    type ConnectInfo = Severance;

    fn connect_info(&self) -> Severance {
        Severance(self.token.clone())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_accepted_connection_begins_in_time_or_ends() {
        let limit = Duration::from_secs(1);
        for (said, in_time) in [(0, false), (PREFACE_BYTES - 1, false), (PREFACE_BYTES, true)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (io, _) = listener.accept().await.unwrap();
            let mut severable = Severable::accepted(io, CancellationToken::new(), limit);
            client.write_all(&vec![b'P'; said]).await.unwrap();
            severable.read_exact(&mut vec![0; said]).await.unwrap();
            // The test's clock moves on by itself when nothing else can happen.
            let more = tokio::time::timeout(2 * limit, severable.read(&mut [0])).await;
            let ended = more.ok().map(|read| read.unwrap_err().kind());
            assert_eq!(ended, (!in_time).then_some(io::ErrorKind::TimedOut), "{said} bytes");
        }
    }
}
