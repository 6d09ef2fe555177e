//! Steps of load on one function: how throughput follows connections and sandboxes, and how many sandboxes there are while
//! load comes and goes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fanfare_api::{FunctionDocument, HandlerDocument, PolicyName, SandboxCounts};

use crate::bench::{Bench, function_program};
use crate::caller::get;
use crate::error::{Error, Result};
use crate::load::{Once, Repeat};
use crate::platform::{Home, Platform};
use crate::plot::{Axis, Line, Plot};
use crate::report::Report;
use crate::{api, package};

const NAME: &str = "steps";
const PROGRAM: &str = "function";
/// What each request of the steps works (sleeps).
const WORK_MS: u64 = 20;

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "Steps of load on one function", bench.command.clone());
    let span = bench.either(Duration::from_secs(1), Duration::from_millis(200));
    let instances: &[u32] = bench.either(&[1, 2, 4, 6, 8, 10], &[2]);
    let connections: &[usize] = bench.either(&[1, 2, 5, 10, 20, 50, 100], &[1, 4]);
    report.say(format!(
        "A compiled server, concurrency 1, that works (sleeps) for {WORK_MS} ms; a closed loop of {} ms per step over \
         connections with one request under way each. Fixed: so many sandboxes, ready before. By demand: whatever the \
         platform makes of it, from zero.",
        span.as_millis()
    ));
    let mut platform = Platform::start(Home::new(bench.dir())?, None)?;
    let program = package::program(&function_program()?, PROGRAM)?;
    platform.api.upload(&program)?;
    let digest = program.digest.to_string();
    let mut lines = Vec::new();
    for count in instances.iter().map(|n| Some(*n)).chain([None]) {
        let name = count.map_or("by-demand".to_owned(), |count| format!("fixed-{count}"));
        let mut document = function(&name, &digest);
        match count {
            Some(count) => {
                document.scaling.policy = Some(PolicyName::Fixed);
                document.scaling.count = Some(count);
            }
            None => api::forgets_quickly(&mut document),
        }
        platform.api.deploy(&document)?;
        platform.api.prepare(&name)?;
        if let Some(count) = count {
            platform.until_ready(count)?;
        }
        let group = count.map_or("by demand".to_owned(), |count| format!("fixed at {count}"));
        lines.push(steps(bench, &mut report, &platform, (&name, &group), (connections, span))?);
        platform.api.delete(&name)?;
        platform.until_empty()?;
    }
    report.plots.push(Plot {
        name: "throughput",
        title: format!("Throughput of requests of {WORK_MS} ms"),
        x: Axis::log("connections"),
        y: Axis::linear("requests per second"),
        lines,
    });
    surge(bench, &mut report, &mut platform, &digest)?;
    platform.stop()?;
    report.finish()
}

fn function(name: &str, digest: &str) -> FunctionDocument {
    let command = vec![format!("./{PROGRAM}")];
    let handler = HandlerDocument::Http { command, inherits_listener: true, protocol: Default::default() };
    let mut document = FunctionDocument::new(name, handler);
    document.code = Some(digest.to_owned());
    document.concurrency = Some(1);
    document
}

fn steps(
    bench: &Bench,
    report: &mut Report,
    platform: &Platform,
    (name, group): (&str, &str),
    (connections, span): (&[usize], Duration),
) -> Result<Line> {
    let request = get(&format!("/function/{name}/work/{WORK_MS}"));
    let mut points = Vec::new();
    for connections in connections {
        let (mut rates, mut p99s) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds.min(3) {
            let mut work = Repeat::new(request.clone())?;
            let elapsed = platform.loader(*connections)?.run(&mut work, Some(Instant::now() + span))?;
            rates.push(work.latencies.len() as f64 / elapsed.as_secs_f64());
            p99s.push(work.latencies.value_at_quantile(0.99) as f64 / 1e6);
        }
        let of = format!("{connections} {}", if *connections == 1 { "connection" } else { "connections" });
        let rate = report.measure(group, format!("throughput, {of}"), "req/s", &rates)?;
        report.measure(group, format!("latency p99, {of}"), "ms", &p99s)?;
        points.push((*connections as f64, rate.p50));
    }
    Ok(Line::new(group, points))
}

/// From zero to many and back, with the sandboxes counted all the while.
fn surge(bench: &Bench, report: &mut Report, platform: &mut Platform, digest: &str) -> Result<()> {
    const GROUP: &str = "surge to many and back to zero";
    let (count, work) = bench.either((200, 1_000), (10, 100));
    report.say(format!(
        "Surge: {count} requests at once that work {work} ms each, to a function at zero whose window is 500 ms; sandboxes \
         are counted every few milliseconds, as the control plane knows them."
    ));
    let name = "surge";
    let mut document = function(name, digest);
    api::forgets_quickly(&mut document);
    platform.api.deploy(&document)?;
    platform.api.prepare(name)?;
    platform.until_idle()?;
    let calls = vec![get(&format!("/function/{name}/work/{work}")); count];
    let (mut peaks, mut backs, mut timeline) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds.min(3) {
        let mut loader = platform.loader(count)?;
        let ended = AtomicBool::new(false);
        let begun = Instant::now();
        let (seen, load) = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut work = Once::new(&calls, |_, _, answer| match answer.status {
                    200 => Ok(()),
                    status => Err(Error::new(format!("answered {status}: {}", answer.text()))),
                });
                let ran = loader.run(&mut work, None);
                ended.store(true, Ordering::Release);
                ran
            });
            let mut seen: Vec<(f64, f64)> = Vec::new();
            let counted = platform.until("the surge is over", |_, counts| {
                // In this order: what is zero after the last answer is zero for good.
                let is_over = ended.load(Ordering::Acquire);
                seen.push((begun.elapsed().as_secs_f64(), f64::from(counts.ready + counts.starting)));
                is_over && counts == SandboxCounts::default()
            });
            let load = load.join().map_err(|_| Error::new("the load generator has panicked"));
            (counted.map(|()| seen), load)
        });
        let makespan = load??;
        let seen = seen?;
        peaks.push(seen.iter().map(|(_, sandboxes)| *sandboxes).fold(0.0, f64::max));
        let last = seen.last().map_or(0.0, |(at, _)| *at);
        backs.push(last - makespan.as_secs_f64());
        timeline = seen;
    }
    report.measure(GROUP, "sandboxes at most", "", &peaks)?;
    report.measure(GROUP, "last answer to last sandbox gone", "s", &backs)?;
    report.plots.push(Plot {
        name: "surge",
        title: format!("Sandboxes of a function that gets {count} requests at once"),
        x: Axis::linear("seconds"),
        y: Axis::linear("sandboxes"),
        lines: vec![Line::new("ready and starting", timeline)],
    });
    Ok(())
}
