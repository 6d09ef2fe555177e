//! What a run came to, for people and for programs.

use std::fmt::Write as _;

use fanfare_load::Run;
use fanfare_load::server_timing::STAGES;
use fanfare_load::summary::{Lateness, LatenessBound, OfFunction, Spread, Totals};
use fanfare_trace::Plan;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::figures::Used;
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, counted, human_duration};

/// A run: the schema of `-o json`, and of `summary.json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    plan: PlanReport,
    /// Whether lateness was within its bound, and all was sent and waited for.
    reliable: bool,
    /// Why not.
    unreliable_because: Vec<String>,
    /// Whether all was sent and waited for.
    complete: bool,
    lateness_p99_max_us: u64,
    /// When it began, in microseconds since 1970.
    began_epoch_us: u64,
    /// From its beginning to the last answer.
    elapsed_s: f64,
    #[serde(flatten)]
    totals: Totals,
    #[serde(flatten)]
    used: Used,
}

/// A plan, in numbers.
#[derive(Debug, Serialize)]
struct PlanReport {
    source: String,
    seed: u64,
    /// Of its file.
    sha256: String,
    functions: usize,
    invocations: usize,
    span_s: f64,
    warm_up_s: f64,
    /// Invocations a second, on average …
    mean_per_s: f64,
    /// … and in the second with the most.
    peak_per_s: u64,
    /// Executions under way on average, if none waits.
    mean_concurrency: f64,
}

impl PlanReport {
    fn of(plan: &Plan) -> PlanReport {
        let seconds = |us: u64| us as f64 / 1e6;
        let span_s = seconds(plan.span_us);
        let execution_s: f64 = plan.invocations.iter().map(|i| f64::from(i.execution_ms) / 1e3).sum();
        let same_second = |a: &fanfare_trace::Invocation, b: &fanfare_trace::Invocation| {
            a.at_us / 1_000_000 == b.at_us / 1_000_000
        };
        let peak = plan.invocations.chunk_by(same_second).map(<[_]>::len).max().unwrap_or(0);
        PlanReport {
            source: plan.source.clone(),
            seed: plan.seed,
            sha256: sha256(plan),
            functions: plan.functions.len(),
            invocations: plan.invocations.len(),
            span_s,
            warm_up_s: seconds(plan.warm_up_us),
            mean_per_s: plan.invocations.len() as f64 / span_s,
            peak_per_s: peak as u64,
            mean_concurrency: execution_s / span_s,
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let rate = format!("{:.1}/s on average, {}/s at most", self.mean_per_s, self.peak_per_s);
        let warm_up = match self.warm_up_s {
            0.0 => String::new(),
            warm_up_s => format!("the first {} are warm-up", human_duration(warm_up_s)),
        };
        vec![
            row("plan", self.sha256.chars().take(16).collect::<String>(), &self.source),
            row("seed", self.seed.to_string(), ""),
            row("span", human_duration(self.span_s), &warm_up),
            row("functions", self.functions.to_string(), ""),
            row("invocations", self.invocations.to_string(), &rate),
            row("executions at once", format!("{:.1}", self.mean_concurrency), "on average, if none waits"),
        ]
    }
}

/// The digest of a plan's file.
fn sha256(plan: &Plan) -> String {
    let mut hash = Sha256::new();
    // Hashing cannot fail.
    let _ = plan.write(&mut Hashing(&mut hash));
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

struct Hashing<'a>(&'a mut Sha256);

impl std::io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Report {
    pub(super) fn new(plan: &Plan, run: &Run, totals: Totals, used: Used, bound: LatenessBound) -> Report {
        let mut because = Vec::new();
        if !run.is_complete {
            because.push("it was interrupted".to_owned());
        }
        if let Some(lateness) = totals.lateness.filter(|lateness| !lateness.within(bound)) {
            because.push(format!(
                "99 of 100 requests were sent up to {} late, and {} is the bound",
                micros(lateness.p99_us),
                micros(bound.p99_us)
            ));
        }
        Report {
            plan: PlanReport::of(plan),
            reliable: because.is_empty(),
            unreliable_because: because,
            complete: run.is_complete,
            lateness_p99_max_us: bound.p99_us,
            began_epoch_us: run.began_epoch_us,
            elapsed_s: run.elapsed.as_secs_f64(),
            totals,
            used,
        }
    }

