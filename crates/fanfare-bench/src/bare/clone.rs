//! The system calls of a bare sandbox that no safe wrapper offers.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What the new process becomes, allocated before it exists.
#[derive(Debug)]
pub(super) struct Program {
    path: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    pub(super) fn new(path: &str, env: &[String]) -> io::Result<Program> {
        let text = |s: &str| CString::new(s).map_err(io::Error::other);
        let env: io::Result<Vec<_>> = env.iter().map(|s| text(s)).collect();
        Ok(Program { path: text(path)?, argv: vec![text(path)?], env: env? })
    }
}

/// The descriptors 0 to 3 of a new program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptors<'a> {
    pub(super) null: BorrowedFd<'a>,
    pub(super) out: BorrowedFd<'a>,
    pub(super) inherited: Option<BorrowedFd<'a>>,
}

struct Child<'a> {
    set_up: &'a dyn Fn() -> io::Result<()>,
    descriptors: Descriptors<'a>,
    path: *const c_char,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    errno: c_int,
}

/// Clones into new namespaces (`CLONE_NEW*`), runs `set_up` in the new process and then the program; returns its pid
/// once the program runs. The caller must have one thread: memory is shared until then, and nothing else may run.
///
/// `set_up` must not panic.
pub(super) fn spawn(
    namespaces: c_int,
    program: &Program,
    descriptors: Descriptors<'_>,
    set_up: &dyn Fn() -> io::Result<()>,
) -> io::Result<c_int> {
    const STACK: usize = 256 << 10;
    let list = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
    let (argv, envp) = (list(&program.argv), list(&program.env));
    let mut child = Child { set_up, descriptors, path: program.path.as_ptr(), argv, envp, errno: 0 };
    let mut stack = vec![0_u128; STACK / size_of::<u128>()];
    let flags = namespaces | libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child runs `run_child` on `stack`, whose end is 16-byte aligned. It shares memory with this process,
    // which stands still (CLONE_VFORK) until the child has executed or ended; `child` and `stack` outlive that.
    let pid = unsafe {
        libc::clone(run_child, stack.as_mut_ptr_range().end.cast(), flags, (&raw mut child).cast())
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

extern "C" fn run_child(argument: *mut c_void) -> c_int {
    let child = argument.cast::<Child<'_>>();
    // SAFETY: `argument` is the `Child` of `spawn`, which waits; this process is the only one that touches it.
    let child = unsafe { &mut *child };
    let errno = match (child.set_up)().and_then(|()| place(child.descriptors)) {
        // SAFETY: path, argv and envp are strings and null-terminated arrays that live in the waiting parent.
        Ok(()) => unsafe {
            libc::execve(child.path, child.argv.as_ptr(), child.envp.as_ptr());
            *libc::__errno_location()
        },
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    // SAFETY: a field of the live `Child`; then this process ends without running anything of the shared one.
    unsafe {
        std::ptr::write_volatile(&raw mut child.errno, errno);
        libc::_exit(127)
    }
}

/// Puts the descriptors at 0 to 3; all others close at exec, as everything here is opened so.
fn place(descriptors: Descriptors<'_>) -> io::Result<()> {
    let fds = [Some(descriptors.null), Some(descriptors.out), Some(descriptors.null), descriptors.inherited];
    for (number, fd) in (0..).zip(fds) {
        let Some(fd) = fd else { continue };
        // SAFETY: the table of descriptors is the child's own; 0 to 2 and 3 have no owner in it.
        if unsafe { libc::dup2(fd.as_raw_fd(), number) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Installs a filter of system calls for this process.
pub(super) fn install_filter(filter: &[seccompiler::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(filter.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    // The kernel reads the same four fields that `seccompiler::sock_filter` has, in the same layout.
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    // SAFETY: `program` points at `len` instructions that live through the call, which copies them.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Brings the loopback interface of the current network namespace up.
pub(super) fn loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `ifreq` is plain data for which zero is valid; the kernel reads the name and the flags.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[..2].copy_from_slice(&[b'l' as c_char, b'o' as c_char]);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        match libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Moves this thread into new namespaces.
pub(super) fn unshare(namespaces: c_int) -> io::Result<()> {
    // SAFETY: changes namespaces of the calling thread; no memory is involved.
    match unsafe { libc::unshare(namespaces) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
