//! Verbs that run a role, and those that look at the machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args as ClapArgs};
use fanfare_policy::Placement;
use fanfare_sandbox::fake::FakeOptions;
use fanfare_types::limits::PEER_NAME_BYTES_MAX;
use fanfare_types::{Resources, given_peer_name, is_peer_name, limits};

use crate::args::{AsyncKeepArgs, DirigentArgs, ReportOutputArgs, TlsArgs, whole};
use crate::exit::Failure;
use crate::printer::{Printer, human_bytes};
use crate::roles::Sandboxes;
use crate::{dirs, roles};

/// Run everything on this machine: control plane, data plane and node in one process.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare up
  fanfare up --cpus 4 --memory 8GiB --listen 0.0.0.0:8080
  fanfare up --emulate 1000 --create-delay 40ms")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) secrets_key: SecretsKeyArgs,
    #[command(flatten)]
    pub(crate) capacity: CapacityArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Where functions are called.
    #[arg(long, default_value_t = DATA_PLANE_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) listen: SocketAddr,
    /// Where the control API listens. Anyone who reaches it may do anything.
    #[arg(long, default_value_t = API_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) api_listen: SocketAddr,
    /// Where more nodes and data planes connect.
    #[arg(long, default_value_t = LINK_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) grpc_listen: SocketAddr,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    #[command(flatten)]
    pub(crate) keep: AsyncKeepArgs,
    #[command(flatten)]
    pub(crate) dirigent: DirigentArgs,
    // The last one: its heading would hold for what follows.
    #[command(flatten)]
    pub(crate) emulate: EmulateArgs,
}

/// Start everything in a temporary directory, call it cold, warm and all at once, and print what it took.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare demo
  fanfare demo -o json")]
pub(crate) struct DemoArgs {
    /// Requests in the surge.
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = whole::<1, 2_000>)]
    pub(crate) surge: u32,
    #[command(flatten)]
    pub(crate) output: ReportOutputArgs,
}

/// Check this machine: interpreters, isolation, ports, directories, and what was left behind.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare doctor
  fanfare doctor --listen 127.0.0.1:18080 --api-listen 127.0.0.1:19091
  fanfare doctor --strict && systemctl start fanfare
  fanfare doctor -o json

Exit codes: 0 functions can run here, 1 something is lacking (with --strict), 3 nothing works or something is left behind")]
pub(crate) struct DoctorArgs {
    /// End with 1 where anything is lacking, though functions can run.
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    /// Where functions are, or are to be, called.
    #[arg(long, default_value_t = DATA_PLANE_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) listen: SocketAddr,
    /// Where the control API listens, or is to.
    #[arg(long, default_value_t = API_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) api_listen: SocketAddr,
    /// Where nodes and data planes connect, or are to.
    #[arg(long, default_value_t = LINK_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) grpc_listen: SocketAddr,
    #[command(flatten)]
    pub(crate) output: ReportOutputArgs,
}

/// Run a control plane: it decides.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare control-plane
  fanfare control-plane --grpc-listen 10.0.0.1:9090")]
pub(crate) struct ControlPlaneArgs {
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
    #[command(flatten)]
    pub(crate) secrets_key: SecretsKeyArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Its name.
    #[arg(long, default_value = "control-plane")]
    pub(crate) name: String,
    /// Where the control API listens. Anyone who reaches it may do anything.
    #[arg(long, default_value_t = API_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) api_listen: SocketAddr,
    /// Where nodes and data planes connect. Anyone who reaches it may join.
    #[arg(long, default_value_t = LINK_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) grpc_listen: SocketAddr,
    #[command(flatten)]
    pub(crate) dirigent: DirigentArgs,
}

/// Run a data plane: it carries requests to functions.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare data-plane --control-plane http://127.0.0.1:9090
  fanfare data-plane --take-over
  fanfare data-plane --control-plane http://10.0.0.1:9090 --listen 0.0.0.0:8080 --address 10.0.0.2:8080")]
