//! One function, as the control plane remembers it: little while it is idle.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fanfare_policy::Autoscaler;
use fanfare_types::limits::REPORT_INTERVAL;
use fanfare_types::{
    DataPlaneId, FunctionId, FunctionLoad, FunctionRoute, FunctionSpec, NodeId, Reach, RevisionId, SandboxId,
    ScalingPolicy, StartFailure, Timestamp,
};

use crate::failures::FailureCount;
use crate::sandbox::{Phase, Sandbox};

/// Decisions remembered per function.
const DECISIONS_MAX: usize = 16;

/// A scaling decision that changed something, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// When.
    pub at: Timestamp,
    /// Sandboxes that should exist from then on.
    pub sandboxes: u32,
    /// Why, in one sentence with its inputs.
    pub reason: Arc<str>,
}

/// What is remembered of a failed start until the next success or update, so that `describe` can tell.
#[derive(Clone, Debug)]
pub(crate) struct LastFailure {
    pub(crate) at: Timestamp,
    pub(crate) failure: StartFailure,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) spec: Arc<FunctionSpec>,
    pub(crate) revision: u32,
    pub(crate) removed: bool,
    /// How requests come to it, as data planes know it.
    pub(crate) reach: Reach,
    /// An earlier leader registered it.
    pub(crate) kept: bool,
    /// The longest that a request in one of its sandboxes, of whatever revision, may take.
    pub(crate) request_timeout_max: Duration,
    pub(crate) last_failure: Option<Box<LastFailure>>,
    /// A sandbox of the current revision has been ready in this term, or was when it began.
    pub(crate) has_started: bool,
    /// Of the current revision, by reason.
    #[allow(clippy::box_collection, reason = "most functions never fail: a pointer is all that they pay")]
    pub(crate) failures: Option<Box<Vec<FailureCount>>>,
    /// Nodes whose stream has been told a revision of it.
    pub(crate) told: BTreeSet<NodeId>,
    /// Present once it has had sandboxes, load, or a wish for either; its history stays for the reader.
    pub(crate) active: Option<Box<Active>>,
}

impl Function {
    pub(crate) fn new(spec: Arc<FunctionSpec>, revision: u32) -> Self {
        let request_timeout_max = spec.timeouts.request;
        Function {
            spec,
            revision,
            removed: false,
            reach: Reach::Named,
            kept: false,
            request_timeout_max,
            last_failure: None,
            has_started: false,
            failures: None,
            told: BTreeSet::new(),
            active: None,
        }
    }

    /// What data planes are to know of it.
    pub(crate) fn route(&self, id: FunctionId) -> FunctionRoute {
        FunctionRoute { reach: self.reach.clone(), ..self.spec.route(self.revision_id(id)) }
    }

    pub(crate) fn revision_id(&self, id: FunctionId) -> RevisionId {
        RevisionId { function: id, number: self.revision }
    }

    /// The most sandboxes that waiting requests alone may bring about.
    pub(crate) fn demand_max(&self, ready: u32) -> u32 {
        let scaling = &self.spec.scaling;
        match &scaling.policy {
            ScalingPolicy::Kpa(_) => scaling.max,
            ScalingPolicy::Fixed(sandboxes) => scaling.max.min(*sandboxes),
            // CPU use decides about more than the first.
            ScalingPolicy::Hpa(_) => scaling.max.min(ready.max(scaling.min).max(scaling.activation).max(1)),
        }
    }

    pub(crate) fn active_mut(&mut self) -> &mut Active {
        let (spec, kept) = (&self.spec, self.kept);
        self.active.get_or_insert_with(|| {
            let mut autoscaler = Autoscaler::new(&spec.scaling, spec.sizing.concurrency);
            if kept {
                autoscaler.adopt(Timestamp::ZERO, 0);
            }
            Box::new(Active {
                autoscaler,
                sandboxes: BTreeSet::new(),
                free: BTreeSet::new(),
                old_free: BTreeSet::new(),
                counts: Counts::default(),
                old_ready: 0,
                planes: Vec::new(),
                desired: 0,
                goal: 0,
                decide_at: Timestamp::ZERO,
                timer_at: None,
                recheck_at: None,
                failures: 0,
                retry_at: Timestamp::ZERO,
                crashes: 0,
                replace_at: Timestamp::ZERO,
                hold_until: Timestamp::ZERO,
                lacks_room: false,
                starved_since: None,
                missing: 0,
                lacking: 0,
                no_node_armed: false,
                cold_start: None,
                decisions: VecDeque::new(),
                idle_since: Timestamp::ZERO,
            })
        })
    }
}

/// Sandboxes of the current revision by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) starting: u32,
    pub(crate) ready: u32,
    pub(crate) retiring: u32,
    pub(crate) stopping: u32,
    /// Of the starting ones: those that their nodes were asked not to begin with.
    pub(crate) called_back: u32,
    /// Of the starting ones: those whose nodes know that a request waits for them.
    pub(crate) waited: u32,
    /// Of the retiring ones: those that others' requests keep alive though they are condemned.
    pub(crate) condemned: u32,
}

