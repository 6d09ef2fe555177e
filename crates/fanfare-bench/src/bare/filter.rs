//! A filter of system calls of about the size of the `process` runtime's: its cost is what is measured here, not its
//! verdicts.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::error::{Context, Error, Result};

/// Calls that are refused: those that a function has no use for.
#[rustfmt::skip]
const REFUSED: &[i64] = &[
    libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_unshare,
    libc::SYS_setns, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_ptrace,
    libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_kcmp, libc::SYS_bpf,
    libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key,
    libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at, libc::SYS_fanotify_init, libc::SYS_fanotify_mark,
    libc::SYS_kexec_load, libc::SYS_kexec_file_load, libc::SYS_init_module, libc::SYS_finit_module,
    libc::SYS_delete_module, libc::SYS_reboot, libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_settimeofday,
    libc::SYS_clock_settime, libc::SYS_adjtimex, libc::SYS_clock_adjtime, libc::SYS_vmsplice, libc::SYS_acct,
    libc::SYS_quotactl, libc::SYS_syslog, libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_vhangup,
];
/// Calls with numbers above this one are refused.
const LAST: i64 = 334;

pub(super) fn compile() -> Result<BpfProgram> {
    let rules: BTreeMap<i64, Vec<_>> =
        (0..=LAST).filter(|call| !REFUSED.contains(call)).map(|call| (call, Vec::new())).collect();
    let architecture = std::env::consts::ARCH.try_into().context("a filter for this machine")?;
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture)
        .map_err(|error| Error::new(format!("a filter: {error}")))?;
    filter.try_into().map_err(|error: seccompiler::BackendError| Error::new(format!("a filter: {error}")))
}