pub(crate) struct DataPlaneArgs {
    #[command(flatten)]
    pub(crate) join: JoinArgs,
    /// Where functions are called.
    #[arg(long, default_value_t = DATA_PLANE_ADDRESS, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) listen: SocketAddr,
    /// Where clients and other data planes reach it [default: where it listens].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    /// Sockets [default: /run/fanfare as root, else $XDG_RUNTIME_DIR/fanfare].
    #[arg(long, env = "FANFARE_RUN_DIR", value_name = "DIRECTORY")]
    run_dir: Option<PathBuf>,
    /// Replace the data plane of this name that runs here, if one does, without refusing a connection: it hands over
    /// its listening sockets, finishes what it has, and ends.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Threads that serve requests [default: one per CPU].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = whole::<0, 1_024>)]
    pub(crate) threads: u32,
    /// Where GET /metrics is answered, for Prometheus [default: nowhere]. Whoever reaches it learns functions' names.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
    #[command(flatten)]
    pub(crate) keep: AsyncKeepArgs,
}

impl DataPlaneArgs {
    /// What is given or chosen, absolute.
    pub(crate) fn run_dir(&self) -> Result<PathBuf, Failure> {
        dirs::absolute(self.run_dir.as_deref(), "--run-dir", dirs::run_dir)
    }
}

/// Run a node daemon: it makes the sandboxes of this machine.
#[derive(ClapArgs, Debug)]
#[command(before_help = "\
Examples:
  fanfare node --control-plane http://127.0.0.1:9090
  fanfare node --control-plane http://10.0.0.1:9090 --cpus 8 --memory 16GiB
  fanfare node --name load --emulate 5000 --create-delay 40ms --jitter 10ms --failure-rate 0.01")]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    pub(crate) join: JoinArgs,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) capacity: CapacityArgs,
    #[command(flatten)]
    pub(crate) emulate: EmulateArgs,
}

/// How requests are traced.
#[derive(ClapArgs, Clone, Debug, Default)]
pub(crate) struct TraceArgs {
    /// Where spans of requests go, over OTLP (HTTP with JSON), e.g. http://HOST:4318.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", value_parser = endpoint)]
    otlp_endpoint: Option<String>,
    /// Which share of the requests that have no trace context begins a trace, 0 to 1.
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG", value_name = "RATIO", default_value_t = 1.0, value_parser = ratio)]
    trace_ratio: f64,
}

impl TraceArgs {
    /// As the data plane takes it.
    pub(crate) fn options(&self) -> Option<fanfare_data_plane::TraceOptions> {
        let endpoint = self.otlp_endpoint.clone()?;
        Some(fanfare_data_plane::TraceOptions { endpoint, ratio: self.trace_ratio })
    }
}

fn endpoint(text: &str) -> Result<String, String> {
    let url: http::Uri = text.parse().map_err(|e| format!("this is no URL: {e}"))?;
    match (url.scheme_str(), url.authority()) {
        (Some("http"), Some(_)) => Ok(text.to_owned()),
        _ => Err("give it as http://HOST:PORT".to_owned()),
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| "give a number from 0 to 1".to_owned())?;
    if (0.0..=1.0).contains(&ratio) { Ok(ratio) } else { Err("give a number from 0 to 1".to_owned()) }
}

/// Which control plane a role belongs to, and under which name.
#[derive(ClapArgs, Debug)]
pub(crate) struct JoinArgs {
    /// Where the control plane's streams are.
    #[arg(long, env = "FANFARE_CONTROL_PLANE", default_value = "http://127.0.0.1:9090", value_name = "URL")]
    pub(crate) control_plane: String,
    /// Its name, the same after a restart [default: this machine's].
    #[arg(long, value_parser = peer_name)]
    pub(crate) name: Option<String>,
}

fn peer_name(text: &str) -> Result<String, String> {
    match is_peer_name(text) {
        true if given_peer_name(text) != text => {
            Err("names that end in :1 to :7 are those of data planes that have taken over".to_owned())
        }
        true => Ok(text.to_owned()),
        false => Err(format!("give 1 to {PEER_NAME_BYTES_MAX} of a-z A-Z 0-9 . _ : -")),
    }
}

/// Where things are kept that outlive a restart.
#[derive(ClapArgs, Debug)]
pub(crate) struct DataDirArgs {
    /// What outlives a restart [default: /var/lib/fanfare as root; else $XDG_STATE_HOME/fanfare,
    /// ~/.local/state/fanfare, or /tmp/fanfare-UID/state].
    #[arg(long, env = "FANFARE_DATA_DIR", value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
}

