//! Answers that nobody waits for any more.
//!
//! A sandbox with several slots is not given up with the first client that leaves: the answer is read on for a moment,
//! and a slot whose answer comes to its end is as good as any other. Otherwise the connection is closed, which tells the
//! function, and the sandbox is condemned.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use fanfare_http1::{InFlight, SendError};
use fanfare_types::limits::ABANDONED_BYTES_MAX;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::body::{Recycle, Upstream};
use crate::http2::Failure;
use crate::lease::Lease;
use crate::payload::Payload;
use crate::stream::Stream;

/// A request that has been sent. Dropped before the head of its answer is there, it is read on if that is of use.
pub(crate) struct Sent<X: Exchange> {
    exchange: Option<X>,
    lease: Rc<Lease>,
}

/// A request on its way.
pub(crate) trait Exchange:
    Future<Output = Result<Response<Upstream>, Self::Error>> + Unpin + 'static
{
    type Error;

    /// Nobody listens any more to what comes before the answer.
    fn ignore_informational(&mut self) {}
}

impl Exchange for Http1Exchange {
    type Error = SendError<Payload>;

    fn ignore_informational(&mut self) {
        self.0.ignore_informational();
    }
}

/// A request on a connection of HTTP/1.1.
pub(crate) struct Http1Exchange(pub(crate) InFlight<Stream, Payload, Recycle>);

impl Future for Http1Exchange {
    type Output = Result<Response<Upstream>, SendError<Payload>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(answer.map(|response| response.map(Upstream::Http1)))
    }
}

/// A request on a connection of HTTP/2.
pub(crate) type Http2Exchange = Pin<Box<dyn Future<Output = Result<Response<Upstream>, Failure>>>>;

impl Exchange for Http2Exchange {
    type Error = Failure;
}

impl<X: Exchange> Sent<X> {
    pub(crate) fn new(exchange: X, lease: Rc<Lease>) -> Self {
        Sent { exchange: Some(exchange), lease }
    }
}

impl<X: Exchange> Future for Sent<X> {
    type Output = X::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<X::Output> {
        let Some(exchange) = &mut self.exchange else { return Poll::Pending };
        let answer = ready!(Pin::new(exchange).poll(cx));
        self.exchange = None;
        Poll::Ready(answer)
    }
}

impl<X: Exchange> Drop for Sent<X> {
    fn drop(&mut self) {
        if let Some(mut exchange) = self.exchange.take() {
            exchange.ignore_informational();
            pursue(&self.lease, async move {
                let response = exchange.await.ok()?;
                (response.status() != StatusCode::SWITCHING_PROTOCOLS).then(|| response.into_body())
            });
        }
    }
}

/// Reads the rest of an answer whose client has left, if that is of use.
pub(crate) fn pursue_rest(lease: &Rc<Lease>, rest: Upstream) {
    pursue(lease, std::future::ready(Some(rest)));
}

/// Hangs up on a sandbox whose connection has changed its protocol, and waits for it to do the same, if that is of use.
pub(crate) async fn pursue_upgraded(lease: &Rc<Lease>, mut sandbox: Stream) -> bool {
    if !lease.begin_proof() {
        return false;
    }
    let closes = async {
        sandbox.shutdown().await?;
        let mut rest = sandbox.take(ABANDONED_BYTES_MAX as u64 + 1);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    match timeout(lease.core().shared.options.abandoned_wait, closes).await {
        Ok(Ok(read_bytes)) if read_bytes <= ABANDONED_BYTES_MAX as u64 => lease.complete(None),
        _ => lease.unproven(),
    }
    true
}

fn pursue(lease: &Rc<Lease>, answer: impl Future<Output = Option<Upstream>> + 'static) {
    if !lease.begin_proof() {
        return;
    }
    let proven = lease.clone();
    tokio::task::spawn_local(lease.core().left_behind.track_future(async move {
        let limit = proven.core().shared.options.abandoned_wait;
        let ended = timeout(limit, async { ends(answer.await?).await }).await;
        match ended {
            // Ended already, and better, where the connection can be used again.
            Ok(Some(())) => proven.complete(None),
            Ok(None) | Err(_) => proven.unproven(),
        }
    }));
}

async fn ends(mut rest: Upstream) -> Option<()> {
    let mut read_bytes = 0;
    while let Some(frame) = rest.frame().await {
        read_bytes += frame.ok()?.data_ref().map_or(0, bytes::Bytes::len);
        if read_bytes > ABANDONED_BYTES_MAX {
            return None;
        }
    }
    Some(())
}
