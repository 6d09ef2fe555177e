//! Messages that wait for the wire.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use fanfare_types::Epoch;
use fanfare_types::limits::{
    LINK_BATCH_BYTES_MAX, LINK_BATCH_MESSAGES_MAX, LINK_QUEUE_BYTES_MAX, LINK_QUEUE_MESSAGES_MAX,
};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{Batch, EpochGate, Message, SendError};

/// The queue between a [`crate::Sender`] and whatever drains it: the peer's receiver in one process, the HTTP/2
/// stream otherwise. Draining takes what is there: batches form while the drain is busy, and no timer delays a lone
/// message.
#[derive(Debug)]
pub(crate) struct Outbox<M> {
    queue: Mutex<Queue<M>>,
    drain: AtomicWaker,
    pub(crate) epoch: EpochGate,
    pub(crate) closed: CancellationToken,
}

#[derive(Debug)]
struct Queue<M> {
    waiting: VecDeque<Waiting<M>>,
    bytes: usize,
    last_seq: u64,
    finishing: bool,
}

#[derive(Debug)]
struct Waiting<M> {
    epoch: Epoch,
    weight_bytes: usize,
    message: M,
}

impl<M: Message> Outbox<M> {
    pub(crate) fn new(epoch: EpochGate, closed: CancellationToken) -> Self {
        let queue = Queue { waiting: VecDeque::new(), bytes: 0, last_seq: 0, finishing: false };
        Outbox { queue: Mutex::new(queue), drain: AtomicWaker::new(), epoch, closed }
    }

    pub(crate) fn push(&self, message: M) -> Result<(), SendError> {
        if self.closed.is_cancelled() {
            return Err(SendError::Closed);
        }
        let weight = message.weight_bytes();
        if weight <= LINK_BATCH_BYTES_MAX {
            return self.push_one(message, weight);
        }
        for part in message.split(LINK_BATCH_BYTES_MAX) {
            let weight = part.weight_bytes();
            if weight > LINK_BATCH_BYTES_MAX {
                tracing::error!(
                    weight,
                    limit = LINK_BATCH_BYTES_MAX,
                    "message too large for a link; closing it"
                );
                self.closed.cancel();
                return Err(SendError::TooLarge);
            }
            self.push_one(part, weight)?;
        }
        Ok(())
    }

    fn push_one(&self, message: M, weight_bytes: usize) -> Result<(), SendError> {
        let mut queue = self.queue.lock();
        if queue.finishing {
            return Err(SendError::Closed);
        }
        let messages = queue.waiting.len();
        if messages >= LINK_QUEUE_MESSAGES_MAX || queue.bytes + weight_bytes > LINK_QUEUE_BYTES_MAX {
            let bytes = queue.bytes;
            queue.waiting = VecDeque::new();
            queue.bytes = 0;
            drop(queue);
            tracing::warn!(messages, bytes, "the peer takes messages too slowly; closing the link");
            self.closed.cancel();
            return Err(SendError::Overflow);
        }
        queue.bytes += weight_bytes;
        // Read under the queue's lock, so that epochs in the queue never go back.
        queue.waiting.push_back(Waiting { epoch: self.epoch.newest(), weight_bytes, message });
        drop(queue);
        self.drain.wake();
        Ok(())
    }

    /// Takes nothing more; the drain ends once it is empty.
    pub(crate) fn finish(&self) {
        self.queue.lock().finishing = true;
        self.drain.wake();
    }

    /// The next batch; `None` after [`Outbox::finish`] when all is drained. One drain only.
    pub(crate) fn poll_batch(&self, cx: &mut Context<'_>) -> Poll<Option<Batch<M>>> {
        self.drain.register(cx.waker());
        let mut queue = self.queue.lock();
        if let Some(batch) = queue.take_batch() {
            return Poll::Ready(Some(batch));
        }
        if queue.finishing { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl<M> Queue<M> {
    /// What waits, from one epoch, within the limits of a batch.
    fn take_batch(&mut self) -> Option<Batch<M>> {
        let epoch = self.waiting.front()?.epoch;
        let mut count = 0;
        let mut bytes = 0;
        for waiting in self.waiting.iter().take(LINK_BATCH_MESSAGES_MAX) {
            if waiting.epoch != epoch || bytes + waiting.weight_bytes > LINK_BATCH_BYTES_MAX {
                break;
            }
            bytes += waiting.weight_bytes;
            count += 1;
        }
        self.bytes -= bytes;
        self.last_seq += 1;
        let messages = self.waiting.drain(..count).map(|waiting| waiting.message).collect();
        Some(Batch { epoch, seq: self.last_seq, messages })
    }
}
