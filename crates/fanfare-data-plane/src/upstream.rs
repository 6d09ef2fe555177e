//! One sandbox as requests see it: its endpoint, its pooled connections, and its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fanfare_types::{GoneCause, NodeId, Protocol, SandboxId, Timestamp};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::endpoint::Endpoint;
use crate::http2::Http2;
use crate::stream::Stream;

/// A pooled connection older than this is not trusted: servers close idle ones by themselves, Node.js after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Of a connection that rested no longer than this, on the core that uses it next, the event loop's word is enough.
/// Of any other the kernel is asked, for a system call that the busiest connections do without.
const REST_MAX: Duration = Duration::from_millis(1);

/// How long what a sandbox said before its end may take to arrive after the news of its end.
pub(crate) const LAST_WORDS_WAIT: Duration = Duration::from_millis(100);

/// How long the control plane may take to say how a sandbox ended that broke its connection.
const CAUSE_WAIT: Duration = Duration::from_millis(100);
/// The same for one that has no other connection: the kernel takes apart a large process's memory after its sockets.
const CAUSE_WAIT_SILENT: Duration = Duration::from_millis(500);

/// A connection to a sandbox or to another data plane, between two requests.
pub(crate) type Connection = fanfare_http1::Connection<Stream>;

/// One sandbox that slots are held of.
///
/// Its connections never outnumber its slots: a request takes an idle one wherever there is one, and only with none
/// idle (so with as many connections as requests) makes another.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) sandbox: SandboxId,
    pub(crate) node: NodeId,
    /// What it runs.
    pub(crate) revision: u32,
    /// The same, as answers carry it.
    pub(crate) revision_value: HeaderValue,
    pub(crate) endpoint: Endpoint,
    pub(crate) protocol: Protocol,
    pool: Mutex<Pool>,
    gone: OnceLock<GoneCause>,
    ended: Notify,
    /// It was said that it cannot be reached.
    told: AtomicBool,
}

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Idle>,
    /// Connections with a request on them.
    lent: u32,
    /// Those of them that it has closed, while it is found out why.
    hung_up: u32,
    slots: u32,
    closed: bool,
    /// Connections of HTTP/2, which requests share.
    http2: Vec<Http2>,
}

#[derive(Debug)]
struct Idle {
    core: usize,
    since: Timestamp,
    connection: Connection,
}

impl Upstream {
    pub(crate) fn new(
        sandbox: SandboxId,
        node: NodeId,
        revision: u32,
        endpoint: Endpoint,
        protocol: Protocol,
    ) -> Self {
        Upstream {
            sandbox,
            node,
            revision,
            revision_value: HeaderValue::from(revision),
            endpoint,
            protocol,
            pool: Mutex::new(Pool::default()),
            gone: OnceLock::new(),
            ended: Notify::new(),
            told: AtomicBool::new(false),
        }
    }

