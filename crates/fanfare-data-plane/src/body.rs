//! The body of an answer.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fanfare_dispatch::Outcome;
use fanfare_http1::{ErrorKind, ResponseBody};
use fanfare_types::Timestamp;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use smallvec::SmallVec;

use crate::activity::UnderWay;
use crate::core::Core;
use crate::deadlines::Watched;
use crate::headers;
use crate::http2::{self, Outgoing};
use crate::lease::Lease;
use crate::payload::Payload;
use crate::progress::Late;
use crate::proof;
use crate::stream::Stream;
use crate::upstream::Connection;

/// What becomes of a connection whose response is complete.
pub(crate) type Recycle = Box<dyn FnOnce(Connection)>;

/// The rest of a response from a sandbox or another data plane.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the usual one; a box would cost every request"
)]
pub(crate) enum Upstream {
    Http1(ResponseBody<Stream, Payload, Recycle>),
    Http2(http2::Answer),
}

impl Upstream {
    /// After an answer that changes the protocol: the stream, and what was said on it already.
    pub(crate) fn into_upgraded(self) -> Option<(Stream, Bytes)> {
        match self {
            Upstream::Http1(body) => body.into_upgraded(),
            Upstream::Http2(_) => None,
        }
    }
}

/// Why a response broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Http1(#[from] fanfare_http1::Error),
    #[error("{0}")]
    Http2(#[from] h2::Error),
}

/// The body of an answer: the platform's own words, or a function's as they come.
pub(crate) enum Body {
    Full(Option<Bytes>),
    Trailers(Option<HeaderMap>),
    Streaming(Box<Streaming>),
}

