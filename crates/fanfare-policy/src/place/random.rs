//! Any node with room, each equally likely.
//!
//! Drawing an index and trying again when it does not fit is uniform over those that fit, and takes one draw on a
//! cluster with room. When a few draws fail, the nodes with room are counted and one of them is drawn.

use rand::RngExt;

use super::{Feasible, PlaceReason};
use crate::Rng;

/// Draws before counting.
const DRAWS_MAX: u32 = 8;

/// One node with room.
pub(super) fn choose(nodes: &Feasible<'_>, rng: &mut Rng) -> Option<(usize, PlaceReason)> {
    draw(nodes, None, rng).map(|index| (index, PlaceReason::Drawn))
}

/// A node with room other than `except`, each equally likely.
pub(super) fn draw(nodes: &Feasible<'_>, except: Option<usize>, rng: &mut Rng) -> Option<usize> {
    let all = nodes.len();
    let fits = |index: &usize| Some(*index) != except && nodes.fits(*index);
    if all == 0 {
        return None;
    }
    for _ in 0..DRAWS_MAX {
        let index = rng.random_range(0..all);
        if fits(&index) {
            return Some(index);
        }
    }
    let feasible = (0..all).filter(fits).count();
    if feasible == 0 {
        return None;
    }
    (0..all).filter(fits).nth(rng.random_range(0..feasible))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{any_node, ledger};
    use super::super::{Placement, Placer};
    use crate::seeded;
    use fanfare_types::Resources;

    #[test]
    fn every_node_with_room_is_equally_likely_also_when_few_have_it() {
        for nodes in [4, 400] {
            let mut counts = [0_u32; 3];
            let mut rng = seeded(11);
            for _ in 0..3_000 {
                let mut capacities = vec![(10, 10); nodes];
                capacities[..3].fill((1_000, 1_000));
                let mut ledger = ledger(&capacities);
                let mut placer = Placer::new(Placement::Random);
                let placed =
                    placer.place(&mut ledger, Resources::new(100, 100), &any_node, &mut rng).unwrap();
                counts[placed.node.0 as usize] += 1;
            }
            assert!(counts.iter().all(|n| (880..1_120).contains(n)), "{nodes} nodes: {counts:?}");
        }
    }
}
