//! The read side: what the API shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{
    DataPlaneId, Epoch, FunctionId, NodeId, Reach, Reason, Resources, SandboxId, StartFailure, Timestamp,
};

use crate::Engine;
use crate::failures::{Failed, FailureCount};
use crate::function::Decision;
use crate::sandbox::Phase;

/// One function as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionStatus {
    /// Its current revision.
    pub revision: u32,
    /// What the last decision wanted.
    pub desired: u32,
    /// Sandboxes of the current revision that were ordered and are not ready.
    pub starting: u32,
    /// Sandboxes of the current revision that serve.
    pub ready: u32,
    /// Sandboxes of earlier revisions that still serve.
    pub ready_of_old_revisions: u32,
    /// Sandboxes that are on their way out.
    pub stopping: u32,
    /// Requests in sandboxes, as last reported.
    pub in_flight: u32,
    /// Requests waiting, as last reported.
    pub queued: u32,
    /// Requests that arrived per second, as last reported.
    pub requests_per_second: f64,
    /// Smoothed execution time, once one has been seen.
    pub execution: Option<Duration>,
    /// Failed requests of the current revision.
    pub failed: u64,
    /// Why the last of them failed.
    pub last_reason: Option<Reason>,
    /// Whether sandboxes are wanted for which there is no room.
    pub lacks_room: bool,
    /// Whether a change of its traffic has not taken effect yet.
    pub traffic_pending: bool,
    /// Its sandboxes.
    pub sandboxes: Vec<SandboxStatus>,
    /// The last failed start since the last success or update.
    pub last_failure: Option<FailureStatus>,
    /// Failed requests and sandboxes that ended by themselves, by reason.
    pub failures: Vec<FailureCount>,
    /// The last decisions, oldest first.
    pub decisions: Vec<Decision>,
}

/// One sandbox as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxStatus {
    /// Which.
    pub sandbox: SandboxId,
    /// The revision it runs.
    pub revision: u32,
    /// Its node.
    pub node: NodeId,
    /// `starting`, `ready`, `retiring` or `stopping`.
    pub phase: &'static str,
    /// Slots in the hands of data planes.
    pub leased_slots: u32,
    /// Since when it has been ready.
    pub ready_at: Option<Timestamp>,
}

/// A failed start.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureStatus {
    /// When.
    pub at: Timestamp,
    /// What.
    pub failure: StartFailure,
}

/// The cluster as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStatus {
    /// The leader's term.
    pub epoch: Epoch,
    /// Registered functions.
    pub functions: usize,
    /// Sandboxes that serve.
    pub sandboxes_ready: usize,
    /// Sandboxes on their way in.
    pub sandboxes_starting: usize,
    /// What all nodes offer.
    pub capacity: Resources,
    /// Connected nodes, in the order of their ids.
    pub nodes: Vec<NodeStatus>,
    /// Connected data planes.
    pub data_planes: Vec<DataPlaneStatus>,
}

/// One node as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    /// Which.
    pub node: NodeId,
    /// Its name.
    pub name: Arc<str>,
    /// What it offers.
    pub capacity: Resources,
    /// What is not reserved.
    pub free: Resources,
    /// Its runtimes.
    pub runtimes: Vec<Arc<str>>,
    /// Its sandboxes in any phase.
    pub sandboxes: u32,
}

/// One data plane as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPlaneStatus {
    /// Which.
    pub data_plane: DataPlaneId,
    /// Its name.
    pub name: Arc<str>,
    /// Where it is reached.
    pub address: Arc<str>,
}

