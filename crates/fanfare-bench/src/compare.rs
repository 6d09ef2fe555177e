//! Two builds' benches, in turn: what has become better or worse since a revision.
//!
//! Each build runs its own benches, so that a bench and what it measures fit. A round is one run of either, in random
//! order; what is compared are the medians of a round.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::args::{Args, Name};
use crate::bench::Bench;
use crate::error::{Context, Error, Result};
use crate::platform::PROGRAM_VARIABLE;
use crate::report::Report;
use crate::stats::Summary;

/// By so much three quarters of the rounds must differ, and in one direction, for a difference to be named.
const DIFFERENCE: f64 = 0.02;
/// With fewer rounds no difference is named.
const ROUNDS_MIN: usize = 4;

/// As benches write it; builds of other revisions may say more.
#[derive(Debug, Deserialize)]
struct Document {
    method: Vec<String>,
    measures: Vec<Measured>,
}

#[derive(Debug, Deserialize)]
struct Measured {
    group: String,
    name: String,
    unit: String,
    p50: f64,
}

/// Medians of each measure, one per round; none where a build did not measure it.
type Rounds = BTreeMap<(String, String), (String, Vec<Option<f64>>, Vec<Option<f64>>)>;

/// Runs one bench of this build and of the one that `base` belongs to.
pub(crate) fn run(args: &Args, name: Name, base: &Path, bench: &mut Bench) -> Result<Report> {
    let this = std::env::current_exe().context("find this program")?;
    let commit = args.compare_commit.clone().unwrap_or_else(|| base.display().to_string());
    let mut report = Report::new(name.word(), "This build beside another", args.repeat(name));
    report.say(format!(
        "Medians of this build as multiples of those of {commit}, round by round: each round is one run of either build's \
         own bench, in random order. Worse or better is what differs by over {:.0} % in the same direction in three \
         quarters of at least {ROUNDS_MIN} rounds; what differs of a peer says how far to believe the rest.",
        DIFFERENCE * 100.0
    ));
    let mut rounds = Rounds::new();
    let mut methods: [Vec<String>; 2] = Default::default();
    for round in 0..bench.rounds {
        for is_base in bench.shuffled(&[false, true]) {
            let program = if is_base { base } else { &this };
            let document = one(args, name, program, round, bench.dir())?;
            methods[usize::from(is_base)] = document.method;
            for measured in document.measures {
                let key = (measured.group, measured.name);
                let (_, ours, theirs) =
                    rounds.entry(key).or_insert_with(|| (measured.unit, Vec::new(), Vec::new()));
                let of = if is_base { theirs } else { ours };
                of.resize(round, None);
                of.push(Some(measured.p50));
            }
        }
    }
    if methods[0] != methods[1] {
        report.say("The two builds say different things about what they measure: look at both before you believe a ratio.");
    }
    tell(&mut report, &rounds)?;
    report.finish()
}

/// One round of a build.
fn one(args: &Args, name: Name, program: &Path, round: usize, dir: &Path) -> Result<Document> {
    let out: PathBuf = dir.join("round");
    let mut command = Command::new(program);
    command.arg(name.word()).args(["--rounds", "1", "--seed", &(args.seed + round as u64).to_string()]);
    command.arg("--out").arg(&out).args(args.quick.then_some("--quick"));
    // Each measures the program beside it.
    command.env_remove(PROGRAM_VARIABLE).stdin(Stdio::null());
    let output = command.output().context(program.display())?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        return Err(Error::new(format!("{} {}: {}\n{said}", program.display(), name.word(), output.status)));
    }
    let path = out.join(format!("{}.json", name.word()));
    let text = fs::read(&path).context(path.display())?;
    serde_json::from_slice(&text).context(path.display())
}

