//! A plan and the command line, as what the simulator takes.

use std::time::Duration;

use fanfare_api::{FunctionDocument, HandlerDocument, Quantity};
use fanfare_sim::{Arrival, Creation, Network, NodePlan, Scenario, Usage};
use fanfare_trace::Plan;
use fanfare_types::{FunctionName, FunctionSpec, Resources, Timestamp, limits};

use crate::args::{SettingsOfAll, SimArgs};
use crate::exit::Failure;
use crate::replay::functions;
use crate::settings::{PolicyArg, SettingsArgs};

/// How the functions' names begin, as those of `fanfare load` do.
const PREFIX: &str = "load";
/// From when functions are registered until load begins, beside the time that their first sandboxes take.
const LEAD: Duration = Duration::from_secs(1);
/// From when the last request must have been answered to the end.
const AFTER: Duration = Duration::from_secs(1);
/// How often nodes report CPU use, as their daemons do.
const USAGE_INTERVAL: Duration = Duration::from_secs(5);

/// Everything but the nodes.
pub(super) struct Base {
    scenario: Scenario,
    node: NodePlan,
    lead: Duration,
}

impl Base {
    /// The same load on so many nodes.
    pub(super) fn on(&self, nodes: u32) -> Scenario {
        Scenario { nodes: vec![self.node; nodes as usize], ..self.scenario.clone() }
    }

    /// When the plan begins.
    pub(super) fn lead(&self) -> Duration {
        self.lead
    }

    /// What the plan's functions are called.
    pub(super) fn names(&self) -> Vec<String> {
        self.scenario.functions.iter().map(|function| function.name.to_string()).collect()
    }
}

/// What is the same for every number of nodes.
pub(super) fn base(plan: &Plan, args: &SimArgs) -> Result<Base, Failure> {
    let cluster = &args.cluster;
    let capacity = Resources::new(cluster.node_cpus, cluster.node_memory);
    if let Some(cpus) = args.settings.cpu_request.filter(|cpus| *cpus > cluster.node_cpus) {
        let milli = |milli: u64| milli as f64 / 1e3;
        let (asked, there) = (milli(cpus), milli(cluster.node_cpus));
        return Err(Failure::usage(format!("no node holds --cpu-request {asked}: each has {there} CPUs"))
            .next("give more --node-cpus, or a smaller --cpu-request"));
    }
    let longest = cluster.create_delay + cluster.jitter;
    let lead = LEAD + longest;
    let timeout = args.settings.timeout.min(limits::REQUEST_TIMEOUT_MAX);
    let arrivals = plan.invocations.iter().map(|invocation| Arrival {
        at: at(lead + Duration::from_micros(invocation.at_us)),
        function: invocation.function as usize,
        execution: Some(Duration::from_millis(invocation.execution_ms.into())),
        leaves_after: None,
    });
    let scenario = Scenario {
        name: plan.source.clone(),
        control_planes: 1,
        data_planes: cluster.data_planes,
        nodes: Vec::new(),
        placement: args.placement(),
        functions: specs(plan, args, timeout)?,
        changes: Vec::new(),
        arrivals: arrivals.collect(),
        creation: Creation { min: cluster.create_delay, max: longest, failures_permille: 0 },
        network: Network { min: cluster.message_delay, max: cluster.message_delay },
        // Nobody else looks at it, and reading it takes its time.
        usage: (args.settings.policy == Some(PolicyArg::Hpa))
            .then_some(Usage { interval: USAGE_INTERVAL, cpu_milli: cluster.execution_cpu }),
        faults: None,
        end: at(lead + Duration::from_micros(plan.span_us) + timeout + AFTER),
        healed_at: None,
    };
    let node = NodePlan { capacity, creations_max: cluster.creations as usize };
    Ok(Base { scenario, node, lead })
}

fn at(since_begin: Duration) -> Timestamp {
    Timestamp::from_nanos(u64::try_from(since_begin.as_nanos()).unwrap_or(u64::MAX))
}

/// The functions, checked as every registration is.
fn specs(plan: &Plan, args: &SimArgs, timeout: Duration) -> Result<Vec<FunctionSpec>, Failure> {
    let prefix = FunctionName::new(PREFIX).map_err(|e| Failure::platform(e.to_string()))?;
    let most = functions::most_memory(plan);
    let settings = common(&args.settings);
    let spec = |(number, function): (usize, &fanfare_trace::PlanFunction)| {
        let mut document = FunctionDocument::new("fake", HandlerDocument::Fake {});
        document.name = functions::name(&prefix, number, &function.name);
        functions::fit(&mut document, function, most[number], args.cluster.node_memory, timeout);
        settings.apply(&mut document)?;
        let text = |given: &Option<String>| given.clone().map(Quantity::Text);
        document.scaling.stable_window = text(&args.settings.stable_window);
        document.scaling.tick = text(&args.settings.tick);
        document.scaling.target_utilization = args.settings.target_utilization;
        FunctionSpec::try_from(document).map_err(|error| named(&settings, error.into()))
    };
    plan.functions.iter().enumerate().map(spec).collect()
}

/// What `deploy` calls these settings.
fn common(given: &SettingsOfAll) -> SettingsArgs {
    SettingsArgs {
        profile: given.profile,
        policy: given.policy,
        concurrency: given.concurrency,
        metric: given.metric,
        target: given.target,
        scale_down_delay: given.scale_down_delay.clone(),
        cpu_request: given.cpu_request.map(|milli| format!("{milli}m")),
        queue_limit: given.queue_limit,
        balance: given.balance,
        ..SettingsArgs::default()
    }
}

/// A failure in the words of the command line.
fn named(settings: &SettingsArgs, failure: Failure) -> Failure {
    let mut failure = settings.name_flags(failure);
    for (field, flag) in [
        ("scaling.stable_window", "--stable-window"),
        ("scaling.tick", "--tick"),
        ("scaling.target_utilization", "--target-utilization"),
    ] {
        failure.what = failure.what.replacen(field, flag, 1);
    }
    failure
}
