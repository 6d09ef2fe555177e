//! Requests in sandboxes whose silence is limited.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use fanfare_types::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock;

/// When a byte of a request or its answer last moved, and how long that may be ago.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) limit: Duration,
    moved_nanos: AtomicU64,
}

/// Which time ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// The whole request's.
    Total,
    /// That between two bytes.
    Idle,
}

impl Progress {
    pub(crate) fn new(limit: Duration) -> Self {
        let progress = Progress { limit, moved_nanos: AtomicU64::new(0) };
        progress.touch();
        progress
    }

    /// A byte has moved.
    pub(crate) fn touch(&self) {
        self.moved_nanos.store(clock::now().as_nanos(), Ordering::Relaxed);
    }

    /// Until when the next one must.
    pub(crate) fn until(&self) -> Timestamp {
        Timestamp::from_nanos(self.moved_nanos.load(Ordering::Relaxed)) + self.limit
    }
}

/// Waits for `work`, no longer than `left`, nor than nothing moves.
pub(crate) async fn within<T>(
    left: Duration,
    progress: Option<&Arc<Progress>>,
    work: impl Future<Output = T>,
) -> Result<T, Late> {
    let Some(progress) = progress else {
        return timeout(left, work).await.map_err(|_| Late::Total);
    };
    let deadline = Instant::now() + left;
    let mut work = pin!(work);
    loop {
        let next = clock::instant(progress.until()).min(deadline);
        if let Ok(done) = timeout_at(next, work.as_mut()).await {
            return Ok(done);
        }
        if Instant::now() >= deadline {
            return Err(Late::Total);
        }
        if clock::now() >= progress.until() {
            return Err(Late::Idle);
        }
    }
}

/// A stream whose every byte is progress.
pub(crate) struct Moving<IO> {
    pub(crate) io: IO,
    pub(crate) progress: Option<Arc<Progress>>,
}

impl<IO> Moving<IO> {
    fn moved<T>(&self, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let (Poll::Ready(Ok(_)), Some(progress)) = (&poll, &self.progress) {
            progress.touch();
        }
        poll
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Moving<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.io).poll_read(cx, buf);
        this.moved(poll)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Moving<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.io).poll_write(cx, buf);
        this.moved(poll)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