fn tell(report: &mut Report, rounds: &Rounds) -> Result<()> {
    let (mut worse, mut better) = (String::new(), String::new());
    for ((group, name), (unit, ours, theirs)) in rounds {
        let pairs = ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some(((*ours)?, (*theirs)?)));
        let ratios: Vec<f64> = pairs.filter(|(_, theirs)| *theirs > 0.0).map(|(a, b)| a / b).collect();
        // What only one of them measures, or measures as nothing, has no ratio.
        if ratios.is_empty() {
            continue;
        }
        let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
        let summary = report.measure(group, format!("{name}{unit}"), "×", &ratios)?;
        let list = match verdict(&summary, more_is_better(unit.trim_matches([' ', '(', ')']))) {
            Verdict::Same => continue,
            Verdict::Worse => &mut worse,
            Verdict::Better => &mut better,
        };
        // Writing to a string cannot fail.
        let _ =
            write!(list, "{}{group}, {name}: {:.2} ×", if list.is_empty() { "" } else { "; " }, summary.p50);
    }
    for (word, list) in [("Worse", &worse), ("Better", &better)] {
        report.say(format!("{word}: {}.", if list.is_empty() { "nothing" } else { list.as_str() }));
    }
    Ok(())
}

/// Whether more of this unit is better: rates are all that there is of these.
fn more_is_better(unit: &str) -> bool {
    unit.ends_with("/s")
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Worse,
    Better,
}

fn verdict(ratio: &Summary, more_is_better: bool) -> Verdict {
    if ratio.n < ROUNDS_MIN {
        return Verdict::Same;
    }
    match (ratio.p25 > 1.0 + DIFFERENCE, ratio.p75 < 1.0 - DIFFERENCE, more_is_better) {
        (true, _, true) | (_, true, false) => Verdict::Better,
        (true, _, false) | (_, true, true) => Verdict::Worse,
        (false, false, _) => Verdict::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_one_in_three_quarters_of_the_rounds() {
        let of = |ratios: &[f64], more| verdict(&Summary::of(ratios).unwrap(), more);
        assert_eq!(of(&[1.2, 1.3, 1.1, 1.4, 0.9], false), Verdict::Worse);
        assert_eq!(of(&[1.2, 1.3, 1.1, 1.4, 0.9], true), Verdict::Better);
        assert_eq!(of(&[0.8, 0.7, 0.9, 0.6, 1.1], true), Verdict::Worse);
        assert_eq!(of(&[0.8, 0.7, 0.9, 0.6, 1.1], false), Verdict::Better);
        assert_eq!(of(&[0.5, 1.5, 2.0, 0.9, 1.1], false), Verdict::Same);
        assert_eq!(of(&[1.01, 1.01, 1.0, 1.01], false), Verdict::Same);
        assert_eq!(of(&[2.0, 2.0, 2.0], false), Verdict::Same, "too few rounds");
    }

    #[test]
    fn rounds_are_paired_and_what_one_lacks_is_left_out() {
        let key = |name: &str| ("g".to_owned(), name.to_owned());
        let rounds = Rounds::from([
            (key("latency"), ("ms".to_owned(), vec![Some(2.0); 4], vec![Some(1.0); 4])),
            (key("once"), ("ms".to_owned(), vec![None, Some(4.0)], vec![Some(1.0), Some(2.0)])),
            (key("rate"), ("req/s".to_owned(), vec![Some(4.0); 4], vec![Some(2.0); 4])),
            (key("new"), ("ms".to_owned(), vec![Some(1.0)], vec![])),
        ]);
        let mut report = Report::new("x", "X", String::new());
        tell(&mut report, &rounds).unwrap();
        let told: Vec<_> =
            report.measures.iter().map(|m| (m.name.as_str(), m.summary.n, m.summary.p50)).collect();
        assert_eq!(told, [("latency (ms)", 4, 2.0), ("once (ms)", 1, 2.0), ("rate (req/s)", 4, 2.0)]);
        assert_eq!(report.method, ["Worse: g, latency: 2.00 ×.", "Better: g, rate: 2.00 ×."]);
    }
}
