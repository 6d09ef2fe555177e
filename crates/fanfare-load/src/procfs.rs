//! What the kernel says about processes: CPU time, memory, descendants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use crate::cpu_clock;
use crate::error::{Context, Error, Result};

/// CPU time of a process and of all its threads, ended ones included. The kernel's sum of what `/proc/PID/task/*/schedstat`
/// shows for the living ones, in nanoseconds.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    cpu_clock::of_process(pid).context(format!("CPU time of process {pid}"))
}

/// CPU time of the living threads of a process whose names begin so.
pub fn cpu_time_of_threads(pid: u32, name: &str) -> Result<Duration> {
    let dir = format!("/proc/{pid}/task");
    let mut nanos = 0;
    for entry in fs::read_dir(&dir).context(&dir)? {
        let thread = entry.context(&dir)?.path();
        // A thread that has ended meanwhile has no files.
        let of_name = fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.starts_with(name));
        if of_name && let Ok(text) = fs::read_to_string(thread.join("schedstat")) {
            nanos += text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(Duration::from_nanos(nanos))
}

/// Resident memory of a process, in bytes.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).context(&path)?;
    resident(&text).ok_or_else(|| Error::new(format!("{path} has no VmRSS")))
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Every process below this one, itself not among them.
pub fn descendants(pid: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{child}/stat")) else { continue };
        if let Some(parent) = parent_of(&stat) {
            children.entry(parent).or_default().push(child);
        }
    }
    let mut found = BTreeSet::new();
    let mut open = vec![pid];
    while let Some(next) = open.pop() {
        for child in children.get(&next).into_iter().flatten() {
            if found.insert(*child) {
                open.push(*child);
            }
        }
    }
    found
}

/// The process that started a process, or has taken it over since.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    field_after_name(pid, 1)?.parse().ok()
}

/// When a process was started, in the kernel's ticks; empty when there is none. With the pid it names a process for good.
pub fn started(pid: u32) -> String {
    field_after_name(pid, 19).unwrap_or_default()
}

/// Whether a process exists and is more than an entry that its parent has not yet read.
pub fn is_running(pid: u32) -> bool {
    field_after_name(pid, 0).is_some_and(|state| state != "Z" && state != "X")
}

/// A field of `/proc/PID/stat`, counted from the one after the process's name.
fn field_after_name(pid: u32, at: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.split_whitespace().nth(at)?.to_owned())
}

/// The parent in a line of `/proc/PID/stat`; the name in it may hold anything, parentheses included.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The command line of a process, or its name in brackets.
pub fn command(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
    if text.is_empty() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return format!("[{}]", name.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_time_and_memory_grow() {
        let me = std::process::id();
        let before = cpu_time(me).unwrap();
        let mut block = vec![0_u8; 64 << 20];
        let memory_before = resident_bytes(me).unwrap();
        block.iter_mut().step_by(512).for_each(|byte| *byte = 1);
        let used = cpu_time(me).unwrap().saturating_sub(before);
        assert!(used > Duration::from_micros(100) && used < Duration::from_secs(60), "{used:?}");
        assert!(resident_bytes(me).unwrap() > memory_before + (32 << 20));
        assert!(std::hint::black_box(&block)[0] == 1);
    }

    #[test]
    fn threads_are_counted_by_name() {
        let me = std::process::id();
        let spin = move || {
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_millis(5) {}
            cpu_time_of_threads(me, "spinning").unwrap()
        };
        let used = std::thread::Builder::new().name("spinning-1".into()).spawn(spin).unwrap().join().unwrap();
        assert!(used > Duration::from_micros(100), "{used:?}");
        assert_eq!(cpu_time_of_threads(me, "no such thread").unwrap(), Duration::ZERO);
    }

    #[test]
    fn a_process_that_is_gone_has_no_time() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(cpu_time(child.id()).is_err());
        assert!(resident_bytes(child.id()).is_err());
    }

    #[test]
    fn children_are_found_with_their_command() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 61; true"]).spawn().unwrap();
        let me = std::process::id();
        // The shell starts `sleep` in its own time: look until it is there.
        let grandchild = std::iter::repeat_with(|| {
            std::thread::yield_now();
            descendants(me).into_iter().find(|pid| command(*pid) == "sleep 61")
        })
        .take(1_000_000)
        .flatten()
        .next();
        assert!(descendants(me).contains(&child.id()));
        assert_eq!((parent(child.id()), grandchild.and_then(parent)), (Some(me), Some(child.id())));
        let pid = rustix::process::Pid::from_raw(grandchild.unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn lines_of_the_kernel() {
        assert_eq!(parent_of("12 (a) b) c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of("12"), None);
        assert_eq!(resident("Name:\tx\nVmRSS:\t   12 kB\n"), Some(12 * 1024));
        assert_eq!(resident("Name:\tx\n"), None);
    }
}
