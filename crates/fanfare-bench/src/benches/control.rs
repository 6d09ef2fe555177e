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
        "Runtime `fake`, no create delay, one node in the same process as the control plane and the data plane. Each \
         round registers {count} functions, calls each once over HTTP with {IN_FLIGHT} in flight, and deletes them; \
         every answer is checked to have waited for a new sandbox. CPU is that of the whole process, HTTP included."
    ));
    report.say("The budgets are for 1,000 emulated nodes; this is one.");
    let mut platform = Platform::start(Home::new(bench.dir())?, None)?;
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
    let group = format!("{count} cold starts, {IN_FLIGHT} in flight");
    let rate = report.measure(&group, "throughput", "/s", &rates)?;
    let cpu = report.measure(&group, "CPU per cold start", "us", &cpus)?;
    report.measure(&group, "request in to answer out", "ms", &latencies)?;
    stages.tell(&mut report, "stages")?;
    report.budget("cold starts over HTTP", rate.p50, "/s", Limit::AtLeast(6_000.0));
    report.budget("CPU per cold start", cpu.p50, "us", Limit::AtMost(60.0));
    report.finish()
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
