//! The less loaded of two nodes drawn among those with room.
//!
//! Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (IEEE TPDS 2001). Load is the larger
//! share of the two resources that would be reserved (the dominant share), so nodes of different sizes compare.

use std::cmp::Ordering;

use fanfare_types::Resources;

use super::{Feasible, NodeEntry, PlaceReason, random};
use crate::Rng;

/// The better of two draws.
pub(super) fn choose(nodes: &Feasible<'_>, rng: &mut Rng) -> Option<(usize, PlaceReason)> {
    let first = random::draw(nodes, None, rng)?;
    let Some(second) = random::draw(nodes, Some(first), rng) else {
        return Some((first, PlaceReason::Only));
    };
    let load = |index: usize| dominant_share(&nodes.nodes[index], nodes.request);
    let (better, worse) = match load(first).total_cmp(&load(second)) {
        Ordering::Greater => (second, first),
        Ordering::Less | Ordering::Equal => (first, second),
    };
    Some((better, PlaceReason::LessLoaded { than: nodes.nodes[worse].id }))
}

fn dominant_share(node: &NodeEntry, request: Resources) -> f64 {
    let share = |reserved: u64, requested: u64, capacity: u64| {
        if capacity == 0 { 0.0 } else { (reserved as f64 + requested as f64) / capacity as f64 }
    };
    let cpu = share(node.reserved.cpu_milli, request.cpu_milli, node.capacity.cpu_milli);
    let memory = share(node.reserved.memory_bytes, request.memory_bytes, node.capacity.memory_bytes);
    cpu.max(memory)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{any_node, ledger};
    use super::super::{Placement, Placer};
    use super::*;
    use crate::seeded;
    use fanfare_types::NodeId;

    #[test]
    fn the_less_loaded_of_two_wins_and_one_is_enough() {
        let mut two = ledger(&[(1_000, 1_000), (4_000, 4_000)]);
        let mut placer = Placer::new(Placement::PowerOfTwo);
        let request = Resources::new(100, 200);
        for seed in 0..8 {
            let placed = placer.place(&mut two, request, &any_node, &mut seeded(seed)).unwrap();
            let want = PlaceReason::LessLoaded { than: NodeId(0) };
            assert_eq!(
                (placed.node, placed.reason),
                (NodeId(1), want),
                "the larger node, until it is as full"
            );
            two.release(placed.node, request);
        }
        let mut one = ledger(&[(100, 100), (4_000, 4_000)]);
        let placed = placer.place(&mut one, request, &any_node, &mut seeded(0)).unwrap();
        assert_eq!((placed.node, placed.reason), (NodeId(1), PlaceReason::Only));
    }

    #[test]
    fn loads_stay_close_together() {
        let spread = |placement| {
            let mut ledger = ledger(&[(100_000, 100_000); 200]);
            let mut placer = Placer::new(placement);
            let mut rng = seeded(2);
            for _ in 0..4_000 {
                placer.place(&mut ledger, Resources::new(1, 1), &any_node, &mut rng).unwrap();
            }
            ledger.nodes().map(|n| n.reserved.cpu_milli).max().unwrap() - 20
        };
        let (two, one) = (spread(Placement::PowerOfTwo), spread(Placement::Random));
        assert!(two <= 4 && one >= 10, "above the mean of 20: {two} with two choices, {one} with one");
    }
}
