//! A response's body.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::chunked::Decoded;
use crate::connection::Connection;
use crate::error::{Error, ErrorKind};
use crate::exchange::Exchange;
use crate::response::Framing;

/// The body of a response. Reading it also writes what is left of the request; dropping it before its end closes the
/// connection.
pub struct ResponseBody<IO, B, R> {
    exchange: Option<Exchange<IO, B>>,
    framing: Framing,
    keep_alive: bool,
    upgraded: bool,
    recycle: Option<R>,
}

impl<IO, B, R: FnOnce(Connection<IO>)> ResponseBody<IO, B, R> {
    pub(crate) fn new(
        exchange: Exchange<IO, B>,
        status: StatusCode,
        framing: Framing,
        keep_alive: bool,
        recycle: R,
    ) -> Self {
        let upgraded = status == StatusCode::SWITCHING_PROTOCOLS;
        let exchange = Some(exchange);
        let mut body = ResponseBody { exchange, framing, keep_alive, upgraded, recycle: Some(recycle) };
        // Nobody polls a body that is known to be empty.
        if matches!(body.framing, Framing::Length(0)) && !upgraded {
            body.complete();
        }
        body
    }

    /// After a 101: the stream, and what the peer already said in the new protocol. `None` for other responses, or
    /// when the request's body was not out yet.
    pub fn into_upgraded(self) -> Option<(IO, Bytes)> {
        let exchange = self.exchange.filter(|exchange| self.upgraded && exchange.writer.is_done())?;
        Some((exchange.io, exchange.read.bytes.freeze()))
    }

    /// The response is at its end: the connection goes back, or is closed.
    fn complete(&mut self) {
        self.framing = Framing::Length(0);
        let connection = self.exchange.take().and_then(Exchange::into_connection);
        if let (Some(connection), Some(recycle), true) = (connection, self.recycle.take(), self.keep_alive) {
            recycle(connection);
        }
    }
}

impl<IO, B, R> ResponseBody<IO, B, R>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    R: FnOnce(Connection<IO>) + Unpin,
{
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, ErrorKind>> {
        let Some(exchange) = self.exchange.as_mut().filter(|_| !self.upgraded) else {
            return Poll::Ready(Ok(None));
        };
        exchange.drive_request(cx)?;
        loop {
            if let Some(frame) = self.framing.next(&mut exchange.read)? {
                if self.framing.is_done() {
                    self.complete();
                }
                return Poll::Ready(Ok(Some(frame)));
            }
            if self.framing.is_done() {
                self.complete();
                return Poll::Ready(Ok(None));
            }
            if !ready!(exchange.poll_fill(cx))? {
                if !matches!(self.framing, Framing::Close) {
                    return Poll::Ready(Err(ErrorKind::Closed));
                }
                self.complete();
                return Poll::Ready(Ok(None));
            }
        }
    }
}

impl Framing {
    /// The next frame of what has arrived; `None`: nothing, or the end.
    fn next(&mut self, read: &mut crate::read::ReadBuffer) -> Result<Option<Frame<Bytes>>, ErrorKind> {
        let data = match self {
            Framing::Length(left) => {
                let data = read.take(*left);
                *left -= data.len() as u64;
                data
            }
            Framing::Close => read.take(u64::MAX),
            Framing::Chunked(chunked) => match chunked.decode(&mut read.bytes)? {
                Decoded::Data(data) => data,
                Decoded::Trailers(trailers) => return Ok(Some(Frame::trailers(trailers))),
                Decoded::Done | Decoded::Incomplete => return Ok(None),
            },
        };
        Ok((!data.is_empty()).then(|| Frame::data(data)))
    }

    fn is_done(&self) -> bool {
        match self {
            Framing::Length(left) => *left == 0,
            Framing::Chunked(chunked) => chunked.is_done(),
            Framing::Close => false,
        }
    }
}

impl<IO, B, R> Body for ResponseBody<IO, B, R>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    R: FnOnce(Connection<IO>) + Unpin,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match ready!(self.poll_next(cx)) {
            Ok(frame) => Poll::Ready(frame.map(Ok)),
            // The connection is closed with the exchange.
            Err(kind) => Poll::Ready(self.exchange.take().map(|exchange| Err(exchange.error(kind)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.is_none() || self.upgraded
    }

    fn size_hint(&self) -> SizeHint {
        match &self.framing {
            Framing::Length(left) => SizeHint::with_exact(*left),
            Framing::Chunked(_) | Framing::Close => SizeHint::default(),
        }
    }
}

impl<IO, B, R> fmt::Debug for ResponseBody<IO, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").field("framing", &self.framing).finish_non_exhaustive()
    }
}
