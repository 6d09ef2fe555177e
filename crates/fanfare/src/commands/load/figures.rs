//! What the platform used meanwhile: sandboxes by its own count, CPU time of its processes where they are on this machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use fanfare_load::{processes, procfs};
use fanfare_sandbox_process::LAUNCHER_ARGUMENT;
use serde::Serialize;

use crate::commands::{Context, reachable};

/// The control plane's count of sandboxes.
const ORDERED: &str = "fanfare_sandboxes_ordered_total ";
/// Commands of this program that serve.
const ROLES: [&str; 4] = ["up", "control-plane", "data-plane", "node"];

/// A process, with what it had used at one moment.
#[derive(Clone, Debug)]
struct Process {
    role: String,
    /// When it was started: with the number it names a process for good.
    started: String,
    cpu: Duration,
}

/// One look.
#[derive(Debug)]
pub(super) struct Figures {
    /// By process number.
    processes: BTreeMap<u32, Process>,
    own_cpu: Duration,
}

/// What was used between two looks.
#[derive(Debug, Serialize)]
pub(super) struct Used {
    /// Sandboxes that nodes were told to create.
    pub(super) sandboxes_ordered: Option<u64>,
    /// CPU time of the platform's processes on this machine, those of sandboxes not among them.
    pub(super) cpu: Vec<CpuOfProcess>,
    /// CPU time of this program.
    pub(super) load_cpu_s: f64,
}

/// CPU time of one process.
#[derive(Debug, Serialize)]
pub(super) struct CpuOfProcess {
    /// `up`, `control-plane`, `data-plane`, `node`, or `launcher`, which clones a node's sandboxes.
    pub(super) role: String,
    pub(super) pid: u32,
    pub(super) cpu_s: f64,
}

impl Figures {
    /// Looks at the platform whose data plane is at `data_plane`. What cannot be seen from here is not in it.
    pub(super) async fn take(context: &Context, data_plane: SocketAddr) -> Figures {
        let mut addresses = vec![data_plane];
        addresses.extend(resolve(&context.client.base().join("")).await);
        let status = context.client.status().await.ok();
        for address in status.iter().flat_map(|status| &status.data_planes) {
            addresses.extend(resolve(&reachable(&address.address)).await);
        }
        let streams = status.and_then(|status| status.leader.streams);
        let streams = match streams {
            Some(address) => resolve(&reachable(&address)).await,
            None => None,
        };
        let processes = processes_of(&addresses, streams);
        let own_cpu = procfs::cpu_time(std::process::id()).unwrap_or_default();
        Figures { processes, own_cpu }
    }

    /// Looks again. Of sandboxes the platform had been told to make so many before the first of these functions.
    pub(super) async fn since(
        self,
        context: &Context,
        data_plane: SocketAddr,
        ordered_before: Option<u64>,
    ) -> Used {
        let now = Figures::take(context, data_plane).await;
        let ordered = sandboxes_ordered(context).await.zip(ordered_before);
        let cpu = self.processes.iter().filter_map(|(pid, before)| {
            let after = now.processes.get(pid).filter(|after| after.started == before.started)?;
            let cpu_s = after.cpu.saturating_sub(before.cpu).as_secs_f64();
            Some(CpuOfProcess { role: before.role.clone(), pid: *pid, cpu_s })
        });
        Used {
            sandboxes_ordered: ordered.and_then(|(after, before)| after.checked_sub(before)),
            cpu: cpu.collect(),
            load_cpu_s: now.own_cpu.saturating_sub(self.own_cpu).as_secs_f64(),
        }
    }
}

/// How many sandboxes nodes have been told to create; `None` where the control plane does not say, as an older one.
pub(super) async fn sandboxes_ordered(context: &Context) -> Option<u64> {
    let metrics = context.client.metrics().await.ok()?;
    metrics.lines().find_map(|line| line.strip_prefix(ORDERED)?.trim().parse().ok())
}

/// The processes that serve these addresses, those that are connected to `streams`, and the launchers below them.
fn processes_of(addresses: &[SocketAddr], streams: Option<SocketAddr>) -> BTreeMap<u32, Process> {
    let mut pids: std::collections::BTreeSet<u32> =
        addresses.iter().flat_map(|address| processes::listening(*address)).collect();
    pids.extend(streams.iter().flat_map(|streams| processes::connected_to(*streams)));
    // What a launcher has cloned has its command line, and is a sandbox.
    let below: Vec<u32> = pids.iter().flat_map(|pid| procfs::descendants(*pid)).collect();
    let below: Vec<u32> = below
        .into_iter()
        .filter(|pid| procfs::parent(*pid).is_some_and(|parent| pids.contains(&parent)))
        .collect();
    pids.extend(below);
    let mut found = BTreeMap::new();
    for pid in pids {
        let Some(role) = role(&procfs::command(pid)) else { continue };
        let Ok(cpu) = procfs::cpu_time(pid) else { continue };
        found.insert(pid, Process { role, started: procfs::started(pid), cpu });
    }
    found
}

/// What a process is for, by its command line.
fn role(command: &str) -> Option<String> {
    command.split(' ').skip(1).find_map(|word| match word {
        LAUNCHER_ARGUMENT => Some("launcher".to_owned()),
        word if ROLES.contains(&word) => Some(word.to_owned()),
        _ => None,
    })
}

async fn resolve(text: &str) -> Option<SocketAddr> {
    let host = text.trim_start_matches("http://");
    tokio::net::lookup_host(host).await.ok()?.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_known_by_their_command_lines() {
        for (command, expected) in [
            ("/usr/bin/fanfare up --listen 127.0.0.1:1", Some("up")),
            ("fanfare --quiet data-plane", Some("data-plane")),
            ("fanfare __launcher 3", Some("launcher")),
            ("./fanfare __trace-function", None),
            ("bash", None),
        ] {
            assert_eq!(role(command).as_deref(), expected, "{command}");
        }
    }
}
