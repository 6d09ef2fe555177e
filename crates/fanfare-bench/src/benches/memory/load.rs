//! Memory of what comes with load: sandboxes, connections, and requests that wait.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use fanfare_api::PolicyName;

use crate::api;
use crate::bench::Bench;
use crate::caller::get;
use crate::error::{Error, Result};
use crate::load::Once;
use crate::platform::Home;
use crate::report::{Limit, Report};
use crate::roles::{Resident, Roles};

/// Sandboxes of one function.
const SANDBOXES_EACH: usize = 1_000;
const WAITING: &str = "waiting";

/// Bytes of each, in each role.
#[derive(Debug, Default)]
struct Found {
    sandboxes: [Vec<f64>; 3],
    connections: Vec<f64>,
    waiting: [Vec<f64>; 2],
}

pub(super) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let (functions, each, nodes) = bench.either((20, SANDBOXES_EACH, 1_000), (2, 100, 10));
    let (sandboxes, connections) = (functions * each, bench.either(4_000, 200));
    report.say(format!(
        "Under load: control plane, data plane and {nodes} emulated nodes in a process each, resident memory of each \
         before and after, what the first {each} sandboxes set up not counted. Sandboxes: {sandboxes} of {functions} functions. Connections: {connections} that were answered \
         once and are kept. Waiting: a request on each of these that waits for a sandbox that never is ready."
    ));
    let mut found = Found::default();
    for _ in 0..bench.rounds.min(3) {
        let mut roles = Roles::start(Home::new(bench.dir())?, nodes)?;
        one(&mut roles, &mut found, (functions, each), connections)?;
        roles.stop()?;
    }
    for (role, bytes) in ["control plane", "data plane", "nodes"].iter().zip(&found.sandboxes) {
        let summary = report.measure("per sandbox", *role, "bytes", bytes)?;
        if *role == "control plane" {
            match summary.min > 0.0 {
                true => report.budget("per sandbox, control plane", summary.p50, "bytes", Limit::AtMost(256.0)),
                // Memory that was given back in between outweighs what they took: that proves no budget.
                false => report.say(
                    "The control plane's memory did not grow with its sandboxes in every round: what they take there is \
                     within what it gives back meanwhile, and is held against no budget.",
                ),
            }
        }
    }
    report.measure("per connection", "data plane", "bytes", &found.connections)?;
    for (role, bytes) in ["data plane", "control plane"].iter().zip(&found.waiting) {
        report.measure("per waiting request", *role, "bytes", bytes)?;
    }
    Ok(())
}

fn one(
    roles: &mut Roles,
    found: &mut Found,
    (functions, each): (usize, usize),
    connections: usize,
) -> Result<()> {
    // What the first ones set up is not counted.
    sandboxes(roles, 0..1, each)?;
    let before = roles.resident()?;
    sandboxes(roles, 1..functions + 1, each)?;
    let after = roles.resident()?;
    let of: [fn(&Resident) -> f64; 3] = [|r| r.control_plane, |r| r.data_plane, |r| r.nodes];
    for (samples, of) in found.sandboxes.iter_mut().zip(of) {
        samples.push((of(&after) - of(&before)) / (functions * each) as f64);
    }

    let before = roles.resident()?;
    let mut loader = roles.loader(connections)?;
    let answered = vec![get("/function/many-0/"); connections];
    loader.run(&mut Once::new(&answered, |_, _, answer| expect(answer.status, 200)), None)?;
    let idle = roles.resident()?;
    found.connections.push((idle.data_plane - before.data_plane) / connections as f64);

    let mut document = api::fake(WAITING);
    document.env.0.push(("FAKE_START".to_owned(), "never".to_owned()));
    document.scaling.max = Some(1);
    roles.api.deploy(&document)?;
    waiting(roles, found, loader, connections)
}

/// Registers these functions and waits until all have their sandboxes.
fn sandboxes(roles: &mut Roles, functions: Range<usize>, each: usize) -> Result<()> {
    let wanted = (functions.end * each) as u64;
    for n in functions {
        let mut document = api::fake(&format!("many-{n}"));
        document.scaling.policy = Some(PolicyName::Fixed);
        document.scaling.count = u32::try_from(each).ok();
        roles.api.deploy(&document)?;
    }
    roles.until("all sandboxes are ready", |api| Ok(u64::from(api.status()?.sandboxes.ready) == wanted))
}

/// Has a request wait on each connection, looks, and ends their waiting by deleting the function.
fn waiting(
    roles: &mut Roles,
    found: &mut Found,
    mut loader: crate::load::Loader,
    connections: usize,
) -> Result<()> {
    let before = roles.resident()?;
    let requests = vec![get(&format!("/function/{WAITING}/")); connections];
    let answered = AtomicBool::new(false);
    let work = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            // What becomes of them does not matter: they have waited.
            let mut work = Once::new(&requests, |_, _, _| {
                answered.store(true, Ordering::Relaxed);
                Ok(())
            });
            loader.run(&mut work, None)
        });
        let looked = roles
            .until("all requests wait", |api| {
                let queued: u64 = api.status()?.data_planes.iter().map(|d| d.queued).sum();
                if answered.load(Ordering::Relaxed) {
                    return Err(Error::new("a request was answered that should wait"));
                }
                Ok(queued == connections as u64)
            })
            .and_then(|()| roles.resident());
        // Whatever was seen: it is what ends the load.
        let deleted = roles.api.delete(WAITING);
        let ended = load.join().map_err(|_| Error::new("the load generator has panicked"))?;
        ended.and(deleted).and(looked)
    });
    let during = work?;
    found.waiting[0].push((during.data_plane - before.data_plane) / connections as f64);
    found.waiting[1].push((during.control_plane - before.control_plane) / connections as f64);
    Ok(())
}

fn expect(status: u16, wanted: u16) -> Result<()> {
    match status == wanted {
        true => Ok(()),
        false => Err(Error::new(format!("answered {status}"))),
    }
}
