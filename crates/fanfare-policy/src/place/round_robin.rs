//! The next node with room in the order of their ids, wherever nodes came or went in between.

use fanfare_types::NodeId;

use super::{Feasible, PlaceReason};

/// The node used last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    last: Option<NodeId>,
}

/// The first node with room after the last one.
pub(super) fn choose(cursor: &mut Cursor, nodes: &Feasible<'_>) -> Option<(usize, PlaceReason)> {
    let all = nodes.len();
    let start = cursor.last.map_or(0, |last| nodes.nodes.partition_point(|node| node.id <= last));
    let index = (start..all).chain(0..start).find(|index| nodes.fits(*index))?;
    cursor.last = Some(nodes.nodes[index].id);
    Some((index, PlaceReason::NextInTurn))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{any_node, ledger};
    use super::super::{Placement, Placer};
    use super::*;
    use crate::seeded;
    use fanfare_types::Resources;

    #[test]
    fn in_turn_while_nodes_come_and_go() {
        let mut ledger = ledger(&[(100, 100), (1_000, 1_000), (1_000, 1_000), (1_000, 1_000)]);
        let mut placer = Placer::new(Placement::RoundRobin);
        let request = Resources::new(60, 60);
        let mut next =
            |ledger: &mut _| placer.place(ledger, request, &any_node, &mut seeded(0)).unwrap().node.0;
        assert_eq!([next(&mut ledger), next(&mut ledger)], [0, 1]);
        ledger.remove_node(NodeId(1));
        assert_eq!([next(&mut ledger), next(&mut ledger)], [2, 3]);
        assert_eq!(next(&mut ledger), 2, "node 0 is full, node 1 is gone");
        ledger.add_node(NodeId(9), Resources::new(100, 100));
        assert_eq!([next(&mut ledger), next(&mut ledger), next(&mut ledger)], [3, 9, 2]);
    }
}
