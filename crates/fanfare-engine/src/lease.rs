//! Which data plane may use which slot.
//!
//! A slot is in exactly one hand: free here, on its way in a grant, or held by one data plane. Only this side turns
//! free slots into grants, only the holder gives them back, and both speak in deltas on an ordered stream; so
//! `free + granted + held == concurrency` needs no clock and no lock. Slots of the current revision are granted, and of
//! earlier ones while no sandbox of the current one is ready.
//!
//! Free slots go to the data plane with the most waiting requests that no grant has answered yet, and without any to
//! the function's owner. When one data plane has waiters and another idle slots, the latter is asked to yield; when
//! the function cannot grow any further, every data plane's share follows its demand.

use std::collections::BTreeMap;

use fanfare_types::{DataPlaneId, FunctionId, RevisionId, SandboxId, Timestamp, ToDataPlane};

use crate::Command;
use crate::engine::Engine;
use crate::function::{Function, PlaneLoad};
use crate::sandbox::Phase;

impl Engine {
    /// Grants every free slot of the function's revision that serves.
    pub(crate) fn grant_free(&mut self, id: FunctionId, out: &mut Vec<Command>) {
        while let Some(sandbox) =
            self.functions.get(&id).and_then(|f| f.active.as_ref()).and_then(|a| a.grantable())
        {
            let Some((data_plane, need)) = self.neediest(id) else { return };
            self.grant(id, sandbox, data_plane, need, out);
        }
    }

    /// The connected data plane with the greatest need, or the owner with no need. One that shuts down gets what its
    /// waiting requests need, and nothing else.
    fn neediest(&self, id: FunctionId) -> Option<(DataPlaneId, u32)> {
        let active = self.functions.get(&id)?.active.as_ref()?;
        let taking = |id: &DataPlaneId| self.data_planes.get(id).is_some_and(|d| !d.draining);
        let connected = active.planes.iter().filter(|p| self.data_planes.contains_key(&p.data_plane));
        let neediest = connected.map(|p| (p.need(), p.data_plane)).filter(|(need, _)| *need > 0).max();
        match neediest {
            Some((need, data_plane)) => Some((data_plane, need)),
            None => {
                let owner = self.owner_of(id).filter(&taking);
                let any = || self.data_planes.keys().find(|id| taking(id)).copied();
                owner.or_else(any).map(|data_plane| (data_plane, 0))
            }
        }
    }

    fn grant(
        &mut self,
        id: FunctionId,
        sandbox: SandboxId,
        data_plane: DataPlaneId,
        need: u32,
        out: &mut Vec<Command>,
    ) {
        let alone = self.data_planes.len() == 1 && self.data_planes.values().all(|d| !d.draining);
        let Some(record) = self.sandboxes.get_mut(&sandbox) else { return };
        let free = record.unleased();
        let slots = if alone || need == 0 { free } else { free.min(need) };
        let message = ToDataPlane::Grant {
            function: id,
            revision: record.revision.number,
            sandbox,
            node: record.node,
            endpoint: record.endpoint.clone().unwrap_or_default(),
            slots,
            stages: record.stages.take().map(|stages| *stages),
        };
        if let Some(function) = self.functions.get_mut(&id) {
            function.active_mut().plane_mut(data_plane).granted_since += slots;
        }
        self.lease(sandbox, data_plane, slots);
        self.tell_data_plane(data_plane, message, out);
    }

