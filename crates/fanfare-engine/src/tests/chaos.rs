//! Random events with faults: slots are never exceeded, and once the faults end everything heals.

use std::time::Duration;

use fanfare_types::{ExitCause, NodeId, Scaling};
use proptest::prelude::*;

use super::world::{D, E, F, G, N, World, spec};
use crate::Event;

const M: NodeId = NodeId(2);

#[derive(Clone, Debug)]
enum Op {
    Arrive { second: bool, other_function: bool, count: u32 },
    Finish { second: bool, count: u32 },
    TimeOut { second: bool },
    Start { second: bool, pick: usize, succeeds: bool },
    Crash { second: bool, pick: usize },
    Deliver { pick: usize, count: usize },
    Pass { millis: u64 },
    ReconnectPlane { second: bool },
    RestartPlane { second: bool },
    LosePlane { second: bool },
    ReconnectNode { second: bool },
    RestartNode { second: bool },
    LoseNode { second: bool },
    Update { other_function: bool },
    RestartEngine { nodes_first: bool },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (any::<bool>(), any::<bool>(), 1..12u32)
            .prop_map(|(second, other_function, count)| Op::Arrive { second, other_function, count }),
        8 => (any::<bool>(), 1..8u32).prop_map(|(second, count)| Op::Finish { second, count }),
        2 => any::<bool>().prop_map(|second| Op::TimeOut { second }),
        8 => (any::<bool>(), any::<usize>(), prop::bool::weighted(0.9))
            .prop_map(|(second, pick, succeeds)| Op::Start { second, pick, succeeds }),
        2 => (any::<bool>(), any::<usize>()).prop_map(|(second, pick)| Op::Crash { second, pick }),
        16 => (any::<usize>(), 1..20usize).prop_map(|(pick, count)| Op::Deliver { pick, count }),
        4 => (1..3000u64).prop_map(|millis| Op::Pass { millis }),
        1 => any::<bool>().prop_map(|second| Op::ReconnectPlane { second }),
        1 => any::<bool>().prop_map(|second| Op::RestartPlane { second }),
        1 => any::<bool>().prop_map(|second| Op::LosePlane { second }),
        1 => any::<bool>().prop_map(|second| Op::ReconnectNode { second }),
        1 => any::<bool>().prop_map(|second| Op::RestartNode { second }),
        1 => any::<bool>().prop_map(|second| Op::LoseNode { second }),
        1 => any::<bool>().prop_map(|other_function| Op::Update { other_function }),
        1 => any::<bool>().prop_map(|nodes_first| Op::RestartEngine { nodes_first }),
    ]
}

struct Functions {
    concurrency: [u32; 2],
    revision: [u32; 2],
}

impl Functions {
    fn spec(&self, index: usize) -> fanfare_types::FunctionSpec {
        spec(["f", "g"][index], self.concurrency[index], Scaling { max: 6, ..Scaling::default() })
    }
}