impl Counts {
    /// Those whose room is as good as free: it takes no request's end, or one that was chosen for being near.
    pub(crate) fn returning(&self) -> u32 {
        self.retiring - self.condemned + self.stopping
    }

    pub(crate) fn of(&mut self, phase: Phase) -> &mut u32 {
        match phase {
            Phase::Starting => &mut self.starting,
            Phase::Ready => &mut self.ready,
            Phase::Retiring => &mut self.retiring,
            Phase::Stopping => &mut self.stopping,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) autoscaler: Autoscaler,
    /// All of its sandboxes, of every revision and phase.
    pub(crate) sandboxes: BTreeSet<SandboxId>,
    /// Those of the current revision with free slots.
    pub(crate) free: BTreeSet<SandboxId>,
    /// Those of earlier revisions with free slots, which are granted while no sandbox of the current one is ready.
    pub(crate) old_free: BTreeSet<SandboxId>,
    pub(crate) counts: Counts,
    /// Ready sandboxes of earlier revisions.
    pub(crate) old_ready: u32,
    pub(crate) planes: Vec<PlaneLoad>,
    /// What the autoscaler last wanted.
    pub(crate) desired: u32,
    /// What the last decision, whosever it was, wanted: for the reader.
    pub(crate) goal: u32,
    pub(crate) decide_at: Timestamp,
    pub(crate) timer_at: Option<Timestamp>,
    /// When a queue for which few sandboxes were ordered is looked at again.
    pub(crate) recheck_at: Option<Timestamp>,
    /// Failed starts in a row.
    pub(crate) failures: u32,
    /// No creation before this, after failed starts.
    pub(crate) retry_at: Timestamp,
    /// Crashes soon after readiness in a row.
    pub(crate) crashes: u32,
    /// No replacement that nobody waits for before this, after crashes.
    pub(crate) replace_at: Timestamp,
    /// After a change of leader: not fewer sandboxes before this.
    pub(crate) hold_until: Timestamp,
    /// Sandboxes were wanted last time for which there was no room.
    pub(crate) lacks_room: bool,
    /// Requests have waited for sandboxes for which there is no room since then.
    pub(crate) starved_since: Option<Timestamp>,
    /// So many sandboxes; 0 unless starved.
    pub(crate) missing: u32,
    /// Sandboxes that are wanted, by requests or by the autoscaler, and have no room.
    pub(crate) lacking: u32,
    /// [`crate::engine::Timer::NoNode`] will ask whether they ever can be had.
    pub(crate) no_node_armed: bool,
    /// Smoothed time from order to ready.
    pub(crate) cold_start: Option<Duration>,
    pub(crate) decisions: VecDeque<Decision>,
    /// Since when some of its sandboxes have been idle.
    pub(crate) idle_since: Timestamp,
}

/// One data plane's view of the function, and what it was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaneLoad {
    pub(crate) data_plane: DataPlaneId,
    pub(crate) load: FunctionLoad,
    /// Slots that it holds of ready sandboxes of the current revision.
    pub(crate) held: u32,
    /// Slots granted since that load was reported.
    pub(crate) granted_since: u32,
    /// Sandboxes it was asked to retire and has not yet.
    pub(crate) retire_asked: u32,
    /// Slots it was asked to yield and has not yet.
    pub(crate) yield_asked: u32,
}

impl PlaneLoad {
    fn new(data_plane: DataPlaneId) -> Self {
        PlaneLoad {
            data_plane,
            load: FunctionLoad::default(),
            held: 0,
            granted_since: 0,
            retire_asked: 0,
            yield_asked: 0,
        }
    }

    /// Waiting requests that no slot has been granted for yet.
    pub(crate) fn need(&self) -> u32 {
        self.load.queued.saturating_sub(self.granted_since)
    }
}

/// Sums over data planes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) in_flight: u32,
    pub(crate) queued: u32,
    pub(crate) idle_sandboxes: u32,
    pub(crate) concurrency: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) execution: Option<Duration>,
}

impl Active {
    pub(crate) fn plane_mut(&mut self, data_plane: DataPlaneId) -> &mut PlaneLoad {
        let index = match self.planes.iter().position(|p| p.data_plane == data_plane) {
            Some(index) => index,
            None => {
                self.planes.push(PlaneLoad::new(data_plane));
                self.planes.len() - 1
            }
        };
        &mut self.planes[index]
    }

    pub(crate) fn totals(&self) -> Totals {
        totals(&self.planes)
    }

    /// Adds a sandbox of the current revision to the counts of its phase.
    pub(crate) fn count(&mut self, sandbox: &Sandbox) {
        *self.counts.of(sandbox.phase) += 1;
        match sandbox.phase {
            Phase::Starting => {
                self.counts.called_back += u32::from(sandbox.called_back);
                self.counts.waited += u32::from(sandbox.waited);
            }
            Phase::Ready => {
                for (holder, slots) in sandbox.leases.iter().filter(|(_, slots)| *slots > 0) {
                    self.plane_mut(*holder).held += slots;
                }
            }
            Phase::Retiring => self.counts.condemned += u32::from(sandbox.condemned),
            Phase::Stopping => {}
        }
    }