/// Where things are kept.
#[derive(ClapArgs, Debug)]
pub(crate) struct DirArgs {
    #[command(flatten)]
    data: DataDirArgs,
    /// Sockets and journals [default: as root /run/fanfare, or /dev/shm/fanfare where /run is on a disk; else
    /// $XDG_RUNTIME_DIR/fanfare, or /tmp/fanfare-UID/run].
    #[arg(long, env = "FANFARE_RUN_DIR", value_name = "DIRECTORY")]
    run_dir: Option<PathBuf>,
}

/// Where the key is that secrets are sealed with.
#[derive(ClapArgs, Debug)]
pub(crate) struct SecretsKeyArgs {
    /// The key that secrets are sealed with, mode 0600; made when the first secret is set [default: secrets.key in the
    /// data directory].
    #[arg(long, env = "FANFARE_SECRETS_KEY_FILE", value_name = "FILE", hide_short_help = true)]
    secrets_key_file: Option<PathBuf>,
}

impl SecretsKeyArgs {
    /// What is given, or else its place in the data directory.
    pub(crate) fn path(&self, data_dir: &std::path::Path) -> PathBuf {
        self.secrets_key_file.clone().unwrap_or_else(|| data_dir.join("secrets.key"))
    }
}

impl DataDirArgs {
    /// What is given or chosen, absolute.
    pub(crate) fn data_dir(&self) -> Result<PathBuf, Failure> {
        dirs::absolute(self.data_dir.as_deref(), "--data-dir", dirs::data_dir)
    }
}

impl DirArgs {
    /// What is given or chosen, absolute.
    pub(crate) fn data_dir(&self) -> Result<PathBuf, Failure> {
        self.data.data_dir()
    }

    /// What is given or chosen, absolute.
    pub(crate) fn run_dir(&self) -> Result<PathBuf, Failure> {
        dirs::absolute(self.run_dir.as_deref(), "--run-dir", dirs::run_dir)
    }
}

/// What holds for the whole cluster.
#[derive(ClapArgs, Debug)]
pub(crate) struct PolicyArgs {
    /// How nodes are chosen for sandboxes.
    #[arg(long, value_name = "NAME", default_value_t, value_parser = placement())]
    pub(crate) placement: Placement,
}

/// Sandboxes that nothing runs in.
#[derive(ClapArgs, Debug)]
#[command(next_help_heading = "Emulation", group = ArgGroup::new("emulation").args(["emulate", "fake"]))]
pub(crate) struct EmulateArgs {
    /// Stand for N nodes, each with these CPUs and this memory, whose runtime is `fake`: sandboxes answer over HTTP
    /// and run nothing.
    #[arg(long, value_name = "N", value_parser = whole::<1, NODES_MAX>)]
    emulate: Option<u32>,
    /// Offer the runtime `fake` beside the real one.
    #[arg(long)]
    fake: bool,
    /// Time that a fake sandbox takes to come up, e.g. 40ms.
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = delay, requires = "emulation")]
    create_delay: Duration,
    /// Up to so much more, by chance.
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = delay, requires = "emulation")]
    jitter: Duration,
    /// Share of fake sandboxes that fail to come up, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share, requires = "emulation")]
    failure_rate: f64,
    /// What chance is drawn from: the same for the same run.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = seed, requires = "emulation")]
    seed: u64,
}

/// Nodes whose names a control plane keeps.
pub(crate) const NODES_MAX: u32 = 20_000;

impl EmulateArgs {
    /// Which sandboxes a node makes.
    pub(crate) fn sandboxes(&self) -> Sandboxes {
        let fake = FakeOptions {
            create_delay: self.create_delay,
            jitter: self.jitter,
            failure_rate: self.failure_rate,
            seed: self.seed,
            ..FakeOptions::default()
        };
        match self.emulate {
            Some(nodes) => Sandboxes::Emulated { nodes: nodes as usize, fake },
            None => Sandboxes::Real { fake: self.fake.then_some(fake) },
        }
    }
}

/// What this machine offers.
#[derive(ClapArgs, Debug)]
pub(crate) struct CapacityArgs {
    /// CPUs for sandboxes, e.g. 3.5 [default: all].
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub(crate) cpus: Option<u64>,
    /// Memory for sandboxes, e.g. 8GiB [default: three quarters].
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<u64>,
    /// How much of installed dependencies is kept; beyond it, what nobody uses goes.
    #[arg(long, value_name = "SIZE", value_parser = deps_bytes, default_value = "10GiB")]
    pub(crate) deps_max: u64,
}

