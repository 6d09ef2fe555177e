//! `fanfare sim`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use fanfare_api::{BalanceName, MetricName, ProfileName};
use fanfare_policy::Placement;
use fanfare_types::limits;

use super::roles::{cpus, delay, memory, placement, seed};
use super::{NODES_MAX, PlanArgs, ReportOutputArgs, duration, number, whole};
use crate::settings::{PolicyArg, target, word};

/// Replay a trace, a plan or a rate in virtual time, on nodes that are not there: how many are needed?
///
/// The autoscaler, the placer, the queues and the nodes' bookkeeping are those that run in production. Machines, network
/// and user code are models: a creation takes --create-delay, a message --message-delay, and user code exactly as long as
/// the plan says, however busy its node is. What a node holds is decided by reservations: each sandbox has --cpu-request
/// and its function's memory. Nothing breaks. Numbers mean what they mean in `fanfare load`, and the same command prints
/// the same ones.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare sim --trace ./azure_500 --nodes 5,10,20,50
  fanfare sim --plan ./run1/plan.csv --nodes 10 --profile knative -o wide
  fanfare sim --rate 200 --duration 10m --execution 300ms --until-slowdown 2

Exit codes: 0 simulated, 1 no number of nodes meets --until-slowdown, 2 wrong command line")]
pub(crate) struct SimArgs {
    #[command(flatten)]
    pub(crate) what: PlanArgs,
    /// What everything is drawn from.
    ///
    /// Of a plan that is given, what the simulation leaves to chance.
    #[arg(long, value_name = "NUMBER", default_value_t = 42, value_parser = seed)]
    pub(crate) seed: u64,
    /// Write results and plan to this directory, new or empty.
    ///
    /// They are those of `fanfare load`; of several numbers of nodes, each has a directory nodes-N in it.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) out: Option<PathBuf>,
    /// So many nodes, or each of several numbers: 5,10,20,50.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10", value_parser = whole::<1, NODES_MAX>)]
    pub(crate) nodes: Vec<u32>,
    /// Find the fewest nodes that give at most this slowdown.
    ///
    /// No request may fail there, either. Numbers are doubled until they are enough, then halved.
    #[arg(long, value_name = "FACTOR", value_parser = slowdown, conflicts_with = "nodes")]
    pub(crate) until_slowdown: Option<f64>,
    /// With --until-slowdown: of half of the functions, or of 99 of 100.
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "WHICH",
        requires = "until_slowdown",
        hide_short_help = true
    )]
    pub(crate) slowdown_of: SlowdownOf,
    #[command(flatten)]
    pub(crate) output: ReportOutputArgs,
    // The last ones: their headings would hold for what follows.
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) settings: SettingsOfAll,
}

/// What is simulated beside the load.
#[derive(ClapArgs, Debug)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// CPUs of each node.
    #[arg(long, value_name = "CPUS", value_parser = cpus, default_value = "8")]
    pub(crate) node_cpus: u64,
    /// Memory of each node.
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "32GiB")]
    pub(crate) node_memory: u64,
    /// Time that a sandbox takes to come up.
    #[arg(long, value_name = "DURATION", value_parser = delay, default_value = "20ms")]
    pub(crate) create_delay: Duration,
    /// Up to so much more, by chance.
    #[arg(long, value_name = "DURATION", value_parser = delay, default_value = "0ms", hide_short_help = true)]
    pub(crate) jitter: Duration,
    /// How nodes are chosen for sandboxes [default: kubernetes; as dirigent: random].
    #[arg(long, value_name = "NAME", value_parser = placement())]
    pub(crate) placement: Option<Placement>,
    /// CPUs that user code takes while it works on a request, for --policy hpa.
    #[arg(long, value_name = "CPUS", value_parser = cpus, default_value = "1", hide_short_help = true)]
    pub(crate) execution_cpu: u64,
    /// Time of every message between roles, one way.
    #[arg(long, value_name = "DURATION", value_parser = message_delay, default_value = "50us", hide_short_help = true)]
    pub(crate) message_delay: Duration,
    /// Sandboxes that a node starts at once; others wait for their turn.
    #[arg(long, value_name = "N", value_parser = whole::<1, 10_000>, default_value_t = 64, hide_short_help = true)]
    pub(crate) creations: u32,
    /// Data planes, each of which gets its share of the requests.
    #[arg(long, value_name = "N", value_parser = whole::<1, 64>, default_value_t = 1, hide_short_help = true)]
    pub(crate) data_planes: u32,
}

