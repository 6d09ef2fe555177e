//! What each of the ways in which cold starts are made cheap is worth: the same without it.

mod nat;
mod persist;
mod pools;
mod unary;

use crate::bench::Bench;
use crate::error::Result;
use crate::report::Report;

const NAME: &str = "ablations";

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let title = "Ablations: what was left out, put in, and the other way round";
    let mut report = Report::new(NAME, title, bench.command.clone());
    report.say(
        "Each part takes turns with what it is compared with, in random order; ratios are of the same round. Without the \
         zygote: `cold` has the same Python handler with one and without.",
    );
    persist::run(bench, &mut report)?;
    unary::run(bench, &mut report)?;
    pools::run(bench, &mut report)?;
    nat::run(bench, &mut report)?;
    report.finish()
}
