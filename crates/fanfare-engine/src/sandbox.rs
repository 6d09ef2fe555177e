//! One sandbox, as the control plane remembers it. At most 256 bytes with everything it points to.

use std::sync::Arc;

use fanfare_types::{DataPlaneId, NodeId, Resources, RevisionId, Stages, Timestamp};
use smallvec::SmallVec;

/// Where a sandbox is in its life. It only ever moves downwards in this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Ordered from its node.
    Starting,
    /// Accepts requests; its slots may be leased.
    Ready,
    /// No new lease; stops when the last slot is back, and is killed then if it is condemned.
    Retiring,
    /// Its node was told to stop it.
    Stopping,
}

/// The fixed record of one sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) revision: RevisionId,
    pub(crate) node: NodeId,
    pub(crate) phase: Phase,
    /// An earlier leader ordered it, and not every data plane that may hold its slots has spoken yet.
    pub(crate) quarantined: bool,
    /// User code may run on in it without a request. Whoever holds or held slots of it is told of its end.
    pub(crate) condemned: bool,
    /// Not every slot of it was claimed in time after a change of leader: user code may run in the others.
    pub(crate) written_off: bool,
    /// Ordered because requests waited, not by the autoscaler.
    pub(crate) for_demand: bool,
    /// Its node knows that a request waits for it.
    pub(crate) waited: bool,
    /// Its node was asked not to begin with it.
    pub(crate) called_back: bool,
    pub(crate) concurrency: u32,
    pub(crate) request: Resources,
    pub(crate) ordered_at: Timestamp,
    /// [`Timestamp::ZERO`] until ready.
    pub(crate) ready_at: Timestamp,
    /// When it has been in its phase for too long; [`Timestamp::MAX`]: never.
    pub(crate) overdue_at: Timestamp,
    pub(crate) endpoint: Option<Arc<str>>,
    /// As far as they are known of its start, until the first data plane has been told.
    pub(crate) stages: Option<Box<Stages>>,
    /// Last reported CPU use, in thousandths; `None` until the first report.
    pub(crate) cpu_milli: Option<f32>,
    /// Slots by data plane. Of a condemned sandbox also those that hold none any more, to be told of the end.
    pub(crate) leases: SmallVec<[(DataPlaneId, u32); 1]>,
}

impl Sandbox {
    /// Slots in the hands of data planes.
    pub(crate) fn leased(&self) -> u32 {
        self.leases.iter().map(|(_, slots)| slots).sum()
    }

    /// Slots that can be granted.
    pub(crate) fn unleased(&self) -> u32 {
        if self.phase == Phase::Ready && !self.quarantined {
            self.concurrency.saturating_sub(self.leased())
        } else {
            0
        }
    }

    /// Slots in the hands of one data plane.
    pub(crate) fn leased_to(&self, data_plane: DataPlaneId) -> u32 {
        self.leases.iter().find(|(id, _)| *id == data_plane).map_or(0, |(_, slots)| *slots)
    }

    /// Puts slots into a data plane's hand.
    pub(crate) fn lease(&mut self, data_plane: DataPlaneId, slots: u32) {
        match self.leases.iter_mut().find(|(id, _)| *id == data_plane) {
            Some((_, held)) => *held += slots,
            None => self.leases.push((data_plane, slots)),
        }
    }

    /// Takes up to `slots` back; the number taken.
    pub(crate) fn unlease(&mut self, data_plane: DataPlaneId, slots: u32) -> u32 {
        let Some(index) = self.leases.iter().position(|(id, _)| *id == data_plane) else { return 0 };
        let taken = slots.min(self.leases[index].1);
        self.leases[index].1 -= taken;
        if self.leases[index].1 == 0 && !self.condemned {
            self.leases.swap_remove(index);
        }
        taken
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_record_is_small() {
        // The budget per sandbox is 256 bytes with the maps' share and the endpoint's text.
        assert!(size_of::<Sandbox>() <= 128, "{}", size_of::<Sandbox>());
    }
}
