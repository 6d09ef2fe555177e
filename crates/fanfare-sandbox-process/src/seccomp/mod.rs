//! The filter of system calls that a sandbox may make.
//!
//! An allow-list. What is not on it fails with `EPERM` rather than ending the process: a library that tries something
//! exotic and copes with refusal keeps working, and one that does not prints an error that names the call's failure.
//! Calls newer than this list fail with `ENOSYS`, as on an older kernel, because libraries fall back on that; so does
//! `clone3`, whose flags a filter cannot see, in favour of `clone`. A foreign architecture's calls end the process.
//!
//! Left out, each for a reason: `io_uring_*` (works around this filter), `unshare`, `setns`, namespaces in `clone`
//! (a user namespace gives capabilities back), `io_setup` (takes of a number of contexts that the whole machine has), `mount` and kin, `ptrace`, `process_vm_*`, `kcmp`, `pidfd_getfd`
//! (other processes' memory and descriptors), `bpf`, `perf_event_open`, `userfaultfd`, `keyctl` and kin,
//! `open_by_handle_at`, `fanotify_*`, `kexec_*`, `*_module`, `reboot`, `swap*`, clocks, `modify_ldt`, `vmsplice`
//! (kernel interfaces with a history), and sockets other than unix, internet and route netlink.

//!
//! Every sandbox installs its filter anew, and the kernel then works out each call's verdict once by running the
//! filter. So the filter is a binary search over ranges of numbers, some ten instructions deep, where a list of
//! comparisons would be hundreds.

mod calls;

use std::collections::BTreeMap;

use crate::launcher::protocol::Watch;
use crate::sys::BpfInstruction;
use calls::{ALLOWED, ALLOWED_HERE, LAST_KNOWN, NAMESPACES, WAITS};

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
    /// The first whose checks all hold decides; else it fails with this error, or, when that is 0, does nothing and
    /// succeeds.
    First(Vec<(Vec<Check>, Verdict)>, i32),
}

/// Allowed when all checks of one of the alternatives hold.
fn allow_if(alternatives: Vec<Vec<Check>>, errno: i32) -> Verdict {
    Verdict::First(alternatives.into_iter().map(|checks| (checks, Verdict::Allow)).collect(), errno)
}

/// A check of half of an argument. Where only the lower one is checked, the kernel takes an `int`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Check {
    /// Offset in `struct seccomp_data`.
    at: u32,
    mask: u32,
    value: u32,
    equal: bool,
}

/// Offset of an argument's lower half.
const fn argument(number: u32) -> u32 {
    ARGUMENTS + 8 * number
}

const fn is(number: u32, value: u32) -> Check {
    Check { at: argument(number), mask: u32::MAX, value, equal: true }
}

const fn is_not(number: u32, value: u32) -> Check {
    Check { at: argument(number), mask: u32::MAX, value, equal: false }
}

/// That an argument's upper half is zero.
const fn is_short(number: u32) -> Check {
    Check { at: argument(number) + 4, mask: u32::MAX, value: 0, equal: true }
}

/// The filters there are, compiled.
#[derive(Debug)]
pub(crate) struct Filters {
    plain: Vec<BpfInstruction>,
    listen: Vec<BpfInstruction>,
    accept: Vec<BpfInstruction>,
    template: Vec<BpfInstruction>,
}

impl Filters {
    /// Compiles them. `no_linger`: sockets may not be made to linger.
    pub(crate) fn new(no_linger: bool) -> Self {
        let accept: Vec<i64> = [libc::SYS_listen].iter().chain(WAITS).copied().collect();
        let compiled = |notify: &[i64]| compile(&verdicts(notify, no_linger));
        let mut template = verdicts(&[], no_linger);
        template.extend(of_templates());
        Filters {
            plain: compiled(&[]),
            listen: compiled(&[libc::SYS_listen]),
            accept: compiled(&accept),
            template: compile(&template),
        }
    }

    /// The one that notifies of these calls, or a template's, which notifies of none.
    pub(crate) fn get(&self, watch: Watch, template: bool) -> &[BpfInstruction] {
        match watch {
            _ if template => &self.template,
            Watch::Nothing => &self.plain,
            Watch::Listen => &self.listen,
            Watch::Accept => &self.accept,
        }
    }
}

