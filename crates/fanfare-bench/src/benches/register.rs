//! Durable registrations.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use fanfare_api::FunctionDocument;

use crate::api;
use crate::bench::Bench;
use crate::error::{Context, Error, Result};
use crate::load::{Loader, Once};
use crate::platform::{Home, Platform};
use crate::report::{Limit, Report};

const NAME: &str = "register";
/// Registrations under way at once.
const IN_FLIGHT: usize = 64;
/// Bytes that the floor writes and syncs: one page, which is the least that a registration must.
const FLOOR_BYTES: usize = 4096;
/// Pages of the floor's file, written before the first is timed: a file that grows would have its length to sync, too,
/// which a store that keeps room ahead has not.
const FLOOR_PAGES: usize = 1024;

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report =
        Report::new(NAME, "Durable registrations, and a start that finds them", bench.command.clone());
    let (one_by_one, at_once) = bench.either((100, 10_000), (20, 200));
    let floods = bench.rounds.min(3);
    report.say(format!(
        "`POST /v1/functions` of functions without code (runtime `fake`), answered once they are durable. One by one: \
         {one_by_one} per round over one connection, taking turns with a floor: {FLOOR_BYTES} bytes overwritten in a \
         file on the same disk and `fdatasync`. Then {at_once} with {IN_FLIGHT} in flight, into a fresh `fanfare up` each, which is then stopped and started again. Start: from when the program is \
         started until its node and its data plane are connected to its control plane; then all functions are there."
    ));
    let mut platform = Platform::start(Home::new(bench.dir())?, None)?;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let (mut ours_medians, mut floor_medians) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        let registered =
            register(&mut platform.api_loader(1)?, &format!("r{round}"), one_by_one)?.latencies_ms;
        let synced = sync_times_ms(&bench.dir().join("floor"), one_by_one)?;
        ours_medians.push(median(&registered));
        floor_medians.push(median(&synced));
        ours.extend(registered);
        floor.extend(synced);
    }
    platform.stop()?;
    let one = report.measure("one by one", "registration", "ms", &ours)?;
    report.measure("one by one", "floor: overwrite and fdatasync", "ms", &floor)?;
    report.ratio("one by one", "registration / floor, medians of rounds", &ours_medians, &floor_medians)?;
    report.budget("registration, p50", one.p50, "ms", Limit::AtMost(1.0));

    let (mut seconds, mut restarts, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    let mut latencies = Vec::new();
    for _ in 0..floods {
        let begun = Instant::now();
        platform = Platform::start(Home::new(bench.dir())?, None)?;
        starts.push(begun.elapsed().as_secs_f64() * 1e3);
        let flood = register(&mut platform.api_loader(IN_FLIGHT)?, "f", at_once)?;
        seconds.push(flood.seconds);
        latencies.extend(flood.latencies_ms);
        let functions = platform.api.status()?.functions;
        if functions != at_once as u64 {
            return Err(Error::new(format!("{functions} functions are registered, not {at_once}")));
        }
        let home = platform.stop()?;
        let begun = Instant::now();
        platform = Platform::start(home, None)?;
        restarts.push(begun.elapsed().as_secs_f64() * 1e3);
        let kept = platform.api.status()?.functions;
        if kept != at_once as u64 {
            return Err(Error::new(format!("{kept} functions are there after a restart, not {at_once}")));
        }
        platform.stop()?;
    }
    let group = format!("{at_once} with {IN_FLIGHT} in flight");
    let total = report.measure(&group, "all of them", "s", &seconds)?;
    report.measure(&group, "each of them", "ms", &latencies)?;
    report.measure("start", format!("with {at_once} functions"), "ms", &restarts)?;
    report.measure("start", "without functions", "ms", &starts)?;
    report.ratio("start", format!("with {at_once} functions / without"), &restarts, &starts)?;
    if !bench.quick {
        report.budget("10,000 functions", total.p50, "s", Limit::AtMost(2.0));
    }
    report.finish()
}

/// What registering took.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) seconds: f64,
    pub(crate) latencies_ms: Vec<f64>,
}

/// Registers `count` functions named after `prefix`.
pub(crate) fn register(loader: &mut Loader, prefix: &str, count: usize) -> Result<Registered> {
    register_with(loader, prefix, count, |_| {})
}

/// As [`register`], with settings.
pub(crate) fn register_with(
    loader: &mut Loader,
    prefix: &str,
    count: usize,
    set: impl Fn(&mut FunctionDocument),
) -> Result<Registered> {
    let request = |n| {
        let mut document = api::fake(&format!("{prefix}-{n}"));
        set(&mut document);
        api::registration(&document)
    };
    let requests: Vec<_> = (0..count).map(request).collect::<Result<_>>()?;
    let mut latencies_ms = Vec::with_capacity(count);
    let mut work = Once::new(&requests, |_, latency, answer| {
        if answer.status != 201 {
            return Err(Error::new(format!("a registration: {}: {}", answer.status, answer.text())));
        }
        latencies_ms.push(latency.as_secs_f64() * 1e3);
        Ok(())
    });
    let elapsed = loader.run(&mut work, None)?;
    Ok(Registered { seconds: elapsed.as_secs_f64(), latencies_ms })
}

fn sync_times_ms(path: &Path, count: usize) -> Result<Vec<f64>> {
    let file =
        OpenOptions::new().create(true).truncate(true).write(true).open(path).context(path.display())?;
    let write = |page: usize| file.write_all_at(&[0xa5; FLOOR_BYTES], (page * FLOOR_BYTES) as u64);
    (0..FLOOR_PAGES).try_for_each(write).and_then(|()| file.sync_all()).context(path.display())?;
    let times = (0..count).map(|n| {
        let begun = Instant::now();
        write(n % FLOOR_PAGES).and_then(|()| file.sync_data()).context(path.display())?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    });
    times.collect()
}

fn median(samples: &[f64]) -> f64 {
    crate::stats::Summary::of(samples).map_or(f64::NAN, |summary| summary.p50)
}
