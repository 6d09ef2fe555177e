//! How many sandboxes a function gets, and why.
//!
//! Two voices, the larger of which is followed:
//! - **Demand**, at once: a request that begins to wait is reported by its data plane, and one decision orders what
//!   shortens the wait (`fanfare_policy::demand`): all missing sandboxes when executions are long or of unknown
//!   length, fewer when those that come first will have drained the queue before another could be ready.
//! - **The autoscaler**, every tick (`fanfare_policy::autoscale`): Knative's KPA, Kubernetes' HPA or a fixed number,
//!   from the load that data planes report each second. It alone takes sandboxes away.
//!
//! Both stay within the function's minimum and maximum, and with those that are on their way out within twice the
//! maximum; room on nodes is a matter of [`crate::capacity`]. What changed
//! something is remembered with its reason for `describe` and `explain`.

use std::time::Duration;

use fanfare_policy::{DemandInput, LoadSample, ScaleInput, demand_order};
use fanfare_types::limits::REPORT_INTERVAL;
use fanfare_types::{
    DataPlaneId, FunctionId, FunctionLoad, OnDemand, Reason, SandboxId, ScalingPolicy, StopMode, Timestamp,
    ToDataPlane, ToNode,
};

use crate::Command;
use crate::capacity::OrderCause;
use crate::engine::{Engine, Timer};
use crate::sandbox::Phase;

impl Engine {
    /// A data plane says that requests began to wait, or that its queue has drained.
    pub(crate) fn demand(
        &mut self,
        now: Timestamp,
        data_plane: DataPlaneId,
        load: FunctionLoad,
        deciding: Duration,
        out: &mut Vec<Command>,
    ) {
        let id = load.function;
        if self.take_load(now, data_plane, load) {
            self.wake(now, id);
            self.pursue(now, id, deciding, out);
        }
    }

    /// A data plane says how every active function fared since its last report.
    pub(crate) fn report(
        &mut self,
        now: Timestamp,
        data_plane: DataPlaneId,
        loads: &[FunctionLoad],
        out: &mut Vec<Command>,
    ) {
        let mentioned: std::collections::BTreeSet<FunctionId> = loads.iter().map(|l| l.function).collect();
        for id in self.awake.difference(&mentioned) {
            let Some(active) = self.functions.get_mut(id).and_then(|f| f.active.as_mut()) else { continue };
            if let Some(plane) = active.planes.iter_mut().find(|p| p.data_plane == data_plane) {
                // Whatever it holds of a function that it does not mention is idle.
                let held = active.sandboxes.iter().filter_map(|s| self.sandboxes.get(s));
                let idle = held.filter(|s| s.phase == Phase::Ready && s.leased_to(data_plane) > 0).count();
                plane.load = FunctionLoad {
                    function: *id,
                    execution_s: plane.load.execution_s,
                    idle_sandboxes: u32::try_from(idle).unwrap_or(u32::MAX),
                    ..FunctionLoad::default()
                };
                plane.granted_since = 0;
            }
        }
        for load in loads {
            let id = load.function;
            if self.take_load(now, data_plane, *load) {
                self.wake(now, id);
                if load.queued > 0 {
                    self.pursue(now, id, Duration::ZERO, out);
                }
            }
        }
    }

    /// Keeps a load; false when the function is unknown.
    fn take_load(&mut self, now: Timestamp, data_plane: DataPlaneId, load: FunctionLoad) -> bool {
        let Some(function) = self.functions.get_mut(&load.function).filter(|f| !f.removed) else {
            return false;
        };
        let active = function.active_mut();
        let plane = active.plane_mut(data_plane);
        let mut load = load;
        if load.interval_s <= 0.0 {
            // A word between two reports: the averages stay those of the last report.
            load.interval_s = plane.load.interval_s;
            load.arrivals = plane.load.arrivals;
            load.concurrency_avg = plane.load.concurrency_avg;
        }
        plane.load = load;
        plane.granted_since = 0;
        if active.totals().idle_sandboxes == 0 {
            active.idle_since = now;
        }
        true
    }

