//! The filter of system calls that a sandbox may make.
//!
//! An allow-list. What is not on it fails with `EPERM` rather than ending the process: a library that tries something
//! exotic and copes with refusal keeps working, and one that does not prints an error that names the call's failure.
//! Calls newer than this list fail with `ENOSYS`, as on an older kernel, because libraries fall back on that; so does
//! `clone3`, whose flags a filter cannot see, in favour of `clone`. A foreign architecture's calls end the process.
//!
//! Left out, each for a reason: `io_uring_*` (works around this filter), `unshare`, `setns`, namespaces in `clone`
//! (a user namespace gives capabilities back), `mount` and kin, `ptrace`, `process_vm_*`, `kcmp`, `pidfd_getfd`
//! (other processes' memory and descriptors), `bpf`, `perf_event_open`, `userfaultfd`, `keyctl` and kin,
//! `open_by_handle_at`, `fanotify_*`, `kexec_*`, `*_module`, `reboot`, `swap*`, clocks, `modify_ldt`, `vmsplice`
//! (kernel interfaces with a history), and sockets other than unix, internet and route netlink.

//!
//! Every sandbox installs its filter anew, and the kernel then works out each call's verdict once by running the
//! filter. So the filter is a binary search over ranges of numbers, some ten instructions deep, where a list of
//! comparisons would be hundreds.

use std::collections::BTreeMap;

use crate::launcher::protocol::Watch;
use crate::sys::BpfInstruction;

/// Calls that only some architectures have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[i64] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_creat,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_fork,
    libc::SYS_futimesat,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_inotify_init,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_signalfd,
    libc::SYS_stat,
    libc::SYS_symlink,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[i64] = &[];

/// Calls allowed with any arguments.
#[rustfmt::skip]
const ALLOWED: &[i64] = &[
    // Files.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
    libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_openat, libc::SYS_openat2,
    libc::SYS_close, libc::SYS_close_range, libc::SYS_lseek, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx,
    libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_readlinkat,
    libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_mkdirat, libc::SYS_mknodat,
    libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_renameat, libc::SYS_linkat, libc::SYS_symlinkat,
    libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_utimensat,
    libc::SYS_truncate, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_readahead,
    libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync, libc::SYS_syncfs, libc::SYS_sync_file_range,
    libc::SYS_flock, libc::SYS_fcntl, libc::SYS_dup, libc::SYS_dup3, libc::SYS_umask, libc::SYS_copy_file_range,
    libc::SYS_sendfile, libc::SYS_splice, libc::SYS_tee, libc::SYS_pipe2, libc::SYS_getxattr, libc::SYS_lgetxattr,
    libc::SYS_fgetxattr, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr, libc::SYS_listxattr,
    libc::SYS_llistxattr, libc::SYS_flistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr,
    libc::SYS_fremovexattr, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    libc::SYS_memfd_create,
    // Memory.
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_msync,
    libc::SYS_mincore, libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_munlock, libc::SYS_mlockall,
    libc::SYS_munlockall, libc::SYS_brk, libc::SYS_membarrier, libc::SYS_pkey_alloc, libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect, libc::SYS_get_mempolicy, libc::SYS_remap_file_pages,
    // Processes, threads, signals.
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4, libc::SYS_waitid,
    libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo, libc::SYS_rt_sigsuspend, libc::SYS_sigaltstack, libc::SYS_signalfd4,
    libc::SYS_restart_syscall, libc::SYS_futex, libc::SYS_set_robust_list, libc::SYS_get_robust_list,
    libc::SYS_set_tid_address, libc::SYS_rseq, libc::SYS_gettid, libc::SYS_getpid, libc::SYS_getppid,
    libc::SYS_getpgid, libc::SYS_setpgid, libc::SYS_getsid, libc::SYS_setsid, libc::SYS_getuid, libc::SYS_geteuid,
    libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid, libc::SYS_getresgid, libc::SYS_getgroups,
    libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid,
    libc::SYS_setresgid, libc::SYS_setgroups, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_capget,
    libc::SYS_capset, libc::SYS_prctl, libc::SYS_seccomp, libc::SYS_prlimit64, libc::SYS_getrlimit,
    libc::SYS_setrlimit, libc::SYS_getrusage, libc::SYS_times, libc::SYS_getpriority, libc::SYS_setpriority,
    libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getparam,
    libc::SYS_sched_setparam, libc::SYS_sched_getscheduler, libc::SYS_sched_setscheduler, libc::SYS_sched_getattr,
    libc::SYS_sched_setattr, libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min,
    libc::SYS_sched_rr_get_interval, libc::SYS_ioprio_get, libc::SYS_ioprio_set, libc::SYS_getcpu,
    libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal, libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self,
    // Time.
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_gettimeofday,
    libc::SYS_nanosleep, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_timer_create, libc::SYS_timer_settime,
    libc::SYS_timer_gettime, libc::SYS_timer_getoverrun, libc::SYS_timer_delete, libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime,
    // Waiting.
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2, libc::SYS_eventfd2, libc::SYS_io_setup, libc::SYS_io_submit, libc::SYS_io_getevents,
    libc::SYS_io_cancel, libc::SYS_io_destroy,
    // Sockets; making them is conditional.
    libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_connect, libc::SYS_shutdown,
    libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_sendto,
    libc::SYS_sendmsg, libc::SYS_sendmmsg, libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg,
    // Communication within the sandbox.
    libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmdt, libc::SYS_shmctl, libc::SYS_semget, libc::SYS_semop,
    libc::SYS_semctl, libc::SYS_semtimedop, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv, libc::SYS_msgctl,
    libc::SYS_mq_open, libc::SYS_mq_unlink, libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive, libc::SYS_mq_notify,
    libc::SYS_mq_getsetattr,
    // The machine.
    libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom,
];

