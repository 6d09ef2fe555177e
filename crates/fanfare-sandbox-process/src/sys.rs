//! System calls that no safe wrapper offers, each behind a safe function.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use zeroize::Zeroize;

/// Proof that this process has one thread, so that a copy of it may go on running Rust code: no lock can be held by
/// a thread that the copy lacks.
#[derive(Debug)]
pub(crate) struct SingleThreaded(());

impl SingleThreaded {
    /// Counts the threads of this process. The holder must not start any.
    pub(crate) fn check() -> io::Result<Self> {
        match std::fs::read_dir("/proc/self/task")?.count() {
            1 => Ok(SingleThreaded(())),
            n => Err(io::Error::other(format!("the launcher must have one thread, and has {n}"))),
        }
    }
}

/// The C library's constant is an `int` that this value does not fit in.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Which side of a fork this is.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The caller, with the child's pid in its own namespace.
    Parent { pid: i32, pidfd: OwnedFd },
}

/// Copies this process into new namespaces (`CLONE_NEW*` in `namespaces`) and, with cgroup v2, into a cgroup.
pub(crate) fn fork(
    _proof: &SingleThreaded,
    namespaces: c_int,
    cgroup: Option<BorrowedFd<'_>>,
) -> io::Result<Forked> {
    let mut pidfd: c_int = -1;
    // SAFETY: all fields of `clone_args` are integers; zero is valid for each and means "unused".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces as u64 | libc::CLONE_PIDFD as u64;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of memory and runs on its copy of this stack; `_proof` says
    // that no other thread's locks were copied in a locked state. `args` and `pidfd` outlive the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        // SAFETY: CLONE_PIDFD stored a new descriptor that nobody else owns.
        pid => Ok(Forked::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

/// What to execute; everything is allocated before the process is made.
#[derive(Debug)]
pub(crate) struct Exec {
    strings: Vec<CString>,
    argc: usize,
}

impl Exec {
    /// Program with arguments, and environment as `NAME=value`.
    pub(crate) fn new(argv: &[String], env: &[String]) -> io::Result<Self> {
        if argv.is_empty() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let strings: Result<Vec<_>, _> = argv.iter().chain(env).map(|s| CString::new(s.as_str())).collect();
        Ok(Exec { strings: strings.map_err(io::Error::other)?, argc: argv.len() })
    }
}

/// The environment may hold secrets, and later copies of this process have its memory.
impl Drop for Exec {
    fn drop(&mut self) {
        for string in self.strings.drain(..) {
            string.into_bytes_with_nul().zeroize();
        }
    }
}

struct ExecChild {
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    errno: c_int,
}

/// Starts a program in a process of its own (own session, default signals). Returns its pid once the program has
/// replaced the copy of the caller, or the error of `execve`.
pub(crate) fn spawn(exec: &Exec) -> io::Result<i32> {
    const STACK_WORDS: usize = (32 << 10) / size_of::<u128>();
    let list = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = exec.strings.split_at(exec.argc);
    let mut child = ExecChild { argv: list(argv), envp: list(env), errno: 0 };
    // Not zeroed: that would touch all of its pages, of which the child needs the last one or two.
    let mut stack: Vec<u128> = Vec::with_capacity(STACK_WORDS);
    // SAFETY: the child runs `exec_child` on `stack`, whose end is 16-byte aligned, and shares memory with this
    // process, which stands still (CLONE_VFORK) until the child has executed or ended; both outlive that.
    let pid = unsafe {
        libc::clone(
            exec_child,
            stack.as_mut_ptr().add(STACK_WORDS).cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw mut child).cast(),
        )
    };
    if pid == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `child` is alive; a volatile read because another process wrote it.
    match unsafe { std::ptr::read_volatile(&raw const child.errno) } {
        0 => Ok(pid),
        errno => {
            // SAFETY: a plain wait for the child that has just ended; a null status pointer is allowed.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

extern "C" fn exec_child(argument: *mut c_void) -> c_int {
    let child = argument.cast::<ExecChild>();
    // SAFETY: `argument` is the `ExecChild` of `spawn`, which waits. Only raw system calls are made here: memory is
    // shared with the parent, so nothing may be allocated or unwound.
    unsafe {
        libc::syscall(libc::SYS_setsid);
        reset_signals();
        libc::execve((&(*child).argv)[0], (*child).argv.as_ptr(), (*child).envp.as_ptr());
        std::ptr::write_volatile(&raw mut (*child).errno, *libc::__errno_location());
        libc::_exit(127)
    }
}

/// What a launcher ignores: signals that a terminal or a careless `kill` sends to the whole process group.
const IGNORED: [c_int; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE];

/// Gives a program that a launcher's child becomes the usual signals: what is ignored stays so over `execve`.
fn reset_signals() {
    IGNORED.iter().for_each(|signal| set_default(*signal));
    // SAFETY: an empty set on the stack replaces the mask; no old mask is asked for.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

fn set_default(signal: c_int) {
    // `struct sigaction` as the kernel has it, all zero: default action, no flags, nothing blocked. Not by way of the
    // C library, which leaves out the two signals that it keeps for itself, though they may have been inherited ignored.
    let default = [0_u64; 4];
    // SAFETY: the kernel reads 32 bytes of `default`; for SIGKILL and SIGSTOP it fails without effect.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8) };
}

/// Sets a launcher's signals, whatever it was started with, and blocks SIGCHLD, which is read from the returned
/// descriptor.
pub(crate) fn launcher_signals() -> io::Result<OwnedFd> {
    (1..=64).for_each(set_default);
    for signal in IGNORED {
        // SAFETY: ignores the signal.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    child_signals()
}

/// Blocks SIGCHLD and gives a non-blocking descriptor that is readable when one is pending.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised by sigemptyset before use; signalfd returns a descriptor that is ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        owned(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
    }
}

/// Closes every descriptor from `first` to `last`.
pub(crate) fn close_range(first: RawFd, last: RawFd) -> io::Result<()> {
    // SAFETY: only called in a fresh copy of the launcher that has given up (forgotten) all values that own
    // descriptors in the range, and leaves by `_exit`.
    match unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0_u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes `fd` available as descriptor `number` and kept over `execve` unless `close_on_exec`.
pub(crate) fn place_fd(fd: BorrowedFd<'_>, number: RawFd, close_on_exec: bool) -> io::Result<()> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: `fd` is open; the caller keeps no owner of `number` (it moved its own descriptors higher).
    match unsafe { libc::dup3(fd.as_raw_fd(), number, flags) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Takes ownership of an inherited descriptor, such as the socket that the launcher is started with.
pub(crate) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a query that changes nothing.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by contract with whoever started this process nobody else in it uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One instruction of a seccomp filter, laid out as `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BpfInstruction {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

#[repr(C)]
struct BpfProgram {
    len: u16,
    filter: *const BpfInstruction,
}

/// Installs a filter for this thread; with `notify` returns the descriptor of its notifications.
pub(crate) fn install_filter(program: &[BpfInstruction], notify: bool) -> io::Result<Option<OwnedFd>> {
    const SECCOMP_SET_MODE_FILTER: libc::c_long = 1;
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = BpfProgram { len, filter: program.as_ptr() };
    // Once a call has been received, only a fatal signal may interrupt it: a runtime that signals its own threads
    // would otherwise see EINTR from a `listen` that was performed.
    let killable = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let install = |flags: libc::c_ulong| {
        // SAFETY: `program` points to `len` valid instructions for the duration of the call.
        unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    let done = match install(if notify { killable } else { 0 }) {
        -1 if notify => install(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER),
        done => done,
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: with NEW_LISTENER the result is a new descriptor that is ours.
        fd if notify => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })),
        _ => Ok(None),
    }
}

/// A system call of a sandbox that waits for the supervisor's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    /// Names the call in the answer.
    pub(crate) id: u64,
    /// The calling thread, as this process sees it.
    pub(crate) tid: i32,
    /// Number of the system call.
    pub(crate) call: i64,
    /// Its arguments.
    pub(crate) args: [u64; 6],
}

/// Waits for the next notification. `ENOENT`: the caller was killed meanwhile.
pub(crate) fn notification_receive(fd: BorrowedFd<'_>) -> io::Result<Notification> {
    // SAFETY: an all-zero `seccomp_notif` is what the kernel demands as input, and it fills the structure.
    let notif = unsafe {
        let mut notif: libc::seccomp_notif = std::mem::zeroed();
        if libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notif) == -1 {
            return Err(io::Error::last_os_error());
        }
        notif
    };
    Ok(Notification {
        id: notif.id,
        tid: notif.pid as i32,
        call: i64::from(notif.data.nr),
        args: notif.data.args,
    })
}

/// Whether the call still waits: the thread whose number we hold is still the one that made it.
pub(crate) fn notification_valid(fd: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads eight bytes at the given address.
    unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// How a waiting call goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The kernel performs it.
    Continue,
    /// It returns 0 without being performed: the supervisor did it.
    Done,
    /// It fails with this error number.
    Error(i32),
}

/// Answers a notification. `ENOENT`: the caller was killed meanwhile.
pub(crate) fn notification_answer(fd: BorrowedFd<'_>, id: u64, answer: Answer) -> io::Result<()> {
    let (error, flags) = match answer {
        Answer::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Answer::Done => (0, 0),
        Answer::Error(errno) => (-errno, 0),
    };
    let mut response = libc::seccomp_notif_resp { id, val: 0, error, flags };
    // SAFETY: `response` lives through the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whom a signal is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalTo {
    /// The process.
    Process,
    /// The process group that it leads, even after it has been reaped.
    Group,
}

/// Sends a signal by a process's descriptor, or, without one, asks whether it could be sent. `ESRCH`: it, or its group,
/// is gone; `EINVAL`: groups can be meant only by number, before Linux 6.9.
pub(crate) fn pidfd_signal(pidfd: &OwnedFd, signal: Option<Signal>, to: SignalTo) -> io::Result<()> {
    const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;
    let signal = signal.map_or(0, Signal::as_raw);
    let flags = match to {
        SignalTo::Process => 0,
        SignalTo::Group => PIDFD_SIGNAL_PROCESS_GROUP,
    };
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null `info` has the kernel fill it in; nothing else is passed by reference.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel refuse descriptors that the other end of a unix socket sends; `ENOPROTOOPT` before Linux 6.16.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    const SO_PASSRIGHTS: c_int = 83;
    let no: c_int = 0;
    // SAFETY: the kernel reads the four bytes of `no`.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Brings the loopback interface of the current network namespace up.
pub(crate) fn loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `ifreq` is plain data for which zero is valid; the name fits with its terminator; the kernel reads the
    // name and the flags.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as c_char;
        request.ifr_name[1] = b'o' as c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        match libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Moves this process into new namespaces of the given kinds.
pub(crate) fn unshare(_proof: &SingleThreaded, namespaces: c_int) -> io::Result<()> {
    // SAFETY: changes namespaces of the calling process, which has one thread; no memory is involved.
    match unsafe { libc::unshare(namespaces) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Leaves the keys of whoever started this process behind. Without keyrings in the kernel there is nothing to leave.
pub(crate) fn new_session_keyring() {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for a new, anonymous keyring; no memory is involved.
    unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<c_char>()) };
}

/// Version of the kernel's Landlock; 0 without it.
pub(crate) fn landlock_version() -> i32 {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag the call takes a null pointer and only answers.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<c_void>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    i32::try_from(version).unwrap_or(0).max(0)
}

/// Ends this process at once, without running anything registered to run at exit.
pub(crate) fn exit_now(status: c_int) -> ! {
    // SAFETY: never returns and touches no memory.
    unsafe { libc::_exit(status) }
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    match fd {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a system call just returned it as new.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Removes a capability from the bounding set; `EINVAL` when the kernel does not know it.
pub(crate) fn drop_bounding_capability(capability: u32) -> io::Result<()> {
    // SAFETY: changes a set of this thread; no memory is involved.
    match unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Watches a descriptor from the async runtime.
pub(crate) fn async_fd(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always gives the same descriptor, and keeps it open for as long as the `AsyncFd` has it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(|e| e.into_parts().1)
}
