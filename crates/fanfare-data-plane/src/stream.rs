//! A connected socket to a sandbox or to another data plane.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::core;

/// Unix or TCP.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
    /// It could not be handed to another core.
    Lost,
}

/// A socket that belongs to the core that uses it: the first use on another core hands it to that core's reactor, so
/// that its readiness never needs a message between cores.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    core: usize,
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Self {
        Stream { socket, core: core::current() }
    }

    fn here(&mut self) -> io::Result<&mut Socket> {
        let core = core::current();
        if self.core != core {
            self.core = core;
            self.socket = match std::mem::replace(&mut self.socket, Socket::Lost) {
                Socket::Unix(s) => Socket::Unix(UnixStream::from_std(s.into_std()?)?),
                Socket::Tcp(s) => Socket::Tcp(TcpStream::from_std(s.into_std()?)?),
                Socket::Lost => Socket::Lost,
            };
        }
        Ok(&mut self.socket)
    }
}

fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket could not be handed to this core")
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().here()? {
            Socket::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Socket::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Socket::Lost => Poll::Ready(Err(lost())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut().here()? {
            Socket::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Socket::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Socket::Lost => Poll::Ready(Err(lost())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut().here()? {
            Socket::Unix(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Socket::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Socket::Lost => Poll::Ready(Err(lost())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().here()? {
            Socket::Unix(s) => Pin::new(s).poll_flush(cx),
            Socket::Tcp(s) => Pin::new(s).poll_flush(cx),
            Socket::Lost => Poll::Ready(Err(lost())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().here()? {
            Socket::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Socket::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Socket::Lost => Poll::Ready(Err(lost())),
        }
    }
}
