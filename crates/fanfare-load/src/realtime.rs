//! A thread that runs before all ordinary ones.
#![allow(unsafe_code)]

use std::io;

use crate::error::{Context, Result};

/// Low among the priorities of its class, which is above every thread outside of it.
const PRIORITY: i32 = 10;

/// Gives the calling thread the policy SCHED_FIFO.
///
/// # Errors
/// It takes root, or `CAP_SYS_NICE`.
pub(crate) fn raise() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: 0 is the calling thread, and the parameters are a live structure that the call reads.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("give a thread real-time priority"),
    }
}
