//! What a run came to, for people and for programs.

use fanfare_load::Run;
use fanfare_load::server_timing::STAGES;
use fanfare_load::summary::{Lateness, LatenessBound, Totals};
use fanfare_trace::Plan;
use serde::Serialize;

use super::figures::Used;
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, counted, human_duration};
use crate::replay::report::{
    PlanReport, count_rows, latency_rows, micros, millis, none, print_functions, row,
};

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
        rows.extend(count_rows(&totals.counts));
        rows.extend(latency_rows(totals));
        rows.push(row("service", totals.service_ms.map_or_else(none, millis), "from sent to answered"));
        let ordered = self.used.sandboxes_ordered.map_or_else(none, |count| count.to_string());
        // Only the built-in function says which sandbox it is.
        let seen = match totals.sandboxes_seen {
            0 => String::new(),
            seen => format!("{seen} answered; "),
        };
        let note = format!("{seen}cold: {}", counted(totals.counts.cold, "answer"));
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

fn cores(cpu_s: f64, elapsed_s: f64) -> String {
    let share = if elapsed_s > 0.0 { cpu_s / elapsed_s } else { 0.0 };
    format!("{cpu_s:.2} s, {share:.2} cores")
}