    /// Whether it is to be said now that it cannot be reached: once is enough.
    pub(crate) fn tell_unreachable(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// Lends an idle connection that is as it was left: of this core if there is one, else of another. `None` when the
    /// caller has to make one. In both cases [`Upstream::give_back`] must follow.
    pub(crate) fn lend(&self, core: usize, now: Timestamp) -> Option<Connection> {
        self.pool.lock().lent += 1;
        loop {
            let idle = self.pool.lock().take(core)?;
            if idle.is_usable(core, now) {
                return Some(idle.connection);
            }
        }
    }

    /// Ends a loan; keeps the connection for the next request if it can carry one and there is a slot for it.
    pub(crate) fn give_back(&self, core: usize, connection: Option<Connection>, now: Timestamp) {
        let mut pool = self.pool.lock();
        pool.lent = pool.lent.saturating_sub(1);
        if let Some(connection) = connection
            && !pool.closed
            && pool.room() > 0
        {
            connection.get_ref().rests();
            pool.idle.push(Idle { core, since: now, connection });
        }
    }

    /// A connection of HTTP/2: of this core, or where there are as many as slots of another. `None` when the caller
    /// has to make one.
    pub(crate) fn http2(&self, core: usize) -> Option<Http2> {
        let mut pool = self.pool.lock();
        pool.http2.retain(|connection| !connection.is_closed());
        let own = pool.http2.iter().find(|connection| connection.core == core);
        let full = pool.http2.len() >= pool.slots as usize;
        own.or_else(|| pool.http2.first().filter(|_| full)).cloned()
    }

    /// Others may use this connection, too.
    pub(crate) fn keep_http2(&self, connection: &Http2) {
        let mut pool = self.pool.lock();
        let room = !pool.closed && pool.http2.len() < pool.slots as usize;
        if room && !pool.http2.iter().any(|known| known.core == connection.core) {
            pool.http2.push(connection.clone());
        }
    }

    /// Nobody else should use this connection; the requests on it go on.
    pub(crate) fn forget_http2(&self, connection: &Http2) {
        self.pool.lock().http2.retain(|known| !known.is(connection));
    }

    /// More slots are held of it.
    pub(crate) fn granted(&self, slots: u32) {
        let mut pool = self.pool.lock();
        pool.slots = pool.slots.saturating_add(slots);
    }

    /// Fewer slots are held of it: idle connections go before another data plane makes its own.
    pub(crate) fn released(&self, slots: u32) {
        let mut pool = self.pool.lock();
        pool.slots = pool.slots.saturating_sub(slots);
        let extra = usize::try_from(-pool.room()).unwrap_or(0).min(pool.idle.len());
        let keep = pool.idle.len() - extra;
        let closing = pool.idle.split_off(keep);
        let slots = pool.slots as usize;
        pool.http2.truncate(slots);
        drop(pool);
        drop(closing);
    }

    /// No request will be sent to it any more.
    pub(crate) fn close(&self) {
        let mut pool = self.pool.lock();
        pool.closed = true;
        // The requests on them go on.
        pool.http2 = Vec::new();
        let closing = std::mem::take(&mut pool.idle);
        drop(pool);
        drop(closing);
    }

    /// It has ended, and this is how.
    pub(crate) fn end(&self, cause: GoneCause) {
        // It ends once; a second word about it would be the same.
        let _ = self.gone.set(cause);
        self.ended.notify_waiters();
    }

    /// How it ended, if that is known within `limit`.
    pub(crate) async fn cause(&self, limit: Duration) -> Option<&GoneCause> {
        // Whether it was told or time ran out is asked below.
        let _ = tokio::time::timeout(limit, self.ended()).await;
        self.gone()
    }

    /// Why it has closed a connection: how it ended, if that becomes known in time. A process that has used much memory
    /// takes a while to end after its sockets have; with one that still has other connections that is not waited for.
    pub(crate) async fn why_hung_up(&self) -> Option<&GoneCause> {
        let hung_up = self.hung_up();
        let mut cause = self.cause(CAUSE_WAIT).await;
        if cause.is_none() && !self.lives() {
            cause = self.cause(CAUSE_WAIT_SILENT - CAUSE_WAIT).await;
        }
        drop(hung_up);
        cause
    }

    fn hung_up(&self) -> HungUp<'_> {
        self.pool.lock().hung_up += 1;
        HungUp(self)
    }

    /// Whether it has a connection left.
    fn lives(&self) -> bool {
        let pool = self.pool.lock();
        pool.lent > pool.hung_up
            || pool.idle.iter().any(|idle| idle.connection.get_ref().is_quiet())
            || pool.http2.iter().any(|connection| !connection.is_closed())
    }

    /// How it ended, if that is known.
    pub(crate) fn gone(&self) -> Option<&GoneCause> {
        self.gone.get()
    }

    /// Resolves when its end is known.
    pub(crate) async fn ended(&self) {
        let ended = self.ended.notified();
        if self.gone.get().is_none() {
            ended.await;
        }
    }

    /// Resolves when its end is known and what it said before has had time to arrive.
    pub(crate) async fn silent(self: Arc<Self>) {
        self.ended().await;
        tokio::time::sleep(LAST_WORDS_WAIT).await;
    }
}

/// Counts a connection that the sandbox has closed. Dropped also where nobody waits any more.
struct HungUp<'a>(&'a Upstream);

impl Drop for HungUp<'_> {
    fn drop(&mut self) {
        self.0.pool.lock().hung_up -= 1;
    }
}

impl Idle {
    /// Whether the peer has neither closed it nor said anything on it, and will not soon. A core that takes over
    /// another's socket has no event of it yet: all it knows is what the kernel says.
    fn is_usable(&self, core: usize, now: Timestamp) -> bool {
        let rested = now.since(self.since);
        let told = self.core == core && rested <= REST_MAX;
        rested <= IDLE_MAX && (told || self.connection.get_ref().is_quiet())
    }
}

