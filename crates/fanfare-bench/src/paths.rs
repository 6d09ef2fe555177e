//! What may be between a load generator and the same program: nothing, nginx, HAProxy, or the platform.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use fanfare_api::{FunctionDocument, HandlerDocument, PolicyName};
use hdrhistogram::Histogram;

use crate::affinity::{self, Plan};
use crate::bench::Bench;
use crate::caller::get;
use crate::error::{Context, Result};
use crate::h2load::H2Loader;
use crate::haproxy::{self, Haproxy};
use crate::load::{Loader, Repeat};
use crate::nginx::{self, Nginx};
use crate::platform::{Home, Platform};
use crate::plot::{Axis, Line, Plot};
use crate::process::Daemon;
use crate::procfs;
use crate::proxy::{Http, Server};
use crate::report::{Limit, Report};
use crate::socket::Target;
use crate::{package, ports, upstream};

/// The function's name.
const FUNCTION: &str = "warm";
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that one sandbox of the function serves at once.
const CONCURRENCY: u32 = 1_000;

/// What is between the load generator and the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Direct,
    NginxUnix,
    NginxTcp,
    HaproxyUnix,
    HaproxyTcp,
    Fanfare,
}

pub(crate) const PATHS: [Path; 6] =
    [Path::Direct, Path::NginxUnix, Path::NginxTcp, Path::HaproxyUnix, Path::HaproxyTcp, Path::Fanfare];

impl Path {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Path::Direct => "direct",
            Path::NginxUnix => "nginx, unix upstream",
            Path::NginxTcp => "nginx, TCP upstream",
            Path::HaproxyUnix => "HAProxy, unix upstream",
            Path::HaproxyTcp => "HAProxy, TCP upstream",
            Path::Fanfare => "fanfare",
        }
    }
}

/// What one path did in one round.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    path: Path,
    /// In nanoseconds.
    latencies: Histogram<u64>,
    rps: f64,
    /// Of the proxy; of the upstream where there is none.
    cpu_us: f64,
}

/// All paths, running.
pub(crate) struct Paths {
    http: Http,
    upstream: Daemon,
    nginx: Nginx,
    haproxy: Haproxy,
    platform: Platform,
    targets: [(Path, Target); PATHS.len()],
}

/// How long each path is warmed up and measured in a round.
pub(crate) fn spans(bench: &Bench, http: Http) -> (Duration, Duration) {
    let full = match http {
        Http::One => (200, 1_000),
        Http::Two => (150, 700),
    };
    let (warm_up, span) = bench.either(full, (50, 100));
    (Duration::from_millis(warm_up), Duration::from_millis(span))
}

impl Paths {
    /// Starts everything, for clients that speak this.
    pub(crate) fn start(bench: &Bench, http: Http) -> Result<Paths> {
        let pins = bench.pins.as_ref();
        let socket = bench.dir().join("upstream");
        let addresses = ports::free(6)?;
        let (tcp, unix) = (Target::Tcp(addresses[0]), Target::Unix(socket.clone()));
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args([
            upstream::ARGUMENT,
            &format!("unix:{}", socket.display()),
            &format!("tcp:{}", addresses[0]),
            &format!("h2:{}", addresses[5]),
        ]);
        let log = bench.dir().join("upstream.log");
        let mut upstream = Daemon::start("the upstream", command, &log, pins.map(|p| &p.upstream[..]))?;
        upstream.until("it listens", START_TIMEOUT, || std::net::TcpStream::connect(addresses[0]).ok())?;
        let dir = bench.dir().join("nginx");
        fs::create_dir(&dir).context(dir.display())?;
        let server =
            |at: usize, upstream: &Target| Server { address: addresses[at], upstream: upstream.clone() };
        let servers = [server(1, &unix), server(2, &tcp)];
        let nginx = Nginx::start(&dir, http, &servers, pins.map(|p| &p.proxy[..]))?;
        let dir = bench.dir().join("haproxy");
        fs::create_dir(&dir).context(dir.display())?;
        let servers = [server(3, &unix), server(4, &tcp)];
        let haproxy = Haproxy::start(&dir, http, &servers, pins.map(|p| &p.proxy[..]))?;
        let platform = platform(bench)?;
        let direct = match http {
            Http::One => tcp,
            Http::Two => Target::Tcp(addresses[5]),
        };
        let targets = [
            (Path::Direct, direct),
            (Path::NginxUnix, Target::Tcp(addresses[1])),
            (Path::NginxTcp, Target::Tcp(addresses[2])),
            (Path::HaproxyUnix, Target::Tcp(addresses[3])),
            (Path::HaproxyTcp, Target::Tcp(addresses[4])),
            (Path::Fanfare, platform.functions().clone()),
        ];
        Ok(Paths { http, upstream, nginx, haproxy, platform, targets })
    }

