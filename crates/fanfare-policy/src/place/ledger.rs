//! What every node offers and what is reserved on it.

use fanfare_types::{NodeId, Resources};

/// One node's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// The node.
    pub id: NodeId,
    /// What it offers.
    pub capacity: Resources,
    /// What is reserved on it. May exceed the capacity when a node says that it has less than before.
    pub reserved: Resources,
    /// Whether it takes new sandboxes.
    pub schedulable: bool,
}

impl NodeEntry {
    /// What could still be reserved.
    #[must_use]
    pub fn free(&self) -> Resources {
        self.capacity.saturating_sub(self.reserved)
    }
}

/// The accounts of all nodes: the one place where reservations are made, for functions and flares alike.
///
/// Ordered by id, so that a walk over the nodes is the same in every run.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    nodes: Vec<NodeEntry>,
}

impl Ledger {
    /// A ledger without nodes.
    #[must_use]
    pub fn new() -> Self {
        Ledger::default()
    }

    /// Opens an account that takes new sandboxes. A node that is known already keeps its reservations.
    pub fn add_node(&mut self, node: NodeId, capacity: Resources) {
        match self.position(node) {
            Ok(index) => {
                self.nodes[index].capacity = capacity;
                self.nodes[index].schedulable = true;
            }
            Err(index) => {
                let entry = NodeEntry { id: node, capacity, reserved: Resources::ZERO, schedulable: true };
                self.nodes.insert(index, entry);
            }
        }
    }

    /// Changes what a node offers. Nothing happens if it is unknown.
    pub fn set_capacity(&mut self, node: NodeId, capacity: Resources) {
        if let Ok(index) = self.position(node) {
            self.nodes[index].capacity = capacity;
        }
    }

    /// Closes an account; its reservations go with it. Nothing happens if the node is unknown.
    pub fn remove_node(&mut self, node: NodeId) {
        if let Ok(index) = self.position(node) {
            self.nodes.remove(index);
        }
    }

    /// Says whether a node takes new sandboxes. Nothing happens if it is unknown.
    pub fn set_schedulable(&mut self, node: NodeId, schedulable: bool) {
        if let Ok(index) = self.position(node) {
            self.nodes[index].schedulable = schedulable;
        }
    }

    /// Reserves without asking whether there is room: for sandboxes that are there already. Nothing happens if the
    /// node is unknown.
    pub fn reserve(&mut self, node: NodeId, amount: Resources) {
        if let Ok(index) = self.position(node) {
            self.reserve_at(index, amount);
        }
    }

    /// Takes a reservation back. Nothing happens if the node is unknown: a removed node took its reservations along.
    pub fn release(&mut self, node: NodeId, amount: Resources) {
        if let Ok(index) = self.position(node) {
            let reserved = &mut self.nodes[index].reserved;
            debug_assert!(reserved.fits(amount), "{node}: {amount:?} released of {reserved:?} reserved");
            *reserved = reserved.saturating_sub(amount);
        }
    }

    /// What could still be reserved on a node. `None` if it is unknown.
    #[must_use]
    pub fn free(&self, node: NodeId) -> Option<Resources> {
        self.get(node).map(NodeEntry::free)
    }

    /// A node's account. `None` if it is unknown.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<&NodeEntry> {
        self.position(node).ok().map(|index| &self.nodes[index])
    }

    /// All accounts, in the order of their ids.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeEntry> {
        self.nodes.iter()
    }

    pub(super) fn entries(&self) -> &[NodeEntry] {
        &self.nodes
    }

    /// Reserves at a position of [`Ledger::entries`].
    pub(super) fn reserve_at(&mut self, index: usize, amount: Resources) -> NodeId {
        let node = &mut self.nodes[index];
        node.reserved.cpu_milli = node.reserved.cpu_milli.saturating_add(amount.cpu_milli);
        node.reserved.memory_bytes = node.reserved.memory_bytes.saturating_add(amount.memory_bytes);
        node.id
    }

    fn position(&self, node: NodeId) -> Result<usize, usize> {
        self.nodes.binary_search_by_key(&node, |entry| entry.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn accounts() {
        let mut ledger = Ledger::new();
        let (a, b) = (NodeId(7), NodeId(3));
        ledger.add_node(a, Resources::new(1_000, 100));
        ledger.add_node(b, Resources::new(2_000, 200));
        assert!(ledger.nodes().map(|n| n.id).eq([b, a]), "ordered by id");
        ledger.reserve(a, Resources::new(600, 60));
        assert_eq!(ledger.free(a), Some(Resources::new(400, 40)));
        ledger.set_capacity(a, Resources::new(500, 500));
        assert_eq!(
            ledger.free(a),
            Some(Resources::new(0, 440)),
            "overcommitted after the fact, not below zero"
        );
        ledger.set_schedulable(a, false);
        ledger.add_node(a, Resources::new(1_000, 100));
        let entry = *ledger.get(a).unwrap();
        assert!(
            entry.schedulable && entry.reserved == Resources::new(600, 60),
            "a known node keeps its reservations"
        );
        ledger.release(a, Resources::new(600, 60));
        assert_eq!(ledger.free(a), Some(Resources::new(1_000, 100)));
        ledger.remove_node(a);
        ledger.release(a, Resources::new(1, 1));
        ledger.reserve(a, Resources::new(1, 1));
        ledger.set_capacity(a, Resources::ZERO);
        ledger.set_schedulable(a, true);
        assert_eq!((ledger.free(a), ledger.nodes().len()), (None, 1));
    }

    proptest! {
        #[test]
        fn what_is_reserved_is_the_sum(ops in prop::collection::vec((0_u32..6, 0_u64..50, 0_u8..4), 1..80)) {
            let mut ledger = Ledger::new();
            let mut model: BTreeMap<NodeId, Vec<Resources>> = BTreeMap::new();
            for (node, amount, op) in ops {
                let (node, amount) = (NodeId(node), Resources::new(amount, amount * 2));
                match op {
                    0 => {
                        ledger.add_node(node, Resources::new(1_000, 2_000));
                        model.entry(node).or_default();
                    }
                    1 => {
                        ledger.remove_node(node);
                        model.remove(&node);
                    }
                    2 => {
                        ledger.reserve(node, amount);
                        model.entry(node).and_modify(|all| all.push(amount));
                    }
                    _ => {
                        if let Some(amount) = model.get_mut(&node).and_then(Vec::pop) {
                            ledger.release(node, amount);
                        }
                    }
                }
                let reserved = |all: &Vec<Resources>| all.iter().fold(Resources::ZERO, |sum, r| sum + *r);
                let want: Vec<_> = model.iter().map(|(id, all)| (*id, reserved(all))).collect();
                prop_assert!(ledger.nodes().map(|n| (n.id, n.reserved)).eq(want));
            }
        }
    }
}