/// A response that is passed on frame by frame until its end or the request's deadline.
pub(crate) struct Streaming {
    /// Taken when it is dropped before its end.
    upstream: Option<Upstream>,
    /// The frames that came with the head.
    ahead: Ahead,
    watched: Rc<Watched>,
    /// Resolves when the sandbox has ended and is silent: a machine that is lost closes no connection.
    silent: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// A frame, and what was there right behind it.
type Ahead = SmallVec<[Frame<Bytes>; 1]>;
/// Frames that are taken with the head.
const AHEAD_MAX: usize = 2;

/// Why an answer was cut after it had begun. Its client sees a broken connection or a reset stream, never a clean
/// end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cut {
    #[error("the request's time ran out in the middle of the response")]
    Timeout,
    #[error("no byte of the response moved for longer than may be")]
    Idle,
    #[error("the sandbox ended in the middle of the response")]
    Gone,
    #[error("the response broke off: {0}")]
    Upstream(#[source] Broken),
}

/// Counts a request for as long as it lives.
pub(crate) struct Held {
    core: Rc<Core>,
    _under_way: UnderWay,
}

impl Held {
    /// `None` when as many are held as may.
    pub(crate) fn new(core: &Rc<Core>, under_way: UnderWay) -> Option<Self> {
        let held = Held { core: core.clone(), _under_way: under_way };
        let before = core.shared.requests.fetch_add(1, Ordering::Relaxed);
        // Uncounted by the drop when it is one too many.
        (before < core.shared.options.requests_max).then_some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.core.shared.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Body {
    pub(crate) fn full(bytes: Bytes) -> Self {
        Body::Full(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// The rest of a response. What has arrived with its head is taken now: most responses are complete with that,
    /// give their slot back at once and need no watching. One that has broken off already is known before its client
    /// was told anything.
    pub(crate) async fn of(
        core: &Core,
        mut upstream: Upstream,
        lease: Option<Rc<Lease>>,
        deadline: Timestamp,
        held: Held,
    ) -> Result<Self, Broken> {
        let mut ahead = Ahead::new();
        while ahead.len() < AHEAD_MAX && !upstream.is_end_stream() {
            let poll = |cx: &mut Context<'_>| Poll::Ready(Pin::new(&mut upstream).poll_frame(cx));
            match std::future::poll_fn(poll).await {
                Poll::Ready(Some(frame)) => ahead.push(frame?),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        if !upstream.is_end_stream() || ahead.len() > 1 {
            let silent = lease.as_ref().map(|lease| Box::pin(lease.slot.upstream.clone().silent()) as _);
            let watched = core.deadlines.watch(deadline, lease, held);
            let streaming = Streaming { upstream: Some(upstream), ahead, watched, silent };
            return Ok(Body::Streaming(Box::new(streaming)));
        }
        if let Some(lease) = lease {
            // Ended already, and better, where the connection can be used again.
            lease.complete(None);
        }
        Ok(match ahead.pop().map(Frame::into_data) {
            None => Body::Full(None),
            Some(Ok(bytes)) => Body::full(bytes),
            Some(Err(other)) => Body::Trailers(other.into_trailers().ok()),
        })
    }
}

impl Streaming {
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Cut> {
        match self.watched.poll_expired(cx) {
            None => Poll::Pending,
            Some(Late::Total) => Poll::Ready(Cut::Timeout),
            Some(Late::Idle) => Poll::Ready(Cut::Idle),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Poll::Ready(late) = self.poll_late(cx) {
            return Poll::Ready(Some(Err(late)));
        }
        if !self.ahead.is_empty() {
            return Poll::Ready(Some(Ok(self.ahead.remove(0))));
        }
        let Some(upstream) = &mut self.upstream else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(&mut *upstream).poll_frame(cx) else {
            return self.poll_silent(cx);
        };
        match frame {
            Some(Ok(frame)) => {
                self.watched.touch();
                if upstream.is_end_stream() {
                    self.complete();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            None => {
                self.complete();
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "a response broke off");
                if let Some(lease) = self.watched.lease() {
                    let by_client = match (&error, &*upstream) {
                        (Broken::Http1(error), _) => matches!(error.kind(), ErrorKind::RequestBody(_)),
                        (Broken::Http2(_), Upstream::Http2(answer)) => answer.request_broke_off(),
                        (Broken::Http2(_), Upstream::Http1(_)) => false,
                    };
                    lease.fail(if by_client { Outcome::Abandoned } else { Outcome::Broken });
                }
                Poll::Ready(Some(Err(Cut::Upstream(error))))
            }
        }
    }

    fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let Some(silent) = &mut self.silent else { return Poll::Pending };
        ready!(silent.as_mut().poll(cx));
        if let Some(lease) = self.watched.lease() {
            // The queue has heard of it, and condemns nothing any more.
            lease.fail(Outcome::Broken);
        }
        Poll::Ready(Some(Err(Cut::Gone)))
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.upstream.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn complete(&self) {
        if let Some(lease) = self.watched.lease() {
            // Ended already, and better, where the connection can be used again.
            lease.complete(None);
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        if let (Some(lease), Some(upstream)) = (self.watched.lease(), self.upstream.take()) {
            proof::pursue_rest(lease, upstream);
        }
    }
}

impl HttpBody for Upstream {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut polled = match self.get_mut() {
            Upstream::Http1(body) => Pin::new(body).poll_frame(cx).map_err(Broken::Http1),
            Upstream::Http2(body) => Pin::new(body).poll_frame(cx).map_err(Broken::Http2),
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::strip_platform(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Upstream::Http1(body) => body.is_end_stream(),
            Upstream::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Upstream::Http1(body) => body.size_hint(),
            Upstream::Http2(body) => body.size_hint(),
        }
    }
}

impl Outgoing for Body {
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<Cut> {
        match self {
            Body::Full(_) | Body::Trailers(_) => Poll::Pending,
            Body::Streaming(streaming) => streaming.poll_late(cx),
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Body::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Trailers(trailers) => Poll::Ready(trailers.take().map(|t| Ok(Frame::trailers(t)))),
            Body::Streaming(streaming) => streaming.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Full(bytes) => bytes.is_none(),
            Body::Trailers(trailers) => trailers.is_none(),
            Body::Streaming(streaming) => streaming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Trailers(_) => SizeHint::default(),
            // With a length there is no place for trailers.
            Body::Streaming(streaming) if streaming.ahead.iter().any(Frame::is_trailers) => {
                SizeHint::default()
            }
            Body::Streaming(streaming) => {
                let ahead: usize = streaming.ahead.iter().filter_map(Frame::data_ref).map(Bytes::len).sum();
                let rest = streaming.upstream.as_ref().map(Upstream::size_hint).unwrap_or_default();
                rest.exact().map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest + ahead as u64))
            }
        }
    }
}