impl Engine {
    /// One function as it stands; `None` when it is unknown or deleted.
    #[must_use]
    pub fn function_status(&self, id: FunctionId) -> Option<FunctionStatus> {
        let mut status = self.function_overview(id)?;
        if let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) {
            status.sandboxes = active.sandboxes.iter().filter_map(|s| self.sandbox_status(*s)).collect();
            status.decisions = active.decisions.iter().cloned().collect();
        }
        let failures = self.functions.get(&id).and_then(|f| f.failures.as_deref());
        status.failures = failures.cloned().unwrap_or_default();
        Some(status)
    }

    /// The same without its sandboxes and decisions: for lists of functions, at a cost that does not depend on them.
    #[must_use]
    pub fn function_overview(&self, id: FunctionId) -> Option<FunctionStatus> {
        let function = self.functions.get(&id).filter(|f| !f.removed)?;
        let last_failure = self
            .standing_failure(function)
            .map(|last| FailureStatus { at: last.at, failure: last.failure.clone() });
        let mut status = FunctionStatus {
            revision: function.revision,
            desired: 0,
            starting: 0,
            ready: 0,
            ready_of_old_revisions: 0,
            stopping: 0,
            in_flight: 0,
            queued: 0,
            requests_per_second: 0.0,
            execution: None,
            failed: 0,
            last_reason: None,
            lacks_room: false,
            traffic_pending: self.traffic_pending(id),
            sandboxes: Vec::new(),
            last_failure,
            failures: Vec::new(),
            decisions: Vec::new(),
        };
        if let Some(active) = &function.active {
            let totals = active.totals();
            // What has no room is wanted all the same.
            status.desired = active.goal.max(active.coming_or_ready() + active.lacking);
            status.starting = active.counts.starting;
            status.ready = active.counts.ready;
            status.ready_of_old_revisions = active.old_ready;
            status.stopping = active.counts.retiring + active.counts.stopping;
            status.in_flight = totals.in_flight;
            status.queued = totals.queued;
            status.requests_per_second = totals.requests_per_second;
            status.execution = totals.execution;
            status.lacks_room = active.lacks_room;
        }
        let requests = function.failures.iter().flat_map(|all| all.iter());
        let requests: Vec<_> = requests.filter(|count| count.failed == Failed::Requests).collect();
        status.failed = requests.iter().map(|count| count.count).sum();
        status.last_reason = requests.iter().max_by_key(|count| count.at).map(|count| count.reason);
        Some(status)
    }

    fn sandbox_status(&self, id: SandboxId) -> Option<SandboxStatus> {
        let sandbox = self.sandboxes.get(&id)?;
        Some(SandboxStatus {
            sandbox: id,
            revision: sandbox.revision.number,
            node: sandbox.node,
            phase: match sandbox.phase {
                Phase::Starting => "starting",
                Phase::Ready => "ready",
                Phase::Retiring => "retiring",
                Phase::Stopping => "stopping",
            },
            leased_slots: sandbox.leased(),
            ready_at: (sandbox.ready_at != Timestamp::ZERO).then_some(sandbox.ready_at),
        })
    }

    /// Connected data planes that take requests, in the order of their ids.
    #[must_use]
    pub fn taking_data_planes(&self) -> Vec<DataPlaneStatus> {
        let taking = self.data_planes.iter().filter(|(_, data_plane)| !data_plane.draining);
        let status = taking.map(|(id, data_plane)| DataPlaneStatus {
            data_plane: *id,
            name: data_plane.name.clone(),
            address: data_plane.address.clone(),
        });
        status.collect()
    }

    /// The cluster as it stands.
    #[must_use]
    pub fn cluster_status(&self) -> ClusterStatus {
        let mut on_node: BTreeMap<NodeId, u32> = BTreeMap::new();
        for sandbox in self.sandboxes.values() {
            *on_node.entry(sandbox.node).or_default() += 1;
        }
        let nodes = self.nodes.iter().map(|(id, node)| NodeStatus {
            node: *id,
            name: node.name.clone(),
            capacity: node.capacity,
            free: self.ledger.free(*id).unwrap_or_default(),
            runtimes: node.runtimes.clone(),
            sandboxes: on_node.get(id).copied().unwrap_or(0),
        });
        let data_planes = self.data_planes.iter().map(|(id, data_plane)| DataPlaneStatus {
            data_plane: *id,
            name: data_plane.name.clone(),
            address: data_plane.address.clone(),
        });
        let in_phase = |phase| self.sandboxes.values().filter(|s| s.phase == phase).count();
        ClusterStatus {
            epoch: self.config.epoch,
            functions: self.functions.values().filter(|f| !f.removed && f.reach != Reach::Unit).count(),
            sandboxes_ready: in_phase(Phase::Ready),
            sandboxes_starting: in_phase(Phase::Starting),
            capacity: self.capacity(),
            nodes: nodes.collect(),
            data_planes: data_planes.collect(),
        }
    }
}