    /// Puts slots of a sandbox into a data plane's hand.
    pub(crate) fn lease(&mut self, id: SandboxId, data_plane: DataPlaneId, slots: u32) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        sandbox.lease(data_plane, slots);
        let (revision, phase) = (sandbox.revision, sandbox.phase);
        let function = self.functions.get_mut(&revision.function);
        if let Some(function) = function.filter(|f| f.revision == revision.number && phase == Phase::Ready) {
            function.active_mut().plane_mut(data_plane).held += slots;
        }
        self.refresh_free(id);
    }

    /// Takes up to `slots` of them back; the number taken.
    pub(crate) fn unlease(&mut self, id: SandboxId, data_plane: DataPlaneId, slots: u32) -> u32 {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return 0 };
        let taken = sandbox.unlease(data_plane, slots);
        let (revision, phase) = (sandbox.revision, sandbox.phase);
        let function = self.functions.get_mut(&revision.function);
        if let Some(function) = function.filter(|f| f.revision == revision.number && phase == Phase::Ready) {
            function.active_mut().give_up(data_plane, taken);
        }
        self.refresh_free(id);
        taken
    }

    /// A data plane gave slots back.
    pub(crate) fn released(
        &mut self,
        now: Timestamp,
        data_plane: DataPlaneId,
        sandbox: SandboxId,
        slots: u32,
        retired: bool,
        out: &mut Vec<Command>,
    ) {
        let taken = self.unlease(sandbox, data_plane, slots);
        let Some(record) = self.sandboxes.get(&sandbox) else {
            self.released_claim(data_plane, sandbox, slots);
            return;
        };
        let (RevisionId { function: id, number }, phase) = (record.revision, record.phase);
        let (mut goes, mut asked) = (retired, false);
        if let Some(function) = self.functions.get_mut(&id) {
            let current = function.revision == number;
            let active = function.active_mut();
            let surplus = active.counts.ready > active.desired;
            let plane = active.plane_mut(data_plane);
            if retired && !current {
                // It goes because it is outdated, beside those that were asked for.
            } else if retired {
                // The order may have been taken back meanwhile, or another sandbox have gone in its place.
                asked = plane.retire_asked > 0;
                goes = surplus && asked;
                plane.retire_asked = plane.retire_asked.saturating_sub(1);
            } else if phase == Phase::Ready {
                plane.yield_asked = plane.yield_asked.saturating_sub(taken);
            }
        }
        if phase == Phase::Ready && asked {
            goes |= self.given(now, id, sandbox);
        }
        match phase {
            Phase::Ready if goes => self.retire(now, sandbox, out),
            Phase::Ready => {
                if retired {
                    self.trim_retire(now, id, out);
                }
                self.grant_free(id, out);
            }
            Phase::Retiring => self.stop_if_returned(now, sandbox, out),
            Phase::Starting | Phase::Stopping => {}
        }
    }

    fn released_claim(&mut self, data_plane: DataPlaneId, sandbox: SandboxId, slots: u32) {
        if let Some(claim) = self.claims.get_mut(&sandbox) {
            for (_, held) in claim.leases.iter_mut().filter(|(id, _)| *id == data_plane) {
                *held = held.saturating_sub(slots);
            }
            // Who condemned it is still to be told of the end.
            let condemned = claim.condemned;
            claim.leases.retain(|(id, held)| condemned || *id != data_plane || *held > 0);
        }
    }

    /// Moves slots from data planes that can spare them to those whose requests wait.
    pub(crate) fn rebalance(&mut self, id: FunctionId, out: &mut Vec<Command>) {
        if self.data_planes.len() < 2 {
            return;
        }
        let Some(function) = self.functions.get(&id) else { return };
        let Some(active) = &function.active else { return };
        let at_limit = active.coming_or_ready() >= function.demand_max(active.counts.ready)
            || active.starved_since.is_some()
            || active.old_serve();
        let held_of_old = if active.old_serve() { self.held_of_old(function) } else { BTreeMap::new() };
        let old_serve = active.old_serve();
        let held = |p: &PlaneLoad| match old_serve {
            true => held_of_old.get(&p.data_plane).copied().unwrap_or(0),
            false => p.held,
        };
        let parties: Vec<Party> = active
            .planes
            .iter()
            .filter(|p| self.data_planes.contains_key(&p.data_plane))
            .map(|p| Party {
                data_plane: p.data_plane,
                held: held(p),
                in_flight: p.load.in_flight,
                queued: p.load.queued,
                need: p.need(),
            })
            .collect();
        for (data_plane, slots) in yields(&parties, at_limit) {
            let Some(function) = self.functions.get_mut(&id) else { return };
            let plane = function.active_mut().plane_mut(data_plane);
            if plane.yield_asked != slots {
                plane.yield_asked = slots;
                self.tell_data_plane(data_plane, ToDataPlane::Yield { function: id, slots }, out);
            }
        }
    }

    /// Slots of ready sandboxes of earlier revisions by data plane: few, and only while an update is not through.
    fn held_of_old(&self, function: &Function) -> BTreeMap<DataPlaneId, u32> {
        let mut held = BTreeMap::new();
        let members = function.active.iter().flat_map(|a| &a.sandboxes);
        for sandbox in members.filter_map(|id| self.sandboxes.get(id)) {
            if sandbox.phase == Phase::Ready && sandbox.revision.number != function.revision {
                sandbox.leases.iter().for_each(|(holder, slots)| *held.entry(*holder).or_default() += slots);
            }
        }
        held
    }

    /// Asks for no more retirements than there are sandboxes too many.
    fn trim_retire(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        let asked: u32 = active.planes.iter().map(|p| p.retire_asked).sum();
        let surplus = active.counts.ready.saturating_sub(active.desired).max(self.giving(now, id));
        if asked > surplus {
            self.ask_retire(now, id, surplus, out);
        }
    }

    /// Asks that `total` ready sandboxes in all be retired, idle ones first; replaces what was asked before.
    pub(crate) fn ask_retire(&mut self, now: Timestamp, id: FunctionId, total: u32, out: &mut Vec<Command>) {
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        let asked_before: u32 = active.planes.iter().map(|p| p.retire_asked).sum();
        if total == 0 && asked_before == 0 {
            return;
        }
        let mut held: BTreeMap<DataPlaneId, u32> = BTreeMap::new();
        let mut unheld = Vec::new();
        for id in &active.sandboxes {
            let Some(sandbox) = self.sandboxes.get(id).filter(|s| s.phase == Phase::Ready) else { continue };
            match sandbox.leases.first() {
                // One that several hold counts for one of them: when it retires, all others are asked for theirs.
                Some((data_plane, _)) => *held.entry(*data_plane).or_default() += 1,
                None => unheld.push(*id),
            }
        }
        let idle = |data_plane: DataPlaneId| {
            active.planes.iter().find(|p| p.data_plane == data_plane).map_or(0, |p| p.load.idle_sandboxes)
        };
        let holders: Vec<(DataPlaneId, u32, u32)> =
            held.iter().map(|(d, n)| (*d, *n, idle(*d).min(*n))).collect();
        let at_once = (total as usize).min(unheld.len());
        let asks = retire_asks(&holders, total - u32::try_from(at_once).unwrap_or(u32::MAX));
        for sandbox in unheld.into_iter().take(at_once) {
            self.given(now, id, sandbox);
            self.retire(now, sandbox, out);
        }
        for (data_plane, sandboxes) in asks {
            let Some(function) = self.functions.get_mut(&id) else { return };
            let plane = function.active_mut().plane_mut(data_plane);
            if plane.retire_asked != sandboxes {
                plane.retire_asked = sandboxes;
                self.tell_data_plane(data_plane, ToDataPlane::Retire { function: id, sandboxes }, out);
            }
        }
    }
}

