//! Decisions of the autoscaler equal golden vectors.
//!
//! The vectors are situations of Knative's own autoscaler tests (`pkg/autoscaler/scaling/autoscaler_test.go`: stable and
//! panic mode, rates, activation, scale to zero) as an engine meets them: second by second from what a data plane reports,
//! with a node on which sandboxes are ready at once. `fanfare-policy` has the cases of single decisions; this says that
//! the engine samples, ticks, orders and retires so that the same numbers come out.

use std::sync::Arc;
use std::time::Duration;

use fanfare_engine::{Command, Engine, EngineConfig, Event};
use fanfare_policy::Placement;
use fanfare_types::{
    Contract, DataPlaneHello, DataPlaneId, Epoch, ExitCause, FromDataPlane, FromNode, FunctionId,
    FunctionLoad, FunctionName, FunctionSpec, Given, GoneCause, Kpa, Metric, NodeHello, NodeId, Resources,
    RevisionId, SandboxId, Scaling, ScalingPolicy, Sizing, Stages, Timeouts, Timestamp, ToDataPlane, ToNode,
};

use crate::report::Violation;

const F: FunctionId = FunctionId(1);
const N: NodeId = NodeId(1);
const D: DataPlaneId = DataPlaneId(1);

/// So many seconds at this load: mean concurrency, or requests per second where that is the metric.
type Load = (u64, f64);

struct Vector {
    /// After Knative's test.
    name: &'static str,
    kpa: fn(&mut Kpa),
    scaling: fn(&mut Scaling),
    concurrency: u32,
    /// Sandboxes after each stretch.
    stretches: &'static [(Load, u32)],
}

const PLAIN: Vector = Vector { name: "", kpa: |_| {}, scaling: |_| {}, concurrency: 10, stretches: &[] };

/// Knative's defaults but for a grace of zero and a utilisation of one: a target of 10 for a concurrency of 10.
const VECTORS: &[Vector] = &[
    Vector {
        name: "StableModeNoChange: five sandboxes carry fifty",
        stretches: &[((90, 50.0), 5), ((60, 50.0), 5)],
        ..PLAIN
    },
    Vector {
        name: "StableModeIncrease, StableModeDecrease",
        stretches: &[((90, 50.0), 5), ((150, 100.0), 10), ((150, 50.0), 5)],
        ..PLAIN
    },
    Vector {
        name: "StableModeNoTrafficScaleToZero: one window after the last request",
        stretches: &[((90, 10.0), 1), ((58, 0.0), 1), ((6, 0.0), 0)],
        ..PLAIN
    },
    Vector {
        name: "PanicModeDoublePodCount, PanicThenUnPanicScaleDown: held for a window",
        stretches: &[((90, 10.0), 1), ((8, 100.0), 10), ((50, 1.0), 10), ((90, 1.0), 1)],
        ..PLAIN
    },
    Vector {
        name: "RateLimitScaleUp: ten times what is ready at each tick",
        kpa: |kpa| kpa.max_scale_up_rate = 10.0,
        stretches: &[((90, 1.0), 1), ((10, 1_000.0), 100)],
        ..PLAIN
    },
    Vector {
        // After half a window, half of its seconds had 320 requests and half 10: 165 on average.
        name: "the average falls over a window",
        stretches: &[((90, 320.0), 32), ((30, 10.0), 17), ((32, 10.0), 1)],
        ..PLAIN
    },
    Vector {
        // floor(32 / 1.1) = 29 at the first tick, then 26, 23, 20, 18, 16, whatever the average is by then.
        name: "StableModeDecreaseWithSmallScaleDownRate",
        kpa: |kpa| {
            kpa.stable_window = Duration::from_secs(6);
            kpa.max_scale_down_rate = 1.1;
        },
        stretches: &[((30, 320.0), 32), ((8, 10.0), 20), ((4, 10.0), 16)],
        ..PLAIN
    },
    Vector {
        name: "ActivationScale",
        scaling: |scaling| scaling.activation = 3,
        stretches: &[((90, 1.0), 3), ((90, 0.0), 0)],
        ..PLAIN
    },
    Vector {
        name: "UpperBound, LowerBound",
        scaling: |scaling| (scaling.min, scaling.max) = (2, 7),
        stretches: &[((90, 500.0), 7), ((150, 0.0), 2)],
        ..PLAIN
    },
    Vector {
        name: "requests per second at a target of 200",
        kpa: |kpa| kpa.metric = Metric::RequestsPerSecond,
        stretches: &[((90, 1_000.0), 5), ((150, 390.0), 2)],
        ..PLAIN
    },
    Vector {
        name: "ResolveMetricTarget: 70 % of a concurrency of 10",
        kpa: |kpa| kpa.target_utilization = 0.7,
        stretches: &[((90, 49.0), 7), ((150, 50.0), 8)],
        ..PLAIN
    },
];

