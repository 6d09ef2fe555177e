//! Cold starts at rates that do not wait for them, up to where the platform no longer keeps pace.

use std::time::Duration;

use fanfare_load::{Outcome, Progress, Requests, Settings, Target as Called};
use fanfare_trace::{Invocation, Plan, PlanFunction};

use crate::api;
use crate::bench::Bench;
use crate::benches::register::register_with;
use crate::emulate::Sockets;
use crate::error::{Error, Result};
use crate::platform::{Home, Platform};
use crate::plot::{Axis, Line, Plot};
use crate::procfs;
use crate::report::Report;
use crate::socket::Target;
use crate::stats::Summary;

const NAME: &str = "sweep";
const IN_FLIGHT: usize = 64;
/// A rate at which 1 of 100 waits for longer is past saturation, and the last one of a sweep.
const SATURATED_MS: f64 = 500.0;
/// Up to where 99 of 100 wait no longer is told as what can be relied on.
const RELIABLE_MS: f64 = 50.0;
/// Later than this at p99, the load generator itself had not the CPU that it takes.
const LATENESS_MAX_MS: f64 = 5.0;
/// Rates in turn at which it was late, upon which a sweep ends.
const LATE_MAX: u32 = 2;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest that one rate is held.
const SPAN_US: u64 = 2_000_000;
/// With few functions each request executes for this long, which no rate outlasts: no sandbox is free again.
const FEW_SPAN_US: u64 = 1_000_000;
/// As long as either in a smoke test.
const QUICK_SPAN_US: u64 = 200_000;
/// Connections at once, and so requests under way.
const CONNECTIONS: usize = 10_000;

/// A cluster and what is registered on it.
#[derive(Clone, Copy, Debug)]
struct Cell {
    nodes: usize,
    functions: usize,
}

impl Cell {
    /// Whether there are fewer functions than requests.
    fn is_few(self) -> bool {
        self.functions <= 100
    }

    /// Only where requests execute must sandboxes obey them.
    fn sockets(self) -> Sockets {
        if self.is_few() { Sockets::Tcp } else { Sockets::Unix }
    }
}

/// What one rate did.
#[derive(Debug)]
struct Step {
    latencies_ms: Vec<f64>,
    cpu_us: f64,
    late_p99_ms: f64,
    /// That have failed, or waited so long that they found a sandbox.
    failed: usize,
}

/// Why a sweep is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There is no higher rate.
    Rates,
    Failed,
    Slow,
    /// The load generator had not the CPU that it takes: says nothing of the platform.
    Late,
}

impl End {
    fn of(step: &Step, p99_ms: f64) -> End {
        match (step.late_p99_ms > LATENESS_MAX_MS, step.failed > 0, p99_ms > SATURATED_MS) {
            (true, ..) => End::Late,
            (_, true, _) => End::Failed,
            (.., true) => End::Slow,
            _ => End::Rates,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            End::Rates => "there was no higher rate",
            End::Failed => "requests failed",
            End::Slow => "1 of 100 waited for over 500 ms",
            End::Late => "the load generator itself was late, which is no limit of the platform",
        }
    }
}

/// All rounds of one rate.
#[derive(Debug, Default)]
struct Rate {
    latencies_ms: Vec<f64>,
    cpu_us: Vec<f64>,
}

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "Cold starts at a rate, to saturation", bench.command.clone());
    let full = [
        Cell { nodes: 100, functions: 10_000 },
        Cell { nodes: 1_000, functions: 100 },
        Cell { nodes: 1_000, functions: 10_000 },
        Cell { nodes: 5_000, functions: 10_000 },
    ];
    let quick = [Cell { nodes: 10, functions: 20 }, Cell { nodes: 20, functions: 500 }];
    let cells = bench.either(&full[..], &quick[..]);
    let rates: &[u64] =
        bench.either(&[10, 100, 500, 1_000, 2_000, 4_000, 6_000, 8_000, 12_000, 16_000], &[100]);
    report.say(
        "One process: control plane, data plane, and real node daemons whose runtime is `fake` without a delay. Requests \
         are sent when they are due, at equal distances, whatever became of those before (open loop), and latency is from \
         when a request was due to its answer's last byte, without what it was to execute. Each rate is held for 2 s, or \
         as long as there is a function that was not called yet.",
    );
    report.say(
        "With 10,000 functions each is called once, at zero. With 100 each request executes for 1 s, as long as the rate is \
         held, so that each needs a sandbox of its own. A sweep ends at the first rate with a failure (a request that waited until a sandbox was free again is one), with a p99 over \
         500 ms, or at the second in turn at which the load generator, which shares the machine, was itself over 5 ms late at p99; \
         what it did late is not counted.",
    );
    report.say("CPU is that of the whole process, nodes and sandboxes included, over the answers.");
    let (mut lines, mut cpu_lines) = (Vec::new(), Vec::new());
    for cell in cells {
        let [p50, p99, cpu] = sweep(bench, &mut report, *cell, rates)?;
        lines.extend([p50, p99]);
        cpu_lines.push(cpu);
    }
    report.plots.push(Plot {
        name: "latency",
        title: "Cold start latency against rate".to_owned(),
        x: Axis::linear("cold starts per second"),
        y: Axis::log("milliseconds"),
        lines,
    });
    report.plots.push(Plot {
        name: "cpu",
        title: "CPU per cold start against rate".to_owned(),
        x: Axis::linear("cold starts per second"),
        y: Axis::log("microseconds"),
        lines: cpu_lines,
    });
    report.finish()
}

