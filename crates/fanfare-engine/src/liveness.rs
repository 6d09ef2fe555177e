//! Which nodes or data planes live: pure bookkeeping of streams and silence.
//!
//! A peer is lost when nothing was heard from it for the timeout, whether its stream closed or hangs. Until then its
//! next stream replaces the old one and nothing is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fanfare_types::Timestamp;

/// Streams of one kind of peer. `Tx` is the sending half.
#[derive(Debug)]
pub struct Peers<Id, Tx> {
    timeout: Duration,
    peers: BTreeMap<Id, Peer<Tx>>,
    /// When to look at each peer again: at or before the moment it would be lost. Refreshed lazily, so that hearing
    /// from a peer costs one write.
    checks: BTreeSet<(Timestamp, Id)>,
}

/// A wake-up so much later than it was asked for: this process was stopped for a while.
pub const STALL: Duration = Duration::from_millis(300);

/// Whether a wake-up that was `expected` came so late that this process must have been stopped, or the machine. Whoever was
/// not listened to meanwhile was not silent: [`Peers::forgive`].
#[must_use]
pub fn was_stopped(expected: Timestamp, now: Timestamp) -> bool {
    now.since(expected) > STALL
}

/// When a stream last brought something, as the task that reads it knows. A busy engine must not take its own backlog
/// for a peer's silence.
#[derive(Debug, Default)]
pub struct Pulse {
    last: AtomicU64,
    /// The peer is a part of this process: it lives as long as its stream is open, however late it comes to speak on a
    /// machine that has no time for it.
    in_process: bool,
}

impl Pulse {
    /// Of a stream that has just begun, to a part of this process or to another one.
    #[must_use]
    pub fn new(in_process: bool) -> Self {
        let last = if in_process { u64::MAX } else { 0 };
        Pulse { last: AtomicU64::new(last), in_process }
    }

    /// Something arrived and waits for its turn: until [`Pulse::beat`] the peer cannot be called silent.
    pub fn hold(&self) {
        self.last.store(u64::MAX, Ordering::Relaxed);
    }

    /// What arrived was handed over, and the stream is listened to again.
    pub fn beat(&self, now: Timestamp) {
        if !self.in_process {
            self.last.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// The stream has ended, which is no word of the peer's; one that needed to say none is silent from now on.
    pub fn end(&self, now: Timestamp) {
        if self.in_process {
            self.last.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    fn last(&self) -> Timestamp {
        Timestamp::from_nanos(self.last.load(Ordering::Relaxed))
    }
}

/// One peer.
#[derive(Debug)]
pub struct Peer<Tx> {
    /// Stable across restarts.
    pub name: Arc<str>,
    /// Differs after each restart of the process.
    pub incarnation: u64,
    /// Counts streams; what arrives on an older one is void.
    pub stream: u64,
    /// `None` once the stream is closed.
    pub tx: Option<Tx>,
    pulse: Arc<Pulse>,
    /// At least then; the pulse may know more.
    heard: Timestamp,
    /// Who was refused last, for having its name.
    refused: Option<u64>,
    /// It has said that it ends.
    left: bool,
}

/// A peer that is there no more.
#[derive(Debug, PartialEq, Eq)]
pub struct Gone<Id, Tx> {
    /// Which.
    pub id: Id,
    /// The sending half of a stream that hangs.
    pub tx: Option<Tx>,
    /// It said that it ends, and did; otherwise nothing was heard from it.
    pub left: bool,
}

/// A stream that was refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused<Tx> {
    /// Its sending half.
    pub tx: Tx,
    /// Whether this process was not refused just before, too: it tries every second.
    pub is_news: bool,
}

impl<Tx> Peer<Tx> {
    fn last_heard(&self, now: Timestamp) -> Timestamp {
        self.pulse.last().min(now).max(self.heard)
    }
}

impl<Id: Copy + Ord, Tx> Peers<Id, Tx> {
    /// Nobody yet; silence of `timeout` is a loss.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Peers { timeout, peers: BTreeMap::new(), checks: BTreeSet::new() }
    }

    /// A stream began. Returns the sending half of the one it replaces.
    ///
    /// # Errors
    /// [`Refused`], with its own half back, when another incarnation of the same name is alive: two machines have one
    /// name.
    pub fn connect(
        &mut self,
        now: Timestamp,
        id: Id,
        (name, incarnation): (Arc<str>, u64),
        stream: u64,
        (tx, pulse): (Tx, Arc<Pulse>),
    ) -> Result<Option<Tx>, Refused<Tx>> {
        if let Some(known) = self.peers.get_mut(&id)
            && known.tx.is_some()
            && known.incarnation != incarnation
            && now.since(known.last_heard(now)) < self.timeout
        {
            let is_news = known.refused.replace(incarnation) != Some(incarnation);
            return Err(Refused { tx, is_news });
        }
        let refused =
            self.peers.get(&id).filter(|known| known.incarnation == incarnation).and_then(|p| p.refused);
        let peer = Peer { name, incarnation, stream, tx: Some(tx), pulse, heard: now, refused, left: false };
        let replaced = self.peers.insert(id, peer);
        if replaced.is_none() {
            self.checks.insert((now + self.timeout, id));
        }
        Ok(replaced.and_then(|peer| peer.tx))
    }

    /// Something arrived. `false`: on a stream that was replaced or given up.
    pub fn heard(&mut self, now: Timestamp, id: Id, stream: u64) -> bool {
        match self.peers.get_mut(&id).filter(|peer| peer.stream == stream) {
            Some(peer) => {
                peer.heard = peer.heard.max(now);
                true
            }
            None => false,
        }
    }

    /// It has said that it ends: with its stream it has left.
    pub fn leaves(&mut self, id: Id, stream: u64) {
        if let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.stream == stream) {
            peer.left = true;
        }
    }

    /// A stream ended; silence counts from the last message, unless its peer has left. `false`: it had been replaced or
    /// given up.
    pub fn closed(&mut self, id: Id, stream: u64) -> bool {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.stream == stream) else { return false };
        peer.tx = None;
        if peer.left {
            self.checks.insert((Timestamp::default(), id));
        }
        true
    }

