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

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

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
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

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
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// The three filters there are, compiled.
#[derive(Debug)]
pub(crate) struct Filters {
    plain: Vec<BpfInstruction>,
    listen: Vec<BpfInstruction>,
    accept: Vec<BpfInstruction>,
}

impl Filters {
    /// Compiles them.
    pub(crate) fn new() -> Result<Self, seccompiler::BackendError> {
        let base = allow_list()?;
        let accept: Vec<i64> = [libc::SYS_listen].iter().chain(WAITS).copied().collect();
        Ok(Filters {
            plain: with_exceptions(&base, &[]),
            listen: with_exceptions(&base, &[libc::SYS_listen]),
            accept: with_exceptions(&base, &accept),
        })
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

fn allow_list() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (*call, Vec::new())).collect();
    let compare = |argument, op, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    let no_namespace = compare(0, SeccompCmpOp::MaskedEq(NAMESPACES), 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespace])?]);
    let families = FAMILIES.iter().map(|family| {
        let mut conditions = vec![compare(0, SeccompCmpOp::Eq, *family as u64)?];
        if *family == libc::AF_NETLINK {
            conditions.push(compare(2, SeccompCmpOp::Eq, libc::NETLINK_ROUTE as u64)?);
        }
        SeccompRule::new(conditions)
    });
    rules.insert(libc::SYS_socket, families.collect::<Result<_, _>>()?);
    let unix_pair = compare(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?;
    rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(vec![unix_pair])?]);
    // A terminal that someone passed in must not be typed on.
    let no_typing =
        vec![compare(1, SeccompCmpOp::Ne, libc::TIOCSTI)?, compare(1, SeccompCmpOp::Ne, libc::TIOCLINUX)?];
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(no_typing)?]);
    // Queries, and the personality that every process has.
    let plain = [0, 0xffff_ffff].map(|p| compare(0, SeccompCmpOp::Eq, p).map(|c| SeccompRule::new(vec![c])));
    let plain = plain.into_iter().collect::<Result<Result<Vec<_>, _>, _>>()??;
    rules.insert(libc::SYS_personality, plain);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

/// Puts the cases that an allow-list cannot say in front of it, right after the call's number has been loaded.
fn with_exceptions(base: &BpfProgram, notify: &[i64]) -> Vec<BpfInstruction> {
    let own = |code, jt, jf, k| BpfInstruction { code, jt, jf, k };
    let base = base.iter().map(|i| own(i.code, i.jt, i.jf, i.k));
    let mut program: Vec<BpfInstruction> = base.collect();
    let loaded = program.iter().position(|i| *i == own(LOAD_WORD, 0, 0, 0)).map_or(0, |at| at + 1);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let mut exceptions = vec![
        own(JUMP_GREATER, 0, 1, LAST_KNOWN),
        own(RETURN, 0, 0, refuse),
        own(JUMP_EQUAL, 0, 1, libc::SYS_clone3 as u32),
        own(RETURN, 0, 0, refuse),
    ];
    for call in notify {
        exceptions.push(own(JUMP_EQUAL, 0, 1, *call as u32));
        exceptions.push(own(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    }
    program.splice(loaded..loaded, exceptions);
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
        let filters = Filters::new().unwrap();
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