/// One data plane's position when slots are redistributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Party {
    data_plane: DataPlaneId,
    held: u32,
    in_flight: u32,
    queued: u32,
    need: u32,
}

/// How many slots each data plane should yield.
///
/// Idle slots of those without waiters come first. When the function cannot grow (`at_limit`), a data plane with waiters
/// and less than its share, in proportion to demand and at least one, is also helped from those above theirs, as their
/// slots become free.
fn yields(parties: &[Party], at_limit: bool) -> Vec<(DataPlaneId, u32)> {
    let demand = |p: &Party| u64::from(p.in_flight) + u64::from(p.queued);
    let total_held: u64 = parties.iter().map(|p| u64::from(p.held)).sum();
    let total_demand: u64 = parties.iter().map(demand).sum::<u64>().max(1);
    let share = |p: &Party| {
        let proportional = u32::try_from(total_held * demand(p) / total_demand).unwrap_or(u32::MAX);
        proportional.max(u32::from(demand(p) > 0))
    };
    let mut missing = parties.iter().fold(0_u32, |sum, p| sum.saturating_add(p.need));
    let mut result = Vec::with_capacity(parties.len());
    for party in parties {
        let spare = if party.need > 0 {
            0
        } else {
            party.held.saturating_sub(party.in_flight).saturating_sub(party.queued)
        };
        let slots = spare.min(missing);
        missing -= slots;
        result.push((party.data_plane, slots));
    }
    if at_limit {
        let below =
            parties.iter().filter(|p| p.need > 0).map(|p| share(p).saturating_sub(p.held).min(p.need));
        let mut missing = missing.min(below.fold(0, u32::saturating_add));
        for (party, (_, slots)) in parties.iter().zip(&mut result) {
            let more = party.held.saturating_sub(share(party)).saturating_sub(*slots).min(missing);
            missing -= more;
            *slots = slots.saturating_add(more);
        }
    }
    result
}

