//! Cold starts of sandboxes that cost nothing: what deciding, ordering and announcing them costs.

use std::time::Duration;

use crate::bench::Bench;
use crate::benches::register::register;
use crate::caller::{get, request};
use crate::emulate;
use crate::error::{Error, Result};
use crate::load::Once;
use crate::platform::{Home, Platform};
use crate::procfs;
use crate::report::{Limit, Report};
use crate::timing;

const NAME: &str = "control";
const IN_FLIGHT: usize = 64;

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "Cold starts without sandboxes", bench.command.clone());
    let count = bench.either(2_000, 100);
    report.say(format!(
        "One process: control plane, data plane, and real node daemons whose runtime is `fake` without a delay. Each \
         round registers {count} functions, calls each once over HTTP with {IN_FLIGHT} in flight, and deletes them; \
         every answer is checked to have waited for a new sandbox."
    ));
    report.say(
        "CPU of the whole process, and of it without the threads of the emulated nodes and sandboxes: that of HTTP, data \
         plane and control plane, which is what the budget is for. The load generator has the rest of the machine.",
    );
    for nodes in bench.either(&[1, 1_000, 5_000][..], &[1, 20]) {
        with_nodes(bench, &mut report, *nodes, count)?;
    }
    report.finish()
}

fn with_nodes(bench: &Bench, report: &mut Report, nodes: usize, count: usize) -> Result<()> {
    let mut platform = Platform::emulate(Home::new(bench.dir())?, nodes, emulate::Sockets::Unix)?;
    let (mut rates, mut latencies) = (Vec::new(), Vec::new());
    let (mut cpus, mut cpus_without) = (Vec::new(), Vec::new());
    let mut stages = timing::Stages::default();
    for round in 0..bench.rounds {
        let found = cold_starts(&mut platform, &format!("c{round}"), (count, IN_FLIGHT), &mut stages)?;
        rates.push(found.rate);
        cpus.push(found.cpu_us);
        cpus_without.push(found.cpu_without_nodes_us);
        latencies.extend(found.latencies_ms);
    }
    platform.stop()?;
    let of = format!("{nodes} {}", if nodes == 1 { "node" } else { "nodes" });
    let rate = report.measure(&of, "throughput", "/s", &rates)?;
    report.measure(&of, "CPU per cold start", "us", &cpus)?;
    let cpu = report.measure(&of, "CPU per cold start without the nodes' threads", "us", &cpus_without)?;
    report.measure(&of, "request in to answer out", "ms", &latencies)?;
    let wait = stages.tell(report, &format!("stages, {of}"))?;
    let least = if nodes > 1_000 { 4_000.0 } else { 6_000.0 };
    report.budget(format!("cold starts over HTTP, {of}"), rate.p50, "/s", Limit::AtLeast(least));
    report.budget(format!("CPU per cold start without the nodes, {of}"), cpu.p50, "us", Limit::AtMost(60.0));
    report.budget(format!("wait for a sandbox, p99, {of}"), wait.p99, "ms", Limit::AtMost(50.0));
    Ok(())
}

/// What one round of cold starts came to.
#[derive(Debug)]
pub(super) struct ColdStarts {
    /// Per second.
    pub(super) rate: f64,
    pub(super) latencies_ms: Vec<f64>,
    /// Per cold start, of the whole process.
    pub(super) cpu_us: f64,
    /// Per cold start, without the threads of emulated nodes and sandboxes.
    pub(super) cpu_without_nodes_us: f64,
}

/// Registers so many functions, calls each once with so many calls under way, and deletes them.
pub(super) fn cold_starts(
    platform: &mut Platform,
    prefix: &str,
    (count, in_flight): (usize, usize),
    stages: &mut timing::Stages,
) -> Result<ColdStarts> {
    register(&mut platform.api_loader(IN_FLIGHT)?, prefix, count)?;
    let calls: Vec<_> = (0..count).map(|n| get(&format!("/function/{prefix}-{n}/"))).collect();
    let mut loader = platform.loader(in_flight)?;
    let before = cpu_times(platform)?;
    let mut latencies_ms = Vec::with_capacity(count);
    let mut work = Once::new(&calls, |id, latency, answer| {
        stages.take(&answer).map_err(|error| Error::new(format!("{prefix}-{id}: {error}")))?;
        latencies_ms.push(latency.as_secs_f64() * 1e3);
        Ok(())
    });
    let elapsed = loader.run(&mut work, None)?;
    let after = cpu_times(platform)?;
    let each_us = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    let (all, of_nodes) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    delete(platform, prefix, count)?;
    Ok(ColdStarts {
        rate: count as f64 / elapsed.as_secs_f64(),
        latencies_ms,
        cpu_us: each_us(all),
        cpu_without_nodes_us: each_us(all.saturating_sub(of_nodes)),
    })
}

/// CPU time of the whole process, and of the emulated nodes in it.
fn cpu_times(platform: &Platform) -> Result<(Duration, Duration)> {
    let pid = platform.pid();
    Ok((procfs::cpu_time(pid)?, procfs::cpu_time_of_threads(pid, emulate::NODE_THREADS)?))
}

fn delete(platform: &mut Platform, prefix: &str, count: usize) -> Result<()> {
    let requests: Vec<_> =
        (0..count).map(|n| request("DELETE", &format!("/v1/functions/{prefix}-{n}"), "", b"")).collect();
    let mut work = Once::new(&requests, |_, _, answer| match answer.status {
        204 => Ok(()),
        status => Err(Error::new(format!("a deletion: {status}: {}", answer.text()))),
    });
    platform.api_loader(IN_FLIGHT)?.run(&mut work, None)?;
    platform.until_empty()
}
