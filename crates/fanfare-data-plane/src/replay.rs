//! A request's body that can be had again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use fanfare_http1::RequestBody;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use crate::http2::Outgoing;
use crate::payload::{BrokenOff, Payload};

/// Bytes of a body that are kept until its answer begins: beyond that it cannot be sent again.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// A body that is read by a connection and kept by whoever sends it. The lock is held for a poll at most.
#[derive(Clone)]
pub(crate) struct Replay(Arc<Mutex<State>>);

struct State {
    /// Taken when it is had again: what still reads it then has nothing to read.
    body: Option<RequestBody<Payload>>,
    /// What was read; `None` once that is too much to keep, or of no use any more.
    kept: Option<Vec<Kept>>,
    kept_bytes: usize,
    failed: Option<String>,
}

enum Kept {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Replay {
    pub(crate) fn new(body: RequestBody<Payload>) -> Self {
        let state = State { body: Some(body), kept: Some(Vec::new()), kept_bytes: 0, failed: None };
        Replay(Arc::new(Mutex::new(state)))
    }

    /// The answer has begun: nothing is kept any more.
    pub(crate) fn settle(&self) {
        self.0.lock().kept = None;
    }

    /// Why the body broke off, if it has.
    pub(crate) fn failed(&self) -> Option<String> {
        self.0.lock().failed.clone()
    }

    /// The whole body again, if that is possible.
    pub(crate) fn again(&self) -> Option<RequestBody<Payload>> {
        let mut state = self.0.lock();
        let kept = state.kept.take()?;
        let (first, mut payload) = state.body.take()?.into_parts();
        payload.put_back(first.into_iter().map(Frame::data));
        payload.put_back(kept.into_iter().map(|kept| match kept {
            Kept::Data(data) => Frame::data(data),
            Kept::Trailers(trailers) => Frame::trailers(trailers),
        }));
        Some(RequestBody::new(payload))
    }
}

impl State {
    fn keep(&mut self, frame: &Frame<Bytes>) {
        let Some(kept) = &mut self.kept else { return };
        if let Some(data) = frame.data_ref() {
            self.kept_bytes += data.len();
            kept.push(Kept::Data(data.clone()));
        } else if let Some(trailers) = frame.trailers_ref() {
            kept.push(Kept::Trailers(trailers.clone()));
        }
        if self.kept_bytes > KEPT_BYTES_MAX {
            self.kept = None;
        }
    }
}

impl Outgoing for Replay {
    /// Whoever waits for the answer ends what comes too late.
    fn poll_cut(&mut self, _: &mut Context<'_>) -> Poll<BrokenOff> {
        Poll::Pending
    }
}

impl Body for Replay {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let mut state = self.0.lock();
        let Some(body) = &mut state.body else { return Poll::Ready(Some(Err(BrokenOff::Taken))) };
        let frame = Pin::new(body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => state.keep(frame),
            Poll::Ready(Some(Err(error))) => state.failed = Some(error.to_string()),
            Poll::Ready(None) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}
