//! Network namespaces made when a sandbox needs one, in place of a pool of them.

use std::fs;

use fanfare_api::{FunctionDocument, HandlerDocument};
use fanfare_types::{FunctionId, FunctionSpec, RevisionId};

use crate::bench::{Bench, function_program};
use crate::caller::get;
use crate::direct::Direct;
use crate::error::{Context, Error, Result};
use crate::report::Report;

const PROGRAM: &str = "function";
/// Creations at once: the default of `NodeOptions`.
const CREATIONS_MAX: usize = 64;
/// As many as are kept ready by default.
const POOL: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Pooled,
    Made,
}

const TURNS: [Turn; 2] = [Turn::Pooled, Turn::Made];

/// What one variant did: a list per round.
#[derive(Debug, Default)]
struct Found {
    one_ms: Vec<Vec<f64>>,
    many_ms: Vec<f64>,
}

pub(super) fn run(bench: &mut Bench, report: &mut Report) -> Result<()> {
    let (ones, many) = bench.either((32, 100), (3, 5));
    report.say(format!(
        "Pools off: the `process` runtime as a library makes sandboxes of a compiled server and sends each a request, once \
         with {POOL} network namespaces kept ready, once with none, so that each creation makes its own; one after the other \
         ({ones} per round), and {many} ordered at once, of which {CREATIONS_MAX} are created at a time."
    ));
    let code = bench.dir().join("ablation-code");
    fs::create_dir(&code).context(code.display())?;
    fs::copy(function_program()?, code.join(PROGRAM)).context("copy the function")?;
    let sockets =
        tempfile::Builder::new().prefix("ffb-").tempdir().context("make a directory for sockets")?;
    let mut runtimes = Vec::new();
    for (turn, pool) in [(Turn::Pooled, POOL), (Turn::Made, 0)] {
        let dir = sockets.path().join(pool.to_string());
        fs::create_dir(&dir).context(dir.display())?;
        let id = RevisionId { function: FunctionId(1), number: 1 };
        runtimes.push((turn, Direct::start_with(&dir, code.clone(), spec()?.revision(id), pool)?));
    }
    let mut found = [Found::default(), Found::default()];
    let request = get("/");
    for _ in 0..bench.rounds {
        for turn in bench.shuffled(&TURNS) {
            for (at, (_, direct)) in runtimes.iter_mut().enumerate().filter(|(_, (of, _))| *of == turn) {
                let mut one_ms = Vec::with_capacity(ones);
                for _ in 0..ones {
                    one_ms.push(direct.surge(1, 1, &request)?.makespan.as_secs_f64() * 1e3);
                }
                found[at].one_ms.push(one_ms);
                let surge = direct.surge(many, CREATIONS_MAX, &request)?;
                found[at].many_ms.push(surge.makespan.as_secs_f64() * 1e3);
            }
        }
    }
    runtimes.into_iter().for_each(|(_, direct)| direct.stop());
    tell(report, &found, many)
}

fn tell(report: &mut Report, found: &[Found; 2], many: u64) -> Result<()> {
    let group = "network namespaces";
    let median = |samples: &Vec<f64>| crate::stats::Summary::of(samples).map_or(f64::NAN, |s| s.p50);
    let [pooled, made] = found;
    for (name, found) in [("pooled", pooled), ("made when needed", made)] {
        let ones: Vec<f64> = found.one_ms.iter().flatten().copied().collect();
        report.measure(group, format!("one sandbox to its first answer, {name}"), "ms", &ones)?;
        report.measure(
            group,
            format!("{many} sandboxes to their last answer, {name}"),
            "ms",
            &found.many_ms,
        )?;
    }
    let ones = |found: &Found| found.one_ms.iter().map(median).collect::<Vec<_>>();
    report.ratio(group, "one, made / pooled, medians of rounds", &ones(made), &ones(pooled))?;
    report.ratio(group, format!("{many}, made / pooled"), &made.many_ms, &pooled.many_ms)?;
    Ok(())
}

fn spec() -> Result<FunctionSpec> {
    let command = vec![format!("./{PROGRAM}")];
    let handler = HandlerDocument::Http { command, inherits_listener: true, protocol: Default::default() };
    let mut document = FunctionDocument::new("ablation", handler);
    document.code = Some("00".repeat(32));
    document.concurrency = Some(1);
    FunctionSpec::try_from(document).map_err(|error| Error::new(format!("the function: {error:?}")))
}
