//! Functions come, change and go.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{
    FunctionId, FunctionRoute, FunctionSpec, RevisionId, StartFailure, StopMode, Timestamp, ToDataPlane,
};

use crate::Command;
use crate::capacity::OrderCause;
use crate::engine::Engine;
use crate::function::{Counts, Function, LastFailure};
use crate::sandbox::Phase;

impl Engine {
    /// Registers a function, or gives it a new revision, or an earlier one again.
    pub(crate) fn function_set(
        &mut self,
        now: Timestamp,
        id: RevisionId,
        spec: Arc<FunctionSpec>,
        out: &mut Vec<Command>,
    ) {
        let reach = self.functions.get(&id.function).map(|f| f.reach.clone()).unwrap_or_default();
        let message = ToDataPlane::Functions(vec![FunctionRoute { reach, ..spec.route(id) }]);
        self.tell_all_data_planes(&message, out);
        let initial = spec.scaling.initial.max(spec.scaling.min);
        if let Some(function) = self.functions.get_mut(&id.function) {
            let kept = function.active.as_ref().is_some_and(|a| !a.sandboxes.is_empty());
            let before = if kept { function.request_timeout_max } else { Duration::ZERO };
            function.request_timeout_max = before.max(spec.timeouts.request);
            function.spec = spec;
            function.revision = id.number;
            function.kept = false;
            function.last_failure = None;
            function.has_started = false;
            function.failures = None;
            if function.active.is_some() {
                self.begin_update(now, id.function, out);
            }
            self.drop_unused_revisions(id.function, out);
        } else {
            self.functions.insert(id.function, Box::new(Function::new(spec, id.number)));
            self.assign_owner(id.function, out);
        }
        let reachable = self.functions.get(&id.function).is_some_and(|f| f.reachable(id.function));
        if reachable && (initial > 0 || self.always_wants_some(id.function)) {
            self.begin_initial(now, id.function, initial, out);
        }
    }

    /// A function that an earlier leader knew: its initial scale was reached then, its minimum holds.
    pub(crate) fn function_kept(
        &mut self,
        now: Timestamp,
        id: RevisionId,
        spec: Arc<FunctionSpec>,
        out: &mut Vec<Command>,
    ) {
        let minimum = spec.scaling.min;
        let reach = self.functions.get(&id.function).map(|f| f.reach.clone()).unwrap_or_default();
        let function = Function { kept: true, reach, ..Function::new(spec, id.number) };
        self.functions.insert(id.function, Box::new(function));
        self.assign_owner(id.function, out);
        if minimum > 0 || self.always_wants_some(id.function) {
            self.begin_initial(now, id.function, minimum, out);
        }
    }

    /// A revision of which an earlier leader knew that it cannot start.
    pub(crate) fn failure_kept(&mut self, now: Timestamp, id: RevisionId, failure: StartFailure) {
        let function = self.functions.get_mut(&id.function);
        if let Some(function) = function.filter(|f| f.revision == id.number && f.last_failure.is_none()) {
            function.last_failure = Some(Box::new(LastFailure { at: now, failure }));
        }
    }

    /// Whether the function's policy wants sandboxes though nobody calls it.
    pub(crate) fn always_wants_some(&self, id: FunctionId) -> bool {
        self.functions
            .get(&id)
            .is_some_and(|f| matches!(f.spec.scaling.policy, fanfare_types::ScalingPolicy::Fixed(n) if n > 0))
    }

    pub(crate) fn begin_initial(
        &mut self,
        now: Timestamp,
        id: FunctionId,
        initial: u32,
        out: &mut Vec<Command>,
    ) {
        let Some(function) = self.functions.get_mut(&id) else { return };
        let fixed = match function.spec.scaling.policy {
            fanfare_types::ScalingPolicy::Fixed(sandboxes) => sandboxes,
            _ => 0,
        };
        let wanted = initial.max(fixed).min(function.spec.scaling.max);
        let active = function.active_mut();
        active.desired = active.desired.max(wanted);
        active.record(now, wanted, format!("{wanted} from the start"));
        self.pursue(now, id, Duration::ZERO, out);
        self.wake(now, id);
    }

