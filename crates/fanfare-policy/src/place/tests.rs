use super::*;
use crate::seeded;
use proptest::prelude::*;

/// Nodes 0, 1, … of these capacities (CPU, memory).
pub(super) fn ledger(capacities: &[(u64, u64)]) -> Ledger {
    let mut ledger = Ledger::new();
    for (id, &(cpu, memory)) in (0..).zip(capacities) {
        ledger.add_node(NodeId(id), Resources::new(cpu, memory));
    }
    ledger
}

pub(super) fn any_node(_: NodeId) -> bool {
    true
}

#[test]
fn names_parse_back() {
    for placement in Placement::ALL {
        assert_eq!(placement.to_string().parse(), Ok(placement));
        assert_eq!(Placer::new(placement).placement(), placement);
    }
    assert_eq!("best".parse::<Placement>(), Err(UnknownPlacement));
}

#[test]
fn no_room_says_what_is_lacking() {
    for placement in Placement::ALL {
        let mut nodes =
            ledger(&[(100, 1 << 30), (4_000, 1 << 20), (50, 1 << 20), (4_000, 4 << 30), (4_000, 4 << 30)]);
        nodes.set_schedulable(NodeId(3), false);
        let request = Resources::new(500, 512 << 20);
        let before = nodes.entries().to_vec();
        let mut placer = Placer::new(placement);
        let allowed = |id| id != NodeId(4);
        assert_eq!(placer.place(&mut nodes, request, &allowed, &mut seeded(0)), None, "{placement}");
        let why = nodes.no_room(request, &allowed);
        let want = NoRoom {
            nodes: 5,
            unschedulable: 1,
            not_allowed: 1,
            short_of_cpu: 2,
            short_of_memory: 2,
            request,
            most_free: Resources::new(4_000, 1 << 30),
        };
        assert_eq!(why, want, "{placement}");
        assert_eq!(nodes.entries(), before, "{placement}: nothing is reserved");
        assert_eq!(
            why.to_string(),
            "none of 5 nodes has 0.5 CPUs and 512 MiB free: 2 lack CPU (most free: 4), \
             2 lack memory (most free: 1024 MiB), 1 take no sandboxes, 1 are excluded"
        );
        assert_eq!(placer.place(&mut Ledger::new(), request, &any_node, &mut seeded(0)), None);
        let none = Ledger::new().no_room(request, &any_node);
        assert_eq!((none.nodes, none.most_free), (0, Resources::ZERO), "{placement}");
    }
}

#[test]
fn every_policy_fills_a_cluster_to_the_last_slot() {
    for placement in Placement::ALL {
        let mut nodes = ledger(&[(1_000, 1_000); 130]);
        let mut placer = Placer::new(placement);
        let (request, mut rng) = (Resources::new(250, 100), seeded(4));
        for n in 0..130 * 4 {
            let placed = placer.place(&mut nodes, request, &any_node, &mut rng);
            assert!(placed.is_some(), "{placement}: {n} placed, {:?}", placed);
        }
        assert!(placer.place(&mut nodes, request, &any_node, &mut rng).is_none(), "{placement}");
    }
}

proptest! {
    #[test]
    fn placing_respects_room_permission_and_the_generator(
        placement in prop::sample::select(Placement::ALL.to_vec()),
        capacities in prop::collection::vec((0_u64..100, 0_u64..100), 0..140),
        closed in prop::collection::btree_set(0_u32..140, 0..10),
        forbidden in prop::collection::btree_set(0_u32..140, 0..10),
        requests in prop::collection::vec((0_u64..60, 0_u64..60), 1..30),
        seed in any::<u64>(),
    ) {
        let mut nodes = ledger(&capacities);
        for id in closed {
            nodes.set_schedulable(NodeId(id), false);
        }
        let allowed = |id: NodeId| !forbidden.contains(&id.0);
        let mut placer = Placer::new(placement);
        let mut rng = seeded(seed);
        for (cpu, memory) in requests {
            let request = Resources::new(cpu, memory);
            let before = nodes.clone();
            let (mut twin, mut twin_rng) = (placer.clone(), rng.clone());
            let result = placer.place(&mut nodes, request, &allowed, &mut rng);
            prop_assert_eq!(result, twin.place(&mut before.clone(), request, &allowed, &mut twin_rng));
            let could = |n: &&NodeEntry| n.schedulable && allowed(n.id) && n.free().fits(request);
            match result {
                Some(placed) => {
                    let was = before.get(placed.node).unwrap();
                    prop_assert!(could(&was), "{:?} on {:?}", request, was);
                    for node in before.nodes() {
                        let added = if node.id == placed.node { request } else { Resources::ZERO };
                        prop_assert_eq!(nodes.get(node.id).unwrap().reserved, node.reserved + added);
                    }
                }
                None => prop_assert_eq!(before.nodes().find(could), None, "there was room"),
            }
        }
    }
}
