//! Streams, and what they suffer.
//!
//! Roles talk over TCP: what is sent on a stream arrives in order or not at all. So the network delays, holds messages
//! up while two roles cannot reach each other, and breaks streams at any message, with the loss of everything behind it;
//! messages of different streams overtake each other freely.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fanfare_types::{Epoch, FromDataPlane, FromNode, Timestamp, ToDataPlane, ToNode};

/// A process or a machine, by its index among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Site {
    Control(usize),
    Plane(usize),
    Node(usize),
    /// Where control planes keep what must last; one for all, never lost.
    Store,
}

/// The end of a stream that dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    Plane(usize),
    Node(usize),
}

impl Peer {
    pub(crate) fn site(self) -> Site {
        match self {
            Peer::Plane(index) => Site::Plane(index),
            Peer::Node(index) => Site::Node(index),
        }
    }
}

/// Names a stream; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId(pub(crate) u64);

/// Which end of a stream, or towards which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Control,
    Peer,
}

/// What travels.
#[derive(Debug)]
pub(crate) enum Parcel {
    ToNode(Epoch, ToNode),
    ToPlane(Epoch, ToDataPlane),
    FromNode(FromNode),
    FromPlane(FromDataPlane),
    /// The sender has closed its end.
    Close,
}

/// One direction of a stream.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    parcels: VecDeque<Parcel>,
    /// Nothing arrives before this.
    last_at: Timestamp,
    /// Arrivals that are held up until the two can reach each other again.
    held: usize,
}

/// A stream between a peer and a control plane.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) peer: Peer,
    pub(crate) control: usize,
    /// Each end as long as its process uses it.
    pub(crate) open_at_control: bool,
    pub(crate) open_at_peer: bool,
    /// It is broken, and whatever is sent on it is lost.
    broken: bool,
    up: Lane,
    down: Lane,
}

impl Stream {
    pub(crate) fn lane(&mut self, towards: End) -> &mut Lane {
        match towards {
            End::Control => &mut self.up,
            End::Peer => &mut self.down,
        }
    }

    pub(crate) fn site(&self, end: End) -> Site {
        match end {
            End::Control => Site::Control(self.control),
            End::Peer => self.peer.site(),
        }
    }

    pub(crate) fn is_open(&self, end: End) -> bool {
        match end {
            End::Control => self.open_at_control,
            End::Peer => self.open_at_peer,
        }
    }
}

impl End {
    pub(crate) fn other(self) -> End {
        match self {
            End::Control => End::Peer,
            End::Peer => End::Control,
        }
    }
}

/// All streams, and who reaches whom.
#[derive(Debug, Default)]
pub(crate) struct Net {
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    opened: u64,
    /// From the first, nothing reaches the second.
    blocked: BTreeSet<(Site, Site)>,
    /// What is sent from the first to the second takes so much longer.
    slow: BTreeMap<(Site, Site), Duration>,
}

impl Net {
    pub(crate) fn open(&mut self, peer: Peer, control: usize) -> StreamId {
        self.opened += 1;
        let id = StreamId(self.opened);
        let stream = Stream {
            peer,
            control,
            open_at_control: true,
            open_at_peer: true,
            broken: false,
            up: Lane::default(),
            down: Lane::default(),
        };
        self.streams.insert(id, stream);
        id
    }

    pub(crate) fn reaches(&self, from: Site, to: Site) -> bool {
        !self.blocked.contains(&(from, to))
    }

    pub(crate) fn both_reach(&self, a: Site, b: Site) -> bool {
        self.reaches(a, b) && self.reaches(b, a)
    }

    pub(crate) fn block(&mut self, from: Site, to: Site) -> bool {
        self.blocked.insert((from, to))
    }

    pub(crate) fn unblock(&mut self, from: Site, to: Site) {
        self.blocked.remove(&(from, to));
    }

    pub(crate) fn slow_down(&mut self, from: Site, to: Site, by: Duration) {
        self.slow.insert((from, to), by);
    }

    pub(crate) fn speed_up(&mut self, from: Site, to: Site) {
        self.slow.remove(&(from, to));
    }

    /// Everybody reaches everybody, at the usual speed.
    pub(crate) fn mend(&mut self) -> Vec<(Site, Site)> {
        self.slow.clear();
        std::mem::take(&mut self.blocked).into_iter().collect()
    }

    pub(crate) fn slowness(&self, from: Site, to: Site) -> Duration {
        self.slow.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Puts something on a stream; when it arrives, if its sender's end is open.
    pub(crate) fn put(
        &mut self,
        now: Timestamp,
        id: StreamId,
        towards: End,
        parcel: Parcel,
        delay: Duration,
    ) -> Option<Timestamp> {
        let stream = self.streams.get_mut(&id).filter(|s| s.is_open(towards.other()) && !s.broken)?;
        let lane = stream.lane(towards);
        lane.parcels.push_back(parcel);
        lane.last_at = lane.last_at.max(now + delay);
        Some(lane.last_at)
    }

    /// What arrives now; `None` when it is held up, or was lost.
    pub(crate) fn take(&mut self, id: StreamId, towards: End) -> Option<Parcel> {
        let stream = self.streams.get_mut(&id)?;
        let (from, to) = (stream.site(towards.other()), stream.site(towards));
        let lane = stream.lane(towards);
        if self.blocked.contains(&(from, to)) {
            lane.held += 1;
            return None;
        }
        let parcel = lane.parcels.pop_front()?;
        stream.is_open(towards).then_some(parcel)
    }

    /// How many arrivals were held up on a stream, which now come.
    pub(crate) fn release(&mut self, id: StreamId, towards: End) -> usize {
        self.streams.get_mut(&id).map_or(0, |stream| std::mem::take(&mut stream.lane(towards).held))
    }

    /// Streams whose messages go from one to the other.
    pub(crate) fn between(&self, from: Site, to: Site) -> Vec<(StreamId, End)> {
        let towards = |s: &Stream| {
            [End::Control, End::Peer]
                .into_iter()
                .find(|end| s.site(*end) == to && s.site(end.other()) == from)
        };
        self.streams.iter().filter_map(|(id, s)| Some((*id, towards(s)?))).collect()
    }

    /// One end uses the stream no more. A stream that no end uses is forgotten.
    pub(crate) fn close(&mut self, id: StreamId, end: End) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let open = match end {
            End::Control => std::mem::replace(&mut stream.open_at_control, false),
            End::Peer => std::mem::replace(&mut stream.open_at_peer, false),
        };
        if !stream.open_at_control && !stream.open_at_peer {
            self.streams.remove(&id);
        }
        open
    }

    /// A stream breaks: everything on it is lost, and all that follows.
    pub(crate) fn lose(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.broken = true;
            stream.up.parcels.clear();
            stream.down.parcels.clear();
        }
    }
}