    /// Sandboxes of the old revision serve until the first of the new one is ready.
    fn begin_update(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(function) = self.functions.get_mut(&id) else { return };
        let (scaling, concurrency) = (function.spec.scaling.clone(), function.spec.sizing.concurrency);
        let max = scaling.max;
        let active = function.active_mut();
        active.autoscaler.update(&scaling, concurrency);
        active.decide_at = active.decide_at.min(now + active.autoscaler.tick());
        active.failures = 0;
        active.retry_at = Timestamp::ZERO;
        active.crashes = 0;
        active.replace_at = Timestamp::ZERO;
        let members: Vec<_> = active.sandboxes.iter().copied().collect();
        for sandbox in members {
            if self.sandboxes.get(&sandbox).is_some_and(|s| s.phase == Phase::Starting) {
                self.stop(now, sandbox, StopMode::Kill, out);
            }
        }
        self.recount(id);
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        let (ready, old_ready) = (active.counts.ready, active.old_ready);
        let waited = active.totals().queued.div_ceil(concurrency.max(1));
        if ready > 0 {
            // Back to a revision whose sandboxes are still there.
            self.retire_old_revisions(now, id, out);
            self.grant_free(id, out);
        }
        if old_ready > 0 {
            let replacements = old_ready.min(max).saturating_sub(ready);
            let cause = OrderCause { demand: replacements, waited, deciding: Duration::ZERO };
            let reason = format!("update: {old_ready} of the old revision to be replaced");
            match self.order(now, id, replacements, cause, out) {
                Some(ordered) => self.note_order(now, id, ordered, cause, reason.into()),
                None if ready == 0 => self.retire_one_old(now, id, out),
                None => {}
            }
        }
        self.wake(now, id);
    }

    /// Counts a function's sandboxes anew: another revision is current than was.
    fn recount(&mut self, id: FunctionId) {
        let Some(function) = self.functions.get_mut(&id) else { return };
        let revision = function.revision;
        let active = function.active_mut();
        active.counts = Counts::default();
        active.old_ready = 0;
        active.free.clear();
        active.old_free.clear();
        active.planes.iter_mut().for_each(|plane| plane.held = 0);
        let members: Vec<_> = active.sandboxes.iter().copied().collect();
        for member in members {
            let Some(sandbox) = self.sandboxes.get(&member) else { continue };
            let Some(active) = self.functions.get_mut(&id).and_then(|f| f.active.as_mut()) else { return };
            if sandbox.revision.number == revision {
                active.count(sandbox);
            } else {
                active.old_ready += u32::from(sandbox.phase == Phase::Ready);
            }
            self.refresh_free(member);
        }
    }

    /// Deletes a function: waiting requests are refused, running ones finish, then its sandboxes stop.
    pub(crate) fn function_removed(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        if self.leaves_later(id) {
            return;
        }
        let Some(function) = self.functions.get_mut(&id).filter(|f| !f.removed) else { return };
        function.removed = true;
        if let Some(active) = &mut function.active {
            active.desired = 0;
            active.free.clear();
            active.old_free.clear();
        }
        self.no_longer_starved(id);
        let members: Vec<_> = self
            .functions
            .get(&id)
            .and_then(|f| f.active.as_ref())
            .map_or(Vec::new(), |a| a.sandboxes.iter().copied().collect());
        for sandbox in members {
            match self.sandboxes.get(&sandbox).map(|s| s.phase) {
                Some(Phase::Starting) => self.stop(now, sandbox, StopMode::Kill, out),
                Some(Phase::Ready) => self.retire(now, sandbox, out),
                _ => {}
            }
        }
        self.tell_all_data_planes(&ToDataPlane::FunctionRemoved(id), out);
        let moves = self.owners.remove_function(id);
        self.tell_moves(&moves, None, out);
        self.drained_if_empty(id, out);
        self.drop_pending_traffic(now, id, out);
    }

    /// Forgets a deleted function once nothing of it is left.
    pub(crate) fn drained_if_empty(&mut self, id: FunctionId, out: &mut Vec<Command>) {
        let Some(function) = self.functions.get(&id).filter(|f| f.removed) else { return };
        if function.active.as_ref().is_none_or(|a| a.sandboxes.is_empty()) {
            self.drop_unused_revisions(id, out);
            self.functions.remove(&id);
            self.awake.remove(&id);
            self.wishing.remove(&id);
            out.push(Command::FunctionDrained(id));
        }
    }
}
