//! How a function's requests are shared among its revisions, and when a change of that takes effect.
//!
//! The latest revision is run as the function itself. An earlier one that traffic or a tag names is a *unit*: a function
//! of its own to everything else here, which data planes reach only through the function that names it.
//!
//! A change takes effect when every part that is to get a share has that share of the sandboxes that serve now: those
//! missing are started first, while requests are shared as before. It takes effect without them where they have not come
//! within the longest start timeout, for want of room, say; but where what is to get a share does not start at all,
//! requests are shared as before until it does. Units that are no longer named serve until then, and are removed after:
//! requests that wait for one are moved by their data plane, those in its sandboxes finish.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{
    FunctionId, FunctionSpec, Reach, RevisionId, ScalingPolicy, Timestamp, ToDataPlane, Traffic,
};

use crate::Command;
use crate::engine::{Engine, Timer};
use crate::function::Function;
use crate::lifecycle::START_OVERDUE_MARGIN;

/// A change that has not taken effect.
#[derive(Debug)]
pub(crate) struct PendingTraffic {
    reach: Reach,
    /// Who is to have how many sandboxes first.
    wanted: Vec<(FunctionId, u32)>,
    /// Then it takes effect without them.
    until: Timestamp,
    /// Units to be removed after it.
    leaving: Vec<FunctionId>,
}

/// Who gets how much, in per cent, of the requests of `id` that name no tag.
fn shares(id: FunctionId, reach: &Reach) -> Vec<(FunctionId, u32)> {
    match reach {
        Reach::Named | Reach::Unit => vec![(id, 100)],
        Reach::Shared(traffic) => traffic.shares.iter().map(|share| (share.unit, share.percent)).collect(),
    }
}

fn names(reach: &Reach, unit: FunctionId) -> bool {
    match reach {
        Reach::Named | Reach::Unit => false,
        Reach::Shared(traffic) => {
            traffic.shares.iter().any(|share| share.unit == unit)
                || traffic.tags.iter().any(|(_, of)| *of == unit)
        }
    }
}

impl Function {
    /// Whether requests come to it. Where none do it has no minimum.
    pub(crate) fn reachable(&self, id: FunctionId) -> bool {
        !matches!(self.reach, Reach::Shared(_)) || names(&self.reach, id)
    }

    /// The fewest sandboxes that it is to have.
    pub(crate) fn minimum(&self, id: FunctionId) -> u32 {
        if self.reachable(id) { self.spec.scaling.min } else { 0 }
    }

    /// The fewest that others' want of room leaves it: where their number is fixed, all of them.
    pub(crate) fn never_fewer(&self, id: FunctionId) -> u32 {
        match self.spec.scaling.policy {
            ScalingPolicy::Fixed(sandboxes) if self.reachable(id) => sandboxes.max(self.minimum(id)),
            _ => self.minimum(id),
        }
    }
}

impl Engine {
    /// Runs a revision beside the latest one; `kept` when an earlier leader did so.
    pub(crate) fn unit_set(
        &mut self,
        now: Timestamp,
        id: RevisionId,
        spec: Arc<FunctionSpec>,
        kept: bool,
        out: &mut Vec<Command>,
    ) {
        let unit = Function { reach: Reach::Unit, ..Function::new(spec.clone(), id.number) };
        self.tell_all_data_planes(&ToDataPlane::Functions(vec![unit.route(id.function)]), out);
        self.functions.insert(id.function, Box::new(unit));
        // Its first sandboxes were started when it was the latest: what holds now is its minimum.
        self.function_kept(now, id, spec, out);
        if let Some(unit) = self.functions.get_mut(&id.function) {
            unit.kept = kept;
        }
    }

    /// An earlier leader shared the function's requests so.
    pub(crate) fn traffic_kept(&mut self, function: FunctionId, traffic: Arc<Traffic>) {
        let Some(record) = self.functions.get_mut(&function) else { return };
        record.reach = Reach::Shared(traffic);
        if !record.reachable(function) {
            if let Some(active) = &mut record.active {
                active.desired = 0;
            }
            self.no_longer_starved(function);
            self.wishing.remove(&function);
        }
    }

    /// The function's requests are to be shared so.
    pub(crate) fn traffic_set(
        &mut self,
        now: Timestamp,
        id: FunctionId,
        traffic: Option<Arc<Traffic>>,
        out: &mut Vec<Command>,
    ) {
        let Some(function) = self.functions.get(&id).filter(|f| !f.removed) else { return };
        let reach = traffic.map_or(Reach::Named, Reach::Shared);
        let serving: u32 = shares(id, &function.reach).iter().map(|(unit, _)| self.serving(*unit)).sum();
        let part = |percent: u32| (u64::from(serving) * u64::from(percent)).div_ceil(100);
        let wanted: Vec<(FunctionId, u32)> = shares(id, &reach)
            .into_iter()
            .map(|(unit, percent)| {
                let max = self.functions.get(&unit).map_or(0, |f| f.spec.scaling.max);
                (unit, u32::try_from(part(percent)).unwrap_or(u32::MAX).min(max))
            })
            .collect();
        let leaving = self.pending_traffic.remove(&id).map(|before| before.leaving).unwrap_or_default();
        let pending = PendingTraffic { reach, wanted, until: Timestamp::ZERO, leaving };
        self.pending_traffic.insert(id, pending);
        self.start_missing(now, id, out);
        self.try_switch(now, id, out);
    }

