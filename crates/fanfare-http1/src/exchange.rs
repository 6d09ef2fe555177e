//! One request and its response on a connection.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Progress};
use crate::read::ReadBuffer;
use crate::request::{OnInformational, RequestHead};
use crate::response::{self, Head};
use crate::scan::Scan;
use crate::write::Writer;
use crate::{HEAD_BYTES_MAX, INFORMATIONAL_MAX, Malformed};

/// A connection in use. Reading and writing go on together, driven by whoever waits for the response.
pub(crate) struct Exchange<IO, B> {
    pub(crate) io: IO,
    pub(crate) read: ReadBuffer,
    pub(crate) writer: Writer<B>,
    /// Exchanges that the connection has served before.
    pub(crate) served: u64,
    pub(crate) response_started: bool,
}

/// The search for the response's head.
#[derive(Debug)]
pub(crate) struct HeadSearch {
    method: Method,
    upgrade: bool,
    pub(crate) on_informational: Option<Arc<dyn OnInformational>>,
    scan: Scan,
    informational: usize,
}

impl HeadSearch {
    pub(crate) fn new(head: &RequestHead<'_>) -> Self {
        HeadSearch {
            method: head.method.clone(),
            upgrade: head.upgrade.is_some(),
            on_informational: head.informational.cloned(),
            scan: Scan::default(),
            informational: 0,
        }
    }
}

impl<IO, B> Exchange<IO, B> {
    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        let progress = Progress {
            written_bytes: self.writer.written_bytes,
            response_started: self.response_started,
            reused: self.served > 0,
        };
        Error { kind, progress }
    }

    /// The connection for another exchange, if nothing of this one is left on it.
    pub(crate) fn into_connection(mut self) -> Option<Connection<IO>> {
        if !self.writer.is_done() || !self.read.bytes.is_empty() {
            return None;
        }
        self.read.shrink();
        Some(Connection {
            io: self.io,
            read: self.read,
            scratch: self.writer.into_scratch(),
            served: self.served.saturating_add(1),
        })
    }
}

impl<IO, B> Exchange<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Goes on with the request as far as that is possible now.
    pub(crate) fn drive_request(&mut self, cx: &mut Context<'_>) -> Result<(), ErrorKind> {
        match self.writer.poll(cx, &mut self.io) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }

    /// Reads more of the response. `Ok(false)`: the peer has closed.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ErrorKind>> {
        let read = ready!(self.read.poll_fill(cx, &mut self.io)).map_err(ErrorKind::Io)?;
        self.response_started |= read > 0;
        Poll::Ready(Ok(read > 0))
    }

    /// Whether an idle connection is still as it was left. Between two exchanges a peer has nothing to say.
    pub(crate) fn check_idle(&mut self, cx: &mut Context<'_>) -> Result<(), ErrorKind> {
        match self.read.poll_fill(cx, &mut self.io) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(0)) => Err(ErrorKind::Closed),
            Poll::Ready(Ok(_)) => Err(Malformed::Unsolicited.into()),
            Poll::Ready(Err(error)) => Err(ErrorKind::Io(error)),
        }
    }

    /// The final response's head; the request goes on meanwhile.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        search: &mut HeadSearch,
    ) -> Poll<Result<Head, ErrorKind>> {
        self.drive_request(cx)?;
        loop {
            let window = &self.read.bytes[..self.read.bytes.len().min(HEAD_BYTES_MAX)];
            if let Some(end) = search.scan.end(window)? {
                let block = self.read.bytes.split_to(end).freeze();
                let head = response::parse(&block, &search.method)?;
                if search.is_final(&head.response)? {
                    return Poll::Ready(Ok(head));
                }
                // What it says may let the request go on.
                self.drive_request(cx)?;
                continue;
            }
            if window.len() == HEAD_BYTES_MAX {
                return Poll::Ready(Err(Malformed::HeadTooLarge.into()));
            }
            if !ready!(self.poll_fill(cx))? {
                return Poll::Ready(Err(ErrorKind::Closed));
            }
        }
    }
}

impl HeadSearch {
    fn is_final(&mut self, response: &Response<()>) -> Result<bool, Malformed> {
        let status = response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return if self.upgrade { Ok(true) } else { Err(Malformed::Status) };
        }
        if !status.is_informational() {
            return Ok(true);
        }
        self.informational += 1;
        if self.informational > INFORMATIONAL_MAX {
            return Err(Malformed::TooManyInformational);
        }
        if let Some(listener) = &self.on_informational {
            listener.informational(status, response.headers());
        }
        self.scan = Scan::default();
        Ok(false)
    }
}