impl CapacityArgs {
    /// What is given, and the machine's for what is not.
    pub(crate) fn resources(&self) -> Resources {
        let machine = roles::machine();
        Resources::new(self.cpus.unwrap_or(machine.cpu_milli), self.memory.unwrap_or(machine.memory_bytes))
    }

    /// Warns where more is offered for real sandboxes than this machine has: allowed, as few use what they reserve.
    pub(crate) fn warn_of_more_than_there_is(&self, sandboxes: Sandboxes, printer: Printer) {
        if let Sandboxes::Real { .. } = sandboxes {
            let there = roles::whole_machine();
            beyond(self.resources(), there).iter().for_each(|more| printer.warning(more));
        }
    }
}

/// An address with its port. Names are not looked up: one may have several addresses.
fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an IP address and a port, e.g. 127.0.0.1:8080 or [::1]:8080".to_owned())
}

/// Where functions are called, unless told otherwise.
pub(crate) const DATA_PLANE_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Where the control API listens, unless told otherwise.
pub(crate) const API_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9091);
/// Where nodes and data planes connect, unless told otherwise.
pub(crate) const LINK_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// What is offered beyond what is there.
fn beyond(offered: Resources, there: Resources) -> Vec<String> {
    let mut beyond = Vec::new();
    if offered.cpu_milli > there.cpu_milli {
        let (offered, there) = (offered.cpu_milli as f64 / 1e3, there.cpu_milli as f64 / 1e3);
        beyond.push(format!("--cpus {offered}: this machine has {there}; sandboxes will share them"));
    }
    if offered.memory_bytes > there.memory_bytes {
        let (offered, there) = (human_bytes(offered.memory_bytes), human_bytes(there.memory_bytes));
        beyond.push(format!(
            "--memory {offered}: this machine has {there}; sandboxes that use what they reserve may be killed"
        ));
    }
    beyond
}

pub(super) fn cpus(text: &str) -> Result<u64, String> {
    let cpus = fanfare_api::parse_cpus(text).filter(|milli| (1..=limits::NODE_CPU_MAX_MILLI).contains(milli));
    let most = limits::NODE_CPU_MAX_MILLI / 1_000;
    cpus.ok_or_else(|| format!("give CPUs such as 2, 0.5 or 500m, 0.001 to {most}"))
}

pub(super) fn memory(text: &str) -> Result<u64, String> {
    size(text, limits::NODE_MEMORY_MIN_BYTES, limits::NODE_MEMORY_MAX_BYTES)
}

fn deps_bytes(text: &str) -> Result<u64, String> {
    size(text, limits::DEPS_BYTES_KEPT_MIN, limits::DEPS_BYTES_KEPT_MAX)
}

fn size(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let bytes = fanfare_api::parse_bytes(text).filter(|bytes| (min..=max).contains(bytes));
    let (min, max) = (human_bytes(min), human_bytes(max));
    bytes.ok_or_else(|| format!("give a size such as 512MiB or 8GiB, {min} to {max}"))
}

pub(super) fn delay(text: &str) -> Result<Duration, String> {
    let delay = fanfare_api::parse_duration(text).filter(|delay| *delay <= limits::START_TIMEOUT_MAX);
    delay.ok_or_else(|| "give a duration such as 40ms, 0ms to 1h".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "give a share from 0 to 1, such as 0.01".to_owned())
}

pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("give a whole number from 0 to {}", u64::MAX))
}

pub(crate) fn placement() -> impl TypedValueParser<Value = Placement> {
    let names = PossibleValuesParser::new(Placement::ALL.map(Placement::name));
    names.try_map(|name| name.parse::<Placement>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_said() {
        let there = Resources::new(2_000, 4 << 30);
        assert!(beyond(there, there).is_empty());
        let told = beyond(Resources::new(2_001, 100 << 40), there);
        assert!(told[0].contains("--cpus 2.001: this machine has 2"), "{told:?}");
        assert!(told[1].contains("--memory 100 TiB: this machine has 4 GiB"), "{told:?}");
    }
}