/// Namespaces that `clone` must not make. `CLONE_NEWTIME` shares its bit with the signal mask of `clone`, and is not
/// reachable through it.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Families of sockets that may be made.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Calls with numbers above this one are newer than the list (`mseal`).
const LAST_KNOWN: u32 = 462;

/// Calls by which a server starts to serve, beyond `listen`.
#[cfg(target_arch = "x86_64")]
const WAITS: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_epoll_ctl,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[i64] =
    &[libc::SYS_accept, libc::SYS_accept4, libc::SYS_epoll_ctl, libc::SYS_ppoll, libc::SYS_pselect6];

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// The architecture whose calls are filtered, as the audit subsystem numbers it.
#[cfg(target_arch = "x86_64")]
const THIS_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const THIS_ARCHITECTURE: u32 = 0xc000_00b7;

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    Fail(i32),
    Notify,
    /// Allowed when all checks of one of the alternatives hold, else `EPERM`.
    AllowIf(Vec<Vec<Check>>),
}

/// A check of the lower half of an argument; each of the checked ones is an `int`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Check {
    argument: u32,
    mask: u32,
    value: u32,
    equal: bool,
}

const fn is(argument: u32, value: u32) -> Check {
    Check { argument, mask: u32::MAX, value, equal: true }
}

const fn is_not(argument: u32, value: u32) -> Check {
    Check { argument, mask: u32::MAX, value, equal: false }
}

/// The three filters there are, compiled.
#[derive(Debug)]
pub(crate) struct Filters {
    plain: Vec<BpfInstruction>,
    listen: Vec<BpfInstruction>,
    accept: Vec<BpfInstruction>,
}

impl Filters {
    /// Compiles them.
    pub(crate) fn new() -> Self {
        let accept: Vec<i64> = [libc::SYS_listen].iter().chain(WAITS).copied().collect();
        Filters {
            plain: compile(&verdicts(&[])),
            listen: compile(&verdicts(&[libc::SYS_listen])),
            accept: compile(&verdicts(&accept)),
        }
    }

    /// The one that notifies of these calls.
    pub(crate) fn get(&self, watch: Watch) -> &[BpfInstruction] {
        match watch {
            Watch::Nothing => &self.plain,
            Watch::Listen => &self.listen,
            Watch::Accept => &self.accept,
        }
    }
}