    /// Takes a sandbox of the current revision out of the counts of a phase that it leaves.
    pub(crate) fn uncount(&mut self, sandbox: &Sandbox, phase: Phase) {
        *self.counts.of(phase) -= 1;
        match phase {
            Phase::Starting => {
                self.counts.called_back -= u32::from(sandbox.called_back);
                self.counts.waited -= u32::from(sandbox.waited);
            }
            Phase::Ready => sandbox.leases.iter().for_each(|(holder, slots)| self.give_up(*holder, *slots)),
            Phase::Retiring => self.counts.condemned -= u32::from(sandbox.condemned),
            Phase::Stopping => {}
        }
    }

    /// A data plane holds so many slots less of ready sandboxes of the current revision.
    pub(crate) fn give_up(&mut self, data_plane: DataPlaneId, slots: u32) {
        // One that was lost is not listed any more.
        if let Some(plane) = self.planes.iter_mut().find(|p| p.data_plane == data_plane) {
            plane.held -= slots;
        }
    }

    /// Requests in ready sandboxes of the current revision. What data planes last said is up to a second old, and may be
    /// about others that are on their way out: never more than the slots they hold.
    pub(crate) fn in_flight(&self) -> u32 {
        self.planes.iter().fold(0, |sum: u32, p| sum.saturating_add(p.load.in_flight.min(p.held)))
    }

    /// Whether sandboxes of earlier revisions serve: none of the current one is ready.
    pub(crate) fn old_serve(&self) -> bool {
        self.counts.ready == 0 && self.old_ready > 0
    }

    /// A sandbox with free slots of the revision that serves.
    pub(crate) fn grantable(&self) -> Option<SandboxId> {
        let old = self.old_free.first().filter(|_| self.old_serve());
        self.free.first().or(old).copied()
    }

    /// Sandboxes of the current revision that serve or will.
    pub(crate) fn coming_or_ready(&self) -> u32 {
        self.counts.ready + self.counts.starting
    }

    /// How many of `wanted` further sandboxes may be ordered: those that finish their last requests are no capacity, but
    /// they are there, and with them a function has at most twice its maximum of one revision.
    pub(crate) fn bound(&mut self, now: Timestamp, wanted: u32, max: u32) -> u32 {
        let (have, leaving) = (self.coming_or_ready(), self.counts.retiring);
        let allowed = wanted.min(max.saturating_mul(2).saturating_sub(have + leaving));
        let reason = format!("{leaving} sandboxes finish their requests first");
        if allowed < wanted && self.decisions.back().is_none_or(|last| *last.reason != *reason) {
            self.record(now, have + allowed, reason);
        }
        allowed
    }

    pub(crate) fn record(&mut self, at: Timestamp, sandboxes: u32, reason: impl Into<Arc<str>>) {
        self.goal = sandboxes;
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision { at, sandboxes, reason: reason.into() });
    }
}

fn totals(planes: &[PlaneLoad]) -> Totals {
    let mut sum = Totals::default();
    for plane in planes {
        let load = &plane.load;
        sum.in_flight = sum.in_flight.saturating_add(load.in_flight);
        sum.queued = sum.queued.saturating_add(load.queued);
        sum.idle_sandboxes = sum.idle_sandboxes.saturating_add(load.idle_sandboxes);
        sum.concurrency += load.concurrency_avg;
        // Windows begin with a request: of a few milliseconds a single one would make a rate of hundreds.
        sum.requests_per_second +=
            f64::from(load.arrivals) / load.interval_s.max(REPORT_INTERVAL.as_secs_f64());
        if let Some(seconds) = load.execution_s.filter(|s| s.is_finite() && *s >= 0.0) {
            // The longest of the views: waiting too little is worse than creating too much.
            let seen = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            sum.execution = Some(sum.execution.map_or(seen, |e| e.max(seen)));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_a_second_at_least() {
        let rate = |loads: &[(u32, f64)]| {
            let planes = loads.iter().enumerate().map(|(index, &(arrivals, interval_s))| {
                let mut plane = PlaneLoad::new(DataPlaneId(u32::try_from(index).unwrap()));
                plane.load = FunctionLoad { arrivals, interval_s, ..FunctionLoad::default() };
                plane
            });
            totals(&planes.collect::<Vec<_>>()).requests_per_second
        };
        let cases: [(&[(u32, f64)], f64); 6] = [
            (&[], 0.0),
            (&[(0, 0.0)], 0.0),
            // One request, 8 ms before the report.
            (&[(1, 0.008)], 1.0),
            (&[(500, 1.0)], 500.0),
            (&[(500, 2.5)], 200.0),
            (&[(500, 1.0), (1, 0.008)], 501.0),
        ];
        for (loads, expected) in cases {
            assert_eq!(rate(loads), expected, "{loads:?}");
        }
    }
}
