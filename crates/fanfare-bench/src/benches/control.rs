//! Cold starts of sandboxes that cost nothing: what deciding, ordering and announcing them costs.

use crate::bench::Bench;
use crate::benches::register::register;
use crate::caller::{get, request};
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
        "CPU is that of the whole process: HTTP, deciding, and the emulated nodes and sandboxes too, which the budget \
         does not count. The load generator has the rest of the machine.",
    );
    for nodes in bench.either(&[1, 1_000][..], &[1, 20]) {
        with_nodes(bench, &mut report, *nodes, count)?;
    }
    report.finish()
}

fn with_nodes(bench: &Bench, report: &mut Report, nodes: usize, count: usize) -> Result<()> {
    let mut platform = Platform::emulate(Home::new(bench.dir())?, nodes)?;
    let (mut rates, mut cpus, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    let mut stages = timing::Stages::default();
    for round in 0..bench.rounds {
        let prefix = format!("c{round}");
        register(&mut platform.api_loader(IN_FLIGHT)?, &prefix, count)?;
        let calls: Vec<_> = (0..count).map(|n| get(&format!("/function/{prefix}-{n}/"))).collect();
        let mut loader = platform.loader(IN_FLIGHT)?;
        let before = procfs::cpu_time(platform.pid())?;
        let mut work = Once::new(&calls, |id, latency, answer| {
            stages.take(&answer).map_err(|error| Error::new(format!("{prefix}-{id}: {error}")))?;
            latencies.push(latency.as_secs_f64() * 1e3);
            Ok(())
        });
        let elapsed = loader.run(&mut work, None)?;
        let cpu = procfs::cpu_time(platform.pid())?.saturating_sub(before);
        rates.push(count as f64 / elapsed.as_secs_f64());
        cpus.push(cpu.as_secs_f64() * 1e6 / count as f64);
        delete(&mut platform, &prefix, count)?;
    }
    platform.stop()?;
    let of = format!("{nodes} {}", if nodes == 1 { "node" } else { "nodes" });
    let rate = report.measure(&of, "throughput", "/s", &rates)?;
    let cpu = report.measure(&of, "CPU per cold start", "us", &cpus)?;
    report.measure(&of, "request in to answer out", "ms", &latencies)?;
    stages.tell(report, &format!("stages, {of}"))?;
    report.budget(format!("cold starts over HTTP, {of}"), rate.p50, "/s", Limit::AtLeast(6_000.0));
    report.budget(format!("CPU per cold start, {of}"), cpu.p50, "us", Limit::AtMost(60.0));
    Ok(())
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
