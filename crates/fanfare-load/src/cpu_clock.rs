//! CPU time of another process, to the nanosecond.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

/// CPU time that all threads of a process have used, those that have ended included.
pub fn of_process(pid: u32) -> io::Result<Duration> {
    let pid = i32::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a live integer that the call writes.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => {}
        errno => return Err(io::Error::from_raw_os_error(errno)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live `timespec` that the call writes.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))),
        _ => Err(io::Error::last_os_error()),
    }
}