/// Verdicts of the calls that do not fail with `EPERM`, in the order of their numbers.
fn verdicts(notify: &[i64]) -> BTreeMap<u32, Verdict> {
    let number = |call: &i64| u32::try_from(*call).unwrap_or(u32::MAX);
    let mut all: BTreeMap<u32, Verdict> =
        ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (number(call), Verdict::Allow)).collect();
    let no_namespace = Check { argument: 0, mask: NAMESPACES, value: 0, equal: true };
    let families = FAMILIES.iter().map(|family| match *family {
        libc::AF_NETLINK => vec![is(0, libc::AF_NETLINK as u32), is(2, libc::NETLINK_ROUTE as u32)],
        family => vec![is(0, family as u32)],
    });
    // A terminal that someone passed in must not be typed on.
    let no_typing = vec![is_not(1, libc::TIOCSTI as u32), is_not(1, libc::TIOCLINUX as u32)];
    let conditional = [
        (libc::SYS_clone, vec![vec![no_namespace]]),
        (libc::SYS_socket, families.collect()),
        (libc::SYS_socketpair, vec![vec![is(0, libc::AF_UNIX as u32)]]),
        (libc::SYS_ioctl, vec![no_typing]),
        // The personality that every process has, and the query for it.
        (libc::SYS_personality, vec![vec![is(0, 0)], vec![is(0, u32::MAX)]]),
    ];
    all.extend(conditional.into_iter().map(|(call, checks)| (number(&call), Verdict::AllowIf(checks))));
    all.insert(number(&libc::SYS_clone3), Verdict::Fail(libc::ENOSYS));
    all.extend(notify.iter().map(|call| (number(call), Verdict::Notify)));
    all
}

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> BpfInstruction {
    BpfInstruction { code, jt, jf, k }
}

fn compile(verdicts: &BTreeMap<u32, Verdict>) -> Vec<BpfInstruction> {
    let mut program = vec![
        instruction(LOAD_WORD, 0, 0, ARCHITECTURE),
        instruction(JUMP_EQUAL, 1, 0, THIS_ARCHITECTURE),
        instruction(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD_WORD, 0, 0, NUMBER),
    ];
    // Ranges of numbers with the same verdict: where each begins.
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    for number in 0..=LAST_KNOWN {
        let verdict = verdicts.get(&number).cloned().unwrap_or(Verdict::Fail(libc::EPERM));
        if ranges.last().is_none_or(|(_, last)| *last != verdict) {
            ranges.push((number, verdict));
        }
    }
    ranges.push((LAST_KNOWN + 1, Verdict::Fail(libc::ENOSYS)));
    program.extend(search(&ranges));
    program
}