fn apply(world: &mut World, functions: &mut Functions, op: &Op) {
    let plane = |second: bool| if second { E } else { D };
    let node = |second: bool| if second { M } else { N };
    match *op {
        Op::Arrive { second, other_function, count } => {
            world.arrive(plane(second), if other_function { G } else { F }, count);
        }
        Op::Finish { second, count } => world.finish(plane(second), count),
        Op::TimeOut { second } => world.time_out(plane(second)),
        Op::Start { second, pick, succeeds } => {
            world.start_one(node(second), pick, succeeds);
        }
        Op::Crash { second, pick } => {
            let ready: Vec<_> = world.nodes[&node(second)]
                .sandboxes
                .iter()
                .filter(|(_, s)| s.ready)
                .map(|(id, _)| *id)
                .collect();
            if !ready.is_empty() {
                world.end_sandbox(node(second), ready[pick % ready.len()], ExitCause::Status(1));
            }
        }
        Op::Deliver { pick, count } => {
            for i in 0..count {
                if !world.deliver_one(pick.wrapping_add(i)) {
                    break;
                }
            }
        }
        Op::Pass { millis } => world.jump(Duration::from_millis(millis)),
        Op::ReconnectPlane { second } => world.connect_plane(plane(second)),
        Op::RestartPlane { second } => world.restart_plane(plane(second)),
        Op::LosePlane { second } => {
            // Silent for so long that it is given up; then it comes back as the same process.
            world.planes.get_mut(&plane(second)).unwrap().connected = false;
            world.step(Event::DataPlaneLost(plane(second)));
            world.connect_plane(plane(second));
        }
        Op::ReconnectNode { second } => world.connect_node(node(second)),
        Op::RestartNode { second } => {
            let ids: Vec<_> = world.nodes[&node(second)].sandboxes.keys().copied().collect();
            world.nodes.get_mut(&node(second)).unwrap().connected = false;
            for id in ids {
                world.end_sandbox(node(second), id, ExitCause::NodeLost);
            }
            world.nodes.get_mut(&node(second)).unwrap().incarnation += 1;
            world.connect_node(node(second));
        }
        Op::LoseNode { second } => {
            world.nodes.get_mut(&node(second)).unwrap().connected = false;
            world.step(Event::NodeLost(node(second)));
            world.connect_node(node(second));
        }
        Op::Update { other_function } => {
            let index = usize::from(other_function);
            functions.revision[index] += 1;
            let spec = functions.spec(index);
            world.set_function(if other_function { G } else { F }, functions.revision[index], spec);
        }
        Op::RestartEngine { nodes_first } => {
            let kept = [
                (F, functions.revision[0], functions.spec(0)),
                (G, functions.revision[1], functions.spec(1)),
            ];
            world.restart_engine(&kept);
            if nodes_first {
                world.connect_node(N);
                world.connect_plane(E);
                world.connect_node(M);
                world.connect_plane(D);
            } else {
                world.connect_plane(D);
                world.connect_node(M);
                world.connect_plane(E);
                world.connect_node(N);
            }
        }
    }
    check(world);
}

fn check(world: &World) {
    for (id, node) in &world.nodes {
        for (sandbox, record) in &node.sandboxes {
            let held: u32 = world.planes.values().filter_map(|p| p.held.get(sandbox)).map(|h| h.slots).sum();
            assert!(held <= record.concurrency, "{sandbox} on {id}: {held} slots are held");
        }
    }
}

/// Faults are over: whatever waits is served or refused, and then nothing is left anywhere.
fn heal(world: &mut World) {
    for _ in 0..400 {
        world.pass(Duration::from_millis(500));
        for plane in [D, E] {
            world.finish(plane, u32::MAX);
        }
        let waiting: u32 = world.planes.values().flat_map(|p| p.queued.values()).sum();
        let running: u32 = world.planes.values().flat_map(|p| p.held.values()).map(|h| h.in_flight).sum();
        if waiting + running == 0 {
            break;
        }
    }
    let waiting: Vec<_> = world.planes.iter().map(|(id, p)| (*id, p.queued.clone())).collect();
    assert!(
        waiting.iter().all(|(_, q)| q.values().all(|n| *n == 0)),
        "still waiting: {waiting:?}\n{world:#?}"
    );
    world.pass(Duration::from_secs(300));
    for (id, node) in &world.nodes {
        assert!(node.sandboxes.is_empty(), "left on {id}: {:?}\n{world:#?}", node.sandboxes);
    }
    for node in world.engine.cluster_status().nodes {
        assert_eq!(node.free, node.capacity, "the ledger holds a reservation for nothing");
    }
    assert_eq!(world.engine.next_deadline(), None, "timers without a cause");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_never_exceeded_and_everything_heals(
        concurrency in (1..4u32, 1..4u32),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut functions = Functions { concurrency: [concurrency.0, concurrency.1], revision: [1, 1] };
        let mut world = World::new();
        world.add_node(N, 4);
        world.add_node(M, 4);
        world.add_plane(D);
        world.add_plane(E);
        for (index, id) in [F, G].into_iter().enumerate() {
            let spec = functions.spec(index);
            world.set_function(id, 1, spec);
        }
        for op in ops {
            apply(&mut world, &mut functions, &op);
        }
        heal(&mut world);
    }
}