/// Splits `total` retirements over holders given as (data plane, held, idle): idle ones first, then the largest hand.
fn retire_asks(holders: &[(DataPlaneId, u32, u32)], total: u32) -> Vec<(DataPlaneId, u32)> {
    let mut left = total;
    let mut asks: Vec<(DataPlaneId, u32, u32)> = Vec::with_capacity(holders.len());
    for (data_plane, held, idle) in holders {
        let take = left.min(*idle);
        left -= take;
        asks.push((*data_plane, *held, take));
    }
    while left > 0 {
        let Some((_, _, take)) =
            asks.iter_mut().filter(|(_, held, take)| held > take).max_by_key(|(_, h, t)| h - t)
        else {
            break;
        };
        *take += 1;
        left -= 1;
    }
    asks.into_iter().map(|(data_plane, _, take)| (data_plane, take)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(data_plane: u32, held: u32, in_flight: u32, queued: u32) -> Party {
        Party { data_plane: DataPlaneId(data_plane), held, in_flight, queued, need: queued }
    }

    #[test]
    fn who_yields_how_much() {
        // (what, parties, at the limit, expected yields)
        let cases: &[(&str, &[Party], bool, &[u32])] = &[
            ("nobody waits", &[party(1, 4, 0, 0), party(2, 4, 0, 0)], true, &[0, 0]),
            ("idle slots go to the waiter", &[party(1, 4, 1, 0), party(2, 0, 0, 2)], false, &[2, 0]),
            ("only as many as are idle", &[party(1, 4, 3, 0), party(2, 0, 0, 2)], false, &[1, 0]),
            (
                "busy slots stay while the function can grow",
                &[party(1, 4, 4, 9), party(2, 0, 0, 2)],
                false,
                &[0, 0],
            ),
            ("at the limit shares follow demand", &[party(1, 4, 4, 4), party(2, 0, 0, 8)], true, &[2, 0]),
            (
                "one waiter gets its share of a busy function",
                &[party(1, 4, 4, 90), party(2, 0, 0, 1)],
                true,
                &[1, 0],
            ),
            ("nobody is below its share", &[party(1, 2, 2, 1), party(2, 1, 1, 1)], true, &[0, 0]),
        ];
        for (what, parties, at_limit, expected) in cases {
            let slots: Vec<u32> = yields(parties, *at_limit).into_iter().map(|(_, slots)| slots).collect();
            assert_eq!(&slots, expected, "{what}");
        }
    }

    #[test]
    fn idle_sandboxes_retire_first() {
        let (a, b) = (DataPlaneId(1), DataPlaneId(2));
        assert_eq!(retire_asks(&[(a, 5, 0), (b, 3, 2)], 2), vec![(a, 0), (b, 2)]);
        assert_eq!(retire_asks(&[(a, 5, 0), (b, 3, 2)], 4), vec![(a, 2), (b, 2)]);
        assert_eq!(retire_asks(&[(a, 1, 1), (b, 1, 0)], 9), vec![(a, 1), (b, 1)]);
        assert_eq!(retire_asks(&[], 3), vec![]);
    }
}
