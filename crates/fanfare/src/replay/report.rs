//! A plan, and what its replay came to, for people and for programs.

use std::fmt::Write as _;

use fanfare_load::summary::{Counts, OfFunction, Spread, Totals};
use fanfare_trace::Plan;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::exit::Failure;
use crate::printer::{Output, Printer, human_duration};

/// A plan, in numbers.
#[derive(Debug, Serialize)]
pub(crate) struct PlanReport {
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
    pub(crate) fn of(plan: &Plan) -> PlanReport {
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

    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
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

/// How many ended how.
pub(crate) fn count_rows(counts: &Counts) -> Vec<Vec<String>> {
    let sent = format!("{} of {} sent", counts.sent, counts.planned);
    let mut rows = vec![
        row("answered", counts.ok.to_string(), &sent),
        row("failed", counts.failed.to_string(), &listed(&counts.outcomes, &["ok"])),
    ];
    if !counts.reasons.is_empty() {
        rows.push(row("reasons", String::new(), &listed(&counts.reasons, &[])));
    }
    rows
}

/// How long it took.
pub(crate) fn latency_rows(totals: &Totals) -> Vec<Vec<String>> {
    let slowdown = |spread: Spread| format!("p50 {:.2}, p99 {:.2}", spread.p50, spread.p99);
    let mut rows = vec![row(
        "slowdown",
        totals.slowdown.map_or_else(none, slowdown),
        "response ÷ requested, geometric mean of each function",
    )];
    let spreads = [
        ("scheduling latency", totals.scheduling_ms, "response − execution"),
        ("  warm", totals.scheduling_warm_ms, "of those that got a sandbox that was there"),
        ("  cold", totals.scheduling_cold_ms, "of those that waited for a new one"),
        ("response", totals.response_ms, "from due to answered"),
    ];
    rows.extend(
        spreads.into_iter().map(|(what, spread, note)| row(what, spread.map_or_else(none, millis), note)),
    );
    rows
}

/// Says what a plan asks for.
pub(crate) fn print_plan(printer: &Printer, plan: &Plan, output: Output) -> Result<(), Failure> {
    let report = PlanReport::of(plan);
    match output {
        Output::Json | Output::Yaml => printer.document(output, &report),
        _ => Ok(printer.table(&["PLANNED", "VALUE", "NOTE"], &report.rows())?),
    }
}

/// The slowest first.
pub(crate) fn print_functions(printer: &Printer, functions: &[OfFunction]) -> Result<(), Failure> {
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

pub(crate) fn row(what: &str, value: impl Into<String>, note: &str) -> Vec<String> {
    vec![what.to_owned(), value.into(), note.to_owned()]
}

pub(crate) fn none() -> String {
    "-".to_owned()
}

pub(crate) fn micros(us: u64) -> String {
    human_duration(us as f64 / 1e6)
}

pub(crate) fn millis(spread: Spread) -> String {
    let time = |ms: f64| human_duration(ms / 1e3);
    format!("p50 {}, p99 {}, max {}", time(spread.p50), time(spread.p99), time(spread.max))
}

/// Counts with their names, the most first.
fn listed(counts: &std::collections::BTreeMap<&'static str, u64>, except: &[&str]) -> String {
    let mut counts: Vec<_> = counts.iter().filter(|(name, _)| !except.contains(name)).collect();
    counts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), **name));
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}
