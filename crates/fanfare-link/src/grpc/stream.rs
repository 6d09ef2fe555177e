//! A link's queues on a gRPC stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::{Stream, StreamExt};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Status, Streaming};

use crate::Batch;
use crate::link::{Failed, Source};
use crate::outbox::Outbox;
use crate::wire::Wire;

/// Drains an outbox into frames. The HTTP/2 connection polls it when it can take more, so batches grow while it is
/// busy.
pub(super) struct Outgoing<M> {
    outbox: Arc<Outbox<M>>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    drained: bool,
}

impl<M> Outgoing<M> {
    pub(super) fn new(outbox: Arc<Outbox<M>>) -> Self {
        let closed = Box::pin(outbox.closed.clone().cancelled_owned());
        Outgoing { outbox, closed, drained: false }
    }
}

impl<M: Wire> Stream for Outgoing<M> {
    type Item = M::Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<M::Frame>> {
        if self.drained || self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        let batch = ready!(self.outbox.poll_batch(cx));
        self.drained = batch.is_none();
        Poll::Ready(batch.map(M::encode))
    }
}

impl<M> Drop for Outgoing<M> {
    /// Whatever else ends the stream ends the link; after a drain in good order the peer is still to answer.
    fn drop(&mut self) {
        if !self.drained {
            self.outbox.closed.cancel();
        }
    }
}

/// What a peer sends, checked.
pub(super) fn incoming<M: Wire>(frames: Streaming<M::Frame>) -> Source<M> {
    Source::Wire(frames.map(|frame| batch::<M>(frame)).boxed())
}

fn batch<M: Wire>(frame: Result<M::Frame, Status>) -> Result<Batch<M>, Failed> {
    let frame = frame.map_err(|status| Failed::Ended(describe(&status)))?;
    M::decode(frame)
        .map_err(|malformed| Failed::Malformed(format!("the peer sent a malformed frame: {malformed}")))
}

/// A status with the error beneath it, which says what really happened.
pub(super) fn describe(status: &Status) -> String {
    let mut text = format!("{}: {}", status.code().description(), status.message());
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let more = error.to_string();
        // Errors like to repeat the ones beneath them.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use fanfare_types::ToNode;

    use super::*;

    #[test]
    fn a_connection_that_ends_is_no_fault_of_its_peer() {
        let ended = batch::<ToNode>(Err(Status::unknown("h2 protocol error: broken pipe")));
        assert!(matches!(&ended, Err(Failed::Ended(why)) if why.contains("broken pipe")), "{ended:?}");
    }
}
