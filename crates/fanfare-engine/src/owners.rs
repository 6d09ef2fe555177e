//! The router: which data plane a function's requests are sent to when several are up.
//!
//! A consistent hash with bounded load (`fanfare_policy::route`) spreads functions over data planes. A data plane that
//! does not own a function forwards its requests once to the owner, so that a function's queue and slots are in one
//! place. A lone data plane owns everything; it is told so with each new stream, for it may believe otherwise.

use fanfare_policy::Move;
use fanfare_types::{DataPlaneId, FunctionId, ToDataPlane};

use crate::Command;
use crate::engine::Engine;

/// Functions in one message.
const FUNCTIONS_PER_MESSAGE: usize = 256;

impl Engine {
    /// The data plane that a function's requests are sent to.
    #[must_use]
    pub fn owner_of(&self, id: FunctionId) -> Option<DataPlaneId> {
        self.owners.owner(id)
    }

    pub(crate) fn assign_owner(&mut self, id: FunctionId, out: &mut Vec<Command>) {
        if let Some(owner) = self.owners.assign(id)
            && self.data_planes.len() > 1
        {
            self.tell_owner(id, owner, out);
        }
    }

    pub(crate) fn data_plane_joined(&mut self, id: DataPlaneId, out: &mut Vec<Command>) {
        let moves = self.owners.add_data_plane(id);
        self.tell_owners(id, out);
        self.tell_moves(&moves, Some(id), out);
    }

    /// A data plane shuts down: it gives its slots back and is granted no more; others own its functions.
    pub(crate) fn data_plane_draining(&mut self, id: DataPlaneId, out: &mut Vec<Command>) {
        let Some(data_plane) = self.data_planes.get_mut(&id).filter(|d| !d.draining) else { return };
        data_plane.draining = true;
        self.data_plane_left(id, out);
        self.tell_peers(out);
    }

    pub(crate) fn data_plane_left(&mut self, id: DataPlaneId, out: &mut Vec<Command>) {
        let moves = self.owners.remove_data_plane(id);
        self.tell_moves(&moves, None, out);
    }

    /// Tells every data plane but one, which knows, who owns what now.
    pub(crate) fn tell_moves(&self, moves: &[Move], but: Option<DataPlaneId>, out: &mut Vec<Command>) {
        for data_plane in self.data_planes.keys().filter(|id| Some(**id) != but) {
            for chunk in moves.chunks(FUNCTIONS_PER_MESSAGE) {
                let owners = chunk.iter().map(|m| (m.function, m.to.filter(|owner| owner != data_plane)));
                self.tell_data_plane(*data_plane, ToDataPlane::Owners(owners.collect()), out);
            }
        }
    }

    fn tell_owner(&self, function: FunctionId, owner: DataPlaneId, out: &mut Vec<Command>) {
        for data_plane in self.data_planes.keys() {
            let foreign = (owner != *data_plane).then_some(owner);
            self.tell_data_plane(*data_plane, ToDataPlane::Owners(vec![(function, foreign)]), out);
        }
    }

    pub(crate) fn tell_owners(&self, data_plane: DataPlaneId, out: &mut Vec<Command>) {
        let foreign = |id: &FunctionId| self.owners.owner(*id).filter(|owner| *owner != data_plane);
        let known = self.functions.iter().filter(|(_, f)| !f.removed);
        let owners: Vec<_> = known.map(|(id, _)| (*id, foreign(id))).collect();
        for chunk in owners.chunks(FUNCTIONS_PER_MESSAGE) {
            self.tell_data_plane(data_plane, ToDataPlane::Owners(chunk.to_vec()), out);
        }
    }
}
