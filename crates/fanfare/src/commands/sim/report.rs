//! What simulations came to, for people and for programs.

use fanfare_load::summary::{Spread, Totals};
use fanfare_trace::Plan;
use serde::Serialize;

use crate::args::{SimArgs, SlowdownOf};
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, counted, human_bytes, human_duration};
use crate::replay::report::{PlanReport, count_rows, latency_rows, none, print_functions, row};

/// All runs of a command: the schema of `-o json`, and of `summary.json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    plan: PlanReport,
    /// What the simulations were drawn from.
    simulation_seed: u64,
    cluster: Cluster,
    runs: Vec<Simulated>,
    #[serde(flatten)]
    answer: Option<Answer>,
}

/// The nodes, and what is modelled of them.
#[derive(Debug, Serialize)]
struct Cluster {
    node_cpu_milli: u64,
    node_memory_bytes: u64,
    create_delay_ms: f64,
    jitter_ms: f64,
    message_delay_us: f64,
    placement: &'static str,
}

/// One run; what it has in common with `fanfare load` has the same names.
#[derive(Debug, Serialize)]
pub(super) struct Simulated {
    pub(super) nodes: u32,
    /// Sandboxes that nodes were told to create.
    sandboxes_ordered: u64,
    /// The most that one node had at once.
    node_sandboxes_peak: u32,
    /// Things that happened.
    events: u64,
    /// Equal for two runs in which the same things happened at the same times.
    digest: String,
    #[serde(flatten)]
    totals: Totals,
}

/// What a search was for, and what it found.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) until_slowdown: f64,
    pub(super) slowdown_of: SlowdownWord,
    /// `null`: no number is enough.
    pub(super) fewest_nodes: Option<u32>,
    pub(super) why_none: Option<String>,
}

/// [`SlowdownOf`] in documents.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SlowdownWord {
    P50,
    P99,
}

impl From<SlowdownOf> for SlowdownWord {
    fn from(of: SlowdownOf) -> Self {
        match of {
            SlowdownOf::P50 => SlowdownWord::P50,
            SlowdownOf::P99 => SlowdownWord::P99,
        }
    }
}

impl Simulated {
    pub(super) fn new(nodes: u32, ended: &fanfare_sim::Report, totals: Totals) -> Simulated {
        Simulated {
            nodes,
            sandboxes_ordered: ended.sandboxes_created,
            node_sandboxes_peak: ended.node_peaks.iter().copied().max().unwrap_or(0),
            events: ended.events,
            digest: format!("{:016x}", ended.digest),
            totals,
        }
    }

    pub(super) fn slowdown(&self, of: SlowdownOf) -> Option<f64> {
        self.totals.slowdown.map(|spread| match of {
            SlowdownOf::P50 => spread.p50,
            SlowdownOf::P99 => spread.p99,
        })
    }

    pub(super) fn failed(&self) -> u64 {
        self.totals.counts.failed
    }

    /// Everything of one run.
    fn rows(&self, cluster: &Cluster) -> Vec<Vec<String>> {
        let mut rows = vec![row("nodes", self.nodes.to_string(), &cluster.words())];
        rows.extend(count_rows(&self.totals.counts));
        rows.extend(latency_rows(&self.totals));
        let cold = format!("cold: {}", counted(self.totals.counts.cold, "answer"));
        rows.push(row("sandboxes made", self.sandboxes_ordered.to_string(), &cold));
        rows.push(row("sandboxes at once", self.node_sandboxes_peak.to_string(), "the most on one node"));
        rows
    }

