//! Which CPUs a process runs on.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Context, Result};

/// CPUs of this machine, shared out among the three parties of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Of the load generator.
    pub(crate) load: Vec<usize>,
    /// Of the program that answers.
    pub(crate) upstream: Vec<usize>,
    /// Of the proxy between them, which is what is measured.
    pub(crate) proxy: Vec<usize>,
}

impl Plan {
    /// For these CPUs: one for the proxy alone, whatever else there is for the others. `None` where there is only one.
    pub(crate) fn of(cpus: &[usize]) -> Option<Plan> {
        match cpus {
            [] | [_] => None,
            [first, second] => {
                Some(Plan { load: vec![*first], upstream: vec![*first], proxy: vec![*second] })
            }
            [first, second, third, ..] => {
                Some(Plan { load: vec![*first], upstream: vec![*second], proxy: vec![*third] })
            }
        }
    }

    /// In words.
    pub(crate) fn describe(plan: Option<&Plan>) -> String {
        match plan {
            None => "nothing is pinned: this process may use one CPU only".to_owned(),
            Some(plan) => format!(
                "load generator on CPU {:?}, upstream on CPU {:?}, proxy on CPU {:?}",
                plan.load, plan.upstream, plan.proxy
            ),
        }
    }
}

/// CPUs that this process may use.
pub(crate) fn available() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("read the CPU affinity")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Runs `act` with the calling thread on `cpus`, so that what it starts inherits them; then goes back.
pub(crate) fn with<T>(cpus: Option<&[usize]>, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(cpus) = cpus else { return act() };
    let before = sched_getaffinity(None).context("read the CPU affinity")?;
    sched_setaffinity(None, &set(cpus)).context(format!("move to CPU {cpus:?}"))?;
    let result = act();
    sched_setaffinity(None, &before).context("move back")?;
    result
}

/// Moves every thread of a process.
pub(crate) fn pin(pid: u32, cpus: &[usize]) -> Result<()> {
    let dir = format!("/proc/{pid}/task");
    for entry in fs::read_dir(&dir).context(&dir)? {
        let name = entry.context(&dir)?.file_name();
        let thread = name.to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw);
        match sched_setaffinity(thread, &set(cpus)) {
            // It has ended since.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).context(format!("move process {pid} to CPU {cpus:?}")),
        }
    }
    Ok(())
}

fn set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_has_a_cpu_of_its_own() {
        assert_eq!(Plan::of(&[3]), None);
        for cpus in [&[0, 1][..], &[2, 5, 7], &[0, 1, 2, 3]] {
            let plan = Plan::of(cpus).unwrap();
            assert!(
                !plan.load.contains(&plan.proxy[0]) && !plan.upstream.contains(&plan.proxy[0]),
                "{plan:?}"
            );
        }
    }

    #[test]
    fn what_is_started_inherits_and_what_runs_is_moved() {
        std::thread::spawn(|| {
            let all = available().unwrap();
            let last = vec![*all.last().unwrap()];
            let first = vec![all[0]];
            let mut child =
                with(Some(&last), || std::process::Command::new("sleep").arg("60").spawn().context("sleep"))
                    .unwrap();
            assert_eq!(available().unwrap(), all);
            let of_child = || {
                let set = sched_getaffinity(Pid::from_raw(child.id() as i32)).unwrap();
                (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>()
            };
            assert_eq!(of_child(), last);
            pin(child.id(), &first).unwrap();
            assert_eq!(of_child(), first);
            child.kill().unwrap();
            child.wait().unwrap();
        })
        .join()
        .unwrap();
    }
}
