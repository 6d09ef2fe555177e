//! What the kernel says about processes by number.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags};

/// Parents that are looked at above a process.
const DEPTH_MAX: usize = 4;

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Its parent.
    pub(crate) parent: i32,
    /// When it started, in clock ticks since boot; with the number it names a process for good.
    pub(crate) start_time: String,
}

/// Ports that are named.
const PORTS_MAX: usize = 4;

/// Bytes of a file here; what is longer is cut.
const FILE_BYTES_MAX: usize = 8 << 10;

/// Reads a file that the kernel makes as it is read, at once: each further read would have it made anew.
pub(crate) fn read(path: &str) -> io::Result<String> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0; FILE_BYTES_MAX];
    let len = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer))?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

/// What is known about a process; `None` when there is none of this number.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    parse(&read(&format!("/proc/{pid}/stat")).ok()?)
}

/// Fields 4 and 22, counted after the command's name, which may hold anything.
fn parse(text: &str) -> Option<Stat> {
    let (_, after) = text.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    Some(Stat { parent, start_time: fields.nth(17)?.to_owned() })
}

/// A descriptor of the process with this number, if it descends from `ancestor`. Numbers are given anew: one that
/// user code has told may be anybody's by now, and whoever holds it would be killed in its place.
pub(crate) fn descendant(pid: i32, ancestor: i32) -> Option<OwnedFd> {
    let pidfd = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let mut above = pid;
    for _ in 0..DEPTH_MAX {
        above = stat(above)?.parent;
        if above == ancestor {
            // Still there, so the number was its own all the while.
            return is_there(&pidfd).then_some(pidfd);
        }
    }
    None
}

/// TCP ports that are listened on in a process's network namespace, at most [`PORTS_MAX`], the lowest first.
pub(crate) fn listening(pid: i32) -> Vec<u16> {
    let tables = ["tcp", "tcp6"].map(|table| read(&format!("/proc/{pid}/net/{table}")).unwrap_or_default());
    let ports: BTreeSet<u16> =
        tables.iter().flat_map(|table| table.lines().filter_map(listening_port)).collect();
    ports.into_iter().take(PORTS_MAX).collect()
}

/// The local port of a line of `/proc/net/tcp` whose socket listens.
fn listening_port(line: &str) -> Option<u16> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (_, port) = fields.next()?.rsplit_once(':')?;
    let listens = fields.nth(1)? == "0A";
    listens.then(|| u16::from_str_radix(port, 16).ok()).flatten()
}

/// A process's mount and IPC namespaces, as the kernel names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Namespaces {
    pub(crate) mount: PathBuf,
    pub(crate) ipc: PathBuf,
}

/// The namespaces of a process.
pub(crate) fn namespaces(pid: i32) -> io::Result<Namespaces> {
    let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}"));
    Ok(Namespaces { mount: link("mnt")?, ipc: link("ipc")? })
}

/// The namespaces of the program that this first process of a sandbox has started. An ordinary user may not ask for
/// those of the first process itself, which cannot be inspected.
pub(crate) fn namespaces_of_program(first: i32) -> io::Result<Namespaces> {
    namespaces(first).or_else(|error| namespaces(*children(first, first)?.first().ok_or(error)?))
}

/// Children of a thread.
fn children(pid: i32, thread: i32) -> io::Result<Vec<i32>> {
    let text = read(&format!("/proc/{pid}/task/{thread}/children"))?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Processes beside the program that this first process of a sandbox has started: its children, and those without a
/// parent, which fall to the first.
pub(crate) fn beside_program(first: i32) -> io::Result<usize> {
    let (program, orphans) = match children(first, first)?.as_slice() {
        [] => return Err(io::ErrorKind::NotFound.into()),
        [program, orphans @ ..] => (*program, orphans.len()),
    };
    let mut beside = orphans;
    for thread in std::fs::read_dir(format!("/proc/{program}/task"))? {
        let thread = thread?.file_name().to_str().and_then(|name| name.parse().ok());
        beside += children(program, thread.ok_or(io::ErrorKind::InvalidData)?)?.len();
    }
    Ok(beside)
}

/// Whether any thread of a process has a capability that it could use.
pub(crate) fn has_capabilities(pid: i32) -> io::Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = match read(&format!("{}/status", thread?.path().display())) {
            // Ended between the listing and now.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => continue,
            other => other?,
        };
        if !no_capabilities(&status) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the `oom_score_adj` that this process gives another one is the least that it can give itself from then on: the
/// kernel asks for `CAP_SYS_RESOURCE` in the first user namespace.
pub(crate) fn keeps_oom_scores() -> bool {
    let of = |path| std::fs::read_to_string(path).unwrap_or_default();
    bounds_oom_scores(&of("/proc/self/status"), &of("/proc/self/uid_map"))
}

fn bounds_oom_scores(status: &str, uid_map: &str) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    // The first namespace maps all users to themselves.
    let first = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    first && effective >> CAP_SYS_RESOURCE & 1 == 1
}

