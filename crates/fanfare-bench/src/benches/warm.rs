//! Requests to a running function, beside nginx and HAProxy in front of the same program.

use crate::bench::Bench;
use crate::error::Result;
use crate::paths::{self, Paths};
use crate::proxy::Http;
use crate::report::Report;

const NAME: &str = "warm";

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "Warm requests, beside nginx and HAProxy", bench.command.clone());
    let paths = Paths::start(bench, Http::One)?;
    let (warm_up, span) = paths::spans(bench, Http::One);
    paths::describe(bench, &mut report);
    report.say(format!(
        "The load generator has one thread and keeps its connections; each has one request under way (closed loop, so \
         latencies are those of clients that wait). {} ms of warm-up, then {} ms are measured, per path and round; \
         paths take turns in random order.",
        warm_up.as_millis(),
        span.as_millis()
    ));
    for (connections, plot) in [(1, "cdf-1"), (32, "cdf-32"), (256, "cdf-256")] {
        let group = format!("{connections} {}", if connections == 1 { "connection" } else { "connections" });
        let mut rounds = Vec::new();
        for _ in 0..bench.rounds {
            rounds.extend(paths.round(bench, connections)?);
        }
        paths::tell(&mut report, &group, &rounds, true)?;
        report.plots.push(paths::plot(plot, format!("Latency of warm requests, {group}"), &rounds));
    }
    paths.stop()?;
    report.finish()
}