    /// Starts the function's clock if it stands.
    pub(crate) fn wake(&mut self, now: Timestamp, id: FunctionId) {
        let Some(function) = self.functions.get_mut(&id).filter(|f| !f.removed) else { return };
        let active = function.active_mut();
        let tick = active.autoscaler.tick();
        if active.timer_at.is_none() {
            active.decide_at = now + tick;
            active.timer_at = Some(now + REPORT_INTERVAL);
            self.awake.insert(id);
            self.arm(now + REPORT_INTERVAL, Timer::Scale(id));
        }
    }

    /// The queue should have drained by now; if it has not, an execution may be stuck: its length counts as unknown.
    pub(crate) fn recheck_timer(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(active) = self.functions.get_mut(&id).and_then(|f| f.active.as_mut()) else { return };
        active.recheck_at = None;
        if active.totals().queued > 0 {
            active.planes.iter_mut().for_each(|plane| plane.load.execution_s = None);
            self.pursue(now, id, Duration::ZERO, out);
        }
    }

    /// Orders what demand and the autoscaler want and do not have; moves slots to where requests wait.
    pub(crate) fn pursue(
        &mut self,
        now: Timestamp,
        id: FunctionId,
        deciding: Duration,
        out: &mut Vec<Command>,
    ) {
        self.grant_free(id, out);
        let Some(function) = self.functions.get_mut(&id).filter(|f| !f.removed) else { return };
        let spec = function.spec.clone();
        let function_minimum = function.minimum(id);
        let ready = function.active_mut().counts.ready;
        let max = function.demand_max(ready);
        let active = function.active_mut();
        let totals = active.totals();
        let have = active.coming_or_ready();
        let awaiting = !self.awaited_nodes.is_empty();
        let order = demand_order(&DemandInput {
            in_flight: active.in_flight(),
            queued: totals.queued,
            concurrency: spec.sizing.concurrency,
            ready: active.counts.ready,
            starting: active.counts.starting,
            min: function_minimum,
            max,
            activation: spec.scaling.activation,
            first_only: spec.scaling.on_demand == OnDemand::First,
            execution: totals.execution,
            cold_start: active.cold_start,
        });
        let recheck_at = order.recheck_after.map(|after| now + after).filter(|_| active.recheck_at.is_none());
        active.recheck_at = active.recheck_at.or(recheck_at);
        let held_back = awaiting || now < active.replace_at;
        let unprompted = if held_back { 0 } else { active.desired.saturating_sub(have) };
        let wanted = order.create.max(unprompted);
        let missing = active.bound(now, wanted, spec.scaling.max);
        if let Some(at) = recheck_at {
            self.arm(at, Timer::Recheck(id));
        }
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        let (retry_at, serving) = (active.retry_at, have + active.old_ready);
        let waited = totals.queued.div_ceil(spec.sizing.concurrency.max(1));
        if totals.queued == 0 {
            self.call_back_surplus(id, out);
        }
        self.hasten(id, waited, out);
        if totals.queued > 0 || wanted > 0 {
            self.ask_retire(now, id, self.giving(now, id), out);
        }
        self.rebalance(id, out);
        if missing == 0 {
            self.no_longer_starved(id);
            return;
        }
        if now < retry_at {
            if serving == 0 {
                self.tell_unavailable(id, out);
            }
            self.arm(retry_at, Timer::Retry(id));
            return;
        }
        let cause = OrderCause { demand: order.create, waited: order.create.min(waited), deciding };
        let ordered = self.order(now, id, missing, cause, out);
        if let Some(ordered) = ordered {
            let reason = match order.create >= unprompted {
                true => format!("demand: {}", order.reason),
                false => format!("autoscaler: {} wanted, {have} ready or starting", have + unprompted),
            };
            self.note_order(now, id, ordered, cause, reason.into());
        } else if have == 0 {
            // A full cluster: the new revision takes the room of an old sandbox instead of room beside it.
            self.retire_one_old(now, id, out);
        }
        self.wake(now, id);
    }

