//! On which node a sandbox goes.
//!
//! Placement never overcommits: a node is chosen only if what is free on it (its capacity less all reservations in
//! the [`Ledger`]) fits the request, and the reservation is made in the same call. Locality of code, images and
//! snapshots is the caller's `allowed`: ask first with the nodes that have it, then with all.
//!
//! No policy allocates. Each looks at a node at most twice.

mod kubernetes;
mod ledger;
mod power_of_two;
mod random;
mod round_robin;

use std::fmt;
use std::str::FromStr;

use fanfare_types::{NodeId, Resources};

use crate::Rng;
pub use ledger::{Ledger, NodeEntry};

/// How a node is chosen among those with room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Least allocated and evenly allocated, as Kubernetes' default scores.
    #[default]
    Kubernetes,
    /// Any.
    Random,
    /// In turn.
    RoundRobin,
    /// The less loaded of two at random.
    PowerOfTwo,
}

impl Placement {
    /// Every policy there is.
    pub const ALL: [Placement; 4] =
        [Placement::Kubernetes, Placement::Random, Placement::RoundRobin, Placement::PowerOfTwo];

    /// Its name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Kubernetes => "kubernetes",
            Placement::Random => "random",
            Placement::RoundRobin => "round-robin",
            Placement::PowerOfTwo => "power-of-two",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of [`Placement::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPlacement;

impl fmt::Display for UnknownPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a placement policy is one of kubernetes, random, round-robin, power-of-two")
    }
}

impl std::error::Error for UnknownPlacement {}

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Placement::ALL.into_iter().find(|p| p.name() == name).ok_or(UnknownPlacement)
    }
}

/// A node was chosen, and the request is reserved on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The node.
    pub node: NodeId,
    /// Why this one.
    pub reason: PlaceReason,
}

/// Why a node was chosen. Its `Display` is one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceReason {
    /// The best sum of both scores among the nodes that were looked at.
    BestScore {
        /// Share of the node left free, 0 to 100.
        least_allocated: u32,
        /// How evenly CPU and memory are used, 0 to 100.
        balanced: u32,
        /// Nodes with room that were scored.
        scored: u32,
    },
    /// Drawn.
    Drawn,
    /// The next in turn.
    NextInTurn,
    /// The less loaded of two that were drawn.
    LessLoaded {
        /// The other one.
        than: NodeId,
    },
    /// No other node has room.
    Only,
}

impl fmt::Display for PlaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PlaceReason::BestScore { least_allocated, balanced, scored } => write!(
                f,
                "the best of {scored} nodes with room: {least_allocated} of 100 for being free, \
                 {balanced} of 100 for being evenly used"
            ),
            PlaceReason::Drawn => f.write_str("drawn among the nodes with room"),
            PlaceReason::NextInTurn => f.write_str("the next node with room in turn"),
            PlaceReason::LessLoaded { than } => write!(f, "less loaded than {than}, the other of two drawn"),
            PlaceReason::Only => f.write_str("the only node with room"),
        }
    }
}

/// No node has room. Its `Display` is one sentence that says what would have been needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Nodes there are.
    pub nodes: u32,
    /// Of these, not taking sandboxes (cordoned, draining or lost).
    pub unschedulable: u32,
    /// Of these, not allowed by the caller.
    pub not_allowed: u32,
    /// Of the others, with too little CPU free. A node may lack both.
    pub short_of_cpu: u32,
    /// Of the others, with too little memory free.
    pub short_of_memory: u32,
    /// What was asked for.
    pub request: Resources,
    /// The most CPU and the most memory free on any of the others, which need not be on one node.
    pub most_free: Resources,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let cpus = |milli: u64| milli as f64 / 1e3;
        write!(
            f,
            "none of {} nodes has {} CPUs and {} MiB free: {} lack CPU (most free: {}), \
             {} lack memory (most free: {} MiB), {} take no sandboxes, {} are excluded",
            self.nodes,
            cpus(self.request.cpu_milli),
            mib(self.request.memory_bytes),
            self.short_of_cpu,
            cpus(self.most_free.cpu_milli),
            self.short_of_memory,
            self.most_free.memory_bytes >> 20,
            self.unschedulable,
            self.not_allowed
        )
    }
}

impl std::error::Error for NoRoom {}

/// Chooses nodes by one policy.
#[derive(Clone, Debug)]
pub struct Placer {
    policy: Policy,
}

#[derive(Clone, Copy, Debug)]
enum Policy {
    Kubernetes(kubernetes::Cursor),
    Random,
    RoundRobin(round_robin::Cursor),
    PowerOfTwo,
}

impl Placer {
    /// A placer that begins anew.
    #[must_use]
    pub fn new(placement: Placement) -> Self {
        let policy = match placement {
            Placement::Kubernetes => Policy::Kubernetes(kubernetes::Cursor::default()),
            Placement::Random => Policy::Random,
            Placement::RoundRobin => Policy::RoundRobin(round_robin::Cursor::default()),
            Placement::PowerOfTwo => Policy::PowerOfTwo,
        };
        Placer { policy }
    }

    /// The policy.
    #[must_use]
    pub fn placement(&self) -> Placement {
        match self.policy {
            Policy::Kubernetes(_) => Placement::Kubernetes,
            Policy::Random => Placement::Random,
            Policy::RoundRobin(_) => Placement::RoundRobin,
            Policy::PowerOfTwo => Placement::PowerOfTwo,
        }
    }

    /// Chooses a node among those that take sandboxes, have room for `request` and are `allowed`, and reserves it.
    /// `None` when there is none; nothing is reserved then, and [`Ledger::no_room`] says what is lacking.
    pub fn place(
        &mut self,
        ledger: &mut Ledger,
        request: Resources,
        allowed: &dyn Fn(NodeId) -> bool,
        rng: &mut Rng,
    ) -> Option<Placed> {
        let nodes = Feasible { nodes: ledger.entries(), request, allowed };
        let chosen = match &mut self.policy {
            Policy::Kubernetes(cursor) => kubernetes::choose(cursor, &nodes, rng),
            Policy::Random => random::choose(&nodes, rng),
            Policy::RoundRobin(cursor) => round_robin::choose(cursor, &nodes),
            Policy::PowerOfTwo => power_of_two::choose(&nodes, rng),
        };
        let (index, reason) = chosen?;
        Some(Placed { node: ledger.reserve_at(index, request), reason })
    }
}

impl Ledger {
    /// What is lacking for `request` on the nodes that are `allowed`. Looks at every node.
    #[must_use]
    pub fn no_room(&self, request: Resources, allowed: &dyn Fn(NodeId) -> bool) -> NoRoom {
        Feasible { nodes: self.entries(), request, allowed }.no_room()
    }
}

/// The nodes, and who of them could take the request.
#[derive(Clone, Copy)]
struct Feasible<'a> {
    nodes: &'a [NodeEntry],
    request: Resources,
    allowed: &'a dyn Fn(NodeId) -> bool,
}

impl Feasible<'_> {
    fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Cheapest test first; the caller's comes last, as its cost is not known here.
    fn fits(&self, index: usize) -> bool {
        self.nodes
            .get(index)
            .is_some_and(|node| node.schedulable && node.free().fits(self.request) && (self.allowed)(node.id))
    }

    fn no_room(&self) -> NoRoom {
        let mut why = NoRoom {
            nodes: u32::try_from(self.nodes.len()).unwrap_or(u32::MAX),
            unschedulable: 0,
            not_allowed: 0,
            short_of_cpu: 0,
            short_of_memory: 0,
            request: self.request,
            most_free: Resources::ZERO,
        };
        for node in self.nodes {
            if !node.schedulable {
                why.unschedulable += 1;
            } else if !(self.allowed)(node.id) {
                why.not_allowed += 1;
            } else {
                let free = node.free();
                why.short_of_cpu += u32::from(free.cpu_milli < self.request.cpu_milli);
                why.short_of_memory += u32::from(free.memory_bytes < self.request.memory_bytes);
                why.most_free.cpu_milli = why.most_free.cpu_milli.max(free.cpu_milli);
                why.most_free.memory_bytes = why.most_free.memory_bytes.max(free.memory_bytes);
            }
        }
        why
    }
}

#[cfg(test)]
mod tests;
