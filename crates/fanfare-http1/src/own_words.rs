//! For servers: what the server says by itself.
//!
//! A server on hyper is never asked about what is no request: hyper answers it with a status and nothing else, and has
//! no hook for that. But what is written while no request has an answer to come is hyper's own. [`Turn`] knows when that
//! is so, and [`OwnWords`] writes another refusal in its place.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::io::AsyncWrite;

/// Whose turn it is to speak on one connection: a request's, or the server's own. The connection and its requests are on
/// one task, so the order of accesses is the program's.
#[derive(Debug, Default)]
pub struct Turn {
    /// Requests that have come.
    requests: AtomicU64,
    /// There is one whose whole answer the server does not have yet.
    asked: AtomicBool,
}

/// The body of an answer, which the server has whole when it drops this.
#[derive(Debug)]
pub struct Answering<B> {
    body: B,
    /// None after a change of protocol: what is written then is no HTTP, and never the server's own.
    turn: Option<Arc<Turn>>,
}

/// What a server writes on one connection.
#[derive(Debug)]
pub struct OwnWords {
    /// The request whose whole answer was among what was given to be written last, and how much of that is left.
    settled: Option<u64>,
    left_bytes: usize,
    refusal: Option<Refusal>,
}

/// An answer in place of the server's own.
#[derive(Debug)]
struct Refusal {
    bytes: Vec<u8>,
    written: usize,
    /// Of the server's own.
    own_bytes: usize,
}

impl Turn {
    /// A request has come.
    pub fn begin(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Its answer, as the server is to get it.
    pub fn answering<B>(self: &Arc<Self>, response: Response<B>) -> Response<Answering<B>> {
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let turn = (!switches).then(|| self.clone());
        response.map(|body| Answering { body, turn })
    }

    /// The last request, by its number from 1, if the server has its whole answer; 0 before the first.
    pub fn settled(&self) -> Option<u64> {
        (!self.asked.load(Ordering::Relaxed)).then(|| self.requests.load(Ordering::Relaxed))
    }
}

impl Default for OwnWords {
    /// Before the first request.
    fn default() -> Self {
        OwnWords { settled: Some(0), left_bytes: 0, refusal: None }
    }
}

impl OwnWords {
    /// Whether there was something of the server's own, which ends the connection.
    pub fn are_there(&self) -> bool {
        self.refusal.is_some()
    }

    /// Writes what the server gives, all that it has; where that is a refusal of its own, what `refuse` makes of its
    /// status.
    ///
    /// # Errors
    /// Those of the stream; and a reset where the server's own words are in the midst of others'.
    pub fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        bufs: &[IoSlice<'_>],
        turn: &Turn,
        refuse: impl FnOnce(StatusCode) -> Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let bytes = bufs.iter().map(|buf| buf.len()).sum();
        let as_it_is = self.others(bufs, bytes, turn, refuse)?;
        let stream = Pin::new(stream);
        let written = if as_it_is == bytes {
            ready!(stream.poll_write_vectored(cx, bufs))?
        } else if as_it_is > 0 {
            ready!(stream.poll_write(cx, &bufs[0][..as_it_is]))?
        } else if let Some(refusal) = &mut self.refusal {
            ready!(refusal.poll_write(cx, stream))?;
            bytes
        } else {
            0
        };
        self.left_bytes = bytes - written;
        Poll::Ready(Ok(written))
    }

