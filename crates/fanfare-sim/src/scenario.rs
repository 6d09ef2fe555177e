//! What is simulated.

use std::time::Duration;

use fanfare_policy::Placement;
use fanfare_types::{FunctionSpec, Resources, Timestamp};

/// One world and what comes upon it. What chance decides is decided by the seed of the run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// For the reader.
    pub name: String,
    /// Control planes; one leads, the others stand by.
    pub control_planes: u32,
    /// Data planes, all of which take requests.
    pub data_planes: u32,
    /// Nodes.
    pub nodes: Vec<NodePlan>,
    /// How nodes are chosen.
    pub placement: Placement,
    /// Functions, registered at the start. Changes and arrivals name them by their index.
    pub functions: Vec<FunctionSpec>,
    /// What users do to functions, in any order.
    pub changes: Vec<PlannedChange>,
    /// Requests, in order of time.
    pub arrivals: Vec<Arrival>,
    /// How long creations take.
    pub creation: Creation,
    /// How long messages take.
    pub network: Network,
    /// How nodes measure CPU use; `None`: they do not.
    pub usage: Option<Usage>,
    /// What goes wrong; `None`: nothing, and then nobody watches who lives, which makes long runs cheap.
    pub faults: Option<Faults>,
    /// When the run ends. With faults, everything must have healed by then.
    pub end: Timestamp,
    /// Requests that arrive from then on must be answered by their function: the world has healed, and has room.
    pub healed_at: Option<Timestamp>,
}

/// CPU use, as nodes measure and report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Between two reports. A sandbox is in its second one for the first time: use is what has been used since the one
    /// before.
    pub interval: Duration,
    /// What user code takes while it works on a request, in thousandths of a CPU, however busy its node is.
    pub cpu_milli: u64,
}

/// A node.
#[derive(Clone, Copy, Debug)]
pub struct NodePlan {
    /// What it offers.
    pub capacity: Resources,
    /// Sandboxes that it starts at once.
    pub creations_max: usize,
}

/// Something that a user does.
#[derive(Clone, Debug)]
pub struct PlannedChange {
    /// When; it is tried again until a leader has taken it.
    pub at: Timestamp,
    /// The function's index.
    pub function: usize,
    /// What.
    pub change: Change,
}

/// What a user does to a function.
#[derive(Clone, Debug)]
pub enum Change {
    /// Gives it a new revision.
    Update(Box<FunctionSpec>),
    /// Asks whether its latest revision starts.
    Prepare,
    /// Deletes it.
    Remove,
    /// Registers it again, after a removal, under its name.
    Register(Box<FunctionSpec>),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When it reaches a data plane.
    pub at: Timestamp,
    /// The function's index.
    pub function: usize,
    /// How long user code takes; `None`: until it is killed.
    pub execution: Option<Duration>,
    /// When its client loses patience.
    pub leaves_after: Option<Duration>,
}

/// How long a node takes to start a sandbox, drawn evenly, and how often it fails to.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    /// At least.
    pub min: Duration,
    /// At most.
    pub max: Duration,
    /// Of a thousand, so many fail while faults last.
    pub failures_permille: u32,
}

/// How long messages are on their way, drawn evenly.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// At least.
    pub min: Duration,
    /// At most.
    pub max: Duration,
}

/// What goes wrong, and for how long.
#[derive(Clone, Debug)]
pub struct Faults {
    /// From then on.
    pub from: Timestamp,
    /// Until then: everything that was broken is mended at that moment.
    pub until: Timestamp,
    /// Mean time between two faults.
    pub every: Duration,
    /// Kinds with their weights.
    pub kinds: Vec<(Fault, u32)>,
    /// Clocks run fast or slow by up to so many microseconds in a second, also after the faults.
    pub drift_ppm: i32,
}

/// A kind of fault. Whom it meets and how hard is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A stream breaks; what was on it is lost.
    CutStream,
    /// Two roles cannot reach each other for a while, in one direction or both.
    Partition,
    /// One role cannot reach anybody.
    Isolation,
    /// Messages between two roles take long for a while, so that others overtake them.
    Slowness,
    /// A control plane is killed, and comes back later.
    KillControl,
    /// A data plane is killed, and comes back later.
    KillPlane,
    /// A data plane shuts down in good order, and comes back.
    DrainPlane,
    /// A node daemon is killed and comes back; its ready sandboxes live on.
    KillDaemon,
    /// A node's machine is lost with all that runs there, and comes back empty.
    LoseMachine,
    /// A process stands still for a while.
    Stall,
    /// A process's clock leaps ahead.
    Leap,
    /// A sandbox ends by itself.
    EndSandbox,
}
