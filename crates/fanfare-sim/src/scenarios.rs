//! Worlds drawn from a seed, by name.

use std::sync::Arc;
use std::time::Duration;

use fanfare_policy::{Placement, Rng, RngExt, seeded};
use fanfare_types::{
    Balance, Contract, FunctionName, FunctionSpec, Given, Kpa, Metric, OnDemand, Resources, Scaling,
    ScalingPolicy, Sizing, Timeouts, Timestamp,
};

use crate::scenario::{Arrival, Change, Creation, Fault, Faults, Network, NodePlan, PlannedChange, Scenario};

/// What can be drawn, and what it is for.
pub const NAMES: &[(&str, &str)] = &[
    ("storm", "everything goes wrong, in worlds with room"),
    ("calm", "nothing goes wrong: every request is answered"),
    ("streams", "streams break, roles are parted and slow"),
    ("leaders", "control planes die, stand still and are isolated"),
    ("planes", "data planes die, drain and stand still"),
    ("nodes", "daemons die, machines are lost, sandboxes end by themselves"),
    ("clocks", "clocks run apart and leap, processes stand still"),
    ("tight", "everything goes wrong, and there is too little room"),
    ("crowded", "nothing goes wrong, and one function could fill all nodes for ever"),
];

/// What a sandbox of these worlds reserves.
const SANDBOX: Resources = Resources::new(100, 100);
/// The longest execution of a crowded world.
pub(crate) const CROWD_EXECUTION_MAX_MS: u64 = 2_500;
/// After the faults, before the world counts as healed.
const HEALING: Duration = Duration::from_secs(20);
/// Requests still come for so long then.
const PROOF: Duration = Duration::from_secs(6);
/// After the last request, until everything is at rest: the longest request, the longest pauses of the engine, and the
/// longest window of an autoscaler.
const REST: Duration = Duration::from_secs(45);

/// The world of this name and seed; `None`: there is no such name.
#[must_use]
pub fn draw(name: &str, seed: u64) -> Option<Scenario> {
    let (known, _) = NAMES.iter().find(|(known, _)| *known == name)?;
    // Apart from what the run draws.
    let mut rng = seeded(seed ^ 0x5ce0_a210_5eed_0000);
    let kinds = kinds(known);
    let until = Timestamp::from_millis(rng.random_range(8_000..24_000));
    let faults = Faults {
        from: Timestamp::from_millis(1_500),
        until: if kinds.is_empty() { Timestamp::ZERO } else { until },
        every: Duration::from_millis(rng.random_range(80..900)),
        kinds,
        drift_ppm: if *known == "clocks" { 30_000 } else { 500 },
    };
    let mut functions: Vec<FunctionSpec> =
        (0..rng.random_range(2..=6)).map(|index| function(index, &mut rng)).collect();
    if *known == "tight" {
        // One that is never reached is wanted for ever.
        functions.iter_mut().for_each(|f| f.scaling.initial = 0);
    }
    let all: u64 = functions.iter().map(|f| u64::from(f.scaling.max) * 2).sum();
    if *known == "crowded" {
        functions.iter_mut().for_each(unhurried);
    }
    let nodes = rng.random_range(1..=4_u64);
    let each = match *known {
        "tight" => rng.random_range(1..=4),
        // At least one for each function, and more.
        "crowded" => 16_u64.div_ceil(nodes) + rng.random_range(0..=4),
        _ => all.div_ceil(nodes) + 1,
    };
    let creations_max = rng.random_range(1..=8);
    let capacity = Resources::new(100 * each, 100 * each);
    let healed_at = faults.until + HEALING;
    let last = healed_at + PROOF;
    let changes = match *known {
        "calm" | "crowded" => Vec::new(),
        _ => changes(&functions, faults.until, &mut rng),
    };
    let arrivals = match *known {
        "crowded" => crowd(functions.len(), each * nodes, last, &mut rng),
        _ => arrivals(&functions, &changes, &faults, last, &mut rng),
    };
    let create_max = rng.random_range(10..500);
    Some(Scenario {
        name: (*known).to_owned(),
        control_planes: rng.random_range(1..=3),
        data_planes: rng.random_range(1..=3),
        nodes: vec![NodePlan { capacity, creations_max }; usize::try_from(nodes).unwrap_or(1)],
        placement: [Placement::Kubernetes, Placement::Random, Placement::RoundRobin, Placement::PowerOfTwo]
            [rng.random_range(0..4)],
        functions,
        changes,
        arrivals,
        creation: Creation {
            min: Duration::from_millis(create_max / 4),
            max: Duration::from_millis(create_max),
            failures_permille: if rng.random_bool(0.5) { rng.random_range(0..150) } else { 0 },
        },
        network: Network {
            min: Duration::from_micros(30),
            max: Duration::from_micros(rng.random_range(100..5_000)),
        },
        usage: None,
        faults: Some(faults),
        end: if *known == "crowded" { last + REST * 3 } else { last + REST },
        healed_at: match *known {
            "tight" | "crowded" => None,
            "calm" => Some(Timestamp::from_secs(1)),
            _ => Some(healed_at),
        },
    })
}

