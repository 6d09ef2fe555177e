//! What the API answers about the cluster.

use fanfare_types::Resources;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SandboxCounts;

/// The cluster at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterStatusDocument {
    /// Release of the control plane that answered.
    pub version: String,
    /// Who leads.
    pub leader: LeaderDocument,
    /// How nodes are chosen: `kubernetes`, `random`, `round-robin` or `power-of-two`.
    #[serde(default)]
    pub placement: String,
    /// Registered functions.
    pub functions: u64,
    /// Sandboxes of all of them.
    pub sandboxes: SandboxCounts,
    /// Machines that run sandboxes.
    pub nodes: Vec<NodeDocument>,
    /// Where functions are called.
    pub data_planes: Vec<DataPlaneDocument>,
}

/// Who decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaderDocument {
    /// Its name.
    pub name: String,
    /// Its term.
    pub epoch: u64,
    /// Whether the control plane that answered is it.
    pub here: bool,
    /// Where nodes and data planes connect to it: `HOST:PORT`; absent where all of them are in its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<String>,
}

/// Nodes, in the order of their names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeListDocument {
    /// All of them.
    pub nodes: Vec<NodeDocument>,
}

/// A machine that runs sandboxes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeDocument {
    /// Its id, e.g. `n1`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether its stream is up.
    pub connected: bool,
    /// What it offers.
    pub capacity: ResourcesDocument,
    /// What its sandboxes reserve.
    pub reserved: ResourcesDocument,
    /// Sandboxes on it.
    pub sandboxes: u32,
    /// The runtimes it has.
    pub runtimes: Vec<String>,
}

/// Amounts of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResourcesDocument {
    /// CPUs.
    pub cpu: f64,
    /// Memory.
    pub memory_bytes: u64,
}

impl From<Resources> for ResourcesDocument {
    fn from(resources: Resources) -> Self {
        ResourcesDocument { cpu: resources.cpu_milli as f64 / 1_000.0, memory_bytes: resources.memory_bytes }
    }
}

/// A data plane replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DataPlaneDocument {
    /// Its id, e.g. `d1`.
    pub id: String,
    /// The name that it was given; one that takes over from another has the same.
    pub name: String,
    /// Where clients reach it: `HOST:PORT`.
    pub address: String,
    /// Whether its stream is up.
    pub connected: bool,
    /// Requests in sandboxes through it.
    pub in_flight: u64,
    /// Requests that wait on it.
    pub queued: u64,
}

/// Answer of `/healthz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthDocument {
    /// `ok`.
    pub status: String,
}
