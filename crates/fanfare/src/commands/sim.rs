//! `fanfare sim`: what a load would come to, worked out in virtual time.

mod outcome;
mod report;
mod scenario;
mod search;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use fanfare_load::summary::summary;
use fanfare_trace::Plan;

use crate::args::{NODES_MAX, SimArgs, SlowdownOf};
use crate::exit::{Exit, Failure};
use crate::printer::{Printer, counted, human_duration};
use crate::replay::{files, plan};
use report::{Answer, Report, Simulated};
use scenario::Base;
use search::{Found, fewest};

/// Different numbers of nodes in one command.
const COUNTS_MAX: usize = 100;

/// What every run of a command is made of.
struct Lab<'a> {
    plan: &'a Plan,
    base: &'a Base,
    names: Vec<String>,
    seed: u64,
    out: Option<PathBuf>,
    /// Whether each run has a directory of its own.
    several: bool,
    printer: &'a Printer,
}

pub(crate) fn run(args: &SimArgs, printer: &Printer) -> Result<Exit, Failure> {
    let mut counts = args.nodes.clone();
    counts.sort_unstable();
    counts.dedup();
    if counts.len() > COUNTS_MAX {
        return Err(Failure::usage(format!(
            "--nodes has {} numbers; the limit is {COUNTS_MAX}",
            counts.len()
        )));
    }
    let plan = plan::make(printer, &args.what, args.seed, None)?;
    let base = scenario::base(&plan, args)?;
    let out = args.out.as_deref().map(files::prepare).transpose()?;
    let load = counted(plan.invocations.len() as u64, "invocation");
    printer.stage(format_args!("Planned {load} of {}", counted(plan.functions.len() as u64, "function")));
    let lab = Lab {
        names: base.names(),
        plan: &plan,
        base: &base,
        seed: args.seed,
        out,
        several: counts.len() > 1 || args.until_slowdown.is_some(),
        printer,
    };
    let (runs, answer) = match args.until_slowdown {
        Some(bound) => lab.search(bound, args.slowdown_of)?,
        None => (lab.each(&counts)?, None),
    };
    let report = Report::new(&plan, args, runs, answer);
    if let Some(out) = &lab.out {
        files::write_summary(out, &plan, &report)?;
        printer.stage(format_args!("Wrote all invocations to {}", out.display()));
    }
    report::print(printer, &report, args.output.output)?;
    Ok(report.exit())
}

impl Lab<'_> {
    /// One run.
    fn simulate(&self, nodes: u32) -> Result<Simulated, Failure> {
        let began = Instant::now();
        let ended = fanfare_sim::run(&self.base.on(nodes), self.seed);
        if let Some(broken) = &ended.violation {
            let what = format!("the simulation broke off: {}: {}", broken.invariant, broken.detail);
            return Err(Failure::platform(what));
        }
        let took = began.elapsed().as_secs_f64();
        let run = outcome::run(self.plan, &ended, self.base.lead());
        let totals = summary(self.plan, &run, &self.names);
        if let Some(out) = &self.out {
            let own = out.join(format!("nodes-{nodes}"));
            let directory = if self.several { files::prepare(&own)? } else { out.clone() };
            files::write_invocations(&directory, self.plan, &run, &self.names)?;
        }
        let span = human_duration(self.plan.span_us as f64 / 1e6);
        let (nodes_word, took) = (counted(nodes.into(), "node"), human_duration(took));
        self.printer.stage(format_args!("Simulated {span} on {nodes_word} in {took}"));
        Ok(Simulated::new(nodes, &ended, totals))
    }

    /// One run for each number of nodes, as many at once as this machine has CPUs; in the order of `counts`.
    fn each(&self, counts: &[u32]) -> Result<Vec<Simulated>, Failure> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(counts.len())));
        let work = || {
            while let Some(nodes) = counts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let simulated = self.simulate(*nodes);
                done.lock().unwrap_or_else(PoisonError::into_inner).push((*nodes, simulated));
            }
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 1..cpus.min(counts.len()) {
                scope.spawn(work);
            }
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(nodes, _)| *nodes);
        done.into_iter().map(|(_, simulated)| simulated).collect()
    }

    /// As many runs as it takes to find the fewest nodes that are enough.
    fn search(&self, bound: f64, of: SlowdownOf) -> Result<(Vec<Simulated>, Option<Answer>), Failure> {
        let mut runs = Vec::new();
        let found = fewest(NODES_MAX, bound, |nodes| {
            let simulated = self.simulate(nodes)?;
            let slowdown = simulated.slowdown(of).ok_or_else(|| {
                Failure::usage("no invocation of the plan has an execution, so that none has a slowdown")
            })?;
            let tried = search::Tried { failed: simulated.failed(), slowdown };
            runs.push(simulated);
            Ok(tried)
        })?;
        runs.sort_by_key(|simulated| simulated.nodes);
        let (nodes, why_none) = match found {
            Found::Enough(nodes) => (Some(nodes), None),
            Found::None(why) => (None, Some(why)),
        };
        Ok((
            runs,
            Some(Answer { until_slowdown: bound, slowdown_of: of.into(), fewest_nodes: nodes, why_none }),
        ))
    }
}
