//! What can go wrong, and how far the request had got.

use std::{fmt, io};

use crate::RequestBody;

/// Why an exchange failed. The connection is closed.
#[derive(Debug)]
pub struct Error {
    pub(crate) kind: ErrorKind,
    pub(crate) progress: Progress,
}

/// How far an exchange had got.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) written_bytes: u64,
    pub(crate) response_started: bool,
    pub(crate) reused: bool,
}

impl Error {
    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Bytes of the request that the system took for delivery. 0: the peer cannot have seen any of it. Otherwise it
    /// may have, even where it has closed the connection.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.progress.written_bytes
    }

    /// Whether a byte of a response had arrived.
    #[must_use]
    pub fn response_started(&self) -> bool {
        self.progress.response_started
    }

    /// Whether the connection had served another exchange before: then its peer may have closed it in between.
    #[must_use]
    pub fn reused(&self) -> bool {
        self.progress.reused
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { written_bytes, response_started, reused } = self.progress;
        write!(f, "{} ({written_bytes} bytes of the request written", self.kind)?;
        f.write_str(if response_started { ", response begun" } else { ", no response" })?;
        f.write_str(if reused { ", connection reused)" } else { ")" })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(error) => Some(error),
            ErrorKind::RequestBody(error) => Some(error.as_ref()),
            ErrorKind::Malformed(error) => Some(error),
            ErrorKind::Closed | ErrorKind::Request(_) => None,
        }
    }
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum ErrorKind {
    /// The request cannot be sent as HTTP/1.1; nothing was written.
    #[error("the request cannot be sent: {0}")]
    Request(&'static str),
    /// The peer closed the connection before the response was complete.
    #[error("the peer closed the connection")]
    Closed,
    /// The system could not read or write.
    #[error("the connection failed: {0}")]
    Io(io::Error),
    /// The request's body failed, or was not as long as it said.
    #[error("the request's body failed: {0}")]
    RequestBody(Box<dyn std::error::Error + Send + Sync>),
    /// The peer's answer is not HTTP as it should be.
    #[error("the response is malformed: {0}")]
    Malformed(#[from] Malformed),
}

/// What is wrong with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not a status line and header fields.
    #[error("{0}")]
    Head(httparse::Error),
    /// The head exceeds [`crate::HEAD_BYTES_MAX`].
    #[error("the head is too large")]
    HeadTooLarge,
    /// More fields than [`crate::HEADERS_MAX`].
    #[error("too many header fields")]
    TooManyHeaders,
    /// A line that ends in a line feed alone.
    #[error("a line ends without a carriage return")]
    BareLineFeed,
    /// A status line or a field that is not valid.
    #[error("a header field is not valid")]
    Field,
    /// A status below 100, or 101 without a request for it.
    #[error("the status is not expected")]
    Status,
    /// More 1xx responses than [`crate::INFORMATIONAL_MAX`].
    #[error("too many informational responses")]
    TooManyInformational,
    /// More than one `Content-Length`, or a list.
    #[error("Content-Length is repeated")]
    LengthRepeated,
    /// A `Content-Length` that is not a decimal number of 64 bits.
    #[error("Content-Length is not a number")]
    Length,
    /// `Content-Length` and `Transfer-Encoding` together.
    #[error("both Content-Length and Transfer-Encoding")]
    LengthAndEncoding,
    /// A `Transfer-Encoding` other than one `chunked`, or from HTTP/1.0.
    #[error("Transfer-Encoding is not just chunked")]
    Encoding,
    /// A chunk's size that is not a hexadecimal number, or an overlong line of it.
    #[error("a chunk's size is not valid")]
    ChunkSize,
    /// A chunk's size of more than 64 bits.
    #[error("a chunk's size overflows")]
    ChunkSizeOverflow,
    /// No line end after a chunk.
    #[error("a chunk does not end where it should")]
    ChunkEnd,
    /// The trailers exceed [`crate::TRAILER_BYTES_MAX`].
    #[error("the trailers are too large")]
    TrailersTooLarge,
    /// Bytes on an idle connection, before any request that they could answer.
    #[error("bytes arrived on an idle connection")]
    Unsolicited,
}

/// Why no response came, with the request's body where it was not touched.
#[derive(Debug)]
pub struct SendError<B> {
    /// Why.
    pub error: Error,
    /// The whole body again, where nothing of the request was written or the body was empty from the start.
    pub body: Option<RequestBody<B>>,
}

impl<B> fmt::Display for SendError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: fmt::Debug> std::error::Error for SendError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}
