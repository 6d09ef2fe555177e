//! The two halves of a link.

use std::fmt;
use std::sync::Arc;

use fanfare_types::Epoch;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio_util::sync::CancellationToken;

use crate::outbox::Outbox;
use crate::{EpochGate, Message};

/// One end of a stream between two roles. Dropping either half closes both directions, here and at the peer; what
/// still waits is lost then. [`Link::finish`] ends it in good order.
#[derive(Debug)]
pub struct Link<Tx: Message, Rx: Message> {
    /// What goes out.
    pub tx: Sender<Tx>,
    /// What comes in.
    pub rx: Receiver<Rx>,
}

impl<Tx: Message, Rx: Message> Link<Tx, Rx> {
    /// Takes no more messages, lets those that wait reach the peer, and resolves when the peer has closed in turn.
    /// Messages that arrive meanwhile are dropped. Ends when the link does: a dead peer is found by the link.
    pub async fn finish(mut self) {
        self.tx.shared.outbox.finish();
        while self.rx.recv().await.is_some() {}
    }
}

/// Messages that travelled together.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch<M> {
    /// The epoch that the sender had when it sent them.
    pub epoch: Epoch,
    /// Counts the batches of this stream from 1.
    pub seq: u64,
    /// In the order sent; at least one.
    pub messages: Vec<M>,
}

/// Why a message was not taken. The link is closed in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The peer takes messages too slowly: `limits::LINK_QUEUE_MESSAGES_MAX` or `LINK_QUEUE_BYTES_MAX` is reached.
    #[error("the link's queue is full")]
    Overflow,
    /// The link is closed.
    #[error("the link is closed")]
    Closed,
    /// The message alone exceeds `limits::LINK_BATCH_BYTES_MAX` and cannot be split.
    #[error("the message is larger than a batch may be")]
    TooLarge,
}

/// The sending half. Clones share one queue; the link closes when the last one is dropped.
pub struct Sender<M: Message> {
    shared: Arc<Shared<M>>,
}

struct Shared<M: Message> {
    outbox: Arc<Outbox<M>>,
}

impl<M: Message> Drop for Shared<M> {
    fn drop(&mut self) {
        self.outbox.closed.cancel();
    }
}

impl<M: Message> Sender<M> {
    pub(crate) fn new(outbox: Arc<Outbox<M>>) -> Self {
        Sender { shared: Arc::new(Shared { outbox }) }
    }

    /// Queues a message for the next batch. Never blocks. Lists that exceed a batch travel as several messages where
    /// their meaning allows it (`Functions`, `Owners`, `Usage`).
    ///
    /// # Errors
    /// [`SendError`]; after any error the link is closed, and its peer will be told everything anew on the next one.
    pub fn send(&self, message: M) -> Result<(), SendError> {
        self.shared.outbox.push(message)
    }

    /// Messages sent from now on carry this epoch, unless a newer one was set already. A dialled link needs no call:
    /// it states the newest epoch that its gate has seen.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.shared.outbox.epoch.admit(epoch);
    }

    /// Whether the link is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.outbox.closed.is_cancelled()
    }

    /// Closes the link, also while clones exist. What still waits is lost.
    pub fn close(&self) {
        self.shared.outbox.closed.cancel();
    }

    /// Resolves when the link is closed.
    pub async fn closed(&self) {
        self.shared.outbox.closed.cancelled().await;
    }
}

impl<M: Message> Clone for Sender<M> {
    fn clone(&self) -> Self {
        Sender { shared: self.shared.clone() }
    }
}

impl<M: Message> fmt::Debug for Sender<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// The receiving half.
pub struct Receiver<M: Message> {
    source: Source<M>,
    gate: Option<EpochGate>,
    last_seq: u64,
    closed: CancellationToken,
}

pub(crate) enum Source<M: Message> {
    /// The peer's queue itself, in one process.
    Queue(Arc<Outbox<M>>),
    /// Decoded batches; an error says why there are no more.
    Wire(BoxStream<'static, Result<Batch<M>, Failed>>),
}

/// Why no more batches come.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The connection has ended, in good order or not: whoever uses the link knows what that means for it.
    Ended(String),
    /// The peer sent what is no batch.
    Malformed(String),
}

impl<M: Message> Source<M> {
    async fn next(&mut self) -> Option<Result<Batch<M>, Failed>> {
        match self {
            Source::Queue(outbox) => std::future::poll_fn(|cx| outbox.poll_batch(cx)).await.map(Ok),
            Source::Wire(stream) => stream.next().await,
        }
    }
}

impl<M: Message> Receiver<M> {
    /// Whether the peer is a part of this process.
    #[must_use]
    pub fn is_in_process(&self) -> bool {
        matches!(self.source, Source::Queue(_))
    }

    pub(crate) fn new(source: Source<M>, gate: Option<EpochGate>, closed: CancellationToken) -> Self {
        Receiver { source, gate, last_seq: 0, closed }
    }

    /// The next batch; `None` once the link is closed, whatever closed it. Cancel-safe.
    ///
    /// On a dialled link a batch from an older epoch than the gate has seen is dropped and closes the link, as does a
    /// gap in the sequence numbers.
    pub async fn recv(&mut self) -> Option<Batch<M>> {
        let next = tokio::select! {
            biased;
            () = self.closed.cancelled() => return None,
            next = self.source.next() => next,
        };
        match next {
            Some(Ok(batch)) if self.admit(&batch) => return Some(batch),
            Some(Ok(_)) | None => {}
            Some(Err(Failed::Ended(reason))) => tracing::debug!(reason, "the link has ended"),
            Some(Err(Failed::Malformed(reason))) => tracing::warn!(reason, "the link has failed"),
        }
        self.closed.cancel();
        None
    }

    fn admit(&mut self, batch: &Batch<M>) -> bool {
        if let Some(gate) = &self.gate
            && !gate.admit(batch.epoch)
        {
            let newest = gate.newest();
            tracing::warn!(epoch = %batch.epoch, %newest, "refused commands of a deposed leader; closing its link");
            return false;
        }
        if batch.seq != self.last_seq + 1 {
            tracing::error!(seq = batch.seq, last = self.last_seq, "batches are missing; closing the link");
            return false;
        }
        self.last_seq = batch.seq;
        true
    }
}

impl<M: Message> Drop for Receiver<M> {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl<M: Message> fmt::Debug for Receiver<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("last_seq", &self.last_seq).finish_non_exhaustive()
    }
}

/// Both ends of a link within one process: the dialler's, guarded by `gate`, and the control plane's.
#[must_use]
pub fn pair<Up: Message, Down: Message>(gate: EpochGate) -> (Link<Up, Down>, Link<Down, Up>) {
    let closed = CancellationToken::new();
    let up = Arc::new(Outbox::new(gate.clone(), closed.clone()));
    let down = Arc::new(Outbox::new(EpochGate::default(), closed.clone()));
    let dialler = Link {
        tx: Sender::new(up.clone()),
        rx: Receiver::new(Source::Queue(down.clone()), Some(gate), closed.clone()),
    };
    let hub = Link { tx: Sender::new(down), rx: Receiver::new(Source::Queue(up), None, closed) };
    (dialler, hub)
}
