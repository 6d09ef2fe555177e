//! Log lines on their way from nodes to readers.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fanfare_link::LogRecord;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::limits::LOG_QUEUE_LINES;

/// Open transfers by their number; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    last: u64,
    waiting: HashMap<u64, mpsc::Sender<LogRecord>>,
}

/// The reader's end. Dropping it ends the transfer, also at the node.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) number: u64,
    lines: mpsc::Receiver<LogRecord>,
    transfers: Transfers,
}

impl Transfers {
    /// A new number under which a node may send lines, once.
    pub(crate) fn open(&self) -> Transfer {
        let (sender, lines) = mpsc::channel(LOG_QUEUE_LINES);
        let mut open = self.0.lock();
        open.last += 1;
        let number = open.last;
        open.waiting.insert(number, sender);
        Transfer { number, lines, transfers: self.clone() }
    }

    /// Passes lines on until they end or nobody wants them; at once for an unknown number.
    pub(crate) async fn take(&self, number: u64, mut lines: BoxStream<'static, LogRecord>) {
        let Some(reader) = self.0.lock().waiting.remove(&number) else { return };
        loop {
            let line = tokio::select! {
                biased;
                () = reader.closed() => return,
                line = lines.next() => line,
            };
            let Some(line) = line else { return };
            if reader.send(line).await.is_err() {
                return;
            }
        }
    }
}

impl Stream for Transfer {
    type Item = LogRecord;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<LogRecord>> {
        self.lines.poll_recv(cx)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.transfers.0.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use fanfare_link::LogStream;
    use futures_util::stream;

    use super::*;

    fn line(seq: u64) -> LogRecord {
        LogRecord { seq, time_unix_ms: 0, sandbox: None, stream: LogStream::Stdout, text: seq.to_string() }
    }

    #[tokio::test]
    async fn lines_reach_their_reader_and_the_end_does_too() {
        let transfers = Transfers::default();
        let mut transfer = transfers.open();
        let other = transfers.open();
        transfers.take(transfer.number, stream::iter([line(1), line(2)]).boxed()).await;
        assert_eq!(transfer.next().await, Some(line(1)));
        assert_eq!(transfer.next().await, Some(line(2)));
        assert_eq!(transfer.next().await, None);
        transfers.take(transfer.number, stream::iter([line(3)]).boxed()).await;
        assert_eq!(transfer.next().await, None, "a number is good once");
        drop(other);
        assert!(transfers.0.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_reader_that_leaves_ends_a_silent_transfer() {
        let transfers = Transfers::default();
        let transfer = transfers.open();
        let taking = transfers.take(transfer.number, stream::pending().boxed());
        tokio::pin!(taking);
        assert!(futures_util::poll!(&mut taking).is_pending());
        drop(transfer);
        taking.await;
    }
}