    /// The queue has drained: creations beyond what runs, the minimum and the autoscaler's wish are called back
    /// where their nodes have not begun with them.
    fn call_back_surplus(&mut self, id: FunctionId, out: &mut Vec<Command>) {
        let Some(function) = self.functions.get(&id) else { return };
        let Some(active) = &function.active else { return };
        if active.counts.starting == 0 {
            return;
        }
        let running = active.in_flight().div_ceil(function.spec.sizing.concurrency.max(1));
        let needed = running.max(active.desired).max(function.minimum(id)).max(active.old_ready.min(1));
        let surplus = active.coming_or_ready().saturating_sub(needed).min(active.counts.starting);
        // Each is called back once: one that goes on has begun.
        let more = surplus.saturating_sub(active.counts.called_back) as usize;
        let starting = |s: &&SandboxId| {
            let sandbox = self.sandboxes.get(s);
            sandbox.is_some_and(|s| s.phase == Phase::Starting && s.for_demand && !s.called_back)
        };
        let latest: Vec<SandboxId> =
            active.sandboxes.iter().rev().filter(starting).take(more).copied().collect();
        for id in latest {
            self.call_back(id, out);
        }
    }

    /// Requests wait for `waited` sandboxes: where so many are not known to be waited for, those that were ordered for
    /// the minimum or the autoscaler are.
    fn hasten(&mut self, id: FunctionId, waited: u32, out: &mut Vec<Command>) {
        let Some(function) = self.functions.get_mut(&id) else { return };
        let revision = function.revision;
        let Some(active) = function.active.as_mut() else { return };
        let others = active.counts.starting - active.counts.waited;
        let more = waited.saturating_sub(active.counts.waited).min(others);
        if more == 0 {
            return;
        }
        let sandboxes = &self.sandboxes;
        let other = |s: &&SandboxId| {
            let sandbox = sandboxes.get(s).filter(|s| s.phase == Phase::Starting && !s.waited);
            sandbox.is_some_and(|s| s.revision.number == revision)
        };
        let first: Vec<SandboxId> =
            active.sandboxes.iter().filter(other).take(more as usize).copied().collect();
        active.counts.waited += u32::try_from(first.len()).unwrap_or(u32::MAX);
        for id in first {
            let Some(sandbox) = self.sandboxes.get_mut(&id) else { continue };
            sandbox.waited = true;
            let node = sandbox.node;
            self.tell_node(node, ToNode::Hasten(id), out);
        }
    }

