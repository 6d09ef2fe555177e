//! Functions that no connected node could ever run: told why, instead of being waited with.

use std::time::Duration;

use fanfare_types::{FunctionId, FunctionSpec, StartFailure, StartFailureKind, Timestamp};

use crate::Command;
use crate::engine::{Engine, Timer};
use crate::function::{Function, LastFailure};

impl Engine {
    /// Requests have waited for a while and there is no room: say so where nothing will ever serve them.
    pub(crate) fn no_node_timer(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(active) = self.functions.get_mut(&id).and_then(|f| f.active.as_mut()) else { return };
        active.no_node_armed = false;
        let Some(since) = active.starved_since else { return };
        let due = since + self.no_node_grace(id);
        if now < due {
            // It was for an earlier want.
            if let Some(active) = self.functions.get_mut(&id).and_then(|f| f.active.as_mut()) {
                active.no_node_armed = true;
            }
            self.arm(due, Timer::NoNode(id));
            return;
        }
        let Some(function) = self.functions.get(&id) else { return };
        let Some(active) = &function.active else { return };
        if active.coming_or_ready() + active.old_ready > 0 {
            return;
        }
        let Some(failure) = self.unplaceable(&function.spec) else { return };
        self.tell_unavailable_because(id, failure.kind.reason(), &failure.detail, "", out);
        if let Some(function) = self.functions.get_mut(&id) {
            function.last_failure = Some(Box::new(LastFailure { at: now, failure }));
        }
    }

    /// How long requests wait for a node that could hold a sandbox of it: not again where it is known that none can.
    pub(crate) fn no_node_grace(&self, id: FunctionId) -> Duration {
        let known = self.functions.get(&id).and_then(|function| self.standing_failure(function));
        match known {
            Some(last) if last.failure.kind.is_for_want_of_a_node() => Duration::ZERO,
            _ => self.config.no_node_grace,
        }
    }

    /// Why no connected node could hold a sandbox of it even when empty; `None` where one could.
    pub(crate) fn unplaceable(&self, spec: &FunctionSpec) -> Option<StartFailure> {
        if self.could_ever_fit(spec) {
            return None;
        }
        let (runtime, request) = (&spec.runtime, spec.sizing.request);
        let able = self.nodes.values().filter(|n| n.has_runtime(runtime)).count();
        let nodes = self.nodes.len();
        let (kind, detail) = match (nodes, able) {
            (0, _) => (StartFailureKind::NoNode, "no node is connected".to_owned()),
            (_, 0) => {
                let of = if nodes == 1 { "the one node".to_owned() } else { format!("any of {nodes} nodes") };
                (StartFailureKind::RuntimeMissing, format!("the runtime {runtime} is not offered by {of}"))
            }
            _ => {
                let detail = format!(
                    "none of {able} nodes with the runtime {runtime} can hold the {:.1} MiB and {} CPUs that a \
                     sandbox reserves",
                    request.memory_bytes as f64 / f64::from(1 << 20),
                    request.cpu_milli as f64 / 1e3,
                );
                (StartFailureKind::NoRoom, detail)
            }
        };
        Some(StartFailure { kind, detail, log_tail: String::new() })
    }

    /// Whether an empty node could hold a sandbox of it.
    pub(crate) fn could_ever_fit(&self, spec: &FunctionSpec) -> bool {
        self.nodes.values().any(|n| n.could_hold(spec))
    }

    /// The last failed start as it is shown: that no node could run it holds until one comes that could.
    pub(crate) fn standing_failure<'a>(&self, function: &'a Function) -> Option<&'a LastFailure> {
        let over = |last: &&LastFailure| {
            last.failure.kind.is_for_want_of_a_node() && self.could_ever_fit(&function.spec)
        };
        function.last_failure.as_deref().filter(|last| !over(last))
    }
}
