//! Where the time of a warm request goes, hop by hop.

use std::process::Command;
use std::time::Duration;

use fanfare_api::{FunctionDocument, HandlerDocument, PolicyName};
use fanfare_load::server_timing;

use crate::affinity::{self, Plan};
use crate::bench::{Bench, function_program};
use crate::caller::{Caller, get};
use crate::echo::Echo;
use crate::error::{Context, Error, Result};
use crate::platform::{Home, Platform};
use crate::plot::{Axis, Line, Plot};
use crate::process::Daemon;
use crate::report::Report;
use crate::socket::Target;
use crate::wire::Answer;
use crate::{package, ports};

const NAME: &str = "hops";
const PROGRAM: &str = "function";
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Not measured, before each turn.
const WARM_UP: usize = 100;

/// What takes turns in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Fanfare,
    /// The same program, called without a platform.
    Direct,
    EchoTcp,
    EchoUnix,
}

const TURNS: [Turn; 4] = [Turn::Fanfare, Turn::Direct, Turn::EchoTcp, Turn::EchoUnix];

/// Parts of a request, in microseconds.
#[derive(Debug, Default)]
struct Hops {
    all: Vec<f64>,
    /// Between the client and the data plane, both ways.
    outside: Vec<f64>,
    wait: Vec<f64>,
    /// Between the data plane and user code, both ways.
    inside: Vec<f64>,
    execution: Vec<f64>,
    /// From the client to user code.
    there: Vec<f64>,
    /// From user code to the client.
    back: Vec<f64>,
}

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "A warm request, hop by hop", bench.command.clone());
    let count = bench.either(1_000, 50);
    describe(bench, &mut report, count);
    let platform = platform(bench)?;
    let pins = bench.pins.clone();
    let of = |part: fn(&Plan) -> &Vec<usize>| pins.as_ref().map(|plan| &part(plan)[..]);
    let (load, proxy, upstream) = (of(|p| &p.load), of(|p| &p.proxy), of(|p| &p.upstream));
    let address = ports::free(1)?[0];
    let mut command = Command::new(function_program()?);
    command.env("PORT", address.port().to_string());
    let mut alone = Daemon::start("the program alone", command, &bench.dir().join("alone.log"), upstream)?;
    alone.until("it listens", START_TIMEOUT, || std::net::TcpStream::connect(address).ok())?;
    let request = get("/function/hops/stamps");
    let mut tcp = Echo::tcp(proxy, request.len())?;
    let mut unix = Echo::unix(&bench.dir().join("echo"), upstream, request.len())?;

    let mut hops = Hops::default();
    let (mut direct_us, mut tcp_us, mut unix_us) = (Vec::new(), Vec::new(), Vec::new());
    let mut back = vec![0; request.len()];
    for _ in 0..bench.rounds {
        for turn in bench.shuffled(&TURNS) {
            match turn {
                Turn::Fanfare => affinity::with(load, || {
                    let mut caller = platform.caller()?;
                    repeat(count, |counts| hops.take(&mut caller, &request, counts))
                })?,
                Turn::Direct => affinity::with(load, || {
                    let mut caller = Caller::connect(Target::Tcp(address))?;
                    let request = get("/stamps");
                    repeat(count, |counts| {
                        let (elapsed, answer) = caller.call(&request)?;
                        stamps(&answer)?;
                        push(&mut direct_us, counts, elapsed);
                        Ok(())
                    })
                })?,
                Turn::EchoTcp => affinity::with(load, || {
                    repeat(count, |counts| {
                        push(&mut tcp_us, counts, tcp.once(&request, &mut back)?);
                        Ok(())
                    })
                })?,
                // A data plane's CPU is where requests to sandboxes come from.
                Turn::EchoUnix => affinity::with(proxy, || {
                    repeat(count, |counts| {
                        push(&mut unix_us, counts, unix.once(&request, &mut back)?);
                        Ok(())
                    })
                })?,
            }
        }
    }
    tcp.stop()?;
    unix.stop()?;
    alone.kill();
    platform.stop()?;
    hops.tell(&mut report)?;
    report.measure("floors", "loopback TCP echo", "us", &tcp_us)?;
    report.measure("floors", "unix socket echo", "us", &unix_us)?;
    report.measure("floors", "the program alone, without a platform", "us", &direct_us)?;
    report.finish()
}

fn describe(bench: &Bench, report: &mut Report, count: usize) {
    report.say(format!(
        "A compiled server, one connection, one request at a time ({count} per round after {WARM_UP}), one ready sandbox. The \
         client and user code read the same monotonic clock; in between, the data plane says in `Server-Timing` how long a \
         request waited for a slot (`queue`) and was with the sandbox (`execute`), in whole microseconds, rounded down."
    ));
    report.say(
        "Client and data plane: all but `queue` and `execute`, both ways: two hops over loopback, and reading and writing \
         HTTP. Data plane and sandbox: `execute` without execution, both ways. Execution: from when user code has read the \
         request to when it writes the answer. Those four add up to the whole. The way there and the way back are the whole \
         without execution, cut where user code is.",
    );
    report.say(
        "Floors: as many bytes as the request has, sent back by a thread on the other's CPU, by TCP between the CPUs of \
         client and data plane, by a unix socket between those of data plane and sandbox; and the program itself outside any \
         sandbox, called by TCP on the CPU that it shares with the client.",
    );
    report.say(format!("Pinning: {}.", Plan::describe(bench.pins.as_ref())));
}

