//! Requests to a running function, beside nginx and HAProxy in front of the same program.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use fanfare_api::{FunctionDocument, HandlerDocument, PolicyName};

use crate::affinity::{self, Plan};
use crate::bench::Bench;
use crate::caller::get;
use crate::error::{Context, Result};
use crate::haproxy::{self, Haproxy};
use crate::load::{Loader, Repeat};
use crate::nginx::{self, Nginx};
use crate::platform::{Home, Platform};
use crate::process::Daemon;
use crate::procfs;
use crate::report::{Limit, Report};
use crate::socket::Target;
use crate::{package, ports, upstream};

const NAME: &str = "warm";
const FUNCTION: &str = "warm";
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that one sandbox of the function serves at once.
const CONCURRENCY: u32 = 1_000;

/// What is between the load generator and the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Direct,
    NginxUnix,
    NginxTcp,
    HaproxyUnix,
    HaproxyTcp,
    Fanfare,
}

const PATHS: [Path; 6] =
    [Path::Direct, Path::NginxUnix, Path::NginxTcp, Path::HaproxyUnix, Path::HaproxyTcp, Path::Fanfare];

impl Path {
    fn describe(self) -> &'static str {
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
#[derive(Clone, Copy, Debug)]
struct Round {
    path: Path,
    p50_us: f64,
    p99_us: f64,
    rps: f64,
    /// Of the proxy; of the upstream where there is none.
    cpu_us: f64,
}

/// Everything that runs for this bench.
struct Stage {
    upstream: Daemon,
    nginx: Nginx,
    haproxy: Haproxy,
    platform: Platform,
    targets: [(Path, Target); PATHS.len()],
}

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "Warm requests, beside nginx and HAProxy", bench.command.clone());
    let stage = Stage::start(bench)?;
    describe(bench, &mut report);
    for connections in [1, 32, 256] {
        let mut rounds = Vec::new();
        for _ in 0..bench.rounds {
            for path in bench.shuffled(&PATHS) {
                rounds.push(stage.round(bench, path, connections)?);
            }
        }
        tell(&mut report, connections, &rounds)?;
    }
    stage.stop()?;
    report.finish()
}

fn describe(bench: &Bench, report: &mut Report) {
    let (warm_up, span) = spans(bench);
    report.say(format!(
        "All paths end at the same program (hyper 1, one thread, 12 bytes to everything). For fanfare it runs as a \
         function: contract `http`, inherited listener, concurrency {CONCURRENCY}, one sandbox with all its isolation. \
         For {}, {} and direct it runs outside any sandbox, on a unix and a TCP socket; direct is TCP.",
        nginx::version(),
        haproxy::version()
    ));
    report.say(format!(
        "The load generator has one thread and keeps its connections; each has one request under way (closed loop, so \
         latencies are those of clients that wait). {} ms of warm-up, then {} ms are measured, per path and round; \
         paths take turns in random order.",
        warm_up.as_millis(),
        span.as_millis()
    ));
    report.say(format!("Pinning: {}.", Plan::describe(bench.pins.as_ref())));
    report.say(
        "CPU is that of the proxy: all of `fanfare up` (control plane, data plane and node), all of nginx (master and \
         one worker), HAProxy's one process (one thread); for direct that of the upstream.",
    );
}

fn spans(bench: &Bench) -> (Duration, Duration) {
    bench.either(
        (Duration::from_millis(200), Duration::from_millis(1_000)),
        (Duration::from_millis(50), Duration::from_millis(100)),
    )
}

impl Stage {
    fn start(bench: &Bench) -> Result<Stage> {
        let pins = bench.pins.as_ref();
        let socket = bench.dir().join("upstream");
        let addresses = ports::free(5)?;
        let (tcp, unix) = (Target::Tcp(addresses[0]), Target::Unix(socket.clone()));
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args([
            upstream::ARGUMENT,
            &format!("unix:{}", socket.display()),
            &format!("tcp:{}", addresses[0]),
        ]);
        let log = bench.dir().join("upstream.log");
        let mut upstream = Daemon::start("the upstream", command, &log, pins.map(|p| &p.upstream[..]))?;
        upstream.until("it listens", START_TIMEOUT, || std::net::TcpStream::connect(addresses[0]).ok())?;
        let dir = bench.dir().join("nginx");
        fs::create_dir(&dir).context(dir.display())?;
        let servers = [(addresses[1], unix.clone()), (addresses[2], tcp.clone())];
        let nginx = Nginx::start(&dir, &servers, pins.map(|p| &p.proxy[..]))?;
        let dir = bench.dir().join("haproxy");
        fs::create_dir(&dir).context(dir.display())?;
        let servers = [(addresses[3], unix), (addresses[4], tcp.clone())];
        let haproxy = Haproxy::start(&dir, &servers, pins.map(|p| &p.proxy[..]))?;
        let platform = platform(bench)?;
        let targets = [
            (Path::Direct, tcp),
            (Path::NginxUnix, Target::Tcp(addresses[1])),
            (Path::NginxTcp, Target::Tcp(addresses[2])),
            (Path::HaproxyUnix, Target::Tcp(addresses[3])),
            (Path::HaproxyTcp, Target::Tcp(addresses[4])),
            (Path::Fanfare, platform.functions().clone()),
        ];
        Ok(Stage { upstream, nginx, haproxy, platform, targets })
    }