/// Settings of all functions; memory and bounds of scale are the plan's.
#[derive(ClapArgs, Debug)]
#[command(next_help_heading = "Settings of all functions")]
pub(crate) struct SettingsOfAll {
    /// Whose defaults hold: fanfare, knative or dirigent.
    #[arg(long, value_name = "NAME", value_parser = word::<ProfileName>)]
    pub(crate) profile: Option<ProfileName>,
    /// What decides the scale [default: kpa].
    #[arg(long, value_enum, value_name = "NAME", hide_short_help = true)]
    pub(crate) policy: Option<PolicyArg>,
    /// Requests that one sandbox serves at once.
    #[arg(long, value_name = "N", value_parser = whole::<1, { limits::CONCURRENCY_MAX }>)]
    pub(crate) concurrency: Option<u32>,
    /// What is measured: concurrency or rps.
    #[arg(long, value_name = "NAME", value_parser = word::<MetricName>, hide_short_help = true)]
    pub(crate) metric: Option<MetricName>,
    /// What one sandbox should carry.
    #[arg(long, value_name = "NUMBER", value_parser = target, hide_short_help = true)]
    pub(crate) target: Option<f64>,
    /// Share of the target that is aimed at; with hpa, of --cpu-request [default: 1; with hpa: 0.8].
    #[arg(long, value_name = "SHARE", value_parser = utilization, hide_short_help = true)]
    pub(crate) target_utilization: Option<f64>,
    /// Window of the steady average [default: 60s].
    ///
    /// For so long, about, a sandbox outlives its load.
    #[arg(long, value_name = "DURATION")]
    pub(crate) stable_window: Option<String>,
    /// Time between decisions [default: 2s; with hpa: 15s].
    #[arg(long, value_name = "DURATION", hide_short_help = true)]
    pub(crate) tick: Option<String>,
    /// A lower count takes effect after so long [default: 0s].
    #[arg(long, value_name = "DURATION", hide_short_help = true)]
    pub(crate) scale_down_delay: Option<String>,
    /// CPUs that a sandbox reserves [default: 0.01].
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub(crate) cpu_request: Option<u64>,
    /// Requests of one function that may wait on one data plane.
    #[arg(long, value_name = "N", value_parser = whole::<1, { limits::QUEUE_LIMIT_MAX }>, hide_short_help = true)]
    pub(crate) queue_limit: Option<u32>,
    /// Choice among free slots: knative, least_loaded, round_robin, random, ch_rlu, hermod.
    #[arg(long, value_name = "NAME", value_parser = word::<BalanceName>, hide_short_help = true)]
    pub(crate) balance: Option<BalanceName>,
    /// From a request's arrival until it has failed.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "180s", hide_short_help = true)]
    pub(crate) timeout: Duration,
}

/// Of which functions slowdown is bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SlowdownOf {
    /// Of half of them.
    P50,
    /// Of 99 of 100.
    #[default]
    P99,
}

impl SimArgs {
    /// How nodes are chosen: as asked for, or as the profile has it.
    pub(crate) fn placement(&self) -> Placement {
        self.cluster.placement.unwrap_or(match self.settings.profile {
            Some(ProfileName::Dirigent) => Placement::Random,
            Some(ProfileName::Fanfare | ProfileName::Knative) | None => Placement::default(),
        })
    }
}

