//! What a sandbox goes through: ready, failed, exited, retired, condemned, overdue.
//!
//! A sandbox is forgotten, and its reservation released, only when its node says that nothing of it is left (or the
//! node itself is lost). A slot whose user code may still be running is never granted again: its sandbox is condemned.
//!
//! A condemned sandbox is no capacity from then on, so its replacement is ordered at once, and nobody is granted a slot of
//! it. Requests beside the one that condemned it are unharmed: their data planes give back their slots as they end, and
//! with the last slot it is killed, or when the longest of them must have ended. Until it is dead it keeps its
//! reservation: where there is no room for a replacement, requests wait, no longer than their own deadlines.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::limits::{START_BACKOFF_MAX, START_BACKOFF_MIN};
use fanfare_types::{
    DataPlaneId, ExitCause, FunctionId, GoneCause, HumanDuration, NodeId, SandboxId, Stages, StartFailure,
    StartFailureKind, StopMode, Timestamp, ToDataPlane, ToNode,
};

use crate::Command;
use crate::engine::{Engine, Timer};
use crate::function::LastFailure;
use crate::sandbox::{Phase, Sandbox};

/// Beyond the function's start timeout, which the node enforces, until this side gives a creation up.
pub(crate) const START_OVERDUE_MARGIN: Duration = Duration::from_secs(5);
/// Beyond the function's request timeout until a retiring sandbox whose slots did not come back is killed.
const RETIRE_OVERDUE_MARGIN: Duration = Duration::from_secs(5);
/// Weight of a new observation in smoothed durations.
const SMOOTHING: f64 = 0.25;