    /// How much of what is to be written is not the server's own.
    fn others(
        &mut self,
        bufs: &[IoSlice<'_>],
        bytes: usize,
        turn: &Turn,
        refuse: impl FnOnce(StatusCode) -> Vec<u8>,
    ) -> io::Result<usize> {
        if let Some(refusal) = &self.refusal {
            return Ok(bytes.saturating_sub(refusal.own_bytes));
        }
        let (settled, before) = (turn.settled(), self.settled);
        let own_bytes = bytes.saturating_sub(self.left_bytes);
        self.left_bytes = bytes;
        if settled.is_some() {
            self.settled = settled;
        }
        // What comes after the whole of the last answer is no answer.
        if settled.is_none() || settled != before || own_bytes == 0 {
            return Ok(bytes);
        }
        let first: &[u8] = bufs.first().map_or(&[], |first| first);
        let own = first.len().checked_sub(own_bytes).map(|at| &first[at..]);
        let Some(status) = own.and_then(refused) else { return Ok(bytes) };
        if bufs.len() > 1 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.refusal = Some(Refusal { bytes: refuse(status), written: 0, own_bytes });
        Ok(bytes - own_bytes)
    }
}

/// The status of the server's own answer that `bytes` begin with. Other protocols begin otherwise.
fn refused(bytes: &[u8]) -> Option<StatusCode> {
    let code = bytes.strip_prefix(b"HTTP/1.1 ").or_else(|| bytes.strip_prefix(b"HTTP/1.0 "))?.get(..3)?;
    StatusCode::from_bytes(code).ok().filter(StatusCode::is_client_error)
}

impl Refusal {
    fn poll_write<S: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        mut stream: Pin<&mut S>,
    ) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            let written = ready!(stream.as_mut().poll_write(cx, &self.bytes[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        Poll::Ready(Ok(()))
    }
}

impl<B> Drop for Answering<B> {
    fn drop(&mut self) {
        if let Some(turn) = &self.turn {
            turn.asked.store(false, Ordering::Relaxed);
        }
    }
}

impl<B: Body + Unpin> Body for Answering<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use bytes::Bytes;
    use http_body_util::Empty;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    const OWN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const PIPE_BYTES: usize = 100;

    struct Server {
        stream: DuplexStream,
        words: OwnWords,
        turn: Arc<Turn>,
    }

    impl Server {
        fn new() -> (Self, DuplexStream) {
            let (stream, client) = duplex(PIPE_BYTES);
            (Server { stream, words: OwnWords::default(), turn: Arc::default() }, client)
        }

        fn poll(&mut self, cx: &mut Context<'_>, bufs: &[&[u8]]) -> Poll<io::Result<usize>> {
            let bufs: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
            let refuse = |status: StatusCode| format!("refused {}", status.as_u16()).into_bytes();
            self.words.poll_write(cx, &mut self.stream, &bufs, &self.turn, refuse)
        }

        /// A request comes, and its answer is in the server's hands at once.
        fn answered(&self) {
            self.turn.begin();
            drop(self.turn.answering(Response::new(Empty::<Bytes>::new())));
        }

        async fn write(&mut self, mut bytes: &[u8]) {
            while !bytes.is_empty() {
                let written = poll_fn(|cx| self.poll(cx, &[bytes])).await.unwrap();
                bytes = &bytes[written..];
            }
        }

        /// Writes as much as the client's side takes of an answer, and returns the rest.
        async fn write_some(&mut self) -> Vec<u8> {
            self.answered();
            let answer = OWN.repeat(10);
            let written = poll_fn(|cx| self.poll(cx, &[&answer])).await.unwrap();
            assert_eq!(written, PIPE_BYTES);
            let rest = answer[written..].to_vec();
            let pending = poll_fn(|cx| Poll::Ready(self.poll(cx, &[&rest]).is_pending())).await;
            assert!(pending);
            rest
        }
    }

    async fn read(mut client: DuplexStream) -> Vec<u8> {
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received
    }

    #[tokio::test]
    async fn what_comes_before_any_request_and_between_two_is_the_servers_own() {
        for requests in 0..3 {
            let (mut server, client) = Server::new();
            let reader = tokio::spawn(read(client));
            for _ in 0..requests {
                server.answered();
                server.write(OWN).await;
            }
            assert!(!server.words.are_there());
            server.write(OWN).await;
            assert!(server.words.are_there());
            drop(server);
            assert_eq!(reader.await.unwrap(), [&OWN.repeat(requests), &b"refused 400"[..]].concat());
        }
    }

    #[tokio::test]
    async fn a_refusal_behind_an_answer_that_was_not_read_is_replaced_and_nothing_of_the_answer() {
        let (mut server, client) = Server::new();
        let rest = server.write_some().await;
        let reader = tokio::spawn(read(client));
        server.write(&[&rest, OWN].concat()).await;
        drop(server);
        assert_eq!(reader.await.unwrap(), [&OWN.repeat(10), &b"refused 400"[..]].concat());
    }

    #[tokio::test]
    async fn an_answer_to_another_request_behind_it_is_left_alone() {
        let (mut server, client) = Server::new();
        let rest = server.write_some().await;
        server.answered();
        let reader = tokio::spawn(read(client));
        server.write(&[&rest, OWN].concat()).await;
        drop(server);
        assert_eq!(reader.await.unwrap(), OWN.repeat(11));
    }

    #[tokio::test]
    async fn a_refusal_in_the_midst_of_an_answer_ends_the_connection() {
        let (mut server, _client) = Server::new();
        let rest = server.write_some().await;
        let (first, second) = rest.split_at(rest.len() / 2);
        let first = [first, OWN].concat();
        let error = poll_fn(|cx| server.poll(cx, &[&first, second])).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn after_a_change_of_protocol_nothing_is_the_servers_own() {
        let (mut server, client) = Server::new();
        let reader = tokio::spawn(read(client));
        server.turn.begin();
        let mut switching = Response::new(Empty::<Bytes>::new());
        *switching.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        drop(server.turn.answering(switching));
        server.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await;
        server.write(OWN).await;
        drop(server);
        assert!(reader.await.unwrap().ends_with(OWN));
    }

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
