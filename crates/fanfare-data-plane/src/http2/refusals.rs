//! A client's stream of frames, on which the library's own refusals get what every refusal has.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fanfare_http1::OwnFrames;
use fanfare_types::Reason;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::problem;
use crate::request_id::{self, REQUEST_ID};
use crate::shared::Shared;
use crate::transport::Transport;

pub(crate) struct Refusals {
    stream: Transport,
    shared: Arc<Shared>,
    own: OwnFrames,
}

impl Refusals {
    pub(crate) fn new(stream: Transport, shared: Arc<Shared>) -> Self {
        Refusals { stream, shared, own: OwnFrames::default() }
    }
}

/// What a header list over the limit is told beside its status.
fn too_large(shared: &Shared) -> Vec<(HeaderName, HeaderValue)> {
    shared.count_problem(Reason::TooLarge);
    vec![
        (problem::REASON, HeaderValue::from_static(Reason::TooLarge.code())),
        (REQUEST_ID, request_id::stray()),
        (CONTENT_LENGTH, HeaderValue::from_static("0")),
    ]
}

impl AsyncRead for Refusals {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Refusals {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.own.poll_write(cx, &mut this.stream, bufs, || too_large(&this.shared))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