/// Verdicts of the calls that do not fail with `EPERM`, in the order of their numbers.
fn verdicts(notify: &[i64], no_linger: bool) -> BTreeMap<u32, Verdict> {
    let number = |call: &i64| u32::try_from(*call).unwrap_or(u32::MAX);
    let mut all: BTreeMap<u32, Verdict> =
        ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (number(call), Verdict::Allow)).collect();
    let no_namespace = Check { at: argument(0), mask: NAMESPACES, value: 0, equal: true };
    // A terminal that someone passed in must not be typed on.
    let no_typing = vec![is_not(1, libc::TIOCSTI as u32), is_not(1, libc::TIOCLINUX as u32)];
    // Core dumps are off by a limit of 1, as a limit of 0 does not hold for dumps that go to a program of the host's.
    // Whoever turns them off, as some programs insist on, has what they want already.
    let core = libc::RLIMIT_CORE;
    let queries = vec![is(2, 0), is_short(2)];
    let mut conditional = vec![
        (libc::SYS_clone, vec![vec![no_namespace]], libc::EPERM),
        (libc::SYS_socket, sockets(), libc::EPERM),
        (libc::SYS_socketpair, vec![vec![is(0, libc::AF_UNIX as u32)]], libc::EPERM),
        (libc::SYS_ioctl, vec![no_typing], libc::EPERM),
        // The personality that every process has, and the query for it.
        (libc::SYS_personality, vec![vec![is(0, 0)], vec![is(0, u32::MAX)]], libc::EPERM),
        (libc::SYS_setrlimit, vec![vec![is_not(0, core)]], 0),
        (libc::SYS_prlimit64, vec![vec![is_not(1, core)], queries], 0),
    ];
    if no_linger {
        let others = vec![vec![is_not(1, libc::SOL_SOCKET as u32)], vec![is_not(2, libc::SO_LINGER as u32)]];
        conditional.push((libc::SYS_setsockopt, others, libc::EPERM));
    }
    let verdict = |(call, checks, errno)| (number(&call), allow_if(checks, errno));
    all.extend(conditional.into_iter().map(verdict));
    all.insert(number(&libc::SYS_clone3), Verdict::Fail(libc::ENOSYS));
    all.extend(notify.iter().map(|call| (number(call), Verdict::Notify)));
    all
}

/// What differs for a template and its children, which inherit its filter.
///
/// It may leave its mount and IPC namespaces, both at once, and mount what is given to it as a descriptor; its children,
/// which have no capability, can do neither. They have one user and one process namespace, in which a number may be a
/// sibling's or the template's: so limits, priorities and CPUs are set of the caller alone, which is 0. A thread of its
/// own, by number, is refused with the rest, for a filter cannot tell. Queries are for all.
fn of_templates() -> Vec<(u32, Verdict)> {
    const EMPTY_PATH: u32 = 0x4;
    let number = |call: i64| u32::try_from(call).unwrap_or(u32::MAX);
    let only = |checks| allow_if(vec![checks], libc::EPERM);
    let namespaces = (libc::CLONE_NEWNS | libc::CLONE_NEWIPC) as u32;
    const IOPRIO_WHO_PROCESS: u32 = 1;
    let limits = vec![
        (vec![is(2, 0), is_short(2)], Verdict::Allow),
        (vec![is(0, 0), is(1, libc::RLIMIT_CORE)], Verdict::Fail(0)),
        (vec![is(0, 0)], Verdict::Allow),
    ];
    let mut all = vec![
        (number(libc::SYS_prlimit64), Verdict::First(limits, libc::EPERM)),
        (number(libc::SYS_setpriority), only(vec![is(0, libc::PRIO_PROCESS), is(1, 0)])),
        (number(libc::SYS_ioprio_set), only(vec![is(0, IOPRIO_WHO_PROCESS), is(1, 0)])),
        (number(libc::SYS_unshare), only(vec![is(0, namespaces), is_short(0)])),
        (number(libc::SYS_move_mount), only(vec![is(4, EMPTY_PATH)])),
    ];
    let scheduling = [
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
    ];
    all.extend(scheduling.map(|call| (number(call), only(vec![is(0, 0)]))));
    all
}

