//! The body of a request.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fanfare_http1::Watched;
use http_body::{Body, Frame, SizeHint};

use crate::client_stream::ClientState;
use crate::headers;
use crate::incoming::{Incoming, IncomingError};
use crate::progress::Progress;

/// Bytes that are read ahead for a request that waits.
const READ_AHEAD_BYTES: usize = 16 * 1024;

/// A request's body as the server reads it.
pub(crate) type ClientBody = Watched<Incoming>;

/// The client's body, of which the beginning may have been read ahead.
///
/// The server notices that a client has left only once the request is read to its end. Reading small bodies while the
/// request waits takes those that leave out of the queue, where they would be found out only in a sandbox.
pub(crate) struct Payload {
    ahead: VecDeque<Frame<Bytes>>,
    ahead_bytes: usize,
    rest: Rest,
    progress: Option<Arc<Progress>>,
}

/// Where the rest of a body comes from.
enum Rest {
    Client(ClientBody, Arc<ClientState>),
    /// Kept from before. One whose length was not told is sent as it came.
    Kept {
        bytes: Option<Bytes>,
        counted: bool,
        ended: bool,
    },
}

/// Why a body did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokenOff {
    #[error("{0}")]
    Failed(#[source] IncomingError),
    #[error("the client said nothing more")]
    Ended,
    #[error("it is sent elsewhere")]
    Taken,
}

impl Payload {
    pub(crate) fn new(body: ClientBody, client: Arc<ClientState>) -> Self {
        Payload { ahead: VecDeque::new(), ahead_bytes: 0, rest: Rest::Client(body, client), progress: None }
    }

    /// A body that is here already.
    pub(crate) fn kept(bytes: Bytes, counted: bool) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        let ended = counted && bytes.is_none();
        Payload {
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            rest: Rest::Kept { bytes, counted, ended },
            progress: None,
        }
    }

    /// What is read from now on is progress.
    pub(crate) fn watch(&mut self, progress: &Arc<Progress>) {
        self.progress = Some(progress.clone());
    }

    /// Whether all of it is here.
    pub(crate) fn is_here(&self) -> bool {
        self.rest.is_at_end() || matches!(self.rest, Rest::Kept { .. })
    }

    /// Reads ahead as far as that goes, and says when all of it is here. Resolves only if the client fails.
    pub(crate) async fn client_failed(&mut self, here: impl FnOnce()) -> BrokenOff {
        while self.ahead_bytes < READ_AHEAD_BYTES && !self.rest.is_at_end() {
            match poll_fn(|cx| self.poll_rest(cx)).await {
                Some(Ok(frame)) => {
                    self.ahead_bytes += frame.data_ref().map_or(0, Bytes::len);
                    self.ahead.push_back(frame);
                }
                Some(Err(error)) => return error,
                None => {
                    here();
                    return std::future::pending().await;
                }
            }
        }
        if self.is_here() {
            here();
        }
        std::future::pending().await
    }

    /// Puts back what was read first.
    pub(crate) fn put_back(&mut self, frames: impl DoubleEndedIterator<Item = Frame<Bytes>>) {
        for frame in frames.rev() {
            self.ahead_bytes += frame.data_ref().map_or(0, Bytes::len);
            self.ahead.push_front(frame);
        }
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let (body, client) = match &mut self.rest {
            Rest::Client(body, client) => (body, client),
            Rest::Kept { bytes, counted, ended } => {
                let frame = bytes.take();
                *ended = *counted || frame.is_none();
                return Poll::Ready(frame.map(|bytes| Ok(Frame::data(bytes))));
            }
        };
        // Reading it would be the leave that only the function gives.
        ready!(client.interim.poll_leave(cx));
        match Pin::new(body).poll_frame(cx) {
            Poll::Ready(frame) => {
                Poll::Ready(frame.map(|frame| frame.map(checked).map_err(BrokenOff::Failed)))
            }
            // Everything that was said is here, and it is not the whole body.
            Poll::Pending if client.has_ended() => Poll::Ready(Some(Err(BrokenOff::Ended))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Rest {
    fn is_at_end(&self) -> bool {
        match self {
            Rest::Client(body, _) => body.is_end_stream(),
            Rest::Kept { ended, .. } => *ended,
        }
    }
}

fn checked(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        headers::strip_trailers(trailers);
    }
    frame
}

impl Body for Payload {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let frame = match self.ahead.pop_front() {
            Some(frame) => {
                self.ahead_bytes -= frame.data_ref().map_or(0, Bytes::len);
                Some(Ok(frame))
            }
            None => ready!(self.poll_rest(cx)),
        };
        if let Some(progress) = &self.progress {
            progress.touch();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.rest.is_at_end()
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead_bytes as u64;
        let rest = match &self.rest {
            Rest::Client(body, _) => body.size_hint(),
            Rest::Kept { bytes, counted: true, .. } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Rest::Kept { .. } => SizeHint::default(),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(ahead));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(ahead));
        }
        hint
    }
}
