//! What can happen.

use fanfare_types::{ExitCause, RevisionId, SandboxId};

use crate::net::{End, Peer, Site, StreamId};

/// Something that happens at its time. Processes and machines have lives: what was meant for an earlier one is void.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The next request of the scenario comes.
    Arrival,
    /// The client of a request has lost patience.
    Leave(usize),
    /// A user does something.
    Change(usize),
    /// Something arrives on a stream.
    Lane(StreamId, End),
    /// An end finds out that its stream is broken.
    Broken(StreamId, End),
    /// An attempt to reach a control plane has come to its end.
    Dialled {
        peer: Peer,
        life: u64,
        attempt: u64,
        control: usize,
    },
    Control(usize, u64, ControlTimer),
    Plane(usize, u64, PlaneTimer),
    /// For the daemon.
    Node(usize, u64, NodeTimer),
    /// For the machine.
    Machine(usize, u64, MachineTimer),
    /// On the way of a request.
    Wire(Wire),
    Fault(FaultEvent),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlTimer {
    Start,
    /// The leader shows that it lives, and the others look whether it does.
    Beat,
    /// A deadline; void unless it is the one that was set last.
    Wake(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PlaneTimer {
    Start,
    Dial(u64),
    Report(StreamId),
    Beat(StreamId),
    /// Demand that was held back is told.
    Demand(StreamId),
    /// A request's time is over.
    Deadline(Visit),
    /// Time enough has passed for an answer that nobody waits for.
    Unproven(Visit),
    /// Time enough has passed for what a sandbox said before its end.
    LastWords(Visit),
    /// A request has waited long enough for the first word of a control plane.
    Unsynced(Visit),
    /// The owner of a function could not be connected to.
    NotForwarded(Visit),
    /// The client of a request is found to have left.
    Left(usize),
    /// A draining data plane has waited long enough.
    Exit,
}

/// A request at one of its stations; void when it has gone on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) request: usize,
    pub(crate) number: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeTimer {
    Start,
    Dial(u64),
    Beat,
    /// CPU use is to be read.
    Usage,
    /// A runtime has news.
    Created(SandboxId, u32, bool),
    Exited(SandboxId, ExitCause),
    Stopped(SandboxId),
    Prepared(RevisionId, bool),
    Forgotten(RevisionId),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MachineTimer {
    /// An order to stop has its effect; the life of the daemon that gave it.
    Kill(SandboxId, u64),
    /// User code is done with a request.
    Executed(SandboxId, Visit),
}

/// Something between a data plane and a sandbox, or between two data planes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) visit: Visit,
    pub(crate) from: Site,
    pub(crate) to: Site,
    /// The life of the data plane that it is from or for.
    pub(crate) life: u64,
    pub(crate) what: Word,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    /// A data plane sends a request on to the function's owner.
    Forward,
    /// It reaches its sandbox.
    Request(SandboxId),
    /// There is no such sandbox.
    Refused,
    Answer,
    /// The sandbox closed the connection.
    HungUp,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultEvent {
    /// Something goes wrong.
    Next,
    /// It is over.
    Unblock(Site, Site),
    SpeedUp(Site, Site),
    /// The end of a stream has waited long enough for the answer to a ping.
    Ping(StreamId, End),
    /// Everything is mended.
    Mend,
}

impl Event {
    /// Whose process handles it.
    pub(crate) fn site(&self, end_site: impl Fn(StreamId, End) -> Option<Site>) -> Option<Site> {
        match self {
            Event::Lane(stream, end) | Event::Broken(stream, end) => end_site(*stream, *end),
            Event::Dialled { peer, .. } => Some(peer.site()),
            Event::Control(index, ..) => Some(Site::Control(*index)),
            Event::Plane(index, ..) => Some(Site::Plane(*index)),
            Event::Node(index, ..) => Some(Site::Node(*index)),
            // A sandbox runs on while the daemon of its machine stands still.
            Event::Wire(Wire { to: Site::Plane(index), .. }) => Some(Site::Plane(*index)),
            Event::Wire(_) | Event::Machine(..) => None,
            Event::Arrival | Event::Leave(_) | Event::Change(_) | Event::Fault(_) => None,
        }
    }

    /// A timer of this process.
    pub(crate) fn is_timer_of(&self, site: Site) -> bool {
        match self {
            Event::Control(index, ..) => Site::Control(*index) == site,
            Event::Plane(index, ..) => Site::Plane(*index) == site,
            Event::Node(index, _, NodeTimer::Dial(_) | NodeTimer::Beat | NodeTimer::Usage) => {
                Site::Node(*index) == site
            }
            _ => false,
        }
    }

    /// A number that tells its kind from others, for digests.
    pub(crate) fn kind(&self) -> u64 {
        let (kind, of) = match self {
            Event::Arrival => (1, 0),
            Event::Change(index) => (2, *index as u64),
            Event::Lane(stream, End::Control) => (3, stream.0),
            Event::Lane(stream, End::Peer) => (4, stream.0),
            Event::Broken(stream, _) => (5, stream.0),
            Event::Dialled { attempt, .. } => (6, *attempt),
            Event::Control(index, ..) => (7, *index as u64),
            Event::Plane(index, ..) => (8, *index as u64),
            Event::Node(index, ..) => (9, *index as u64),
            Event::Machine(index, ..) => (10, *index as u64),
            Event::Wire(wire) => (11, wire.visit.request as u64),
            Event::Fault(_) => (12, 0),
            Event::Leave(request) => (13, *request as u64),
        };
        kind << 48 | of
    }
}