    fn round(&self, bench: &Bench, path: Path, connections: usize) -> Result<Round> {
        let target =
            self.targets.iter().find(|(of, _)| *of == path).map_or(self.platform.functions(), |(_, t)| t);
        let pins = bench.pins.as_ref().map(|p| &p.load[..]);
        affinity::with(pins, || {
            let (warm_up, span) = spans(bench);
            // The same bytes on every path.
            let request = get(&format!("/function/{FUNCTION}/"));
            let mut loader = Loader::connect(target, connections)?;
            loader.run(&mut Repeat::new(request.clone())?, Some(Instant::now() + warm_up))?;
            let mut work = Repeat::new(request)?;
            let cpu_before = self.cpu_time(path)?;
            let elapsed = loader.run(&mut work, Some(Instant::now() + span))?;
            let cpu = self.cpu_time(path)?.saturating_sub(cpu_before);
            let requests = work.latencies.len() as f64;
            Ok(Round {
                path,
                p50_us: work.latencies.value_at_quantile(0.50) as f64 / 1e3,
                p99_us: work.latencies.value_at_quantile(0.99) as f64 / 1e3,
                rps: requests / elapsed.as_secs_f64(),
                cpu_us: cpu.as_secs_f64() * 1e6 / requests,
            })
        })
        .context(path.describe())
    }

    fn cpu_time(&self, path: Path) -> Result<Duration> {
        match path {
            Path::Direct => procfs::cpu_time(self.upstream.pid()),
            Path::NginxUnix | Path::NginxTcp => self.nginx.cpu_time(),
            Path::HaproxyUnix | Path::HaproxyTcp => self.haproxy.cpu_time(),
            Path::Fanfare => procfs::cpu_time(self.platform.pid()),
        }
    }

    fn stop(self) -> Result<()> {
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

/// One number of a round.
type Field = fn(&Round) -> f64;

fn tell(report: &mut Report, connections: usize, rounds: &[Round]) -> Result<()> {
    let of = |path: Path, field: Field| -> Vec<f64> {
        rounds.iter().filter(|round| round.path == path).map(field).collect()
    };
    let group = format!("{connections} {}", if connections == 1 { "connection" } else { "connections" });
    let fields: [(&str, &'static str, Field); 4] = [
        ("latency p50", "us", |r| r.p50_us),
        ("latency p99", "us", |r| r.p99_us),
        ("throughput", "req/s", |r| r.rps),
        ("CPU per request", "us", |r| r.cpu_us),
    ];
    for (what, unit, field) in fields {
        for path in PATHS {
            report.measure(&group, format!("{what}, {}", path.describe()), unit, &of(path, field))?;
        }
    }
    let (p50, p99, rps, cpu) = (fields[0].2, fields[1].2, fields[2].2, fields[3].2);
    let added: Vec<f64> = of(Path::Fanfare, p50)
        .iter()
        .zip(of(Path::Direct, p50))
        .map(|(with, without)| with - without)
        .collect();
    report.measure(&group, "latency p50 added to direct", "us", &added)?;
    let limits = [
        ("CPU per request", cpu, Limit::AtMost(1.0)),
        ("throughput", rps, Limit::AtLeast(1.0)),
        ("latency p99", p99, Limit::AtMost(1.2)),
    ];
    for peer in [Path::NginxUnix, Path::NginxTcp, Path::HaproxyUnix, Path::HaproxyTcp] {
        for (what, field, limit) in limits {
            let name = format!("{what}, fanfare / {}", peer.describe());
            let ratio = report.ratio(&group, &name, &of(Path::Fanfare, field), &of(peer, field))?;
            // What is promised is promised beside nginx.
            if matches!(peer, Path::NginxUnix | Path::NginxTcp) {
                report.budget(format!("{group}: {name}"), ratio.p50, "×", limit);
            }
        }
    }
    Ok(())
}
