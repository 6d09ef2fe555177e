//! What the kernel says about processes by number.

use std::io;
use std::os::fd::OwnedFd;

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
