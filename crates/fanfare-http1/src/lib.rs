//! A lean HTTP/1.1 client: pooled connections, streaming bodies, strict framing.
//!
//! [`Connection`] carries one exchange at a time over any byte stream. [`Connection::send`] writes the request and
//! resolves with the response's head; the [`ResponseBody`] it comes with reads the rest *and* goes on writing what is
//! left of the request, so both directions stream at once without a task or a channel. When the response has been
//! read to its end and the connection can serve another request, it is handed to a callback given by the caller,
//! who keeps the pool. In every other case it is closed.
//!
//! Framing is strict (RFC 9112, sections 5 to 7 and 11): whatever two readers could understand differently is an
//! error, and no byte beyond a response is ever taken for the next one. [`Error`] says how far a request got, since
//! whether it may be sent again depends on nothing else.
//!
//! There are no timeouts here: the caller drops the future or the body. Servers have [`Watched`], [`Linger`], and what they say
//! by themselves is seen by [`OwnWords`] and, of HTTP/2, [`OwnFrames`].

mod body;
mod chunked;
mod connection;
mod error;
mod exchange;
mod misread;
mod own_frames;
mod own_words;
mod read;
mod request;
mod response;
mod scan;
mod unread;
mod write;

pub use body::ResponseBody;
pub use connection::{Connection, InFlight};
pub use error::{Error, ErrorKind, Malformed, SendError};
pub use misread::{Heard, Limits, Misread, quoted};
pub use own_frames::OwnFrames;
pub use own_words::{Answering, OwnWords, Turn};
pub use request::{OnInformational, RequestBody, RequestHead};
pub use unread::{Linger, Rest, Settled, Watched};

/// Bytes of a response's head: 64 KiB of fields, and the status line.
pub const HEAD_BYTES_MAX: usize = 66 * 1024;
/// Header fields of a response, and of its trailers.
pub const HEADERS_MAX: usize = 256;
/// Bytes of a response's trailers.
pub const TRAILER_BYTES_MAX: usize = 16 * 1024;
/// Bytes of one chunk's size with its extensions.
pub const CHUNK_LINE_BYTES_MAX: usize = 256;
/// Informational (1xx) responses before the final one.
pub const INFORMATIONAL_MAX: usize = 16;