/// Sockets that may be made: unix, TCP and UDP, route netlink. Any other protocol of the internet families would have
/// the kernel load the module that implements it.
fn sockets() -> Vec<Vec<Check>> {
    let mut alternatives = vec![
        vec![is(0, libc::AF_UNIX as u32)],
        vec![is(0, libc::AF_NETLINK as u32), is(2, libc::NETLINK_ROUTE as u32)],
    ];
    // AF_INET is 2 and AF_INET6 is 10.
    let internet = Check { at: argument(0), mask: !8, value: libc::AF_INET as u32, equal: true };
    for (kind, protocol) in [(libc::SOCK_STREAM, libc::IPPROTO_TCP), (libc::SOCK_DGRAM, libc::IPPROTO_UDP)] {
        // Flags share the argument with the kind.
        let kind = Check { at: argument(1), mask: 0xf, value: kind as u32, equal: true };
        alternatives.extend([0, protocol as u32].map(|protocol| vec![internet, kind, is(2, protocol)]));
    }
    alternatives
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
    let (alternatives, errno) = match verdict {
        Verdict::Allow => return end(libc::SECCOMP_RET_ALLOW),
        Verdict::Fail(errno) => return end(libc::SECCOMP_RET_ERRNO | *errno as u32),
        Verdict::Notify => return end(libc::SECCOMP_RET_USER_NOTIF),
        Verdict::First(alternatives, errno) => (alternatives, *errno),
    };
    let mut program = Vec::new();
    for (checks, verdict) in alternatives {
        let verdict = conclude(verdict);
        // Three instructions each, then the verdict; what does not hold goes on behind that.
        for (i, check) in checks.iter().enumerate() {
            let out = u8::try_from(3 * (checks.len() - i - 1) + verdict.len()).unwrap_or(u8::MAX);
            program.push(instruction(LOAD_WORD, 0, 0, check.at));
            program.push(instruction(AND, 0, 0, check.mask));
            program.push(match check.equal {
                true => instruction(JUMP_EQUAL, 0, out, check.value),
                false => instruction(JUMP_EQUAL, out, 0, check.value),
            });
        }
        program.extend(verdict);
    }
    program.extend(conclude(&Verdict::Fail(errno)));
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
        let filters = Filters::new(true);
        let thread = (libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_THREAD) as u64;
        let route = libc::NETLINK_ROUTE as u64;
        let core = u64::from(libc::RLIMIT_CORE);
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
            (libc::SYS_io_setup, [0; 6], EPERM),
            (libc::SYS_bpf, [0; 6], EPERM),
            (libc::SYS_keyctl, [0; 6], EPERM),
            (libc::SYS_userfaultfd, [0; 6], EPERM),
            (libc::SYS_kexec_load, [0; 6], EPERM),
            (libc::SYS_perf_event_open, [0; 6], EPERM),
            (libc::SYS_socket, [libc::AF_INET as u64, 1, 0, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_NETLINK as u64, 3, route, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_NETLINK as u64, 3, 12, 0, 0, 0], EPERM),
            (libc::SYS_socket, [libc::AF_INET as u64, 0x80802, 17, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_INET6 as u64, 0x80001, 6, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_INET as u64, 1, 132, 0, 0, 0], EPERM),
            (libc::SYS_socket, [libc::AF_INET6 as u64, 1, 0, 0, 0, 0], ALLOW),
            (libc::SYS_socket, [libc::AF_INET6 as u64, 6, 0, 0, 0, 0], EPERM),
            (libc::SYS_socket, [libc::AF_UNIX as u64, 0x80005, 0, 0, 0, 0], ALLOW),
            (libc::SYS_setrlimit, [core, 0, 0, 0, 0, 0], libc::SECCOMP_RET_ERRNO),
            (libc::SYS_setrlimit, [7, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_prlimit64, [0, core, 0, 0x1000, 0, 0], ALLOW),
            (libc::SYS_prlimit64, [0, core, 0x7f00_0000_1000, 0, 0, 0], libc::SECCOMP_RET_ERRNO),
            (libc::SYS_prlimit64, [0, core, 0x7f00_0000_0000, 0, 0, 0], libc::SECCOMP_RET_ERRNO),
            (libc::SYS_prlimit64, [0, 7, 0x7f00_0000_1000, 0, 0, 0], ALLOW),
            (libc::SYS_fchmodat2, [0; 6], ALLOW),
            (libc::SYS_socket, [libc::AF_ALG as u64, 1, 0, 0, 0, 0], EPERM),
            (libc::SYS_socket, [libc::AF_VSOCK as u64, 1, 0, 0, 0, 0], EPERM),
            (libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0], EPERM),
            (libc::SYS_ioctl, [0, libc::FIONBIO, 0, 0, 0, 0], ALLOW),
            (libc::SYS_setsockopt, [3, libc::SOL_SOCKET as u64, libc::SO_REUSEADDR as u64, 0, 0, 0], ALLOW),
            (libc::SYS_setsockopt, [3, libc::IPPROTO_TCP as u64, libc::SO_LINGER as u64, 0, 0, 0], ALLOW),
            (libc::SYS_setsockopt, [3, libc::SOL_SOCKET as u64, libc::SO_LINGER as u64, 0, 0, 0], EPERM),
            (libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_personality, [0x0004_0000, 0, 0, 0, 0, 0], EPERM),
            (1_000, [0; 6], ENOSYS),
            (0x4000_0000, [0; 6], ENOSYS),
            (-1, [0; 6], ENOSYS),
        ];
        for (call, args, want) in cases {
            for watch in [Watch::Nothing, Watch::Listen, Watch::Accept] {
                let got = verdict(filters.get(watch, false), *call, *args);
                assert_eq!(got, *want, "call {call} {args:?} {watch:?}");
            }
        }
        let template = filters.get(Watch::Nothing, true);
        let own = (libc::CLONE_NEWNS | libc::CLONE_NEWIPC) as u64;
        for (call, args, want) in [
            (libc::SYS_unshare, [own, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_unshare, [own | libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_unshare, [own | 1 << 32, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_unshare, [libc::CLONE_NEWNS as u64, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_move_mount, [5, 0, u64::MAX, 0, 4, 0], ALLOW),
            (libc::SYS_move_mount, [5, 0, u64::MAX, 0, 0, 0], EPERM),
            (libc::SYS_mount, [0; 6], EPERM),
            (libc::SYS_open_tree, [0; 6], EPERM),
            (libc::SYS_fsopen, [0; 6], EPERM),
            (libc::SYS_setns, [0; 6], EPERM),
            (libc::SYS_read, [0; 6], ALLOW),
            (libc::SYS_prlimit64, [0, 7, 0x1000, 0, 0, 0], ALLOW),
            (libc::SYS_prlimit64, [0, core, 0x1000, 0, 0, 0], libc::SECCOMP_RET_ERRNO),
            (libc::SYS_prlimit64, [2, core, 0x1000, 0, 0, 0], EPERM),
            (libc::SYS_prlimit64, [2, 7, 0x1000, 0, 0, 0], EPERM),
            (libc::SYS_prlimit64, [2, 7, 1 << 32, 0, 0, 0], EPERM),
            (libc::SYS_prlimit64, [2, 7, 0, 0x1000, 0, 0], ALLOW),
            (libc::SYS_setpriority, [0, 0, 5, 0, 0, 0], ALLOW),
            (libc::SYS_setpriority, [0, 2, 5, 0, 0, 0], EPERM),
            (libc::SYS_setpriority, [1, 0, 5, 0, 0, 0], EPERM),
            (libc::SYS_setpriority, [2, 0, 5, 0, 0, 0], EPERM),
            (libc::SYS_ioprio_set, [1, 0, 5, 0, 0, 0], ALLOW),
            (libc::SYS_ioprio_set, [1, 2, 5, 0, 0, 0], EPERM),
            (libc::SYS_ioprio_set, [2, 0, 5, 0, 0, 0], EPERM),
            (libc::SYS_ioprio_set, [3, 0, 5, 0, 0, 0], EPERM),
            (libc::SYS_sched_setaffinity, [0; 6], ALLOW),
            (libc::SYS_sched_setaffinity, [2, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_sched_getaffinity, [2, 0, 0, 0, 0, 0], ALLOW),
            (libc::SYS_sched_setscheduler, [2, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_sched_setparam, [2, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_sched_setattr, [2, 0, 0, 0, 0, 0], EPERM),
            (libc::SYS_sched_setattr, [0; 6], ALLOW),
            (libc::SYS_process_madvise, [0; 6], EPERM),
            (libc::SYS_process_mrelease, [0; 6], EPERM),
            (libc::SYS_pidfd_getfd, [0; 6], EPERM),
            (libc::SYS_kcmp, [0; 6], EPERM),
            (libc::SYS_move_pages, [0; 6], EPERM),
            (libc::SYS_migrate_pages, [0; 6], EPERM),
        ] {
            assert_eq!(verdict(template, call, args), want, "call {call} {args:?} of a template");
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
            let got = [Watch::Nothing, Watch::Listen, Watch::Accept]
                .map(|w| verdict(filters.get(w, false), call, [0; 6]));
            assert_eq!(got, want, "call {call}");
        }
    }
}
