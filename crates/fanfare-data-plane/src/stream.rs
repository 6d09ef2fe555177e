//! A connected socket to a sandbox or to another data plane.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::RecvFlags;
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
    /// Something was sent, and nothing received since.
    asked: bool,
    /// A first part of the answer is here, and its sender has not been told.
    heard: Cell<bool>,
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Self {
        Stream { socket, core: core::current(), asked: false, heard: Cell::new(false) }
    }

    /// Whether the peer has neither closed it nor said anything that was not read, as the kernel knows it now.
    pub(crate) fn is_quiet(&self) -> bool {
        match &self.socket {
            Socket::Unix(s) => is_quiet(s),
            Socket::Tcp(s) => is_quiet(s),
            Socket::Lost => false,
        }
    }

    /// The answer is complete.
    pub(crate) fn rests(&self) {
        self.heard.set(false);
    }

    /// Something was received.
    fn received(&mut self) {
        if std::mem::take(&mut self.asked) {
            self.heard.set(true);
        }
    }

    /// Nothing more is there yet. A peer that writes its answer in pieces, and does not say so to its kernel
    /// (`TCP_NODELAY`), keeps the next piece back until the last one is acknowledged, which this end's kernel would
    /// put off for 40 ms: it expects something to send along with it. Once for each answer that comes in pieces.
    fn acknowledge(&self) {
        if self.heard.take()
            && let Socket::Tcp(socket) = &self.socket
        {
            // It only delays the rest if it fails.
            let _ = rustix::net::sockopt::set_tcp_quickack(socket, true);
        }
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

fn is_quiet(socket: impl AsFd) -> bool {
    let peeked = rustix::net::recv(socket, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    // Nothing is its end, a byte is unasked, and of other errors none is harmless.
    matches!(peeked, Err(Errno::AGAIN))
}

fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket could not be handed to this core")
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = match this.here()? {
            Socket::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Socket::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Socket::Lost => Poll::Ready(Err(lost())),
        };
        match read {
            Poll::Ready(_) => this.received(),
            Poll::Pending => this.acknowledge(),
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.asked = true;
        match this.here()? {
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
        let this = self.get_mut();
        this.asked = true;
        match this.here()? {
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use tokio::runtime::{Builder, Runtime};

    trait Peer: Read + Write + Send {}
    impl<T: Read + Write + Send> Peer for T {}

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn unix() -> (Stream, Box<dyn Peer>) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Stream::new(Socket::Unix(UnixStream::from_std(ours).unwrap())), Box::new(theirs))
    }

    fn tcp() -> (Stream, Box<dyn Peer>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        (Stream::new(Socket::Tcp(TcpStream::from_std(ours).unwrap())), Box::new(theirs))
    }

    /// What another thread with an event loop of its own sees of a stream, and whether it can still read from it.
    fn elsewhere(mut stream: Stream) -> (bool, Vec<u8>) {
        let seen = move || {
            core::tests::as_core(1);
            let quiet = stream.is_quiet();
            let read = runtime().block_on(async {
                let mut bytes = Vec::new();
                tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut bytes).await.unwrap();
                bytes
            });
            (quiet, read)
        };
        std::thread::spawn(seen).join().unwrap()
    }

    #[test]
    fn the_end_and_what_was_said_are_seen_at_once_on_any_core() {
        for pair in [unix, tcp] {
            let here = runtime();
            let _context = here.enter();
            let (stream, peer) = pair();
            assert!(stream.is_quiet());
            drop(peer);
            assert!(!stream.is_quiet(), "its end");
            assert_eq!(elsewhere(stream), (false, vec![]));

            let (stream, mut peer) = pair();
            peer.write_all(b"unasked").unwrap();
            assert!(!stream.is_quiet(), "what was said");
            drop(peer);
            assert_eq!(elsewhere(stream), (false, b"unasked".to_vec()), "looking takes nothing away");
        }
    }

    #[test]
    fn what_comes_in_pieces_is_acknowledged_at_once() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let here = runtime();
        let _context = here.enter();
        let (mut stream, mut peer) = tcp();
        let quick = |stream: &Stream| match &stream.socket {
            Socket::Tcp(s) => rustix::net::sockopt::tcp_quickack(s).unwrap(),
            _ => unreachable!("it is one"),
        };
        let mut byte = [0];
        here.block_on(async {
            for answer_is_complete in [true, false] {
                stream.write_all(b"request").await.unwrap();
                peer.write_all(b"1").unwrap();
                stream.read_exact(&mut byte).await.unwrap();
                // As after many exchanges.
                let Socket::Tcp(s) = &stream.socket else { unreachable!("it is one") };
                rustix::net::sockopt::set_tcp_quickack(s, false).unwrap();
                if answer_is_complete {
                    stream.rests();
                }
                let more = std::future::poll_fn(|cx| {
                    let mut buf = ReadBuf::new(&mut byte);
                    Poll::Ready(Pin::new(&mut stream).poll_read(cx, &mut buf).is_ready())
                });
                assert!(!more.await);
                assert_eq!(quick(&stream), !answer_is_complete);
            }
        });
    }

    #[test]
    fn a_quiet_stream_is_quiet_on_any_core_and_still_works_there() {
        for pair in [unix, tcp] {
            let here = runtime();
            let _context = here.enter();
            let (stream, mut peer) = pair();
            let (looked, seen) = std::sync::mpsc::channel();
            let other = std::thread::spawn(move || {
                core::tests::as_core(1);
                let mut stream = stream;
                looked.send(stream.is_quiet()).unwrap();
                let mut byte = [0];
                runtime().block_on(tokio::io::AsyncReadExt::read_exact(&mut stream, &mut byte)).unwrap();
                byte
            });
            assert!(seen.recv().unwrap());
            peer.write_all(b"x").unwrap();
            assert_eq!(&other.join().unwrap(), b"x");
        }
    }
}
