//! What has arrived and was not yet taken.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// First size of the buffer; enough for most responses.
const READ_BYTES_MIN: usize = 8 * 1024;
/// Size of the buffer for bodies that keep it full.
const READ_BYTES_MAX: usize = 128 * 1024;

/// One reused buffer: bodies are slices of it, and it is allocated anew only while such slices live.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    pub(crate) bytes: BytesMut,
    /// Room to make when there is none.
    room: usize,
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        ReadBuffer { bytes: BytesMut::new(), room: READ_BYTES_MIN }
    }

    /// Reads once. `Ok(0)`: the peer has closed.
    pub(crate) fn poll_fill<IO>(&mut self, cx: &mut Context<'_>, io: &mut IO) -> Poll<io::Result<usize>>
    where
        IO: AsyncRead + Unpin,
    {
        let spare = self.bytes.capacity() - self.bytes.len();
        if spare < READ_BYTES_MIN / 4 {
            self.bytes.reserve(self.room);
        }
        let spare = self.bytes.capacity() - self.bytes.len();
        let read = ready!(poll_read_buf(Pin::new(io), cx, &mut self.bytes))?;
        if read == spare {
            self.room = (self.room * 2).min(READ_BYTES_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// The next at most `limit` bytes of those that are here.
    pub(crate) fn take(&mut self, limit: u64) -> Bytes {
        let len = usize::try_from(limit).unwrap_or(usize::MAX).min(self.bytes.len());
        self.bytes.split_to(len).freeze()
    }

    /// Gives back what a large body needed: there may be many idle connections.
    pub(crate) fn shrink(&mut self) {
        if self.room > READ_BYTES_MIN {
            *self = ReadBuffer::new();
        }
    }
}
