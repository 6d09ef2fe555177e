//! Kubernetes' default scores.
//!
//! Sources, in `kubernetes/kubernetes/pkg/scheduler`: `framework/plugins/noderesources/least_allocated.go` and
//! `balanced_allocation.go` (equal weights, whole numbers from 0 to 100), `schedule_one.go`
//! (`numFeasibleNodesToFind`, `nextStartNodeIndex`: on large clusters not every node is looked at, and each search
//! begins where the last one ended; `selectHost`: ties are drawn). Kubernetes assumes 100 mCPU and 200 MB of a pod
//! that requests nothing when it scores; a sandbox always states its request.

use std::cmp::Ordering;

use rand::RngExt;

use super::{Feasible, NodeEntry, PlaceReason};
use crate::Rng;
use fanfare_types::Resources;

/// Kubernetes' `minFeasibleNodesToFind`.
const FEASIBLE_MIN: usize = 100;
/// Kubernetes' `minFeasibleNodesPercentageToFind`.
const FEASIBLE_PERCENT_MIN: usize = 5;
/// Kubernetes' `MaxNodeScore`.
const SCORE_MAX: u32 = 100;

/// Where the next search begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    start: usize,
}

/// The node with the best sum of scores among the first that have room.
pub(super) fn choose(
    cursor: &mut Cursor,
    nodes: &Feasible<'_>,
    rng: &mut Rng,
) -> Option<(usize, PlaceReason)> {
    let all = nodes.len();
    let enough = feasible_to_find(all);
    let start = if cursor.start < all { cursor.start } else { 0 };
    let (mut looked_at, mut scored) = (0, 0_u32);
    let mut best: Option<Scored> = None;
    let mut ties = 0_u32;
    while looked_at < all && (scored as usize) < enough {
        let index = wrap(start + looked_at, all);
        looked_at += 1;
        if !nodes.fits(index) {
            continue;
        }
        scored += 1;
        let candidate = Scored::new(index, &nodes.nodes[index], nodes.request);
        let order = best.map_or(Ordering::Greater, |best| candidate.sum().cmp(&best.sum()));
        ties = match order {
            Ordering::Greater => 1,
            Ordering::Equal => ties + 1,
            Ordering::Less => continue,
        };
        // Drawn as they come, so that each of the best is equally likely.
        if ties == 1 || rng.random_range(0..ties) == 0 {
            best = Some(candidate);
        }
    }
    cursor.start = if all == 0 { 0 } else { wrap(start + looked_at, all) };
    let Scored { index, least_allocated, balanced } = best?;
    let reason = PlaceReason::BestScore { least_allocated, balanced, scored };
    Some((index, if scored == 1 && looked_at == all { PlaceReason::Only } else { reason }))
}

/// A node with room and its scores.
#[derive(Clone, Copy)]
struct Scored {
    index: usize,
    least_allocated: u32,
    balanced: u32,
}

impl Scored {
    /// `leastResourceScorer` and `balancedResourceScorer`, of the node as it would be with the request on it.
    fn new(index: usize, node: &NodeEntry, request: Resources) -> Self {
        let (reserved, capacity) = (node.reserved, node.capacity);
        let cpu = (reserved.cpu_milli.saturating_add(request.cpu_milli), capacity.cpu_milli);
        let memory = (reserved.memory_bytes.saturating_add(request.memory_bytes), capacity.memory_bytes);
        let least_allocated = (least_requested(cpu) + least_requested(memory)) / 2;
        Scored { index, least_allocated, balanced: balanced(cpu, memory) }
    }

    fn sum(self) -> u32 {
        self.least_allocated + self.balanced
    }
}

/// Kubernetes' `numFeasibleNodesToFind` without a configured percentage.
fn feasible_to_find(nodes: usize) -> usize {
    if nodes < FEASIBLE_MIN {
        return nodes;
    }
    let percent = 50_usize.saturating_sub(nodes / 125).max(FEASIBLE_PERCENT_MIN);
    (nodes * percent / 100).max(FEASIBLE_MIN)
}

fn least_requested((requested, capacity): (u64, u64)) -> u32 {
    if requested > capacity {
        return 0;
    }
    let free = capacity - requested;
    // At most SCORE_MAX, as the free part is at most the whole. Only a capacity that no machine has overflows.
    let score = match free.checked_mul(u64::from(SCORE_MAX)) {
        Some(scaled) => scaled.checked_div(capacity).unwrap_or(0),
        None => free / (capacity / u64::from(SCORE_MAX)),
    };
    score as u32
}

fn balanced(cpu: (u64, u64), memory: (u64, u64)) -> u32 {
    if cpu.1 == 0 || memory.1 == 0 {
        return SCORE_MAX;
    }
    let fraction = |(requested, capacity): (u64, u64)| (requested as f64 / capacity as f64).min(1.0);
    let deviation = ((fraction(cpu) - fraction(memory)) / 2.0).abs();
    ((1.0 - deviation) * f64::from(SCORE_MAX)) as u32
}