fn sweep(bench: &Bench, report: &mut Report, cell: Cell, rates: &[u64]) -> Result<[Line; 3]> {
    let mut found: Vec<(u64, Rate)> = Vec::new();
    let mut reliable = Vec::new();
    for round in 0..bench.rounds.min(3) {
        let mut platform = Platform::emulate(Home::new(bench.dir())?, cell.nodes, cell.sockets())?;
        register_with(&mut platform.api_loader(IN_FLIGHT)?, "s", cell.functions, api::forgets_quickly)?;
        let (mut best, mut end, mut late) = (0, End::Rates, 0);
        for (at, rate) in rates.iter().enumerate() {
            if at > 0 {
                platform.until_no_sandboxes()?;
            }
            let step = step(&platform, cell, *rate, bench.quick)?;
            if step.late_p99_ms > LATENESS_MAX_MS {
                late += 1;
                // Once may be chance, above all where requests are few.
                if late < LATE_MAX && at + 1 < rates.len() {
                    continue;
                }
            } else {
                late = 0;
            }
            let p99 = Summary::of(&step.latencies_ms).map_or(f64::INFINITY, |summary| summary.p99);
            end = End::of(&step, p99);
            // A smoke test has one rate, on a machine that may be busy.
            if end != End::Late || bench.quick {
                if !found.iter().any(|(of, _)| of == rate) {
                    found.push((*rate, Rate::default()));
                }
                for (_, of) in found.iter_mut().filter(|(of, _)| of == rate) {
                    of.cpu_us.push(step.cpu_us);
                    of.latencies_ms.extend(&step.latencies_ms);
                }
                if step.failed == 0 && p99 <= RELIABLE_MS {
                    best = *rate;
                }
            }
            if end != End::Rates {
                report.say(format!(
                    "{} nodes, {} functions, round {}: ended at {rate}/s, where {}.",
                    cell.nodes,
                    cell.functions,
                    round + 1,
                    end.describe()
                ));
                break;
            }
        }
        // Where the generator gave up first, the platform's limit was not found.
        if end != End::Late {
            reliable.push(best as f64);
        }
        platform.stop()?;
    }
    tell(report, cell, &found, &reliable)
}

