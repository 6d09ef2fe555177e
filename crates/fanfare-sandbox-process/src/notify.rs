//! Readiness seen in system calls: the sandbox's filter has the kernel ask us before certain calls go on.
//!
//! A program that binds `$PORT` itself is ready when it calls `listen`. The supervisor takes a duplicate of the
//! socket, checks that it is bound to that port, performs `listen` on it and answers 0: when the sandbox is reported
//! ready the socket certainly listens, and nothing was probed.
//!
//! A program that takes an inherited listener is seen to reach it when it calls `accept` on it, or waits for it with
//! `poll`, `select` or `epoll`. That is only watched while a revision is prepared, because it slows these calls.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use tokio::io::Interest;
use tokio::sync::oneshot;

use crate::pace::Pace;
use crate::sys::{self, Answer, Notification};

/// Entries of one `poll` that are looked at.
const POLL_ENTRIES_MAX: usize = 64;
/// Bytes of a `select` set.
const SELECT_SET_BYTES: usize = 128;
/// What one call may cost, and how much of that at once: an answer takes the daemon about a hundred microseconds, which
/// a program that does nothing but call could otherwise make it spend without an end.
const CALL: Duration = Duration::from_millis(1);
const BURST: Duration = Duration::from_secs(1);
/// Stack of the thread that answers one call.
const STACK_BYTES: usize = 64 << 10;

/// What makes the sandbox ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// `listen` on a TCP socket bound to this port.
    Port(u16),
    /// A call that waits for the socket with this inode.
    Accept(u64),
}

/// How a ready sandbox can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// At this address in its network namespace.
    Tcp(SocketAddr),
    /// Through the inherited listener.
    Listener,
}

/// Answers the sandbox's calls until it has ended; reports the first that makes it ready.
///
/// Each is answered on a thread that nobody else needs: a call that was abandoned just before it is received leaves
/// the receiver waiting for the next.
pub(crate) async fn watch(notifications: OwnedFd, expect: Expect, ready: oneshot::Sender<Reached>) {
    let Ok(first) = notifications.try_clone() else { return };
    // While the program is still being executed, so that its call finds the thread there.
    let up_to_ready = on_a_thread(move || {
        if let Some(reached) = until_reached(&first, expect) {
            let _ = ready.send(reached);
        }
    });
    if up_to_ready.await.is_err() {
        return;
    }
    let Ok(fd) = sys::async_fd(notifications, Interest::READABLE) else { return };
    let mut pace = Pace::new(BURST, Instant::now());
    // Ends when no process has the filter any more: the descriptor then hangs up.
    while let Ok(mut readable) = fd.readable().await {
        if has_hung_up(fd.get_ref()) {
            return;
        }
        if let Some(resume) = pace.spend(CALL, Instant::now()) {
            tokio::time::sleep_until(resume.into()).await;
        }
        let Ok(for_thread) = fd.get_ref().try_clone() else { return };
        if on_a_thread(move || answer_one(&for_thread, None)).await.is_err() {
            return;
        }
        if !state(readable.get_inner()).contains(PollFlags::IN) {
            readable.clear_ready();
        }
    }
}

/// Runs work on a thread of its own; resolves to its result, or to an error when there is no thread.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (sender, done) = oneshot::channel();
    let spawned = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let _ = sender.send(work());
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to answer a sandbox's system calls");
    }
    done
}

/// Answers calls until one makes the sandbox ready; `None` when it ended before.
fn until_reached(fd: &OwnedFd, expect: Expect) -> Option<Reached> {
    let mut pace = Pace::new(BURST, Instant::now());
    loop {
        let mut poll = [PollFd::new(fd, PollFlags::IN)];
        match rustix::event::poll(&mut poll, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        if has_hung_up(fd) {
            return None;
        }
        if let Some(reached) = answer_one(fd, Some(expect)) {
            return Some(reached);
        }
        if let Some(resume) = pace.spend(CALL, Instant::now()) {
            let wait = Timespec::try_from(resume.saturating_duration_since(Instant::now())).ok()?;
            let _ = rustix::event::poll(&mut [], Some(&wait));
        }
    }
}

fn has_hung_up(fd: &OwnedFd) -> bool {
    state(fd).intersects(PollFlags::HUP | PollFlags::ERR)
}

fn state(fd: &OwnedFd) -> PollFlags {
    let mut poll = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut poll, Some(&now));
    poll[0].revents()
}

fn answer_one(fd: &OwnedFd, wanted: Option<Expect>) -> Option<Reached> {
    let call = sys::notification_receive(fd.as_fd()).ok()?;
    let (answer, reached) = match wanted.map(|expect| judge(fd, &call, expect)) {
        Some(Ok((answer, reached))) => (answer, reached),
        Some(Err(error)) => {
            tracing::debug!(%error, "a sandbox's system call could not be inspected");
            (Answer::Continue, None)
        }
        None => (Answer::Continue, None),
    };
    sys::notification_answer(fd.as_fd(), call.id, answer).ok()?;
    reached
}