/// Finds the range that the loaded number is in; deep as the logarithm of their count.
fn search(ranges: &[(u32, Verdict)]) -> Vec<BpfInstruction> {
    if let [(_, verdict)] = ranges {
        return conclude(verdict);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let (first_high, (low, high)) = (high[0].0, (search(low), search(high)));
    let mut program = match u8::try_from(low.len()) {
        Ok(skip) => vec![instruction(JUMP_AT_LEAST, skip, 0, first_high)],
        // Conditional jumps reach 255 instructions far.
        Err(_) => vec![
            instruction(JUMP_AT_LEAST, 0, 1, first_high),
            instruction(JUMP, 0, 0, u32::try_from(low.len()).unwrap_or(u32::MAX)),
        ],
    };
    program.extend(low);
    program.extend(high);
    program
}

fn conclude(verdict: &Verdict) -> Vec<BpfInstruction> {
    let end = |k| vec![instruction(RETURN, 0, 0, k)];
    let alternatives = match verdict {
        Verdict::Allow => return end(libc::SECCOMP_RET_ALLOW),
        Verdict::Fail(errno) => return end(libc::SECCOMP_RET_ERRNO | *errno as u32),
        Verdict::Notify => return end(libc::SECCOMP_RET_USER_NOTIF),
        Verdict::AllowIf(alternatives) => alternatives,
    };
    let mut program = Vec::new();
    for checks in alternatives {
        // Three instructions each, then the verdict; what does not hold goes on behind that.
        for (i, check) in checks.iter().enumerate() {
            let out = u8::try_from(3 * (checks.len() - i - 1) + 1).unwrap_or(u8::MAX);
            program.push(instruction(LOAD_WORD, 0, 0, ARGUMENTS + 8 * check.argument));
            program.push(instruction(AND, 0, 0, check.mask));
            program.push(match check.equal {
                true => instruction(JUMP_EQUAL, 0, out, check.value),
                false => instruction(JUMP_EQUAL, out, 0, check.value),
            });
        }
        program.extend(end(libc::SECCOMP_RET_ALLOW));
    }
    program.extend(conclude(&Verdict::Fail(libc::EPERM)));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a filter as the kernel would, for the instructions that appear in ours.
    fn verdict(program: &[BpfInstruction], call: i64, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend_from_slice(&(call as u32).to_ne_bytes());
        data.extend_from_slice(&0xc000_003e_u32.to_ne_bytes());
        data.extend_from_slice(&0_u64.to_ne_bytes());
        args.iter().for_each(|a| data.extend_from_slice(&a.to_ne_bytes()));
        let (mut pc, mut acc) = (0_usize, 0_u32);
        loop {
            let i = program[pc];
            pc += 1;
            let taken = match u32::from(i.code) {
                0x20 => {
                    let at = i.k as usize;
                    acc = u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
                    continue;
                }
                0x54 => {
                    acc &= i.k;
                    continue;
                }
                0x05 => {
                    pc += i.k as usize;
                    continue;
                }
                0x06 => return i.k,
                0x15 => acc == i.k,
                0x25 => acc > i.k,
                0x35 => acc >= i.k,
                code => panic!("instruction {code:#x}"),
            };
            pc += usize::from(if taken { i.jt } else { i.jf });
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn verdicts() {
        const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
        const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
        let filters = Filters::new();
        let thread = (libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_THREAD) as u64;
        let route = libc::NETLINK_ROUTE as u64;
        let cases: &[(i64, [u64; 6], u32)] = &[
            (libc::SYS_read, [0; 6], ALLOW),
            (libc::SYS_clone, [thread, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_clone, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_clone, [thread | libc::CLONE_NEWNET as u64, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_clone3, [0; 6], ENOSYS),
            (libc::SYS_unshare, [0; 6], EPERM),
            (libc::SYS_setns, [0; 6], EPERM),
            (libc::SYS_mount, [0; 6], EPERM),
            (libc::SYS_ptrace, [0; 6], EPERM),
            (libc::SYS_process_vm_readv, [0; 6], EPERM),
            (libc::SYS_io_uring_setup, [0; 6], EPERM),
            (libc::SYS_bpf, [0; 6], EPERM),
            (libc::SYS_keyctl, [0; 6], EPERM),
            (libc::SYS_userfaultfd, [0; 6], EPERM),
            (libc::SYS_kexec_load, [0; 6], EPERM),
            (libc::SYS_perf_event_open, [0; 6], EPERM),
            (libc::SYS_socket, [libc::AF_INET as u64, 1, 0, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_NETLINK as u64, 3, route, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_NETLINK as u64, 3, 12, 0, 0, 0], EPERM),
            (libc::SYS_socket, [libc::AF_ALG as u64, 1, 0, 0, 0, 0], EPERM),
            (libc::SYS_socket, [libc::AF_VSOCK as u64, 1, 0, 0, 0, 0], EPERM),
            (libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0], EPERM),
            (libc::SYS_ioctl, [0, libc::FIONBIO, 0, 0, 0, 0], ALLOW),
            (libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_personality, [0x0004_0000, 0, 0, 0, 0, 0], EPERM),
            (1_000, [0; 6], ENOSYS),
            (0x4000_0000, [0; 6], ENOSYS),
            (-1, [0; 6], ENOSYS),
        ];
        for (call, args, want) in cases {
            for watch in [Watch::Nothing, Watch::Listen, Watch::Accept] {
                let got = verdict(filters.get(watch), *call, *args);
                assert_eq!(got, *want, "call {call} {args:?} {watch:?}");
            }
        }
        assert!(filters.accept.len() < 512, "{} instructions", filters.accept.len());
        for call in ALLOWED.iter().chain(ALLOWED_HERE) {
            assert_eq!(verdict(&filters.plain, *call, [0; 6]), ALLOW, "call {call}");
        }
        for (call, want) in [
            (libc::SYS_listen, [ALLOW, NOTIFY, NOTIFY]),
            (libc::SYS_accept4, [ALLOW, ALLOW, NOTIFY]),
            (libc::SYS_epoll_ctl, [ALLOW, ALLOW, NOTIFY]),
            (libc::SYS_poll, [ALLOW, ALLOW, NOTIFY]),
        ] {
            let got =
                [Watch::Nothing, Watch::Listen, Watch::Accept].map(|w| verdict(filters.get(w), call, [0; 6]));
            assert_eq!(got, want, "call {call}");
        }
    }
}