fn tell(report: &mut Report, cell: Cell, found: &[(u64, Rate)], reliable: &[f64]) -> Result<[Line; 3]> {
    let group = format!("{} nodes, {} functions", cell.nodes, cell.functions);
    let (mut p50, mut p99, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for (rate, of) in found {
        // Where everything has failed there is no latency, and the CPU went into failures.
        if of.latencies_ms.is_empty() {
            continue;
        }
        let summary = report.measure(&group, format!("latency at {rate}/s"), "ms", &of.latencies_ms)?;
        let of_cpu = report.measure(&group, format!("CPU per cold start at {rate}/s"), "us", &of.cpu_us)?;
        cpu.push((*rate as f64, of_cpu.p50));
        p50.push((*rate as f64, summary.p50));
        p99.push((*rate as f64, summary.p99));
    }
    if !reliable.is_empty() {
        report.measure(&group, "highest rate with a p99 within 50 ms", "/s", reliable)?;
    }
    let line = |what: &str, points| Line::new(format!("{group}{what}"), points);
    Ok([line(", p50", p50), line(", p99", p99), line("", cpu)])
}

fn step(platform: &Platform, cell: Cell, rate: u64, quick: bool) -> Result<Step> {
    let Target::Tcp(address) = platform.functions() else {
        return Err(Error::new("the data plane is not on TCP"));
    };
    let plan = plan(cell, rate, if quick { QUICK_SPAN_US } else { SPAN_US });
    let called = |n| Called { name: format!("s-{n}"), obeys: true };
    let requests = Requests { host: address.to_string(), targets: (0..cell.functions).map(called).collect() };
    let settings = Settings {
        address: *address,
        senders: 1,
        connections: CONNECTIONS,
        timeout: ANSWER_TIMEOUT,
        realtime: false,
    };
    let before = procfs::cpu_time(platform.pid())?;
    let run = fanfare_load::run(&plan, &requests, &settings, &Progress::default())?;
    let cpu = procfs::cpu_time(platform.pid())?.saturating_sub(before);
    let mut step = Step { latencies_ms: Vec::new(), cpu_us: 0.0, late_p99_ms: 0.0, failed: 0 };
    let mut late_ms = Vec::new();
    for (due, record) in plan.invocations.iter().zip(&run.records) {
        late_ms.push(record.sent_us.saturating_sub(due.at_us) as f64 / 1e3);
        match record.outcome {
            Outcome::Ok if record.cold => {
                let executed = u64::from(due.execution_ms) * 1_000;
                let beyond = record.done_us.checked_sub(due.at_us + executed);
                let beyond =
                    beyond.ok_or_else(|| Error::new("a request was answered before it was executed"))?;
                step.latencies_ms.push(beyond as f64 / 1e3);
            }
            _ => step.failed += 1,
        }
    }
    step.cpu_us = cpu.as_secs_f64() * 1e6 / plan.invocations.len() as f64;
    step.late_p99_ms = Summary::of(&late_ms).map_or(0.0, |summary| summary.p99);
    Ok(step)
}

/// Equal distances, one function after the other.
fn plan(cell: Cell, rate: u64, span_us: u64) -> Plan {
    let few = cell.is_few();
    let few_span_us = span_us.min(FEW_SPAN_US);
    let most = if few { (rate * few_span_us / 1_000_000).max(1) } else { cell.functions as u64 };
    let count = (rate * span_us / 1_000_000).clamp(1, most);
    let execution_ms = if few { (few_span_us / 1_000) as u32 } else { 0 };
    let function =
        |n: usize| PlanFunction { name: format!("s-{n}"), memory_mib: 0, initial: 0, min: 0, max: 0 };
    let invocation = |n: u64| Invocation {
        at_us: n * 1_000_000 / rate,
        function: (n % cell.functions as u64) as u32,
        execution_ms,
        memory_mib: 0,
        column: 0,
    };
    Plan {
        seed: 0,
        source: format!("{rate} per second"),
        span_us: span_us + 1,
        warm_up_us: 0,
        functions: (0..cell.functions).map(function).collect(),
        invocations: (0..count).map(invocation).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_generators_fault_is_no_limit_of_the_platform() {
        let step = |late_p99_ms, failed| Step { latencies_ms: vec![], cpu_us: 1.0, late_p99_ms, failed };
        let cases = [
            (step(1.0, 0), 10.0, End::Rates),
            (step(1.0, 0), 501.0, End::Slow),
            (step(1.0, 1), 10.0, End::Failed),
            (step(6.0, 1), 501.0, End::Late),
        ];
        for (step, p99_ms, end) in cases {
            assert_eq!(End::of(&step, p99_ms), end, "{step:?}, {p99_ms}");
        }
    }

    #[test]
    fn no_plan_calls_a_function_that_may_have_a_sandbox() {
        for rate in [1, 10, 100, 3_000, 16_000] {
            let many = plan(Cell { nodes: 1, functions: 10_000 }, rate, SPAN_US);
            many.check().unwrap();
            let mut called: Vec<_> = many.invocations.iter().map(|i| i.function).collect();
            called.dedup();
            assert_eq!(called.len(), many.invocations.len(), "{rate}");
            assert_eq!(called.len() as u64, (rate * 2).min(10_000));
            let few = plan(Cell { nodes: 1, functions: 100 }, rate, SPAN_US);
            few.check().unwrap();
            let last = few.invocations.last().unwrap();
            assert!(last.at_us < u64::from(few.invocations[0].execution_ms) * 1_000, "{rate}");
            assert_eq!(few.invocations.len() as u64, rate);
        }
    }
}
