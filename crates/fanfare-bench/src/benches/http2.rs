//! Requests to a running function by HTTP/2, all over one connection, beside nginx and HAProxy.

use crate::bench::Bench;
use crate::error::Result;
use crate::paths::{self, Paths};
use crate::proxy::Http;
use crate::report::Report;

const NAME: &str = "http2";

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let title = "HTTP/2 with all load on one connection";
    let mut report = Report::new(NAME, title, bench.command.clone());
    let paths = Paths::start(bench, Http::Two)?;
    let (warm_up, span) = paths::spans(bench, Http::Two);
    paths::describe(bench, &mut report);
    report.say(format!(
        "The load generator has one thread and one connection without TLS, on which HTTP/2 is spoken from the first byte; so \
         many requests are under way on it (closed loop). It does more for each request than the one of `warm`, on the CPU \
         that it shares with the upstream, so that its throughput is not that of `warm`. {} ms of warm-up, then {} ms are \
         measured, per path and round; paths take turns in random order.",
        warm_up.as_millis(),
        span.as_millis()
    ));
    for (requests, plot) in [(1, "cdf-1"), (32, "cdf-32"), (100, "cdf-100")] {
        let group = format!("{requests} {} at once", if requests == 1 { "request" } else { "requests" });
        let mut rounds = Vec::new();
        for _ in 0..bench.rounds {
            rounds.extend(paths.round(bench, requests)?);
        }
        paths::tell(&mut report, &group, &rounds, false)?;
        report.plots.push(paths::plot(plot, format!("Latency over one connection, {group}"), &rounds));
    }
    paths.stop()?;
    report.finish()
}