    /// All paths in random order, with so many requests under way.
    pub(crate) fn round(&self, bench: &mut Bench, requests: usize) -> Result<Vec<Round>> {
        let paths = bench.shuffled(&PATHS);
        paths.into_iter().map(|path| self.one(bench, path, requests).context(path.describe())).collect()
    }

    fn one(&self, bench: &Bench, path: Path, requests: usize) -> Result<Round> {
        let target =
            self.targets.iter().find(|(of, _)| *of == path).map_or(self.platform.functions(), |(_, t)| t);
        let pins = bench.pins.as_ref().map(|p| &p.load[..]);
        // The same on every path.
        let url = format!("/function/{FUNCTION}/");
        let (warm_up, span) = spans(bench, self.http);
        affinity::with(pins, || {
            let (latencies, elapsed, cpu) = match (self.http, target) {
                (Http::Two, Target::Tcp(address)) => {
                    let mut loader = H2Loader::connect(*address)?;
                    loader.run(&url, requests, Instant::now() + warm_up)?;
                    let before = self.cpu_time(path)?;
                    let (latencies, elapsed) = loader.run(&url, requests, Instant::now() + span)?;
                    (latencies, elapsed, self.cpu_time(path)?.saturating_sub(before))
                }
                _ => {
                    let mut loader = Loader::connect(target, requests)?;
                    loader.run(&mut Repeat::new(get(&url))?, Some(Instant::now() + warm_up))?;
                    let mut work = Repeat::new(get(&url))?;
                    let before = self.cpu_time(path)?;
                    let elapsed = loader.run(&mut work, Some(Instant::now() + span))?;
                    (work.latencies, elapsed, self.cpu_time(path)?.saturating_sub(before))
                }
            };
            let answers = latencies.len() as f64;
            let (rps, cpu_us) = (answers / elapsed.as_secs_f64(), cpu.as_secs_f64() * 1e6 / answers);
            Ok(Round { path, latencies, rps, cpu_us })
        })
    }

    fn cpu_time(&self, path: Path) -> Result<Duration> {
        match path {
            Path::Direct => procfs::cpu_time(self.upstream.pid()),
            Path::NginxUnix | Path::NginxTcp => self.nginx.cpu_time(),
            Path::HaproxyUnix | Path::HaproxyTcp => self.haproxy.cpu_time(),
            Path::Fanfare => procfs::cpu_time(self.platform.pid()),
        }
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.upstream.kill();
        self.nginx.stop()?;
        self.haproxy.stop()?;
        self.platform.stop().map(|_| ())
    }
}

/// The function, ready and on the same CPU as the upstream of the others.
fn platform(bench: &Bench) -> Result<Platform> {
    let pins = bench.pins.as_ref();
    let mut platform = Platform::start(Home::new(bench.dir())?, pins.map(|p| &p.proxy[..]))?;
    let package = package::program(&std::env::current_exe().context("find this program")?, "upstream")?;
    let command = vec!["./upstream".to_owned(), upstream::ARGUMENT.to_owned()];
    let mut document = FunctionDocument::new(
        FUNCTION,
        HandlerDocument::Http { command, inherits_listener: true, protocol: Default::default() },
    );
    document.code = Some(package.digest.to_string());
    document.concurrency = Some(CONCURRENCY);
    document.scaling.policy = Some(PolicyName::Fixed);
    document.scaling.count = Some(1);
    platform.api.upload(&package)?;
    platform.api.deploy(&document)?;
    platform.until_ready(1)?;
    if let Some(plan) = pins {
        for pid in platform.processes(upstream::ARGUMENT) {
            affinity::pin(pid, &plan.upstream)?;
        }
    }
    Ok(platform)
}

/// Versions of the peers.
pub(crate) fn peers() -> (String, String) {
    (nginx::version(), haproxy::version())
}

/// Sentences that hold for every bench over these paths.
pub(crate) fn describe(bench: &Bench, report: &mut Report) {
    let (nginx, haproxy) = peers();
    report.say(format!(
        "All paths end at the same program (hyper 1, one thread, 12 bytes to everything), which proxies ask by HTTP/1.1. \
         For fanfare it runs as a function: contract `http`, inherited listener, concurrency {CONCURRENCY}, one sandbox \
         with all its isolation. For {nginx}, {haproxy} and direct it runs outside any sandbox, on a unix and a TCP \
         socket; direct is TCP."
    ));
    report.say(format!("Pinning: {}.", Plan::describe(bench.pins.as_ref())));
    report.say(
        "CPU is that of the proxy: all of `fanfare up` (control plane, data plane and node), all of nginx (master and \
         one worker), HAProxy's one process (one thread); for direct that of the upstream.",
    );
}

