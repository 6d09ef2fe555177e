//! Random events with faults: slots are never exceeded, and once the faults end everything heals.

use std::time::Duration;

use fanfare_types::{DataPlaneId, ExitCause, FunctionId, NodeId, Scaling};
use proptest::prelude::*;

use super::world::{D, E, N, World, spec};
use crate::Event;

const NODES: [NodeId; 2] = [N, NodeId(2)];
const PLANES: [DataPlaneId; 3] = [D, E, DataPlaneId(3)];

/// Nodes, data planes and functions are named by an index, taken modulo their number.
#[derive(Clone, Debug)]
enum Op {
    Arrive { plane: usize, function: usize, count: u32 },
    Finish { plane: usize, count: u32 },
    TimeOut { plane: usize },
    Start { node: usize, pick: usize, succeeds: bool },
    Crash { node: usize, pick: usize },
    Deliver { pick: usize, count: usize },
    Pass { millis: u64 },
    ConnectPlane { plane: usize },
    RestartPlane { plane: usize },
    LosePlane { plane: usize },
    DrainPlane { plane: usize },
    ConnectNode { node: usize },
    RestartNode { node: usize },
    LoseNode { node: usize },
    Update { function: usize, concurrency: u32 },
    Back { function: usize },
    Replace { function: usize, concurrency: u32 },
    RestartEngine,
}

fn op() -> impl Strategy<Value = Op> {
    let plane = || 0..PLANES.len();
    let node = || 0..NODES.len();
    let function = || 0..2_usize;
    prop_oneof![
        8 => (plane(), function(), 1..12u32)
            .prop_map(|(plane, function, count)| Op::Arrive { plane, function, count }),
        8 => (plane(), 1..8u32).prop_map(|(plane, count)| Op::Finish { plane, count }),
        2 => plane().prop_map(|plane| Op::TimeOut { plane }),
        8 => (node(), any::<usize>(), prop::bool::weighted(0.9))
            .prop_map(|(node, pick, succeeds)| Op::Start { node, pick, succeeds }),
        2 => (node(), any::<usize>()).prop_map(|(node, pick)| Op::Crash { node, pick }),
        16 => (any::<usize>(), 1..20usize).prop_map(|(pick, count)| Op::Deliver { pick, count }),
        4 => (1..3000u64).prop_map(|millis| Op::Pass { millis }),
        2 => plane().prop_map(|plane| Op::ConnectPlane { plane }),
        1 => plane().prop_map(|plane| Op::RestartPlane { plane }),
        1 => plane().prop_map(|plane| Op::LosePlane { plane }),
        1 => plane().prop_map(|plane| Op::DrainPlane { plane }),
        2 => node().prop_map(|node| Op::ConnectNode { node }),
        1 => node().prop_map(|node| Op::RestartNode { node }),
        1 => node().prop_map(|node| Op::LoseNode { node }),
        1 => (function(), 1..4u32).prop_map(|(function, concurrency)| Op::Update { function, concurrency }),
        1 => function().prop_map(|function| Op::Back { function }),
        1 => (function(), 1..4u32).prop_map(|(function, concurrency)| Op::Replace { function, concurrency }),
        1 => Just(Op::RestartEngine),
    ]
}

/// What is registered.
struct Functions {
    of: [(FunctionId, u32, u32); 2],
    /// Concurrency by revision, the first one first.
    history: [Vec<u32>; 2],
    next_id: u32,
}

impl Functions {
    fn id(&self, index: usize) -> FunctionId {
        self.of[index].0
    }

    fn spec(&self, index: usize) -> fanfare_types::FunctionSpec {
        spec(["f", "g"][index], self.of[index].2, Scaling { max: 6, ..Scaling::default() })
    }

    fn set(&self, world: &mut World, index: usize) {
        let (id, revision, _) = self.of[index];
        world.set_function(id, revision, self.spec(index));
    }
}