    /// Peers that are lost or have left by now, each once.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Gone<Id, Tx>> {
        let mut lost = Vec::new();
        while let Some((at, id)) = self.checks.first().copied().filter(|(at, _)| *at <= now) {
            self.checks.remove(&(at, id));
            let Some(peer) = self.peers.get(&id) else { continue };
            let (heard, has_left) = (peer.last_heard(now), peer.left && peer.tx.is_none());
            if has_left || now.since(heard) >= self.timeout {
                lost.extend(self.peers.remove(&id).map(|peer| Gone { id, tx: peer.tx, left: has_left }));
            } else {
                self.checks.insert((heard + self.timeout, id));
            }
        }
        lost
    }

    /// When [`Peers::expire`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.checks.first().map(|(at, _)| *at)
    }

    /// Counts everyone as heard just now: it was us who did not listen.
    pub fn forgive(&mut self, now: Timestamp) {
        for peer in self.peers.values_mut() {
            peer.heard = peer.heard.max(now);
        }
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, id: Id) -> Option<&Peer<Tx>> {
        self.peers.get(&id)
    }

    /// All of them, with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &Peer<Tx>)> + Clone {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    /// Those whose stream is up.
    pub fn connected(&self) -> impl Iterator<Item = (Id, &Peer<Tx>)> {
        self.iter().filter(|(_, peer)| peer.tx.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn lost(id: u32, tx: Option<&'static str>) -> Gone<u32, &'static str> {
        Gone { id, tx, left: false }
    }

    fn peers() -> Peers<u32, &'static str> {
        Peers::new(Duration::from_millis(1_000))
    }

    fn tx(name: &'static str) -> (&'static str, Arc<Pulse>) {
        (name, Arc::default())
    }

    fn named(incarnation: u64) -> (Arc<str>, u64) {
        (Arc::from("a"), incarnation)
    }

    #[test]
    fn whoever_said_that_it_ends_has_left_with_its_stream_and_is_not_lost() {
        let mut peers = peers();
        assert_eq!(peers.connect(at(0), 1, named(7), 1, tx("s1")), Ok(None));
        assert_eq!(peers.connect(at(0), 2, named(8), 2, tx("s2")), Ok(None));
        peers.leaves(1, 1);
        assert_eq!(peers.expire(at(10)), [], "its stream is open");
        assert!(peers.closed(1, 1));
        assert!(peers.next_deadline().is_some_and(|deadline| deadline <= at(10)));
        assert_eq!(peers.expire(at(10)), [Gone { id: 1, tx: None, left: true }]);
        // One that comes back has not left, and a word on a stream that was replaced counts for nothing.
        peers.leaves(2, 2);
        assert!(peers.closed(2, 2));
        assert_eq!(peers.connect(at(20), 2, named(9), 3, tx("s3")), Ok(None));
        peers.leaves(2, 2);
        assert!(peers.closed(2, 3));
        assert_eq!(peers.expire(at(30)), []);
        assert_eq!(peers.expire(at(1_020)), [lost(2, None)]);
        assert_eq!(peers.next_deadline(), None);
    }

    #[test]
    fn silence_loses_a_peer_once_and_words_keep_it() {
        let mut peers = peers();
        assert_eq!(peers.connect(at(0), 1, named(7), 1, tx("s1")), Ok(None));
        for t in (200..=2_000).step_by(200) {
            assert!(peers.heard(at(t), 1, 1));
            assert_eq!(peers.expire(at(t)), []);
        }
        assert_eq!(peers.expire(at(2_999)), []);
        assert!(peers.next_deadline().is_some_and(|deadline| deadline <= at(3_000)));
        assert_eq!(peers.expire(at(3_000)), [lost(1, Some("s1"))]);
        assert_eq!(peers.expire(at(9_000)), []);
        assert_eq!(peers.next_deadline(), None);
        assert!(!peers.heard(at(9_000), 1, 1), "a word after the loss comes from a stream that was given up");
    }

    #[test]
    fn a_closed_stream_counts_from_its_last_word_and_the_next_one_replaces_it() {
        let mut peers = peers();
        peers.connect(at(0), 1, named(7), 1, tx("s1")).unwrap();
        peers.heard(at(500), 1, 1);
        assert!(peers.closed(1, 1));
        assert_eq!(peers.expire(at(1_400)), []);
        assert_eq!(
            peers.connect(at(1_499), 1, named(8), 2, tx("s2")),
            Ok(None),
            "a restarted process, at once"
        );
        assert!(!peers.heard(at(1_500), 1, 1), "the old stream is void");
        assert!(!peers.closed(1, 1));
        assert!(peers.get(1).is_some_and(|peer| peer.tx.is_some()), "and so is its end");
        assert_eq!(peers.expire(at(2_498)), []);
        assert_eq!(peers.expire(at(2_499)), [lost(1, Some("s2"))]);
    }

    #[test]
    fn a_second_machine_of_the_same_name_is_refused_while_the_first_lives() {
        let mut peers = peers();
        peers.connect(at(0), 1, named(7), 1, tx("s1")).unwrap();
        assert_eq!(
            peers.connect(at(900), 1, named(8), 2, tx("s2")),
            Err(Refused { tx: "s2", is_news: true })
        );
        assert_eq!(
            peers.connect(at(950), 1, named(7), 3, tx("s3")),
            Ok(Some("s1")),
            "the same process may reconnect"
        );
        for (incarnation, is_news) in [(8, false), (8, false), (9, true), (9, false)] {
            let refused = peers.connect(at(950), 1, named(incarnation), 4, tx("s4"));
            assert_eq!(refused, Err(Refused { tx: "s4", is_news }), "each is told of once");
        }
        assert_eq!(peers.connect(at(1_950), 1, named(8), 4, tx("s4")), Ok(Some("s3")), "its stream hangs");
    }

    #[test]
    fn a_backlog_of_ours_is_no_silence_of_theirs() {
        let mut peers = peers();
        let pulse = Arc::new(Pulse::default());
        peers.connect(at(0), 1, named(7), 1, ("s1", pulse.clone())).unwrap();
        pulse.hold();
        assert_eq!(peers.expire(at(5_000)), [], "its messages wait for us");
        pulse.beat(at(5_500));
        assert_eq!(peers.expire(at(6_499)), []);
        assert_eq!(peers.expire(at(6_500)), [lost(1, Some("s1"))]);
    }

    #[test]
    fn a_part_of_this_process_is_lost_only_when_its_stream_ends() {
        let mut peers = peers();
        let pulse = Arc::new(Pulse::new(true));
        peers.connect(at(0), 1, named(7), 1, ("s1", pulse.clone())).unwrap();
        pulse.hold();
        pulse.beat(at(10));
        assert_eq!(peers.expire(at(60_000)), [], "it had no time to say that it lives");
        pulse.end(at(60_100));
        assert!(peers.closed(1, 1));
        assert_eq!(peers.expire(at(61_099)), []);
        assert_eq!(peers.expire(at(61_100)), [lost(1, None)]);
    }

    #[test]
    fn a_stall_of_ours_is_no_silence_of_theirs() {
        let mut peers = peers();
        peers.connect(at(0), 1, named(7), 1, tx("s1")).unwrap();
        peers.forgive(at(5_000));
        assert_eq!(peers.expire(at(5_000)), []);
        assert_eq!(peers.expire(at(6_000)), [lost(1, Some("s1"))]);
    }
}