    fn call_back(&mut self, id: SandboxId, out: &mut Vec<Command>) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        sandbox.called_back = true;
        let (node, revision) = (sandbox.node, sandbox.revision);
        let function = self.functions.get_mut(&revision.function);
        if let Some(function) = function.filter(|f| f.revision == revision.number) {
            function.active_mut().counts.called_back += 1;
        }
        self.tell_node(node, ToNode::Stop { sandbox: id, mode: StopMode::IfNotBegun }, out);
    }

    /// Each second for an active function: one sample; each tick: one decision.
    pub(crate) fn scale_timer(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let cpu = self.cpu_of(id);
        let Some(function) = self.functions.get_mut(&id) else { return };
        let (cpu_request_milli, reachable) = (function.spec.sizing.request.cpu_milli, function.reachable(id));
        let active = function.active_mut();
        active.timer_at = None;
        let totals = active.totals();
        if totals.queued > 0 {
            // Said again with the next word of need, for the same reason as retirements are.
            active.planes.iter_mut().for_each(|plane| plane.yield_asked = 0);
        }
        active.autoscaler.record(
            now,
            LoadSample { concurrency: totals.concurrency, requests_per_second: totals.requests_per_second },
        );
        if let Some((cpu_milli, sandboxes)) = cpu {
            active.autoscaler.record_cpu(now, cpu_milli, sandboxes);
        }
        if now >= active.decide_at {
            active.decide_at = now + active.autoscaler.tick();
            let input = ScaleInput { ready: active.counts.ready, reachable, cpu_request_milli };
            let decision = active.autoscaler.decide(now, input);
            if decision.sandboxes != active.desired {
                active.record(now, decision.sandboxes, format!("autoscaler: {}", decision.reason));
            }
            active.desired = decision.sandboxes;
            self.follow_autoscaler(now, id, out);
        }
        self.rest_or_rearm(now, id);
    }

    fn follow_autoscaler(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        if self.giving(now, id) > 0 {
            self.say_retire_again(id);
        }
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        let (ready, desired) = (active.counts.ready, active.desired);
        let held = now < active.hold_until;
        if desired == 0 && active.old_ready > 0 && active.totals().queued == 0 && !held {
            self.retire_old_revisions(now, id, out);
        }
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        if desired > active.coming_or_ready() || active.totals().queued > 0 {
            self.pursue(now, id, Duration::ZERO, out);
        } else if desired < ready && !held {
            self.say_retire_again(id);
            self.ask_retire(now, id, (ready - desired).max(self.giving(now, id)), out);
        } else {
            self.ask_retire(now, id, self.giving(now, id), out);
        }
    }

    /// What was asked and not done within a tick is said again: the answer may have named a sandbox that had just ended.
    fn say_retire_again(&mut self, id: FunctionId) {
        if let Some(active) = self.functions.get_mut(&id).and_then(|f| f.active.as_mut()) {
            for plane in &mut active.planes {
                plane.retire_asked = 0;
            }
        }
    }

    /// Stops the clock of a function that has nothing and wants nothing.
    fn rest_or_rearm(&mut self, now: Timestamp, id: FunctionId) {
        let Some(function) = self.functions.get_mut(&id) else { return };
        let active = function.active_mut();
        let totals = active.totals();
        let quiet = active.sandboxes.is_empty()
            && active.desired == 0
            && totals.queued == 0
            && totals.in_flight == 0
            && totals.concurrency == 0.0;
        if quiet {
            active.autoscaler.reset();
            self.awake.remove(&id);
        } else {
            active.timer_at = Some(now + REPORT_INTERVAL);
            self.arm(now + REPORT_INTERVAL, Timer::Scale(id));
        }
    }

    /// The pause after failed starts or crashes is over.
    pub(crate) fn retry_timer(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        self.pursue(now, id, Duration::ZERO, out);
    }

    /// Waiting requests are answered with the last failed start.
    pub(crate) fn tell_unavailable(&self, id: FunctionId, out: &mut Vec<Command>) {
        let Some(last) = self.functions.get(&id).and_then(|f| f.last_failure.as_ref()) else { return };
        let failure = &last.failure;
        self.tell_unavailable_because(id, failure.kind.reason(), &failure.detail, &failure.log_tail, out);
    }

    pub(crate) fn tell_unavailable_because(
        &self,
        id: FunctionId,
        reason: Reason,
        detail: &str,
        log_tail: &str,
        out: &mut Vec<Command>,
    ) {
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        for plane in active.planes.iter().filter(|p| p.load.queued > 0) {
            let message = ToDataPlane::Unavailable {
                function: id,
                reason,
                detail: detail.into(),
                log_tail: log_tail.into(),
            };
            self.tell_data_plane(plane.data_plane, message, out);
        }
    }

    /// Mean CPU use of those of the function's ready sandboxes that have reported theirs, where CPU decides. What has
    /// just become ready is not idle: its use is not known.
    fn cpu_of(&self, id: FunctionId) -> Option<(f64, u32)> {
        let function = self.functions.get(&id)?;
        if !matches!(function.spec.scaling.policy, ScalingPolicy::Hpa(_)) {
            return None;
        }
        let ready = function.active.as_ref()?.sandboxes.iter().filter_map(|s| self.sandboxes.get(s));
        let ready = ready.filter(|s| s.phase == Phase::Ready && s.revision.number == function.revision);
        let known = ready.filter_map(|s| s.cpu_milli);
        let (sum, count) = known.fold((0.0, 0_u32), |(sum, n), milli| (sum + f64::from(milli), n + 1));
        (count > 0).then(|| (sum / f64::from(count), count))
    }
}