fn apply(world: &mut World, functions: &mut Functions, op: &Op) {
    match *op {
        Op::Arrive { plane, function, count } => world.arrive(PLANES[plane], functions.id(function), count),
        Op::Finish { plane, count } => world.finish(PLANES[plane], count),
        Op::TimeOut { plane } => world.time_out(PLANES[plane]),
        Op::Start { node, pick, succeeds } => drop(world.start_one(NODES[node], pick, succeeds)),
        Op::Crash { node, pick } => {
            let sandboxes = world.nodes[&NODES[node]].sandboxes.iter().filter(|(_, s)| s.ready);
            let ready: Vec<_> = sandboxes.map(|(id, _)| *id).collect();
            if !ready.is_empty() {
                world.end_sandbox(NODES[node], ready[pick % ready.len()], ExitCause::Status(1));
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
        Op::ConnectPlane { plane } => world.connect_plane(PLANES[plane]),
        Op::RestartPlane { plane } => world.restart_plane(PLANES[plane]),
        Op::LosePlane { plane } => {
            // Silent for so long that it is given up; it may come back as the same process.
            world.planes.get_mut(&PLANES[plane]).unwrap().connected = false;
            world.step(Event::DataPlaneLost(PLANES[plane]));
        }
        Op::DrainPlane { plane } => world.drain(PLANES[plane]),
        Op::ConnectNode { node } => world.connect_node(NODES[node]),
        Op::RestartNode { node } => {
            let ids: Vec<_> = world.nodes[&NODES[node]].sandboxes.keys().copied().collect();
            world.nodes.get_mut(&NODES[node]).unwrap().connected = false;
            for id in ids {
                world.end_sandbox(NODES[node], id, ExitCause::NodeLost);
            }
            world.nodes.get_mut(&NODES[node]).unwrap().incarnation += 1;
            world.connect_node(NODES[node]);
        }
        Op::LoseNode { node } => {
            world.nodes.get_mut(&NODES[node]).unwrap().connected = false;
            world.step(Event::NodeLost(NODES[node]));
        }
        Op::Update { function, concurrency } => {
            let (id, revision, _) = functions.of[function];
            let newest = functions.history[function].len() as u32;
            assert!(revision <= newest);
            functions.of[function] = (id, newest + 1, concurrency);
            functions.history[function].push(concurrency);
            functions.set(world, function);
        }
        Op::Back { function } => {
            let (id, revision, _) = functions.of[function];
            if revision > 1 {
                let concurrency = functions.history[function][revision as usize - 2];
                functions.of[function] = (id, revision - 1, concurrency);
                functions.set(world, function);
            }
        }
        Op::Replace { function, concurrency } => {
            // Deleted, and its name registered again.
            world.step(Event::FunctionRemoved(functions.id(function)));
            functions.of[function] = (FunctionId(functions.next_id), 1, concurrency);
            functions.history[function] = vec![concurrency];
            functions.next_id += 1;
            functions.set(world, function);
        }
        Op::RestartEngine => {
            let kept = [0, 1].map(|i| (functions.id(i), functions.of[i].1, functions.spec(i)));
            world.restart_engine(&kept);
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
    assert_eq!(world.engine.inconsistency(), None);
}

/// Faults are over: whatever waits is served or refused, and then nothing is left anywhere.
fn heal(world: &mut World) {
    for node in NODES.into_iter().filter(|id| !world.nodes[id].connected).collect::<Vec<_>>() {
        world.connect_node(node);
    }
    for plane in PLANES.into_iter().filter(|id| !world.planes[id].connected).collect::<Vec<_>>() {
        world.connect_plane(plane);
    }
    for _ in 0..400 {
        world.pass(Duration::from_millis(500));
        for plane in PLANES {
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
    check(world);
    for (id, node) in &world.nodes {
        assert!(node.sandboxes.is_empty(), "left on {id}: {:?}\n{world:#?}", node.sandboxes);
    }
    for (id, plane) in &world.planes {
        for function in world.engine.functions.keys() {
            let owner = world.engine.owner_of(*function).filter(|owner| owner != id);
            assert_eq!(plane.owners.get(function).copied(), owner, "the owner of {function}, to {id}");
        }
        assert!(plane.held.is_empty(), "{id} holds slots of nothing: {:?}", plane.held);
        assert!(plane.condemned.is_empty(), "{id} was not told of the end of {:?}", plane.condemned);
    }
    for node in world.engine.cluster_status().nodes {
        assert_eq!(node.free, node.capacity, "the ledger holds a reservation for nothing");
    }
    assert_eq!(world.engine.next_deadline(), None, "timers without a cause");
}

proptest! {
    // More of them by hand: `PROPTEST_CASES=20000`.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_never_exceeded_and_everything_heals(
        concurrency in (1..4u32, 1..4u32),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let of = [(FunctionId(1), 1, concurrency.0), (FunctionId(2), 1, concurrency.1)];
        let history = [vec![concurrency.0], vec![concurrency.1]];
        let mut functions = Functions { of, history, next_id: 3 };
        let mut world = World::new();
        for node in NODES {
            world.add_node(node, 4);
        }
        for plane in PLANES {
            world.add_plane(plane);
        }
        for index in 0..2 {
            functions.set(&mut world, index);
        }
        for op in ops {
            apply(&mut world, &mut functions, &op);
        }
        heal(&mut world);
    }
}
