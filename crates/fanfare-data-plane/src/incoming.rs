//! The body of a request as the server of its protocol reads it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::http2::Received;

pub(crate) enum Incoming {
    Http1(hyper::body::Incoming),
    Http2(Received),
}

/// Why a body cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IncomingError {
    #[error("{0}")]
    Http1(#[from] hyper::Error),
    #[error("{0}")]
    Http2(#[from] h2::Error),
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = IncomingError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncomingError>>> {
        match self.get_mut() {
            Incoming::Http1(body) => Pin::new(body).poll_frame(cx).map_err(IncomingError::Http1),
            Incoming::Http2(body) => Pin::new(body).poll_frame(cx).map_err(IncomingError::Http2),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Incoming::Http1(body) => body.is_end_stream(),
            Incoming::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Incoming::Http1(body) => body.size_hint(),
            Incoming::Http2(body) => body.size_hint(),
        }
    }
}