/// As wide as `hpa` allows; what the policy does not allow is refused with it.
fn utilization(text: &str) -> Result<f64, String> {
    number(text, 0.01, 100.0)
}

fn slowdown(text: &str) -> Result<f64, String> {
    number(text, 1.0, 1e6)
}

/// Longest time of a message: longer ones would be taken for lost.
const MESSAGE_DELAY_MAX: Duration = Duration::from_secs(1);

fn message_delay(text: &str) -> Result<Duration, String> {
    let delay = fanfare_api::parse_duration(text).filter(|delay| *delay <= MESSAGE_DELAY_MAX);
    delay.ok_or_else(|| "give a duration such as 50us, 0ms to 1s".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::args::{Args, taking_negative_numbers};

    #[test]
    fn what_cannot_be_simulated_is_refused_with_its_limits() {
        let cases = [
            (&["--nodes", "0"][..], "--nodes", "1 to 20000"),
            (&["--nodes", "5,20001"], "--nodes", "1 to 20000"),
            (&["--nodes", "5,"], "--nodes", "1 to 20000"),
            (&["--until-slowdown", "0.5"], "--until-slowdown", "1 to 1000000"),
            (&["--until-slowdown", "NaN"], "--until-slowdown", "1 to 1000000"),
            (&["--until-slowdown", "2", "--nodes", "5"], "--until-slowdown", "cannot be used with"),
            (&["--slowdown-of", "p50"], "--until-slowdown", "required"),
            (&["--until-slowdown", "2", "--slowdown-of", "p98"], "--slowdown-of", "p50, p99"),
            (&["--node-cpus", "0"], "--node-cpus", "0.001 to 65536"),
            (&["--node-memory", "1KiB"], "--node-memory", "8 MiB to 256 TiB"),
            (&["--create-delay", "2h"], "--create-delay", "0ms to 1h"),
            (&["--jitter", "x"], "--jitter", "0ms to 1h"),
            (&["--message-delay", "2s"], "--message-delay", "0ms to 1s"),
            (&["--creations", "0"], "--creations", "1 to 10000"),
            (&["--data-planes", "65"], "--data-planes", "1 to 64"),
            (&["--placement", "best"], "--placement", "kubernetes"),
            (&["--profile", "lambda"], "--profile", "fanfare, knative, dirigent"),
            (&["--policy", "fixed"], "--policy", "kpa, hpa"),
            (&["--target-utilization", "0"], "--target-utilization", "0.01 to 100"),
            (&["--execution-cpu", "0"], "--execution-cpu", "0.001 to 65536"),
            (&["--concurrency", "1001"], "--concurrency", "1 to 1000"),
            (&["--target", "0"], "--target", "0.01 to 1000000"),
            (&["--metric", "cpu"], "--metric", "concurrency or rps"),
            (&["--balance", "fair"], "--balance", "knative, least_loaded"),
            (&["--queue-limit", "0"], "--queue-limit", "1 to 1000000"),
            (&["--cpu-request", "0"], "--cpu-request", "0.001 to 65536"),
            (&["--timeout", "0s"], "--timeout", "above 0"),
            (&["--seed", "-1"], "--seed", "0 to 18446744073709551615"),
            (&["--function", "hello"], "--function", "unexpected"),
        ];
        for (line, flag, limits) in cases {
            let line = ["fanfare", "sim", "--plan", "x"].iter().chain(line);
            let told = taking_negative_numbers(Args::command()).try_get_matches_from(line.clone());
            let told = told.unwrap_err().to_string();
            assert!(told.contains(flag) && told.contains(limits), "{line:?}: {told}");
        }
    }

    #[test]
    fn its_help_is_read_on_one_screen() {
        let mut command = Args::command();
        let sim = command.find_subcommand_mut("sim").unwrap();
        let help = sim.render_help().to_string();
        assert!((20..=50).contains(&help.lines().count()), "{} lines:\n{help}", help.lines().count());
    }
}