fn kinds(name: &str) -> Vec<(Fault, u32)> {
    use Fault::*;
    match name {
        "calm" | "crowded" => vec![],
        "streams" => vec![(CutStream, 4), (Partition, 4), (Isolation, 1), (Slowness, 4)],
        "leaders" => vec![(KillControl, 4), (Stall, 2), (Isolation, 2), (Partition, 2), (CutStream, 2)],
        "planes" => vec![(KillPlane, 3), (DrainPlane, 3), (Stall, 2), (CutStream, 2), (Slowness, 2)],
        "nodes" => vec![(KillDaemon, 3), (LoseMachine, 2), (EndSandbox, 4), (CutStream, 2), (Partition, 2)],
        "clocks" => vec![(Leap, 5), (Stall, 3), (Slowness, 2), (CutStream, 1)],
        _ => vec![
            (CutStream, 4),
            (Partition, 4),
            (Isolation, 1),
            (Slowness, 3),
            (KillControl, 2),
            (KillPlane, 2),
            (DrainPlane, 1),
            (KillDaemon, 2),
            (LoseMachine, 1),
            (Stall, 2),
            (Leap, 1),
            (EndSandbox, 2),
        ],
    }
}

fn millis(rng: &mut Rng, min: u64, max: u64) -> Duration {
    Duration::from_millis(rng.random_range(min..=max))
}

fn function(index: usize, rng: &mut Rng) -> FunctionSpec {
    let name = FunctionName::new(&format!("f{index}")).expect("a letter and a number are a name");
    spec(name, rng)
}

fn spec(name: FunctionName, rng: &mut Rng) -> FunctionSpec {
    let max = rng.random_range(2..=8);
    let concurrency = [1, 1, 1, 2, 4, 10][rng.random_range(0..6)];
    let kpa = Kpa {
        metric: if rng.random_bool(0.25) { Metric::RequestsPerSecond } else { Metric::Concurrency },
        target: None,
        target_utilization: [1.0, 1.0, 0.7][rng.random_range(0..3)],
        stable_window: millis(rng, 3_000, 8_000),
        panic_window_share: 0.25,
        scale_to_zero_grace: if rng.random_bool(0.2) { Duration::from_secs(1) } else { Duration::ZERO },
        tick: millis(rng, 500, 2_000),
        ..Kpa::default()
    };
    let policy = match rng.random_range(0..8) {
        0 => ScalingPolicy::Fixed(rng.random_range(1..=max.min(3))),
        _ => ScalingPolicy::Kpa(kpa),
    };
    FunctionSpec {
        name,
        runtime: Arc::from("fake"),
        contract: Contract::Fake,
        code: None,
        env: vec![],
        given: Given::default(),
        sizing: Sizing { concurrency, request: SANDBOX, ..Sizing::default() },
        timeouts: Timeouts {
            start: millis(rng, 1_500, 4_000),
            request: millis(rng, 3_000, 7_000),
            idle: None,
        },
        scaling: Scaling {
            policy,
            min: [0, 0, 0, 1, 2][rng.random_range(0..5)],
            max,
            initial: [0, 0, 1, 2][rng.random_range(0..4)],
            activation: [1, 1, 2][rng.random_range(0..3)],
            scale_down_delay: if rng.random_bool(0.2) { Duration::from_secs(2) } else { Duration::ZERO },
            on_demand: OnDemand::All,
        },
        queue_limit: 1_000,
        balance: [
            Balance::Knative,
            Balance::LeastLoaded,
            Balance::RoundRobin,
            Balance::Random,
            Balance::ChRlu,
            Balance::Hermod,
        ][rng.random_range(0..6)],
    }
}

