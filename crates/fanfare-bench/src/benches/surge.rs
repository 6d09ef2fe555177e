//! Many requests at once to a function at zero, beside the same creates given straight to the runtime.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use fanfare_api::{FunctionDocument, HandlerDocument};
use fanfare_types::{FunctionId, FunctionSpec, RevisionId};

use crate::bench::{Bench, function_program};
use crate::caller::get;
use crate::direct::Direct;
use crate::error::{Context, Error, Result};
use crate::load::Once;
use crate::platform::{Home, Platform};
use crate::report::{Limit, Report};
use crate::{api, package};

const NAME: &str = "surge";
const FUNCTION: &str = "surge";
const PROGRAM: &str = "function";
/// Creations at once: the default of `NodeOptions`.
const CREATIONS_MAX: usize = 64;

/// Who makes the sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Ours,
    /// The runtime, with as many creations at once as a node daemon allows.
    Direct,
    /// The runtime, with all creations at once.
    Unlimited,
}

/// What the rounds gave.
#[derive(Debug, Default)]
struct Found {
    ours_ms: Vec<f64>,
    sandboxes_used: Vec<f64>,
    sandboxes_made: Vec<f64>,
    direct: Makespans,
    unlimited: Makespans,
}

/// Of the runtime alone.
#[derive(Debug, Default)]
struct Makespans {
    ms: Vec<f64>,
    ready_ms: Vec<f64>,
}

pub(crate) fn run(bench: &mut Bench) -> Result<Report> {
    let mut report = Report::new(NAME, "A surge from zero, beside the bare runtime", bench.command.clone());
    let (count, work) = bench.either((200, Duration::from_secs(1)), (20, Duration::from_millis(200)));
    report.say(format!(
        "{count} requests at once over {count} open connections to a function at zero, concurrency 1, that works (sleeps) \
         for {} ms; makespan from the first byte of the first request to the last byte of the last answer, less the \
         work. Direct: the `process` runtime as a library in the bench's own process is ordered to make {count} \
         sandboxes of the same revision, and each is sent the same request as soon as it is ready; {CREATIONS_MAX} are \
         created at once, as a node daemon does, or all.",
        work.as_millis()
    ));
    let package = package::program(&function_program()?, PROGRAM)?;
    let command = vec![format!("./{PROGRAM}")];
    let mut document = FunctionDocument::new(
        FUNCTION,
        HandlerDocument::Http { command, inherits_listener: true, protocol: Default::default() },
    );
    document.code = Some(package.digest.to_string());
    document.concurrency = Some(1);
    api::forgets_quickly(&mut document);

    let mut platform = Platform::start(Home::new(bench.dir())?, None)?;
    platform.api.upload(&package)?;
    platform.api.deploy(&document)?;
    platform.api.prepare(FUNCTION)?;
    platform.until_idle()?;
    let sockets =
        tempfile::Builder::new().prefix("ffb-").tempdir().context("make a directory for sockets")?;
    let mut direct = direct(bench, sockets.path(), document)?;

    let mut found = Found::default();
    for _ in 0..bench.rounds {
        for turn in bench.shuffled(&[Turn::Ours, Turn::Direct, Turn::Unlimited]) {
            let (creations_max, makespans) = match turn {
                Turn::Ours => {
                    ours(&mut platform, &mut found, count, work)?;
                    continue;
                }
                Turn::Direct => (CREATIONS_MAX, &mut found.direct),
                Turn::Unlimited => (count, &mut found.unlimited),
            };
            let request = get(&format!("/work/{}", work.as_millis()));
            let surge = direct.surge(count as u64, creations_max, &request)?;
            makespans.ms.push(beyond_ms(surge.makespan, work));
            makespans.ready_ms.push(surge.ready.as_secs_f64() * 1e3);
        }
    }
    direct.stop();
    platform.stop()?;
    tell(&mut report, &found, count)?;
    report.finish()
}

fn direct(bench: &Bench, dir: &std::path::Path, document: FunctionDocument) -> Result<Direct> {
    let code = bench.dir().join("code");
    fs::create_dir(&code).context(code.display())?;
    fs::copy(function_program()?, code.join(PROGRAM)).context("copy the function")?;
    let spec =
        FunctionSpec::try_from(document).map_err(|error| Error::new(format!("the function: {error:?}")))?;
    Direct::start(dir, code, spec.revision(RevisionId { function: FunctionId(1), number: 1 }))
}

fn ours(platform: &mut Platform, found: &mut Found, count: usize, work: Duration) -> Result<()> {
    let calls = vec![get(&format!("/function/{FUNCTION}/work/{}", work.as_millis())); count];
    let mut names = BTreeSet::new();
    let mut loader = platform.loader(count)?;
    let makespan = loader.run(
        &mut Once::new(&calls, |_, _, answer| match answer.status {
            200 => {
                names.insert(answer.text());
                Ok(())
            }
            status => Err(Error::new(format!("answered {status}: {}", answer.text()))),
        }),
        None,
    )?;
    let counts = platform.api.sandboxes()?.into_iter().map(|(_, counts)| counts);
    found.sandboxes_made.push(counts.map(|c| f64::from(c.ready + c.starting + c.stopping)).sum());
    found.ours_ms.push(beyond_ms(makespan, work));
    found.sandboxes_used.push(names.len() as f64);
    platform.until_idle()
}

fn beyond_ms(makespan: Duration, work: Duration) -> f64 {
    makespan.saturating_sub(work).as_secs_f64() * 1e3
}

fn tell(report: &mut Report, found: &Found, count: usize) -> Result<()> {
    let group = format!("0 to {count}");
    report.measure(&group, "fanfare, makespan beyond the work", "ms", &found.ours_ms)?;
    report.measure(&group, "direct, makespan beyond the work", "ms", &found.direct.ms)?;
    report.measure(&group, "direct, until all are ready", "ms", &found.direct.ready_ms)?;
    report.measure(&group, "direct, all at once, makespan beyond the work", "ms", &found.unlimited.ms)?;
    report.measure(&group, "direct, all at once, until all are ready", "ms", &found.unlimited.ready_ms)?;
    let ratio = report.ratio(&group, "fanfare / direct", &found.ours_ms, &found.direct.ms)?;
    report.ratio(&group, "fanfare / direct, all at once", &found.ours_ms, &found.unlimited.ms)?;
    report.measure(&group, "sandboxes that answered", "", &found.sandboxes_used)?;
    report.measure(&group, "sandboxes at the last answer", "", &found.sandboxes_made)?;
    report.budget("makespan beyond the work, fanfare / direct", ratio.p50, "×", Limit::AtMost(1.1));
    Ok(())
}
