//! A connection between two exchanges.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::ResponseBody;
use crate::error::{Error, ErrorKind, Progress, SendError};
use crate::exchange::{Exchange, HeadSearch};
use crate::read::ReadBuffer;
use crate::request::{RequestBody, RequestHead};
use crate::write::Writer;

/// A connection that waits for a request. To close it, drop it.
pub struct Connection<IO> {
    pub(crate) io: IO,
    pub(crate) read: ReadBuffer,
    /// The buffer of request heads, kept for its allocation.
    pub(crate) scratch: BytesMut,
    /// Exchanges served so far.
    pub(crate) served: u64,
}

impl<IO> Connection<IO> {
    /// A connection over a stream on which nothing has been said yet.
    pub fn new(io: IO) -> Self {
        Connection { io, read: ReadBuffer::new(), scratch: BytesMut::new(), served: 0 }
    }

    /// Exchanges that it has served.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.served
    }

    /// The stream beneath.
    pub fn get_ref(&self) -> &IO {
        &self.io
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Connection<IO> {
    /// Whether the peer has kept it open, as far as is known now, and has kept quiet. For pools that look through
    /// their idle connections; [`Connection::send`] checks by itself.
    pub fn is_open(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.read.bytes.is_empty() && self.read.poll_fill(&mut cx, &mut self.io).is_pending()
    }

    /// Sends a request and waits for the head of its response. The response may come before the request's body is at
    /// its end; the rest goes out while the response's body is read.
    ///
    /// `recycle` gets the connection once the response has been read completely, unless it cannot be used again
    /// (the peer said so, the request is not completely out, or something is wrong). It may be called before this
    /// resolves: when the response has no body.
    ///
    /// A 101 answer to [`RequestHead::upgrade`] has the stream in [`ResponseBody::into_upgraded`]. Other 1xx
    /// responses go to [`RequestHead::informational`]. Header fields come as the peer sent them, those of the connection included.
    ///
    /// # Errors
    /// [`SendError`] with what failed, how far the request had got, and its body where it can be had again.
    pub async fn send<B, R>(
        self,
        head: RequestHead<'_>,
        body: RequestBody<B>,
        recycle: R,
    ) -> Result<Response<ResponseBody<IO, B, R>>, SendError<B>>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        R: FnOnce(Connection<IO>) + Unpin,
    {
        self.start(head, body, recycle).await
    }

    /// The same as a value that needs nothing of the caller's any more: it may go on elsewhere.
    pub fn start<B, R>(self, head: RequestHead<'_>, body: RequestBody<B>, recycle: R) -> InFlight<IO, B, R>
    where
        B: Body<Data = Bytes> + Unpin,
        R: FnOnce(Connection<IO>) + Unpin,
    {
        let Connection { io, read, mut scratch, served } = self;
        let search = HeadSearch::new(&head);
        let checked = served == 0;
        let state = match head.encode(&body, &mut scratch) {
            Ok(framing) => {
                let writer = Writer::new(body, framing, scratch);
                State::Sent(Exchange { io, read, writer, served, response_started: false }, recycle)
            }
            Err(why) => {
                let progress = Progress { reused: served > 0, ..Progress::default() };
                let error = Error { kind: ErrorKind::Request(why), progress };
                State::Refused(SendError { error, body: Some(body) })
            }
        };
        InFlight { state, search, checked }
    }
}

/// A request on its way; resolves as [`Connection::send`] does. Dropping it closes the connection.
pub struct InFlight<IO, B, R> {
    state: State<IO, B, R>,
    search: HeadSearch,
    checked: bool,
}

impl<IO, B, R> InFlight<IO, B, R> {
    /// Whoever wanted to know of informational responses does so no more.
    pub fn ignore_informational(&mut self) {
        self.search.on_informational = None;
    }
}

enum State<IO, B, R> {
    Sent(Exchange<IO, B>, R),
    /// It cannot be sent.
    Refused(SendError<B>),
    Over,
}

impl<IO, B, R> Future for InFlight<IO, B, R>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    R: FnOnce(Connection<IO>) + Unpin,
{
    type Output = Result<Response<ResponseBody<IO, B, R>>, SendError<B>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let InFlight { state, search, checked } = self.get_mut();
        let answer = match state {
            State::Sent(exchange, _) if *checked => ready!(exchange.poll_head(cx, search)),
            State::Sent(exchange, _) => {
                *checked = true;
                match exchange.check_idle(cx) {
                    Ok(()) => ready!(exchange.poll_head(cx, search)),
                    Err(kind) => Err(kind),
                }
            }
            State::Refused(_) | State::Over => Err(ErrorKind::Closed),
        };
        Poll::Ready(match (std::mem::replace(state, State::Over), answer) {
            (State::Sent(exchange, recycle), Ok(head)) => {
                let (parts, ()) = head.response.into_parts();
                let body = ResponseBody::new(exchange, parts.status, head.framing, head.keep_alive, recycle);
                Ok(Response::from_parts(parts, body))
            }
            (State::Sent(exchange, _), Err(kind)) => {
                Err(SendError { error: exchange.error(kind), body: exchange.writer.into_body() })
            }
            (State::Refused(why), _) => Err(why),
            (State::Over, _) => unreachable!("a future is not polled after its end"),
        })
    }
}

impl<IO, B, R> fmt::Debug for InFlight<IO, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("search", &self.search).finish_non_exhaustive()
    }
}

impl<IO> fmt::Debug for Connection<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("served", &self.served).finish_non_exhaustive()
    }
}
