//! Why sandboxes were ordered: remembered for whoever asks why a request waited for one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fanfare_policy::PlaceReason;
use fanfare_types::limits::ORDERS_REMEMBERED_MAX;
use fanfare_types::{FunctionId, NodeId, RevisionId, SandboxId, Timestamp};

use crate::Engine;
use crate::capacity::{OrderCause, Ordered};

/// One decision that ordered sandboxes.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// When.
    pub at: Timestamp,
    /// What they run.
    pub revision: RevisionId,
    /// The first of them; the others have the numbers after it.
    pub first: SandboxId,
    /// How many.
    pub sandboxes: u32,
    /// Of those, the first so many were for requests that waited; the autoscaler wanted the others.
    pub for_demand: u32,
    /// The first one's node.
    pub node: NodeId,
    /// Why it went there.
    pub placed: PlaceReason,
    /// Why they were ordered, in one sentence with its inputs.
    pub reason: Arc<str>,
    /// From the word of need to the decision.
    pub deciding: Duration,
    /// How long requests had waited for room on a node, before that.
    pub room_after: Duration,
}

/// The last orders, oldest first. Their first sandboxes' numbers only grow.
#[derive(Debug, Default)]
pub(crate) struct Orders(VecDeque<Order>);

impl Orders {
    pub(crate) fn push(&mut self, order: Order) {
        if self.0.len() >= ORDERS_REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(order);
    }

    fn of(&self, sandbox: SandboxId) -> Option<&Order> {
        let after = self.0.partition_point(|order| order.first <= sandbox);
        let order = self.0.get(after.checked_sub(1)?)?;
        (sandbox.0 - order.first.0 < u64::from(order.sandboxes)).then_some(order)
    }
}

impl Engine {
    /// Remembers a decision that ordered sandboxes.
    pub(crate) fn note_order(
        &mut self,
        now: Timestamp,
        id: FunctionId,
        ordered: Ordered,
        cause: OrderCause,
        reason: Arc<str>,
    ) {
        let Some(function) = self.functions.get_mut(&id) else { return };
        let revision = function.revision_id(id);
        let active = function.active_mut();
        active.record(now, active.coming_or_ready(), reason.clone());
        self.orders.push(Order {
            at: now,
            revision,
            first: ordered.first,
            sandboxes: ordered.count,
            for_demand: ordered.count.min(cause.demand),
            node: ordered.node,
            placed: ordered.placed,
            reason,
            deciding: cause.deciding,
            room_after: ordered.room_after,
        });
    }

    /// The decision that ordered this sandbox, while it is remembered.
    #[must_use]
    pub fn order_of(&self, sandbox: SandboxId) -> Option<&Order> {
        self.orders.of(sandbox)
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use fanfare_types::Epoch;

    #[test]
    fn orders_are_found_by_any_of_their_sandboxes_until_they_are_forgotten() {
        let mut orders = Orders::default();
        let id = |n| SandboxId::new(Epoch(3), n);
        assert_eq!(orders.of(id(1)), None);
        for n in 0..ORDERS_REMEMBERED_MAX as u64 + 5 {
            orders.push(Order {
                at: Timestamp::ZERO,
                revision: RevisionId { function: FunctionId(1), number: 1 },
                first: id(10 * n),
                sandboxes: 4,
                for_demand: 4,
                node: NodeId(1),
                placed: PlaceReason::Only,
                reason: n.to_string().into(),
                deciding: Duration::ZERO,
                room_after: Duration::ZERO,
            });
        }
        let found = |n| orders.of(id(n)).map(|order| &*order.reason);
        assert_eq!((found(0), found(42), found(49)), (None, None, None));
        assert_eq!((found(50), found(53), found(54)), (Some("5"), Some("5"), None));
        assert_eq!(orders.of(SandboxId::new(Epoch(2), 50)), None);
        assert_eq!(orders.of(SandboxId::new(Epoch(4), 50)), None);
        assert_eq!(orders.0.len(), ORDERS_REMEMBERED_MAX);
    }
}