fn judge(fd: &OwnedFd, call: &Notification, expect: Expect) -> io::Result<(Answer, Option<Reached>)> {
    let caller = Caller::open(call.tid)?;
    if !sys::notification_valid(fd.as_fd(), call.id) {
        return Err(io::Error::other("the caller has ended"));
    }
    match expect {
        Expect::Port(port) if call.call == libc::SYS_listen => {
            let socket = caller.descriptor(call.args[0] as i32)?;
            match bound_to(&socket, port)? {
                None => Ok((Answer::Continue, None)),
                Some(address) => match rustix::net::listen(&socket, call.args[1] as i32) {
                    Ok(()) => Ok((Answer::Done, Some(Reached::Tcp(address)))),
                    Err(e) => Ok((Answer::Error(e.raw_os_error()), None)),
                },
            }
        }
        Expect::Port(_) => Ok((Answer::Continue, None)),
        Expect::Accept(inode) => {
            let numbers = waited_for(&caller, call)?;
            let is_listener = |n: &i32| {
                caller
                    .descriptor(*n)
                    .and_then(|fd| Ok(rustix::fs::fstat(&fd)?))
                    .is_ok_and(|s| s.st_ino == inode)
            };
            let reached = numbers.iter().any(is_listener).then_some(Reached::Listener);
            Ok((Answer::Continue, reached))
        }
    }
}

/// The process that made a call.
struct Caller {
    pid: i32,
    pidfd: OwnedFd,
}

impl Caller {
    fn open(tid: i32) -> io::Result<Self> {
        // A thread's number names its process in `status`; descriptors are taken from processes only.
        let status = fs::read_to_string(format!("/proc/{tid}/status"))?;
        let pid = status.lines().find_map(|l| l.strip_prefix("Tgid:")?.trim().parse().ok());
        let pid: i32 = pid.ok_or_else(|| io::Error::other("no thread group"))?;
        let number = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process"))?;
        Ok(Caller { pid, pidfd: rustix::process::pidfd_open(number, PidfdFlags::empty())? })
    }

    fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        Ok(rustix::process::pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty())?)
    }

    fn memory(&self, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
        fs::File::open(format!("/proc/{}/mem", self.pid))?.read_at(buffer, address)
    }
}

/// Where to connect to, when the socket is a TCP socket bound to `port`.
fn bound_to(socket: &OwnedFd, port: u16) -> io::Result<Option<SocketAddr>> {
    let family = rustix::net::sockopt::socket_domain(socket)?;
    let stream = rustix::net::sockopt::socket_type(socket)? == SocketType::STREAM;
    if !stream || (family != AddressFamily::INET && family != AddressFamily::INET6) {
        return Ok(None);
    }
    let bound = SocketAddr::try_from(rustix::net::getsockname(socket)?)
        .map_err(|_| io::Error::other("no internet address"))?;
    if bound.port() != port {
        return Ok(None);
    }
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    Ok(Some(SocketAddr::new(ip, port)))
}

/// Descriptors that a call waits for.
fn waited_for(caller: &Caller, call: &Notification) -> io::Result<Vec<i32>> {
    let args = &call.args;
    match call.call {
        libc::SYS_listen | libc::SYS_accept | libc::SYS_accept4 => Ok(vec![args[0] as i32]),
        libc::SYS_epoll_ctl if args[1] as i32 == libc::EPOLL_CTL_ADD => Ok(vec![args[2] as i32]),
        libc::SYS_epoll_ctl => Ok(Vec::new()),
        libc::SYS_pselect6 => select_set(caller, args),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => select_set(caller, args),
        _ => {
            let entries = (args[1] as usize).min(POLL_ENTRIES_MAX);
            let mut buffer = [0; POLL_ENTRIES_MAX * size_of::<libc::pollfd>()];
            let read = caller.memory(args[0], &mut buffer[..entries * size_of::<libc::pollfd>()])?;
            let entry = |bytes: &[u8]| i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            Ok(buffer[..read].chunks_exact(size_of::<libc::pollfd>()).map(entry).collect())
        }
    }
}

fn select_set(caller: &Caller, args: &[u64; 6]) -> io::Result<Vec<i32>> {
    let numbers = (args[0] as usize).min(SELECT_SET_BYTES * 8);
    let mut set = [0_u8; SELECT_SET_BYTES];
    if args[1] == 0 {
        return Ok(Vec::new());
    }
    caller.memory(args[1], &mut set[..numbers.div_ceil(64) * 8])?;
    let contains = |n: &usize| set[n / 8] & (1 << (n % 8)) != 0;
    Ok((0..numbers).filter(contains).filter_map(|n| i32::try_from(n).ok()).collect())
}