/// One number of a round.
type Field = fn(&Round) -> f64;

const P50: Field = |round| round.latencies.value_at_quantile(0.50) as f64 / 1e3;
const P99: Field = |round| round.latencies.value_at_quantile(0.99) as f64 / 1e3;
const RPS: Field = |round| round.rps;
const CPU: Field = |round| round.cpu_us;

/// What was found with so many requests under way. `promised`: whether the budgets beside nginx are for this.
pub(crate) fn tell(report: &mut Report, group: &str, rounds: &[Round], promised: bool) -> Result<()> {
    let of = |path: Path, field: Field| -> Vec<f64> {
        rounds.iter().filter(|round| round.path == path).map(field).collect()
    };
    let fields: [(&str, &'static str, Field); 4] = [
        ("latency p50", "us", P50),
        ("latency p99", "us", P99),
        ("throughput", "req/s", RPS),
        ("CPU per request", "us", CPU),
    ];
    for (what, unit, field) in fields {
        for path in PATHS {
            report.measure(group, format!("{what}, {}", path.describe()), unit, &of(path, field))?;
        }
    }
    let added: Vec<f64> = of(Path::Fanfare, P50)
        .iter()
        .zip(of(Path::Direct, P50))
        .map(|(with, without)| with - without)
        .collect();
    report.measure(group, "latency p50 added to direct", "us", &added)?;
    let limits = [
        ("CPU per request", CPU, Limit::AtMost(1.0)),
        ("throughput", RPS, Limit::AtLeast(1.0)),
        ("latency p99", P99, Limit::AtMost(1.2)),
    ];
    for peer in [Path::NginxUnix, Path::NginxTcp, Path::HaproxyUnix, Path::HaproxyTcp] {
        for (what, field, limit) in limits {
            let name = format!("{what}, fanfare / {}", peer.describe());
            let ratio = report.ratio(group, &name, &of(Path::Fanfare, field), &of(peer, field))?;
            // What is promised is promised beside nginx.
            if promised && matches!(peer, Path::NginxUnix | Path::NginxTcp) {
                report.budget(format!("{group}: {name}"), ratio.p50, "×", limit);
            }
        }
    }
    Ok(())
}

/// Latencies of all rounds, a line for each path.
pub(crate) fn plot(name: &'static str, title: String, rounds: &[Round]) -> Plot {
    let line = |path: Path| {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut all: Option<Histogram<u64>> = None;
        for round in rounds.iter().filter(|round| round.path == path) {
            match &mut all {
                // Both have the same bounds.
                Some(all) => drop(all.add(&round.latencies)),
                None => all = Some(round.latencies.clone()),
            }
        }
        let mut seen = 0;
        for value in all.iter().flat_map(Histogram::iter_recorded) {
            seen += value.count_since_last_iteration();
            let total = all.as_ref().map_or(1, Histogram::len);
            points.push((value.value_iterated_to() as f64 / 1e3, seen as f64 / total as f64));
        }
        Line::new(path.describe(), points)
    };
    let lines = PATHS.map(line).into();
    Plot { name, title, x: Axis::log("microseconds"), y: Axis::linear("share"), lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(path: Path, micros: &[u64]) -> Round {
        let mut latencies = crate::load::histogram().unwrap();
        micros.iter().for_each(|micros| latencies.record(micros * 1_000).unwrap());
        Round { path, latencies, rps: micros.len() as f64, cpu_us: 1.0 }
    }

    #[test]
    fn a_plot_holds_all_rounds_of_each_path() {
        let rounds: Vec<_> =
            PATHS.iter().flat_map(|path| [round(*path, &[10, 20]), round(*path, &[10, 40])]).collect();
        let plot = plot("cdf", "T".to_owned(), &rounds);
        assert_eq!(plot.lines.len(), PATHS.len());
        for line in plot.lines {
            let shares: Vec<f64> = line.points.iter().map(|(_, share)| *share).collect();
            assert_eq!(shares, [0.5, 0.75, 1.0], "{}", line.name);
            assert!((line.points[2].0 - 40.0).abs() < 0.1, "{:?}", line.points);
        }
    }

    #[test]
    fn budgets_are_of_what_is_promised() {
        let rounds: Vec<_> = PATHS.iter().map(|path| round(*path, &[10])).collect();
        for (promised, budgets) in [(true, 6), (false, 0)] {
            let mut report = Report::new("x", "X", String::new());
            tell(&mut report, "1 connection", &rounds, promised).unwrap();
            assert_eq!(report.budgets.len(), budgets);
        }
    }
}
