//! Memory of registered functions that nobody calls, and of what comes with load.

mod load;

use crate::bench::Bench;
use crate::benches::register::register;
use crate::error::Result;
use crate::platform::{Home, Platform};
use crate::procfs;
use crate::report::{Limit, Report};

const NAME: &str = "memory";
/// Registered before the first look, so that what the first registration sets up is not counted.
const FIRST: usize = 100;
const IN_FLIGHT: usize = 64;

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "Memory, of idle functions and under load", bench.command.clone());
    let (count, times) = bench.either((10_000, bench.rounds.min(3)), (1_000, 1));
    report.say(format!(
        "Resident memory of `fanfare up`, all roles in one process, with {FIRST} functions and with {count} more, \
         divided by {count}. Grown: right after they were registered over the API. Restarted: of a process that has \
         loaded them from its store, beside one that has loaded {FIRST}."
    ));
    let (mut grown, mut restarted, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..times {
        let platform = Platform::start(Home::new(bench.dir())?, None)?;
        empty.push(resident_mib(&platform)?);
        register(&mut platform.api_loader(IN_FLIGHT)?, "first", FIRST)?;
        let platform = Platform::start(platform.stop()?, None)?;
        let few = procfs::resident_bytes(platform.pid())? as f64;
        register(&mut platform.api_loader(IN_FLIGHT)?, "more", count)?;
        let many = procfs::resident_bytes(platform.pid())? as f64;
        grown.push((many - few) / count as f64);
        let platform = Platform::start(platform.stop()?, None)?;
        restarted.push((procfs::resident_bytes(platform.pid())? as f64 - few) / count as f64);
        platform.stop()?;
    }
    let grown = report.measure("per function", "grown", "bytes", &grown)?;
    let restarted = report.measure("per function", "restarted", "bytes", &restarted)?;
    report.measure("process", "without functions", "MiB", &empty)?;
    report.budget("per registered idle function, grown", grown.p50, "bytes", Limit::AtMost(2048.0));
    report.budget("per registered idle function, restarted", restarted.p50, "bytes", Limit::AtMost(2048.0));
    load::run(bench, &mut report)?;
    report.finish()
}

fn resident_mib(platform: &Platform) -> Result<f64> {
    Ok(procfs::resident_bytes(platform.pid())? as f64 / f64::from(1 << 20))
}