    /// One line among others.
    fn line(&self) -> Vec<String> {
        let (totals, counts) = (&self.totals, &self.totals.counts);
        let factor = |of| self.slowdown(of).map_or_else(none, |factor| format!("{factor:.2}"));
        let time = |spread: Option<Spread>, which: fn(Spread) -> f64| {
            spread.map_or_else(none, |spread| human_duration(which(spread) / 1e3))
        };
        vec![
            self.nodes.to_string(),
            counts.ok.to_string(),
            counts.failed.to_string(),
            counts.cold.to_string(),
            factor(SlowdownOf::P50),
            factor(SlowdownOf::P99),
            time(totals.scheduling_warm_ms, |spread| spread.p50),
            time(totals.scheduling_warm_ms, |spread| spread.p99),
            time(totals.scheduling_cold_ms, |spread| spread.p50),
            time(totals.scheduling_cold_ms, |spread| spread.p99),
            self.sandboxes_ordered.to_string(),
            self.node_sandboxes_peak.to_string(),
        ]
    }
}

/// The columns of [`Simulated::line`].
const HEADER: [&str; 12] = [
    "NODES",
    "ANSWERED",
    "FAILED",
    "COLD",
    "SLOWDOWN-P50",
    "SLOWDOWN-P99",
    "WARM-P50",
    "WARM-P99",
    "COLD-P50",
    "COLD-P99",
    "MADE",
    "NODE-PEAK",
];

impl Cluster {
    fn words(&self) -> String {
        let cpus = self.node_cpu_milli as f64 / 1e3;
        let memory = human_bytes(self.node_memory_bytes);
        let create = human_duration(self.create_delay_ms / 1e3);
        format!("{cpus} CPUs and {memory} each; a sandbox is up in {create}")
    }
}

impl Answer {
    /// In one sentence.
    fn words(&self) -> String {
        let (bound, share) = (
            self.until_slowdown,
            match self.slowdown_of {
                SlowdownWord::P50 => "half of the functions",
                SlowdownWord::P99 => "99 of 100 functions",
            },
        );
        match (self.fewest_nodes, &self.why_none) {
            (Some(nodes), _) => {
                let nodes = counted(nodes.into(), "node");
                format!("{nodes}: nothing fails, and slowdown is at most {bound} for {share}")
            }
            (None, why) => {
                let why = why.as_deref().unwrap_or_default();
                format!("no number of nodes gives {share} a slowdown of at most {bound}: {why}")
            }
        }
    }
}

impl Report {
    pub(super) fn new(plan: &Plan, args: &SimArgs, runs: Vec<Simulated>, answer: Option<Answer>) -> Report {
        let cluster = &args.cluster;
        Report {
            plan: PlanReport::of(plan),
            simulation_seed: args.seed,
            cluster: Cluster {
                node_cpu_milli: cluster.node_cpus,
                node_memory_bytes: cluster.node_memory,
                create_delay_ms: cluster.create_delay.as_secs_f64() * 1e3,
                jitter_ms: cluster.jitter.as_secs_f64() * 1e3,
                message_delay_us: cluster.message_delay.as_secs_f64() * 1e6,
                placement: args.placement().name(),
            },
            runs,
            answer,
        }
    }

    pub(super) fn exit(&self) -> Exit {
        match &self.answer {
            Some(Answer { fewest_nodes: None, .. }) => Exit::Function,
            _ => Exit::Ok,
        }
    }
}

pub(super) fn print(printer: &Printer, report: &Report, output: Output) -> Result<(), Failure> {
    if let Output::Json | Output::Yaml = output {
        return printer.document(output, report);
    }
    match report.runs.as_slice() {
        [only] if report.answer.is_none() => {
            let rows = [report.plan.rows(), only.rows(&report.cluster)].concat();
            printer.table(&["SIMULATED", "VALUE", "NOTE"], &rows)?;
        }
        runs => printer.table(&HEADER, &runs.iter().map(Simulated::line).collect::<Vec<_>>())?,
    }
    if output == Output::Wide {
        for run in &report.runs {
            printer.out("")?;
            if report.runs.len() > 1 {
                printer.table(&["SIMULATED", "VALUE", "NOTE"], &run.rows(&report.cluster))?;
                printer.out("")?;
            }
            print_functions(printer, &run.totals.functions)?;
        }
    }
    if let Some(answer) = &report.answer {
        printer.out("")?;
        printer.out(answer.words())?;
    }
    Ok(())
}