fn changes(functions: &[FunctionSpec], until: Timestamp, rng: &mut Rng) -> Vec<PlannedChange> {
    let mut changes = Vec::new();
    let last = until.as_nanos() / 1_000_000;
    for _ in 0..rng.random_range(0..6) {
        let function = rng.random_range(0..functions.len());
        let name = functions[function].name.clone();
        let at = Timestamp::from_millis(rng.random_range(1_000..last));
        let max = functions[function].scaling.max;
        let next = |rng: &mut Rng| {
            let mut next = spec(name.clone(), rng);
            // There is to be room for it.
            next.scaling.max = max;
            next.scaling.initial = next.scaling.initial.min(functions[function].scaling.initial);
            if let ScalingPolicy::Fixed(sandboxes) = &mut next.scaling.policy {
                *sandboxes = (*sandboxes).min(max);
            }
            Box::new(next)
        };
        match rng.random_range(0..4) {
            0 => {
                changes.push(PlannedChange { at, function, change: Change::Remove });
                let change = Change::Register(next(rng));
                changes.push(PlannedChange { at: at + millis(rng, 0, 1_500), function, change });
            }
            1 => changes.push(PlannedChange { at, function, change: Change::Prepare }),
            _ => changes.push(PlannedChange { at, function, change: Change::Update(next(rng)) }),
        }
    }
    changes.sort_by_key(|change| change.at);
    changes
}

/// Requests that all revisions of a function can serve at once.
fn slots(function: usize, functions: &[FunctionSpec], changes: &[PlannedChange]) -> u64 {
    let revision = |planned: &PlannedChange| match &planned.change {
        Change::Update(spec) | Change::Register(spec) if planned.function == function => {
            Some((**spec).clone())
        }
        _ => None,
    };
    let revisions = std::iter::once(functions[function].clone()).chain(changes.iter().filter_map(revision));
    let slots = revisions.map(|spec| {
        let sandboxes = match spec.scaling.policy {
            ScalingPolicy::Fixed(sandboxes) => sandboxes.min(spec.scaling.max),
            _ => spec.scaling.max,
        };
        u64::from(sandboxes) * u64::from(spec.sizing.concurrency)
    });
    slots.min().unwrap_or(1)
}

fn arrivals(
    functions: &[FunctionSpec],
    changes: &[PlannedChange],
    faults: &Faults,
    last: Timestamp,
    rng: &mut Rng,
) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for function in 0..functions.len() {
        let pause_ms = rng.random_range(100..2_000_u64);
        // With faults, more than it can serve now and then; later no more than half of that.
        let slots = slots(function, functions, changes);
        let long_ms = rng.random_range(5..800);
        let mut at = Timestamp::from_millis(1_000 + rng.random_range(0..pause_ms));
        while at < last {
            let wild = at < faults.until;
            let execution_ms = if wild { long_ms } else { long_ms.min(pause_ms * slots / 4).min(300) };
            let surge = if wild && rng.random_bool(0.03) { rng.random_range(2..40) } else { 1 };
            for _ in 0..surge {
                let stuck = wild && rng.random_bool(0.02);
                let execution = millis(rng, execution_ms / 2, execution_ms);
                let leaves = rng.random_bool(0.04);
                arrivals.push(Arrival {
                    at,
                    function,
                    execution: if stuck { None } else { Some(execution) },
                    leaves_after: if leaves { Some(millis(rng, 0, 1_500)) } else { None },
                });
            }
            at = at + millis(rng, pause_ms / 4, pause_ms * 7 / 4);
        }
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

/// Of a crowded world: nothing is refused for having waited, and the first takes what it can get.
fn unhurried(function: &mut FunctionSpec) {
    function.timeouts.request = Duration::from_secs(60);
    function.scaling.initial = 0;
    if function.name.as_str() == "f0" {
        function.sizing.concurrency = 1;
        let kpa = Kpa { stable_window: Duration::from_secs(6), ..Kpa::default() };
        function.scaling = Scaling { policy: ScalingPolicy::Kpa(kpa), max: 100, ..Scaling::default() };
    }
}

/// Requests of a crowded world with room for so many sandboxes: the first function's would fill it several times over
/// at every moment, those of the others come now and then.
fn crowd(functions: usize, room: u64, last: Timestamp, rng: &mut Rng) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let long_ms = rng.random_range(200..=CROWD_EXECUTION_MAX_MS);
    for function in 0..functions {
        let mut at = Timestamp::from_millis(1_000 + 200 * u64::try_from(function).unwrap_or(0));
        while at < last {
            let (requests, execution_ms, pause) = match function {
                // As many as it could execute in two seconds with all the room, every two seconds, and a queue to
                // begin with.
                0 => {
                    let begins = u64::from(at < Timestamp::from_secs(2));
                    (room * 2_400 / long_ms + begins * room * 4, long_ms, Duration::from_secs(2))
                }
                _ => (rng.random_range(1..=3), rng.random_range(20..600), millis(rng, 300, 5_000)),
            };
            for _ in 0..requests {
                let execution = Some(millis(rng, execution_ms / 2, execution_ms));
                arrivals.push(Arrival { at, function, execution, leaves_after: None });
            }
            at = at + pause;
        }
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}