impl Engine {
    /// A sandbox accepts requests.
    pub(crate) fn sandbox_ready(
        &mut self,
        now: Timestamp,
        node: NodeId,
        id: SandboxId,
        endpoint: Arc<str>,
        on_node: Stages,
        out: &mut Vec<Command>,
    ) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else {
            // Forgotten as overdue or with its node: nobody may use it.
            self.tell_node(node, ToNode::Stop { sandbox: id, mode: StopMode::Kill }, out);
            return;
        };
        sandbox.endpoint = Some(endpoint);
        if sandbox.phase != Phase::Starting {
            return;
        }
        let took = now.since(sandbox.ordered_at);
        sandbox.ready_at = now;
        let stages = sandbox.stages.get_or_insert_default();
        let Stages { decide, place, .. } = **stages;
        let transfer = took.saturating_sub(on_node.on_node());
        **stages = Stages { decide, place, transfer, ..on_node };
        let (revision, for_demand) = (sandbox.revision, sandbox.for_demand);
        self.set_phase(id, Phase::Ready);
        let Some(function) = self.functions.get_mut(&revision.function) else { return };
        if revision.number != function.revision || function.removed {
            self.retire(now, id, out);
            return;
        }
        function.has_started = true;
        if function.last_failure.take().is_some() {
            out.push(Command::Recovered { name: function.spec.name.clone(), revision });
        }
        let active = function.active_mut();
        active.failures = 0;
        active.retry_at = Timestamp::ZERO;
        active.cold_start = Some(smooth(active.cold_start, took));
        if for_demand {
            let ready = active.counts.ready;
            active.autoscaler.note_order(now, ready);
        }
        let replaces_old = active.old_ready > 0;
        self.wake(now, revision.function);
        self.grant_free(revision.function, out);
        if replaces_old {
            self.retire_old_revisions(now, revision.function, out);
        }
        if !self.pending_traffic.is_empty() {
            self.traffic_progress(now, revision.function, out);
        }
    }

    /// A sandbox did not come up.
    pub(crate) fn sandbox_failed(
        &mut self,
        now: Timestamp,
        id: SandboxId,
        failure: StartFailure,
        out: &mut Vec<Command>,
    ) {
        let Some(sandbox) = self.forget_sandbox(id) else { return };
        let function_id = sandbox.revision.function;
        let Some(function) = self.functions.get_mut(&function_id) else { return };
        let current = sandbox.revision.number == function.revision && !function.removed;
        if !current {
            self.drop_unused_revisions_on(sandbox.node, function_id, out);
        }
        let Some(function) = self.functions.get_mut(&function_id) else { return };
        if !current || sandbox.phase == Phase::Stopping {
            self.after_loss(now, function_id, out);
            return;
        }
        function.last_failure = Some(Box::new(LastFailure { at: now, failure }));
        let active = function.active_mut();
        active.failures += 1;
        active.retry_at = now + backoff(active.failures);
        let nothing_left = active.coming_or_ready() + active.old_ready == 0;
        let retry_at = active.retry_at;
        let sandboxes = active.coming_or_ready();
        let reason = function.last_failure.as_ref().map(|l| format!("start failed: {}", l.failure.detail));
        function.active_mut().record(now, sandboxes, reason.unwrap_or_default());
        if nothing_left {
            self.tell_unavailable(function_id, out);
        }
        self.arm(retry_at, Timer::Retry(function_id));
        self.wake(now, function_id);
    }

    /// A sandbox has ended.
    pub(crate) fn sandbox_exited(
        &mut self,
        now: Timestamp,
        id: SandboxId,
        cause: &GoneCause,
        out: &mut Vec<Command>,
    ) {
        let by_itself =
            matches!(cause.exit, ExitCause::Status(_) | ExitCause::Signal(_) | ExitCause::OutOfMemory);
        if by_itself && self.sandboxes.get(&id).is_some_and(|s| s.phase == Phase::Starting) {
            let failure = StartFailure {
                kind: StartFailureKind::Exited(cause.exit),
                detail: format!("the sandbox {} before it was ready", cause.exit),
                log_tail: cause.log_tail.to_string(),
            };
            return self.sandbox_failed(now, id, failure, out);
        }
        let Some(sandbox) = self.forget_sandbox(id) else { return };
        for (data_plane, _) in &sandbox.leases {
            let message = ToDataPlane::Gone { sandbox: id, cause: cause.clone() };
            self.tell_data_plane(*data_plane, message, out);
        }
        let function_id = sandbox.revision.function;
        let outdated = |f: &crate::function::Function| f.removed || f.revision != sandbox.revision.number;
        if self.functions.get(&function_id).is_some_and(|f| outdated(f)) {
            self.drop_unused_revisions_on(sandbox.node, function_id, out);
        }
        let current = self.functions.get(&function_id).is_some_and(|f| f.revision == sandbox.revision.number);
        if by_itself && current && sandbox.phase == Phase::Ready {
            self.sandbox_ended_by_itself(now, &sandbox, cause);
            let Some(function) = self.functions.get_mut(&function_id) else { return };
            let quick = now.since(sandbox.ready_at) < START_BACKOFF_MAX;
            let kept = function.active_mut().coming_or_ready();
            function.active_mut().record(now, kept, format!("a sandbox {}", cause.exit));
            let active = function.active_mut();
            active.crashes = if quick { active.crashes + 1 } else { 0 };
            if quick {
                active.replace_at = now + backoff(active.crashes);
                let at = active.replace_at;
                self.arm(at, Timer::Retry(function_id));
            }
        }
        self.after_loss(now, function_id, out);
    }

    /// A function lost a sandbox: replace it where somebody wants it; a deleted function may be drained now.
    fn after_loss(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        self.serve_heirs(now, out);
        let Some(function) = self.functions.get(&id) else { return };
        if function.removed {
            self.drained_if_empty(id, out);
        } else {
            self.pursue(now, id, Duration::ZERO, out);
        }
    }

    /// Takes a ready sandbox out of service; it stops when its last slot is back.
    pub(crate) fn retire(&mut self, now: Timestamp, id: SandboxId, out: &mut Vec<Command>) {
        let Some(sandbox) = self.sandboxes.get(&id).filter(|s| s.phase == Phase::Ready) else { return };
        let holders = sandbox.leases.iter().filter(|(_, slots)| *slots > 0);
        let holders: Vec<_> = holders.map(|(data_plane, _)| *data_plane).collect();
        let function = sandbox.revision.function;
        let request_timeout = self.functions.get(&function).map_or(Duration::ZERO, |f| f.request_timeout_max);
        self.set_phase(id, Phase::Retiring);
        for data_plane in holders {
            self.tell_data_plane(data_plane, ToDataPlane::Revoke { sandbox: id, slots: u32::MAX }, out);
        }
        self.arm_overdue(id, now + request_timeout + RETIRE_OVERDUE_MARGIN);
        self.stop_if_returned(now, id, out);
    }

    /// Ready sandboxes of earlier revisions make way for the current one.
    pub(crate) fn retire_old_revisions(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        for sandbox in self.ready_of_old_revisions(id) {
            self.retire(now, sandbox, out);
        }
    }

    /// One of them makes way, unless one is on its way out already.
    pub(crate) fn retire_one_old(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        let leaving = active.sandboxes.len() > active.old_ready as usize + active.counts.ready as usize;
        if !leaving && let Some(sandbox) = self.ready_of_old_revisions(id).first() {
            self.retire(now, *sandbox, out);
        }
    }

    fn ready_of_old_revisions(&self, id: FunctionId) -> Vec<SandboxId> {
        let Some(function) = self.functions.get(&id) else { return Vec::new() };
        let Some(active) = &function.active else { return Vec::new() };
        let old = |s: &&SandboxId| {
            self.sandboxes
                .get(s)
                .is_some_and(|s| s.phase == Phase::Ready && s.revision.number != function.revision)
        };
        active.sandboxes.iter().filter(old).copied().collect()
    }

    /// Stops a retiring sandbox all of whose slots are back. Of a quarantined one that is not known: whoever holds the
    /// rest may not have spoken yet.
    pub(crate) fn stop_if_returned(&mut self, now: Timestamp, id: SandboxId, out: &mut Vec<Command>) {
        let returned = |s: &Sandbox| s.phase == Phase::Retiring && s.leased() == 0 && !s.quarantined;
        if let Some(sandbox) = self.sandboxes.get(&id).filter(|s| returned(s)) {
            let idle = !sandbox.condemned && !sandbox.written_off;
            let mode = if idle { StopMode::Graceful } else { StopMode::Kill };
            self.stop(now, id, mode, out);
        }
    }

    /// Orders a sandbox's end from its node.
    pub(crate) fn stop(&mut self, now: Timestamp, id: SandboxId, mode: StopMode, out: &mut Vec<Command>) {
        let Some(sandbox) = self.sandboxes.get(&id) else { return };
        let node = sandbox.node;
        self.set_phase(id, Phase::Stopping);
        self.tell_node(node, ToNode::Stop { sandbox: id, mode }, out);
        self.arm_overdue(id, now + RETIRE_OVERDUE_MARGIN);
    }

    /// A data plane found that user code runs on though its request is over, or that the sandbox is broken.
    pub(crate) fn condemned_by(
        &mut self,
        now: Timestamp,
        data_plane: DataPlaneId,
        id: SandboxId,
        out: &mut Vec<Command>,
    ) {
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            // Without a slot it is still to be told of the end.
            sandbox.lease(data_plane, 0);
        }
        self.condemned(now, id, out);
    }

    /// User code may run on in a slot that nobody accounts for.
    pub(crate) fn condemned(&mut self, now: Timestamp, id: SandboxId, out: &mut Vec<Command>) {
        if let Some(claim) = self.claims.get_mut(&id) {
            claim.condemned = true;
        }
        let Some(function) = self.sandboxes.get(&id).map(|s| s.revision.function) else { return };
        self.condemn(now, id, out);
        self.pursue(now, function, Duration::ZERO, out);
    }

    /// Takes a sandbox out of service and has it killed when nobody's request is left in it.
    pub(crate) fn condemn(&mut self, now: Timestamp, id: SandboxId, out: &mut Vec<Command>) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        let known = std::mem::replace(&mut sandbox.condemned, true);
        let (revision, phase) = (sandbox.revision, sandbox.phase);
        if let Some(function) = self.functions.get_mut(&revision.function)
            && function.revision == revision.number
            && phase == Phase::Retiring
        {
            function.active_mut().counts.condemned += u32::from(!known);
        }
        match phase {
            Phase::Starting => self.stop(now, id, StopMode::Kill, out),
            Phase::Ready => self.retire(now, id, out),
            Phase::Retiring => self.stop_if_returned(now, id, out),
            Phase::Stopping => {}
        }
    }

    /// A sandbox has been in its phase for longer than anything can take.
    pub(crate) fn overdue(&mut self, now: Timestamp, id: SandboxId, out: &mut Vec<Command>) {
        let Some(sandbox) = self.sandboxes.get(&id) else { return };
        let function = sandbox.revision.function;
        match sandbox.phase {
            Phase::Ready => {}
            Phase::Starting => {
                let failure = StartFailure {
                    kind: StartFailureKind::Timeout,
                    detail: format!(
                        "no word from {} within {} of the order",
                        sandbox.node,
                        HumanDuration(now.since(sandbox.ordered_at))
                    ),
                    log_tail: String::new(),
                };
                if let Some(function) = self.functions.get_mut(&function) {
                    function.last_failure = Some(Box::new(LastFailure { at: now, failure }));
                    let active = function.active_mut();
                    active.failures += 1;
                    active.retry_at = now + backoff(active.failures);
                }
                self.stop(now, id, StopMode::Kill, out);
                self.pursue(now, function, Duration::ZERO, out);
            }
            // Its node has not confirmed the end: say it again, until it does or is lost itself.
            Phase::Retiring | Phase::Stopping => self.stop(now, id, StopMode::Kill, out),
        }
    }
}

/// Pause after `failures` failures in a row: doubles from the minimum to the maximum.
fn backoff(failures: u32) -> Duration {
    START_BACKOFF_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(START_BACKOFF_MAX)
}

fn smooth(before: Option<Duration>, seen: Duration) -> Duration {
    before.map_or(seen, |before| before.mul_f64(1.0 - SMOOTHING) + seen.mul_f64(SMOOTHING))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_limit() {
        assert_eq!(backoff(1), START_BACKOFF_MIN);
        assert_eq!(backoff(2), START_BACKOFF_MIN * 2);
        assert_eq!(backoff(8), START_BACKOFF_MAX);
        assert_eq!(backoff(u32::MAX), START_BACKOFF_MAX);
    }
}