impl Pool {
    /// An idle connection of this core, else of another.
    fn take(&mut self, core: usize) -> Option<Idle> {
        match self.idle.iter().rposition(|idle| idle.core == core) {
            Some(own) => Some(self.idle.swap_remove(own)),
            None => self.idle.pop(),
        }
    }

    /// Slots without a connection; negative when there are too many.
    fn room(&self) -> i64 {
        i64::from(self.slots) - i64::from(self.lent) - self.idle.len() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Socket;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    fn now(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn connection() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Connection::new(Stream::new(Socket::Unix(ours))), theirs)
    }

    /// An upstream with three slots and an idle connection for each, of cores 0, 1 and 2.
    fn warm() -> (Upstream, Vec<UnixStream>) {
        let endpoint = Endpoint::Unix("/s".into());
        let upstream = Upstream::new(SandboxId(1), NodeId(1), 1, endpoint, Protocol::Http1);
        upstream.granted(3);
        assert!((0..3).all(|core| upstream.lend(core, now(0)).is_none()));
        let ends = (0..3).map(|core| {
            let (ours, theirs) = connection();
            upstream.give_back(core, Some(ours), now(0));
            theirs
        });
        let ends = ends.collect();
        (upstream, ends)
    }

    async fn closed(sandboxes: &mut [UnixStream]) -> usize {
        let mut closed = 0;
        for stream in sandboxes {
            // Readiness may take a turn of the event loop to be seen.
            tokio::task::yield_now().await;
            let end = tokio::time::timeout(Duration::from_millis(50), stream.read_u8()).await;
            closed += usize::from(end.is_ok());
        }
        closed
    }

    #[tokio::test]
    async fn slots_that_go_take_their_connections_with_them() {
        let (upstream, mut sandbox) = warm();
        let lent = upstream.lend(1, now(1));
        assert!(lent.is_some());
        upstream.released(1);
        assert_eq!(closed(&mut sandbox).await, 1, "two slots, one of them lent, one idle");
        upstream.released(1);
        assert_eq!(closed(&mut sandbox).await, 2);
        upstream.close();
        upstream.give_back(1, lent, now(1));
        assert_eq!(closed(&mut sandbox).await, 3, "nothing is kept of what is closed");
    }

    #[tokio::test]
    async fn what_a_peer_closed_or_spoke_on_is_not_lent_to_another_core_nor_after_a_rest() {
        let soon = Timestamp::ZERO + REST_MAX;
        for (core, at) in [(7, soon), (7, now(1)), (0, now(1))] {
            let (upstream, mut ends) = warm();
            // The first one is closed, the second one spoken on.
            drop(ends.remove(0));
            ends[0].write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
            let lent = upstream.lend(core, at);
            assert!(
                lent.is_some_and(|connection| connection.get_ref().is_quiet()),
                "the third: {core}, {at:?}"
            );
            assert!(upstream.lend(core, at).is_none(), "{core}, {at:?}");
            assert_eq!(closed(&mut ends).await, 2, "those are closed: {core}, {at:?}");
        }
    }

    #[tokio::test]
    async fn a_sandbox_lives_that_has_a_connection_left() {
        let upstream =
            Upstream::new(SandboxId(1), NodeId(1), 1, Endpoint::Unix("/s".into()), Protocol::Http1);
        upstream.granted(2);
        assert!(upstream.lend(0, now(0)).is_none());
        let one = upstream.hung_up();
        assert!(!upstream.lives(), "that was its only one");
        assert!(upstream.lend(0, now(0)).is_none());
        assert!(upstream.lives(), "another request is in it");
        let two = upstream.hung_up();
        assert!(!upstream.lives(), "both have ended");
        drop(two);
        let (ours, theirs) = connection();
        upstream.give_back(0, Some(ours), now(0));
        assert!(upstream.lives(), "one is idle");
        drop(theirs);
        tokio::task::yield_now().await;
        assert!(!upstream.lives(), "which was closed as well");
        drop(one);
    }

    #[tokio::test]
    async fn a_core_takes_its_own_connection_first_and_none_that_is_old() {
        let (upstream, mut sandbox) = warm();
        drop(upstream.lend(1, now(1)));
        assert_eq!(closed(&mut sandbox[1..2]).await, 1, "its own");
        upstream.give_back(1, None, now(1));
        assert!(upstream.lend(1, now(1)).is_some(), "another's, rather than one more");
        upstream.give_back(1, None, now(1));
        assert!(upstream.lend(0, now(10)).is_none());
        assert_eq!(closed(&mut sandbox).await, 3);
    }
}
