//! The state of sandboxes persisted, as orchestrators do that rebuild nothing.

use super::super::control::{ColdStarts, cold_starts};
use crate::bench::Bench;
use crate::emulate::Sockets;
use crate::error::Result;
use crate::platform::{Home, Platform};
use crate::relay::Relay;
use crate::report::Report;
use crate::stats::Summary;
use crate::timing;

const NODES: usize = 100;
const RELAYS: [Relay; 3] = [Relay::Off, Relay::Pass, Relay::Persist];

fn describe(relay: Relay) -> &'static str {
    match relay {
        Relay::Off => "as it is",
        Relay::Pass => "relayed",
        Relay::Persist => "persisted",
    }
}

pub(super) fn run(bench: &mut Bench, report: &mut Report) -> Result<()> {
    let nodes = bench.either(NODES, 5);
    let (many, few) = bench.either((1_000, 100), (50, 10));
    report.say(format!(
        "Persisted: the platform of `control` with {nodes} nodes; between its control plane and each node a relay, which \
         writes every change of a sandbox's state (ordered, ready, to be stopped, gone) to the control plane's own store, with \
         its group commit, and passes it on when it is durable. Relayed: the same relay, which writes nothing. {many} \
         functions are called once each with 64 in flight, {few} one after the other."
    ));
    let mut platforms = Vec::new();
    for relay in RELAYS {
        platforms
            .push((relay, Platform::emulate_with(Home::new(bench.dir())?, nodes, Sockets::Unix, relay)?));
    }
    for (count, in_flight) in [(few, 1), (many, 64)] {
        let mut found: Vec<(Relay, ColdStarts)> = Vec::new();
        for round in 0..bench.rounds {
            for relay in bench.shuffled(&RELAYS) {
                for (_, platform) in platforms.iter_mut().filter(|(of, _)| *of == relay) {
                    let prefix = format!("p{in_flight}-{round}");
                    let ran =
                        cold_starts(platform, &prefix, (count, in_flight), &mut timing::Stages::default())?;
                    found.push((relay, ran));
                }
            }
        }
        tell(report, in_flight, &found)?;
    }
    platforms.into_iter().try_for_each(|(_, platform)| platform.stop().map(|_| ()))
}

fn tell(report: &mut Report, in_flight: usize, found: &[(Relay, ColdStarts)]) -> Result<()> {
    let group = format!("state of sandboxes, {in_flight} in flight");
    let of = |relay: Relay| found.iter().filter(move |(of, _)| *of == relay).map(|(_, found)| found);
    let rates = |relay: Relay| of(relay).map(|found| found.rate).collect::<Vec<_>>();
    let medians = |relay: Relay| -> Vec<f64> {
        of(relay).filter_map(|found| Summary::of(&found.latencies_ms)).map(|summary| summary.p50).collect()
    };
    for relay in RELAYS {
        let name = describe(relay);
        let latencies: Vec<f64> = of(relay).flat_map(|found| &found.latencies_ms).copied().collect();
        let cpu: Vec<f64> = of(relay).map(|found| found.cpu_without_nodes_us).collect();
        report.measure(&group, format!("latency, {name}"), "ms", &latencies)?;
        report.measure(&group, format!("throughput, {name}"), "/s", &rates(relay))?;
        report.measure(&group, format!("CPU per cold start without the nodes, {name}"), "us", &cpu)?;
    }
    let (persisted, relayed) = (Relay::Persist, Relay::Pass);
    report.ratio(&group, "throughput, persisted / relayed", &rates(persisted), &rates(relayed))?;
    report.ratio(&group, "latency, persisted / relayed, medians", &medians(persisted), &medians(relayed))?;
    Ok(())
}