    /// Whether a change of the function's traffic has not taken effect yet.
    #[must_use]
    pub fn traffic_pending(&self, function: FunctionId) -> bool {
        self.pending_traffic.contains_key(&function)
    }

    /// Sandboxes that serve, of whatever revision.
    fn serving(&self, id: FunctionId) -> u32 {
        let active = self.functions.get(&id).and_then(|f| f.active.as_ref());
        active.map_or(0, |active| active.counts.ready + active.old_ready)
    }

    /// Orders what the parts of a pending change lack, and gives it time to come.
    fn start_missing(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(pending) = self.pending_traffic.get(&id) else { return };
        let wanted = pending.wanted.clone();
        let start_timeout =
            |(unit, _): &(FunctionId, u32)| self.functions.get(unit).map(|f| f.spec.timeouts.start);
        let longest = wanted.iter().filter_map(start_timeout).max().unwrap_or_default();
        let until = now + longest + START_OVERDUE_MARGIN;
        if let Some(pending) = self.pending_traffic.get_mut(&id) {
            pending.until = until;
        }
        self.arm(until, Timer::Traffic(id));
        for (unit, wanted) in wanted {
            if self.serving(unit) >= wanted {
                continue;
            }
            let Some(active) = self.functions.get_mut(&unit).map(|function| function.active_mut()) else {
                continue;
            };
            active.desired = active.desired.max(wanted);
            active.hold_until = active.hold_until.max(until);
            active.autoscaler.adopt(now, wanted);
            active.record(now, wanted, format!("{wanted} for its share of the traffic"));
            self.pursue(now, unit, Duration::ZERO, out);
            self.wake(now, unit);
        }
    }

    /// A sandbox of `unit` has become ready: perhaps somebody waited for it.
    pub(crate) fn traffic_progress(&mut self, now: Timestamp, unit: FunctionId, out: &mut Vec<Command>) {
        let waits = |pending: &PendingTraffic| pending.wanted.iter().any(|(wanted, _)| *wanted == unit);
        let waiting: Vec<FunctionId> =
            self.pending_traffic.iter().filter(|(_, pending)| waits(pending)).map(|(id, _)| *id).collect();
        for id in waiting {
            self.try_switch(now, id, out);
        }
    }

    /// Enough time has passed for what a change of traffic waits for.
    pub(crate) fn traffic_timer(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(pending) = self.pending_traffic.get(&id).filter(|pending| now >= pending.until) else {
            // It has taken effect, or was replaced by another.
            return;
        };
        let broken = |(unit, wanted): &(FunctionId, u32)| {
            let failed = self.functions.get(unit).is_some_and(|f| f.last_failure.is_some());
            *wanted > 0 && self.serving(*unit) == 0 && failed
        };
        if pending.wanted.iter().any(broken) {
            self.start_missing(now, id, out);
        } else {
            self.switch(now, id, out);
        }
    }

    fn try_switch(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(pending) = self.pending_traffic.get(&id) else { return };
        if pending.wanted.iter().all(|(unit, wanted)| self.serving(*unit) >= *wanted) {
            self.switch(now, id, out);
        }
    }

    /// From now on requests are shared so.
    fn switch(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(pending) = self.pending_traffic.remove(&id) else { return };
        let Some(function) = self.functions.get_mut(&id) else { return };
        function.reach = pending.reach;
        let (route, minimum) = (function.route(id), function.minimum(id));
        self.tell_all_data_planes(&ToDataPlane::Functions(vec![route]), out);
        out.push(Command::TrafficSwitched(id));
        for unit in pending.leaving {
            self.function_removed(now, unit, out);
        }
        let reachable = self.functions.get(&id).is_some_and(|f| f.reachable(id));
        if reachable && (minimum > 0 || self.always_wants_some(id)) {
            self.begin_initial(now, id, minimum, out);
        }
    }

    /// Whether the removal of a unit has to wait for a change of traffic: requests still go to it. It is done then.
    pub(crate) fn leaves_later(&mut self, unit: FunctionId) -> bool {
        for (id, pending) in &mut self.pending_traffic {
            if self.functions.get(id).is_some_and(|f| names(&f.reach, unit)) {
                if !pending.leaving.contains(&unit) {
                    pending.leaving.push(unit);
                }
                return true;
            }
        }
        false
    }

    /// A function is deleted: what waited for a change of its traffic waits no more.
    pub(crate) fn drop_pending_traffic(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let leaving = self.pending_traffic.remove(&id).map(|pending| pending.leaving).unwrap_or_default();
        for unit in leaving {
            self.function_removed(now, unit, out);
        }
    }
}
