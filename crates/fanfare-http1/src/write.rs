//! The request on its way out.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use tokio::io::AsyncWrite;

use crate::RequestBody;
use crate::error::ErrorKind;
use crate::request::{Framing, of_connection, put_field};

/// Writes a head and a body, a segment at a time: what precedes the data (head, chunk size), the data, what follows.
pub(crate) struct Writer<B> {
    body: RequestBody<B>,
    framing: Framing,
    prefix: BytesMut,
    data: Bytes,
    suffix: &'static [u8],
    phase: Phase,
    /// Something else than data was taken from the body: it cannot be given back.
    torn: bool,
    pub(crate) written_bytes: u64,
    /// The write side is broken; the response may still come.
    pub(crate) failed: Option<io::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// More of the body may come.
    Body,
    /// What is in the segment is all there is.
    Last,
    /// Written; not yet flushed.
    Flush,
    Done,
}

impl<B> Writer<B> {
    /// `prefix` holds the head.
    pub(crate) fn new(body: RequestBody<B>, framing: Framing, prefix: BytesMut) -> Self {
        let phase = if framing == Framing::Empty { Phase::Last } else { Phase::Body };
        Writer {
            body,
            framing,
            prefix,
            data: Bytes::new(),
            suffix: b"",
            phase,
            torn: false,
            written_bytes: 0,
            failed: None,
        }
    }

    /// Whether the whole request is with the system.
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done && self.failed.is_none()
    }

    /// The whole body, if it can be had again.
    pub(crate) fn into_body(self) -> Option<RequestBody<B>> {
        if self.written_bytes == 0 && !self.torn {
            return Some(RequestBody::with_first(self.data, self.body.into_inner()));
        }
        (self.framing == Framing::Empty).then_some(self.body)
    }

    /// The emptied buffer of the head.
    pub(crate) fn into_scratch(mut self) -> BytesMut {
        self.prefix.clear();
        self.prefix
    }
}

impl<B> Writer<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Writes as much as can be written now. `Ready`: there is nothing more to write, or it cannot be written.
    pub(crate) fn poll<IO>(&mut self, cx: &mut Context<'_>, io: &mut IO) -> Poll<Result<(), ErrorKind>>
    where
        IO: AsyncWrite + Unpin,
    {
        loop {
            if self.failed.is_some() || self.phase == Phase::Done {
                return Poll::Ready(Ok(()));
            }
            // The first bytes of a body travel with the head if they are there; later segments one after another.
            let can_add = self.data.is_empty() && self.suffix.is_empty();
            if self.phase == Phase::Body && can_add && (self.prefix.is_empty() || self.written_bytes == 0) {
                match self.poll_segment(cx) {
                    Poll::Ready(result) => result?,
                    Poll::Pending if self.prefix.is_empty() => {
                        // What was written should not wait for what is yet to come.
                        return match Pin::new(&mut *io).poll_flush(cx) {
                            Poll::Ready(Err(error)) => self.fail(error),
                            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
                        };
                    }
                    Poll::Pending => {}
                }
            }
            if self.phase == Phase::Flush {
                match ready!(Pin::new(&mut *io).poll_flush(cx)) {
                    Ok(()) => self.phase = Phase::Done,
                    Err(error) => return self.fail(error),
                }
                continue;
            }
            match ready!(self.poll_write(cx, io)) {
                Ok(0) => return self.fail(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.advance(written),
                Err(error) => return self.fail(error),
            }
        }
    }

    /// Takes the next frame of the body into the segment.
    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ErrorKind>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.torn = true;
                    return Poll::Ready(Err(ErrorKind::RequestBody(error.into())));
                }
                None => return Poll::Ready(self.end(None)),
            };
            match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(self.add(data)),
                Err(frame) => {
                    self.torn = true;
                    return Poll::Ready(self.end(frame.trailers_ref()));
                }
            }
        }
    }

    fn add(&mut self, data: Bytes) -> Result<(), ErrorKind> {
        match &mut self.framing {
            Framing::Length(left) => {
                *left = left
                    .checked_sub(data.len() as u64)
                    .ok_or_else(|| ErrorKind::RequestBody("it is longer than it said".into()))?;
                if *left == 0 {
                    self.phase = Phase::Last;
                }
            }
            Framing::Chunked => {
                put_hex(&mut self.prefix, data.len());
                self.suffix = b"\r\n";
                if self.body.is_end_stream() {
                    self.suffix = b"\r\n0\r\n\r\n";
                    self.phase = Phase::Last;
                }
            }
            Framing::Empty => return Err(ErrorKind::RequestBody("it is longer than it said".into())),
        }
        self.data = data;
        Ok(())
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), ErrorKind> {
        match self.framing {
            Framing::Length(left) if left > 0 => {
                return Err(ErrorKind::RequestBody("it is shorter than it said".into()));
            }
            Framing::Length(_) | Framing::Empty => {}
            Framing::Chunked => {
                self.prefix.put_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    if !of_connection(name) {
                        put_field(&mut self.prefix, name.as_str(), value.as_bytes());
                    }
                }
                self.prefix.put_slice(b"\r\n");
            }
        }
        self.phase = Phase::Last;
        Ok(())
    }

    fn poll_write<IO>(&self, cx: &mut Context<'_>, io: &mut IO) -> Poll<io::Result<usize>>
    where
        IO: AsyncWrite + Unpin,
    {
        let slices = [IoSlice::new(&self.prefix), IoSlice::new(&self.data), IoSlice::new(self.suffix)];
        let first = slices.iter().position(|slice| !slice.is_empty()).unwrap_or(0);
        let last = slices.iter().rposition(|slice| !slice.is_empty()).unwrap_or(0);
        if first == last {
            return Pin::new(io).poll_write(cx, &slices[first]);
        }
        Pin::new(io).poll_write_vectored(cx, &slices[first..=last])
    }

    fn advance(&mut self, mut written: usize) {
        self.written_bytes += written as u64;
        let prefix = written.min(self.prefix.len());
        self.prefix.advance(prefix);
        written -= prefix;
        let data = written.min(self.data.len());
        self.data.advance(data);
        self.suffix = &self.suffix[written - data..];
        let empty = self.prefix.is_empty() && self.data.is_empty() && self.suffix.is_empty();
        if empty && self.phase == Phase::Last {
            self.phase = Phase::Flush;
        }
    }

    fn fail(&mut self, error: io::Error) -> Poll<Result<(), ErrorKind>> {
        self.failed = Some(error);
        Poll::Ready(Ok(()))
    }
}

/// A chunk's size and its line end.
fn put_hex(out: &mut BytesMut, number: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let nibbles = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    out.reserve(nibbles as usize + 2);
    for nibble in (0..nibbles).rev() {
        out.put_u8(DIGITS[number >> (nibble * 4) & 0xf]);
    }
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_hexadecimal() {
        for number in [0, 1, 15, 16, 255, 256, 0xdead_beef, usize::MAX] {
            let mut out = BytesMut::new();
            put_hex(&mut out, number);
            assert_eq!(out, format!("{number:x}\r\n"));
        }
    }
}
