//! A connection between two exchanges.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Waker};

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
    /// responses are skipped. Header fields come as the peer sent them, those of the connection included.
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
        let Connection { io, read, mut scratch, served } = self;
        let framing = match head.encode(&body, &mut scratch) {
            Ok(framing) => framing,
            Err(why) => {
                let progress = Progress { reused: served > 0, ..Progress::default() };
                let error = Error { kind: ErrorKind::Request(why), progress };
                return Err(SendError { error, body: Some(body) });
            }
        };
        let writer = Writer::new(body, framing, scratch);
        let mut exchange = Exchange { io, read, writer, served, response_started: false };
        let mut search = HeadSearch::new(head.method, head.upgrade.is_some());
        let mut checked = served == 0;
        let answer = poll_fn(|cx| {
            if !checked {
                exchange.check_idle(cx)?;
                checked = true;
            }
            exchange.poll_head(cx, &mut search)
        });
        match answer.await {
            Ok(head) => {
                let (parts, ()) = head.response.into_parts();
                let body = ResponseBody::new(exchange, parts.status, head.framing, head.keep_alive, recycle);
                Ok(Response::from_parts(parts, body))
            }
            Err(kind) => Err(SendError { error: exchange.error(kind), body: exchange.writer.into_body() }),
        }
    }
}

impl<IO> fmt::Debug for Connection<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("served", &self.served).finish_non_exhaustive()
    }
}