fn platform(bench: &Bench) -> Result<Platform> {
    let pins = bench.pins.as_ref();
    let mut platform = Platform::start(Home::new(bench.dir())?, pins.map(|p| &p.proxy[..]))?;
    let program = package::program(&function_program()?, PROGRAM)?;
    let command = vec![format!("./{PROGRAM}")];
    let handler = HandlerDocument::Http { command, inherits_listener: true, protocol: Default::default() };
    let mut document = FunctionDocument::new(NAME, handler);
    document.code = Some(program.digest.to_string());
    document.concurrency = Some(1);
    document.scaling.policy = Some(PolicyName::Fixed);
    document.scaling.count = Some(1);
    platform.api.upload(&program)?;
    platform.api.deploy(&document)?;
    platform.until_ready(1)?;
    if let Some(plan) = pins {
        for pid in platform.processes(&format!("./{PROGRAM}")) {
            affinity::pin(pid, &plan.upstream)?;
        }
    }
    Ok(platform)
}

/// Does something so many times, after as many as are not to count.
fn repeat(count: usize, mut once: impl FnMut(bool) -> Result<()>) -> Result<()> {
    (0..WARM_UP).try_for_each(|_| once(false))?;
    (0..count).try_for_each(|_| once(true))
}

fn push(all: &mut Vec<f64>, counts: bool, elapsed: Duration) {
    if counts {
        all.push(elapsed.as_secs_f64() * 1e6);
    }
}

/// When user code had read the request, and when it wrote the answer.
fn stamps(answer: &Answer<'_>) -> Result<(u64, u64)> {
    let text = answer.text();
    if answer.status != 200 {
        return Err(Error::new(format!("answered {}: {text}", answer.status)));
    }
    let (read, written) = text.split_once(' ').ok_or_else(|| Error::new(format!("no stamps: {text}")))?;
    Ok((read.parse().context("a stamp")?, written.parse().context("a stamp")?))
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

impl Hops {
    fn take(&mut self, caller: &mut Caller, request: &[u8], counts: bool) -> Result<()> {
        let begun = now_ns();
        let (_, answer) = caller.call(request)?;
        let ended = now_ns();
        let (read, written) = stamps(&answer)?;
        let header = answer.header("server-timing").unwrap_or_default();
        let stage = |wanted: &str| {
            let mut stages = server_timing::entries(header);
            let found = stages.find(|(name, _)| *name == wanted).map(|(_, millis)| millis * 1e3);
            found.ok_or_else(|| Error::new(format!("no {wanted} in {header:?}")))
        };
        let (wait, execute) = (stage("queue")?, stage("execute")?);
        if counts {
            self.add([begun, read, written, ended], wait, execute)?;
        }
        Ok(())
    }

    /// Takes one request's stamps, in nanoseconds, and stages, in microseconds.
    fn add(&mut self, stamps: [u64; 4], wait: f64, execute: f64) -> Result<()> {
        if !stamps.is_sorted() {
            return Err(Error::new(format!("clocks differ: {stamps:?}")));
        }
        let [begun, read, written, ended] = stamps;
        let us = |from: u64, to: u64| (to - from) as f64 / 1e3;
        let (all, execution) = (us(begun, ended), us(read, written));
        self.all.push(all);
        self.outside.push(all - wait - execute);
        self.wait.push(wait);
        self.inside.push(execute - execution);
        self.execution.push(execution);
        self.there.push(us(begun, read));
        self.back.push(us(written, ended));
        Ok(())
    }

    fn tell(&self, report: &mut Report) -> Result<()> {
        let parts = [
            ("the whole request", &self.all),
            ("client and data plane, both ways", &self.outside),
            ("wait for a slot", &self.wait),
            ("data plane and sandbox, both ways", &self.inside),
            ("execution", &self.execution),
            ("the way there, client to user code", &self.there),
            ("the way back, user code to client", &self.back),
        ];
        let mut lines = Vec::new();
        for (name, samples) in parts {
            report.measure("hops", name, "us", samples)?;
            lines.push(Line::cdf(name, samples));
        }
        report.plots.push(Plot {
            name: "cdf",
            title: "A warm request, hop by hop".to_owned(),
            x: Axis::log("microseconds"),
            y: Axis::linear("share"),
            lines,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_add_up_to_the_whole() {
        let mut hops = Hops::default();
        hops.add([1_000, 41_000, 44_000, 101_000], 2.0, 60.0).unwrap();
        let parts = [&hops.outside, &hops.wait, &hops.inside, &hops.execution].map(|part| part[0]);
        assert_eq!(parts, [38.0, 2.0, 57.0, 3.0]);
        assert_eq!(parts.iter().sum::<f64>(), hops.all[0]);
        assert_eq!((hops.there[0], hops.back[0]), (40.0, 57.0));
        assert!(hops.add([5, 4, 6, 7], 0.0, 0.0).is_err(), "a clock that goes backwards is another clock");
    }
}