/// By the sets of the permitted and the effective ones; what cannot be read is not none.
fn no_capabilities(status: &str) -> bool {
    ["CapPrm:", "CapEff:"].iter().all(|name| {
        let set = status.lines().find_map(|line| line.strip_prefix(name));
        set.is_some_and(|set| u64::from_str_radix(set.trim(), 16) == Ok(0))
    })
}

/// Whether a process has not been reaped.
pub(crate) fn is_there(pidfd: &OwnedFd) -> bool {
    crate::sys::pidfd_signal(pidfd, None, crate::sys::SignalTo::Process).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let text = "7 (a) b) (c) S 3 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 987654 9961472 893";
        assert_eq!(parse(text), Some(Stat { parent: 3, start_time: "987654".into() }));
        assert_eq!(parse("7 (a"), None);
        assert_eq!(parse("7 (a) S 3"), None);
    }

    #[test]
    fn ports_that_are_listened_on_are_seen() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue";
        let line = |local: &str, state: &str| {
            format!("   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000")
        };
        assert_eq!(listening_port(head), None);
        assert_eq!(listening_port(&line("0100007F:0BB8", "0A")), Some(3000));
        assert_eq!(listening_port(&line("00000000000000000000000001000000:1F90", "0A")), Some(8080));
        assert_eq!(listening_port(&line("0100007F:0BB8", "01")), None, "connected");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ports = listening(i32::try_from(std::process::id()).unwrap());
        assert!(
            ports.len() == PORTS_MAX || ports.contains(&listener.local_addr().unwrap().port()),
            "{ports:?}"
        );
    }

    #[test]
    fn capabilities_are_those_permitted_and_effective() {
        let status = |permitted: &str, effective: &str| {
            format!(
                "Name:\tx\nCapInh:\t00000000000000ff\nCapPrm:\t{permitted}\nCapEff:\t{effective}\nCapBnd:\t1\n"
            )
        };
        assert!(no_capabilities(&status("0000000000000000", "0000000000000000")));
        for (permitted, effective) in [("0000000000200000", "0"), ("0", "1"), ("", "0"), ("x", "0")] {
            assert!(!no_capabilities(&status(permitted, effective)), "{permitted} {effective}");
        }
        assert!(!no_capabilities(""));
        let me = i32::try_from(std::process::id()).unwrap();
        assert_eq!(has_capabilities(me).unwrap(), rustix::process::geteuid().is_root());
        assert_eq!(namespaces(me).unwrap(), namespaces_of_program(me).unwrap());
    }

    #[test]
    fn scores_are_bounded_with_the_capability_and_in_the_first_namespace() {
        let all = "         0          0 4294967295\n";
        for (set, map, bounded) in [
            ("000001ffffffffff", all, true),
            ("000001fffeffffff", all, false),
            ("0000000001000000", all, true),
            ("0000000000000000", all, false),
            ("000001ffffffffff", "0 1000 1\n", false),
            ("none", all, false),
        ] {
            let status = format!("Name:\tfanfare\nCapPrm:\t000001ffffffffff\nCapEff:\t{set}\n");
            assert_eq!(bounds_oom_scores(&status, map), bounded, "{set} {map}");
        }
        assert!(!bounds_oom_scores("", ""));
    }

    #[test]
    fn processes_beside_a_program_are_its_children_and_orphans() {
        use std::os::unix::process::CommandExt;
        let mut first = std::process::Command::new("sh")
            .args(["-c", "sh -c 'sleep 60 & echo; wait' & wait"])
            .stdout(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(first.stdout.take().unwrap()), &mut line).unwrap();
        let pid = i32::try_from(first.id()).unwrap();
        let beside = beside_program(pid);
        rustix::process::kill_process_group(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
        first.wait().unwrap();
        assert_eq!(beside.unwrap(), 1);
        assert!(beside_program(pid).is_err());
    }

    #[test]
    fn only_a_descendant_is_taken() {
        let me = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(descendant(pid, me).is_some());
        assert!(descendant(1, me).is_none() && descendant(me, me).is_none() && descendant(me, pid).is_none());
        let pidfd = descendant(pid, me).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_there(&pidfd) && descendant(pid, me).is_none());
    }
}
