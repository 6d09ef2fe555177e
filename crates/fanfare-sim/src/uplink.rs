//! How nodes and data planes reach a control plane: one after the other, at growing distances.

use std::time::Duration;

use fanfare_policy::RngExt;
use fanfare_types::Timestamp;
use fanfare_types::limits::LIVENESS_TIMEOUT;

use crate::event::{Event, NodeTimer, PlaneTimer};
use crate::net::{End, Parcel, Peer, Site, StreamId};
use crate::world::World;

/// As both daemons have them.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// An idle stream asks after so much silence whether its other end lives, and gives up after as much again.
const PING: Duration = Duration::from_millis(400);

/// A peer's way to the control plane.
#[derive(Debug, Default)]
pub(crate) struct Uplink {
    /// The stream that is up.
    pub(crate) stream: Option<StreamId>,
    /// Counts attempts to dial; void but for the last.
    attempt: u64,
    /// Attempts since a control plane last made itself known.
    pub(crate) failures: u32,
    next: usize,
}

impl World<'_> {
    fn uplink(&mut self, peer: Peer) -> &mut Uplink {
        match peer {
            Peer::Plane(index) => &mut self.planes[index].uplink,
            Peer::Node(index) => &mut self.nodes[index].uplink,
        }
    }

    pub(crate) fn life(&self, peer: Peer) -> u64 {
        match peer {
            Peer::Plane(index) => self.planes[index].life,
            Peer::Node(index) => self.nodes[index].life,
        }
    }

    /// When a peer's clock has gone on by so much.
    pub(crate) fn peer_time(&self, peer: Peer, after: Duration) -> Timestamp {
        let clock = match peer {
            Peer::Plane(index) => &self.planes[index].clock,
            Peer::Node(index) => &self.nodes[index].clock,
        };
        clock.when(clock.local(self.now) + after)
    }

    /// Tries for a stream, after a pause if earlier attempts failed.
    pub(crate) fn dial(&mut self, peer: Peer, at_once: bool) {
        let uplink = self.uplink(peer);
        uplink.stream = None;
        uplink.attempt += 1;
        let (attempt, failures) = (uplink.attempt, uplink.failures);
        uplink.failures = failures.saturating_add(1);
        let whole = BACKOFF_MIN.saturating_mul(1 << failures.min(16)).min(BACKOFF_MAX);
        let pause = if at_once { Duration::ZERO } else { self.between(whole / 2, whole) };
        let (at, life) = (self.peer_time(peer, pause), self.life(peer));
        let event = match peer {
            Peer::Plane(index) => Event::Plane(index, life, PlaneTimer::Dial(attempt)),
            Peer::Node(index) => Event::Node(index, life, NodeTimer::Dial(attempt)),
        };
        self.queue.schedule(at, event);
    }

    pub(crate) fn dial_now(&mut self, peer: Peer, attempt: u64) {
        let controls = self.controls.len();
        let uplink = self.uplink(peer);
        if uplink.attempt != attempt {
            return;
        }
        let control = uplink.next % controls;
        uplink.next += 1;
        let (from, to) = (peer.site(), Site::Control(control));
        let at = match self.net.both_reach(from, to) {
            true => self.now + self.delay(from, to) + self.delay(to, from),
            false => self.peer_time(peer, LIVENESS_TIMEOUT),
        };
        let life = self.life(peer);
        self.queue.schedule(at, Event::Dialled { peer, life, attempt, control });
    }

    pub(crate) fn dialled(&mut self, peer: Peer, life: u64, attempt: u64, control: usize) {
        if self.life(peer) != life || self.uplink(peer).attempt != attempt {
            return;
        }
        let site = Site::Control(control);
        let stands = self.stalled.get(&site).is_some_and(|until| self.now < *until);
        if stands {
            // It does not answer in time.
            let at = self.peer_time(peer, LIVENESS_TIMEOUT);
            self.uplink(peer).attempt += 1;
            let attempt = attempt + 1;
            let event = match peer {
                Peer::Plane(index) => Event::Plane(index, life, PlaneTimer::Dial(attempt)),
                Peer::Node(index) => Event::Node(index, life, NodeTimer::Dial(attempt)),
            };
            return self.queue.schedule(at, event);
        }
        let leads = self.controls[control].term.is_some();
        if !leads || !self.net.both_reach(peer.site(), site) {
            return self.dial(peer, false);
        }
        let stream = self.net.open(peer, control);
        self.uplink(peer).stream = Some(stream);
        self.say(format_args!("{peer:?} has a stream to control {control}: {}", stream.0));
        match peer {
            Peer::Plane(index) => self.plane_connected(index, stream),
            Peer::Node(index) => self.node_connected(index, stream),
        }
    }

    /// A process has ended: its machine resets its connections, and whoever can be reached finds that out at once, the
    /// others when they ask after it.
    pub(crate) fn reset_streams(&mut self, site: Site, end: End) {
        let streams = self.net.streams.iter().filter(|(_, s)| s.site(end) == site && s.is_open(end));
        for stream in streams.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.net.close(stream, end);
            // What it had sent may still arrive, or not.
            if self.rng.random_bool(0.5) {
                self.net.lose(stream);
            }
            self.find_broken(stream, end.other());
        }
    }

    /// A machine is gone: nobody is told.
    pub(crate) fn silence_streams(&mut self, site: Site, end: End) {
        let streams = self.net.streams.iter().filter(|(_, s)| s.site(end) == site && s.is_open(end));
        for stream in streams.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.net.close(stream, end);
            self.net.lose(stream);
            let after = self.between(PING, PING * 2);
            self.queue.schedule(self.now + after, Event::Broken(stream, end.other()));
        }
    }

    /// An end finds its stream broken: soon, or when it is reached no more, by asking.
    pub(crate) fn find_broken(&mut self, stream: StreamId, end: End) {
        let Some(record) = self.net.streams.get(&stream) else { return };
        let (here, there) = (record.site(end), record.site(end.other()));
        let after = match self.net.both_reach(here, there) {
            true => self.delay(there, here),
            false => self.between(PING, PING * 2),
        };
        self.queue.schedule(self.now + after, Event::Broken(stream, end));
    }

    /// Two roles have just stopped reaching each other in at least one direction: pings on their streams stay without
    /// an answer, unless that is over soon.
    pub(crate) fn pings_fail(&mut self, a: Site, b: Site) {
        for (stream, end) in self.net.between(a, b) {
            for end in [end, end.other()] {
                let after = self.between(PING, PING * 2);
                self.queue
                    .schedule(self.now + after, Event::Fault(crate::event::FaultEvent::Ping(stream, end)));
            }
        }
    }

    /// A ping should have been answered by now.
    pub(crate) fn ping(&mut self, stream: StreamId, end: End) {
        let Some(record) = self.net.streams.get(&stream) else { return };
        if !self.net.both_reach(record.site(end), record.site(end.other())) {
            // It hangs up, which the other end hears of when it can be reached again.
            self.put(stream, end.other(), Parcel::Close);
            self.queue.schedule(self.now, Event::Broken(stream, end));
        }
    }
}