    /// The worst of what there is to say.
    pub(super) fn exit(&self) -> Exit {
        match (self.complete, self.reliable, self.totals.counts.failed) {
            (false, ..) => Exit::Interrupted,
            (true, false, _) => Exit::Unreliable,
            (true, true, 1..) => Exit::Function,
            (true, true, 0) => Exit::Ok,
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let totals = &self.totals;
        let mut rows = self.plan.rows();
        let late = |Lateness { p50_us, p99_us, max_us }: Lateness| {
            format!("p50 {}, p99 {}, max {}", micros(p50_us), micros(p99_us), micros(max_us))
        };
        let bound = format!("p99 may be {}", micros(self.lateness_p99_max_us));
        rows.push(row("lateness", totals.lateness.map_or_else(none, late), &bound));
        let counts = &totals.counts;
        let sent = format!("{} of {} sent", counts.sent, counts.planned);
        rows.push(row("answered", counts.ok.to_string(), &sent));
        rows.push(row("failed", counts.failed.to_string(), &listed(&counts.outcomes, &["ok"])));
        if !counts.reasons.is_empty() {
            rows.push(row("reasons", String::new(), &listed(&counts.reasons, &[])));
        }
        let slowdown = |spread: Spread| format!("p50 {:.2}, p99 {:.2}", spread.p50, spread.p99);
        rows.push(row(
            "slowdown",
            totals.slowdown.map_or_else(none, slowdown),
            "response ÷ requested, geometric mean of each function",
        ));
        let spreads = [
            ("scheduling latency", totals.scheduling_ms, "response − execution"),
            ("  warm", totals.scheduling_warm_ms, "of those that got a sandbox that was there"),
            ("  cold", totals.scheduling_cold_ms, "of those that waited for a new one"),
            ("response", totals.response_ms, "from due to answered"),
            ("service", totals.service_ms, "from sent to answered"),
        ];
        for (what, spread, note) in spreads {
            rows.push(row(what, spread.map_or_else(none, millis), note));
        }
        let ordered = self.used.sandboxes_ordered.map_or_else(none, |count| count.to_string());
        let note =
            format!("{} answered; {} were cold", totals.sandboxes_seen, counted(counts.cold, "answer"));
        rows.push(row("sandboxes made", ordered, &note));
        for process in &self.used.cpu {
            let what = format!("CPU of {}", process.role);
            rows.push(row(&what, cores(process.cpu_s, self.elapsed_s), &format!("process {}", process.pid)));
        }
        rows.push(row("CPU of this program", cores(self.used.load_cpu_s, self.elapsed_s), ""));
        rows
    }
}

pub(super) fn print(printer: &Printer, report: &Report, output: Output) -> Result<(), Failure> {
    match output {
        Output::Json | Output::Yaml => printer.document(output, report)?,
        Output::Text | Output::Wide | Output::Name | Output::Url => {
            printer.table(&["MEASURED", "VALUE", "NOTE"], &report.rows())?;
            if output == Output::Wide {
                printer.out("")?;
                print_stages(printer, &report.totals)?;
                printer.out("")?;
                print_functions(printer, &report.totals.functions)?;
            }
        }
    }
    for why in &report.unreliable_because {
        printer.warning(format_args!("this run is unreliable: {why}"));
    }
    Ok(())
}

/// Says what a plan asks for.
pub(super) fn print_plan(printer: &Printer, plan: &Plan, output: Output) -> Result<(), Failure> {
    let report = PlanReport::of(plan);
    match output {
        Output::Json | Output::Yaml => printer.document(output, &report),
        _ => Ok(printer.table(&["PLANNED", "VALUE", "NOTE"], &report.rows())?),
    }
}

/// Where the time of cold starts went.
fn print_stages(printer: &Printer, totals: &Totals) -> Result<(), Failure> {
    let time = |ms: f64| human_duration(ms / 1e3);
    let of = |stage: &&'static str| {
        let spread = totals.cold_stages_ms.get(*stage)?;
        Some(vec![(*stage).to_owned(), time(spread.p50), time(spread.p99), time(spread.max)])
    };
    let rows: Vec<Vec<String>> = STAGES.iter().filter_map(of).collect();
    Ok(printer.table(&["STAGE OF COLD STARTS", "P50", "P99", "MAX"], &rows)?)
}

/// The slowest first.
fn print_functions(printer: &Printer, functions: &[OfFunction]) -> Result<(), Failure> {
    let mut functions: Vec<&OfFunction> = functions.iter().collect();
    functions.sort_by(|a, b| b.slowdown.unwrap_or(0.0).total_cmp(&a.slowdown.unwrap_or(0.0)));
    let rows: Vec<Vec<String>> = functions
        .iter()
        .map(|function| {
            let counts = &function.counts;
            let scheduling = function.scheduling_ms;
            vec![
                function.deployed.clone(),
                counts.sent.to_string(),
                counts.cold.to_string(),
                counts.failed.to_string(),
                function.slowdown.map_or_else(none, |slowdown| format!("{slowdown:.2}")),
                scheduling.map_or_else(none, |spread| human_duration(spread.p50.max(0.0) / 1e3)),
                scheduling.map_or_else(none, |spread| human_duration(spread.p99.max(0.0) / 1e3)),
            ]
        })
        .collect();
    let header = ["FUNCTION", "SENT", "COLD", "FAILED", "SLOWDOWN", "SCHEDULING-P50", "SCHEDULING-P99"];
    Ok(printer.table(&header, &rows)?)
}

fn row(what: &str, value: impl Into<String>, note: &str) -> Vec<String> {
    vec![what.to_owned(), value.into(), note.to_owned()]
}

fn none() -> String {
    "-".to_owned()
}

fn micros(us: u64) -> String {
    human_duration(us as f64 / 1e6)
}

fn millis(spread: Spread) -> String {
    let time = |ms: f64| human_duration(ms / 1e3);
    format!("p50 {}, p99 {}, max {}", time(spread.p50), time(spread.p99), time(spread.max))
}

fn cores(cpu_s: f64, elapsed_s: f64) -> String {
    let share = if elapsed_s > 0.0 { cpu_s / elapsed_s } else { 0.0 };
    format!("{cpu_s:.2} s, {share:.2} cores")
}

/// Counts with their names, the most first.
fn listed(counts: &std::collections::BTreeMap<&'static str, u64>, except: &[&str]) -> String {
    let mut counts: Vec<_> = counts.iter().filter(|(name, _)| !except.contains(name)).collect();
    counts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), **name));
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}