fn wrap(index: usize, len: usize) -> usize {
    if index >= len { index - len } else { index }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{any_node, ledger};
    use super::super::{Placement, Placer};
    use super::*;
    use crate::seeded;
    use fanfare_types::NodeId;

    /// Kubernetes: the shape of `TestNumFeasibleNodesToFind` without a configured percentage.
    #[test]
    fn kubernetes_feasible_nodes_to_find() {
        let cases =
            [(0, 0), (10, 10), (99, 99), (100, 100), (250, 120), (1_000, 420), (5_000, 500), (6_000, 300)];
        for (nodes, want) in cases {
            assert_eq!(feasible_to_find(nodes), want, "{nodes} nodes");
        }
    }

    /// Kubernetes: `least_allocated_test.go` and `balanced_allocation_test.go`, the cases of CPU and memory.
    /// Capacity, reserved and requested (CPU, memory), least allocated, balanced.
    #[test]
    fn kubernetes_scores() {
        type Pair = (u64, u64);
        let cases: [(&str, Pair, Pair, Pair, u32, u32); 7] = [
            ("nothing reserved, nothing requested", (4_000, 10_000), (0, 0), (0, 0), 100, 100),
            // CPU 25 % and memory 50 % left: (25 + 50) / 2; |0.75 - 0.5| / 2 = 0.125.
            ("half full", (4_000, 10_000), (0, 0), (3_000, 5_000), 37, 87),
            ("the same on a larger node", (6_000, 10_000), (0, 0), (3_000, 5_000), 50, 100),
            ("on top of what is there", (10_000, 20_000), (3_000, 5_000), (3_000, 5_000), 45, 95),
            ("full in one dimension", (6_000, 10_000), (6_000, 0), (0, 5_000), 25, 75),
            ("overcommitted", (4_000, 10_000), (6_000, 0), (0, 0), 50, 50),
            ("nothing offered of one", (0, 10_000), (0, 0), (0, 5_000), 25, 100),
        ];
        for (name, capacity, reserved, request, least, balanced) in cases {
            let resources = |(cpu, memory)| Resources::new(cpu, memory);
            let node = NodeEntry {
                id: NodeId(1),
                capacity: resources(capacity),
                reserved: resources(reserved),
                schedulable: true,
            };
            let scored = Scored::new(0, &node, resources(request));
            assert_eq!((scored.least_allocated, scored.balanced), (least, balanced), "{name}");
        }
        assert_eq!(least_requested((0, u64::MAX)), 100, "no overflow at any capacity");
    }

    #[test]
    fn equal_nodes_fill_evenly_and_ties_are_drawn() {
        let mut ledger = ledger(&[(1_000, 1_000); 10]);
        let mut placer = Placer::new(Placement::Kubernetes);
        let request = Resources::new(10, 10);
        let mut rng = seeded(3);
        let order: Vec<_> =
            (0..50).map(|_| placer.place(&mut ledger, request, &any_node, &mut rng).unwrap().node).collect();
        assert!(ledger.nodes().all(|n| n.reserved == Resources::new(50, 50)), "{:?}", ledger);
        assert_ne!(order[..10], order[10..20], "the same order twice would not be drawn");
    }

    #[test]
    fn ties_are_equally_likely() {
        let mut counts = [0_u32; 4];
        let mut rng = seeded(5);
        for _ in 0..4_000 {
            // The second and fourth are worse, and must not disturb the draw between the others.
            let mut ledger = ledger(&[(1_000, 1_000), (500, 500), (1_000, 1_000), (400, 400)]);
            let mut placer = Placer::new(Placement::Kubernetes);
            let placed = placer.place(&mut ledger, Resources::new(100, 100), &any_node, &mut rng).unwrap();
            counts[placed.node.0 as usize] += 1;
        }
        assert!((1_850..2_150).contains(&counts[0]), "{counts:?}");
        assert_eq!((counts[1], counts[3]), (0, 0));
    }

    #[test]
    fn a_large_cluster_is_searched_in_turns() {
        let mut ledger = ledger(&[(1_000, 1_000); 5_000]);
        let mut placer = Placer::new(Placement::Kubernetes);
        let request = Resources::new(10, 10);
        let looked_at = std::cell::Cell::new(0);
        let count = |_| {
            looked_at.set(looked_at.get() + 1);
            true
        };
        let tenths: Vec<_> = (0..10)
            .map(|_| placer.place(&mut ledger, request, &count, &mut seeded(1)).unwrap().node.0 / 500)
            .collect();
        assert_eq!(looked_at.get(), 10 * 500, "a tenth of the nodes each time");
        assert_eq!(tenths, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "each time another tenth");
    }
}