/// The first vector that the engine does not follow.
pub fn golden() -> Option<Violation> {
    VECTORS.iter().find_map(|vector| {
        let mut rig = Rig::new(vector);
        vector.stretches.iter().enumerate().find_map(|(index, ((secs, load), want))| {
            (0..*secs).for_each(|_| rig.second(*load));
            let status = rig.engine.function_status(F)?;
            let there = status.ready + status.starting;
            let reason = status.decisions.last().map(|decision| decision.reason.clone());
            (there != *want).then(|| Violation {
                invariant: "kpa",
                detail: format!(
                    "{}: after stretch {index} there are {there} sandboxes instead of {want}: {reason:?}",
                    vector.name
                ),
                at: rig.now,
            })
        })
    })
}

/// An engine, a data plane that reports what it is told to, and a node without delay.
struct Rig {
    engine: Engine,
    now: Timestamp,
    by_rate: bool,
}

impl Rig {
    fn new(vector: &Vector) -> Self {
        let mut kpa = Kpa::default();
        (vector.kpa)(&mut kpa);
        let by_rate = kpa.metric == Metric::RequestsPerSecond;
        let mut scaling = Scaling { policy: ScalingPolicy::Kpa(kpa), ..Scaling::default() };
        (vector.scaling)(&mut scaling);
        let config = EngineConfig { placement: Placement::Kubernetes, ..EngineConfig::new(Epoch(1)) };
        let mut rig = Rig { engine: Engine::new(config), now: Timestamp::from_secs(100), by_rate };
        rig.step(Event::NodeConnected {
            node: N,
            hello: NodeHello {
                name: "n".into(),
                incarnation: 1,
                epoch_seen: Epoch(0),
                capacity: Resources::new(1 << 20, 1 << 20),
                runtimes: vec!["fake".into()],
                sandboxes: vec![],
                logs: 0,
            },
        });
        rig.step(Event::DataPlaneConnected {
            data_plane: D,
            hello: DataPlaneHello {
                name: "d".into(),
                address: "d".into(),
                incarnation: 1,
                epoch_seen: Epoch(0),
                leases: vec![],
                condemned: vec![],
            },
        });
        rig.step(Event::FunctionSet {
            id: RevisionId { function: F, number: 1 },
            spec: Arc::new(spec(scaling, vector.concurrency)),
        });
        rig
    }

    /// One second at this load. Nobody waits, so that the autoscaler alone decides.
    fn second(&mut self, load: f64) {
        let held: u32 = self.engine.beliefs().flat_map(|b| b.leases).map(|(_, slots)| slots).sum();
        let (concurrency_avg, arrivals) = if self.by_rate { (load / 1e3, load as u32) } else { (load, 0) };
        let in_flight = (concurrency_avg.ceil() as u32).min(held);
        let load = FunctionLoad {
            function: F,
            in_flight,
            concurrency_avg,
            arrivals,
            interval_s: 1.0,
            ..FunctionLoad::default()
        };
        let loads = if load.concurrency_avg > 0.0 { vec![load] } else { vec![] };
        self.said(FromDataPlane::Report(loads));
        self.now = self.now + Duration::from_secs(1);
        self.step(Event::Tick);
    }

    fn said(&mut self, message: FromDataPlane) {
        self.step(Event::FromDataPlane { data_plane: D, message, received: self.now });
    }

    fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        self.engine.step(self.now, event, &mut out);
        for command in out {
            match command {
                Command::Node { message: ToNode::Create { sandbox, .. }, .. } => {
                    let ready = FromNode::Ready { sandbox, endpoint: "e".into(), stages: Stages::default() };
                    self.step(Event::FromNode { node: N, message: ready });
                }
                Command::Node { message: ToNode::Stop { sandbox, .. }, .. } => {
                    let cause = GoneCause { exit: ExitCause::Stopped, log_tail: "".into() };
                    self.step(Event::FromNode { node: N, message: FromNode::Exited { sandbox, cause } });
                }
                Command::DataPlane { message: ToDataPlane::Retire { sandboxes, .. }, .. } => {
                    self.retire(sandboxes);
                }
                Command::DataPlane { message: ToDataPlane::Revoke { sandbox, .. }, .. } => {
                    self.said(FromDataPlane::Released { sandbox, slots: u32::MAX, retired: false });
                }
                _ => {}
            }
        }
    }

    /// The data plane gives back as many sandboxes as it is asked to.
    fn retire(&mut self, sandboxes: u32) {
        let held = self.engine.beliefs().filter(|belief| belief.serves && !belief.leases.is_empty());
        let chosen: Vec<(SandboxId, u32)> =
            held.take(sandboxes as usize).map(|b| (b.sandbox, b.concurrency)).collect();
        for (sandbox, slots) in chosen {
            self.said(FromDataPlane::Released { sandbox, slots, retired: true });
        }
    }
}

fn spec(scaling: Scaling, concurrency: u32) -> FunctionSpec {
    FunctionSpec {
        name: FunctionName::new("f").expect("a letter is a name"),
        runtime: "fake".into(),
        contract: Contract::Fake,
        code: None,
        env: vec![],
        given: Given::default(),
        sizing: Sizing { concurrency, request: Resources::new(1, 1), ..Sizing::default() },
        timeouts: Timeouts::default(),
        scaling,
        queue_limit: 1_000,
        balance: Default::default(),
    }
}
