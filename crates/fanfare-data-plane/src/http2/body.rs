//! Bodies on a stream of HTTP/2: as they are received, and as they are sent.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http_body::{Body, Frame, SizeHint};

/// How long, and for how many bytes, a request is read on that was answered before its end.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1024 * 1024;
/// Fields that are of a connection and have no place in this protocol (RFC 9113, section 8.2.2).
pub(super) const OF_CONNECTIONS: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// A body as its peer sends it. A stream that was reset before its end never looks as one that has ended.
#[derive(Debug)]
pub(crate) struct Received {
    /// Taken by the drop.
    stream: Option<RecvStream>,
    lingers: bool,
    /// What is still to come, where that was said.
    left: Option<u64>,
    data_ended: bool,
}

impl Received {
    /// The body of a request with these fields. What is left of it when this is dropped is read for a moment for
    /// nothing: the stream is reset then, and some clients (curl 7.88) make nothing of an answer that came just before.
    pub(crate) fn of_request(stream: RecvStream, fields: &HeaderMap) -> Self {
        let mut received = Received::of_answer(stream, fields);
        received.lingers = true;
        received
    }

    /// The body of an answer with these fields.
    pub(crate) fn of_answer(stream: RecvStream, fields: &HeaderMap) -> Self {
        // What an answer to HEAD says is of another one's body.
        let said = || fields.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        let left = if stream.is_end_stream() { Some(0) } else { said() };
        Received { stream: Some(stream), lingers: false, left, data_ended: false }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take()
            && self.lingers
            && !stream.is_end_stream()
        {
            tokio::task::spawn_local(tokio::time::timeout(LINGER, pass_over(stream)));
        }
    }
}

/// Reads for nothing, until the end, an error, or so much that the client must have seen its answer.
async fn pass_over(mut stream: RecvStream) {
    let mut left = LINGER_BYTES_MAX;
    while let Some(Ok(data)) = stream.data().await {
        let Some(fewer) = left.checked_sub(data.len()) else { break };
        left = fewer;
        if stream.flow_control().release_capacity(data.len()).is_err() {
            break;
        }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let this = self.get_mut();
        let Some(stream) = &mut this.stream else { return Poll::Ready(None) };
        if !this.data_ended {
            match ready!(stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // What is read here is on its way, or its reader would not have read.
                    let released = stream.flow_control().release_capacity(data.len());
                    this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(released.map(|()| Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => this.data_ended = true,
            }
        }
        stream.poll_trailers(cx).map(|trailers| Some(trailers.transpose()?.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Why a body was not sent to its end. Its stream has been reset, by the peer or by us.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsent<E: Error + 'static> {
    #[error("{0}")]
    Peer(#[from] h2::Error),
    #[error("the stream was closed")]
    Closed,
    #[error("{0}")]
    Body(#[source] E),
}

/// Takes out what has no place in this protocol.
pub(super) fn strip_connection(fields: &mut HeaderMap) {
    for name in OF_CONNECTIONS {
        fields.remove(name);
    }
}

/// A body that is sent. It may have to be cut while its peer takes nothing, and nothing more of it is read.
pub(crate) trait Outgoing: Body<Data = Bytes, Error: Error + 'static> + Unpin {
    /// Ready when it must not go on.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<Self::Error>;
}

/// Sends a body to its end, as fast as the peer takes it. One that breaks off resets the stream, for the same reason as
/// its own stream was, if it came on one.
pub(crate) async fn send<B: Outgoing>(
    body: B,
    stream: &mut SendStream<Bytes>,
) -> Result<(), Unsent<B::Error>> {
    let sent = pass_on(body, stream).await;
    if let Err(error) = &sent {
        // Also where the library would not take it: the peer must not wait for its end.
        stream.send_reset(reason(error).unwrap_or(Reason::INTERNAL_ERROR));
    }
    sent
}

async fn pass_on<B: Outgoing>(mut body: B, stream: &mut SendStream<Bytes>) -> Result<(), Unsent<B::Error>> {
    loop {
        let next = |cx: &mut Context<'_>| {
            poll_reset(stream, cx)?;
            Pin::new(&mut body).poll_frame(cx).map(Ok::<_, Unsent<B::Error>>)
        };
        let frame = match poll_fn(next).await? {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Err(Unsent::Body(error)),
            None => return Ok(stream.send_data(Bytes::new(), true)?),
        };
        match frame.into_data() {
            Ok(data) => {
                let ends = body.is_end_stream();
                if !data.is_empty() {
                    room(&mut body, stream).await?;
                }
                stream.send_data(data, ends)?;
                if ends {
                    return Ok(());
                }
            }
            Err(other) => {
                let Ok(mut trailers) = other.into_trailers() else { continue };
                strip_connection(&mut trailers);
                stream.reserve_capacity(0);
                return Ok(stream.send_trailers(trailers)?);
            }
        }
    }
}

/// Why a stream was reset, if that is behind an error.
fn reason(error: &(dyn Error + 'static)) -> Option<Reason> {
    match error.downcast_ref::<h2::Error>() {
        Some(error) => error.reason(),
        None => reason(error.source()?),
    }
}

/// Waits until the peer takes more. A byte is asked for, and only now that there is one to send: what a stream has
/// been given of its connection's window it keeps from the others.
async fn room<B: Outgoing>(body: &mut B, stream: &mut SendStream<Bytes>) -> Result<(), Unsent<B::Error>> {
    stream.reserve_capacity(1);
    poll_fn(|cx| {
        while stream.capacity() == 0 {
            poll_reset(stream, cx)?;
            if let Poll::Ready(cut) = body.poll_cut(cx) {
                return Poll::Ready(Err(Unsent::Body(cut)));
            }
            match ready!(stream.poll_capacity(cx)) {
                Some(given) => given?,
                None => return Poll::Ready(Err(Unsent::Closed)),
            };
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// An error once the peer has reset the stream.
fn poll_reset<E: Error + 'static>(
    stream: &mut SendStream<Bytes>,
    cx: &mut Context<'_>,
) -> Result<(), Unsent<E>> {
    match stream.poll_reset(cx) {
        Poll::Ready(reason) => Err(Unsent::Peer(h2::Error::from(reason?))),
        Poll::Pending => Ok(()),
    }
}
