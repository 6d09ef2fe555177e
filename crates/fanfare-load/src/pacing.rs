//! The thread that keeps the times.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use fanfare_trace::Plan;
use rustix::io::Errno;
use rustix::thread::{clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::ClockId;

use crate::clock::Clock;
use crate::error::{Context, Result};
use crate::pace::{Pacer, Turn};
use crate::realtime;
use crate::run::Shared;

/// Longest sleep: so soon it is seen that the run is interrupted.
const SLEEP_MAX_US: u64 = 50_000;

/// Goes through the plan, and rings for the senders whenever something is due.
pub(crate) fn pace(plan: &Plan, clock: Clock, shared: &Shared, with_priority: bool) -> Result<()> {
    let ended = keep_time(plan, clock, shared, with_priority);
    // Whatever happened, they must not wait for more.
    shared.paced.store(true, Ordering::Release);
    shared.ring()?;
    ended
}

fn keep_time(plan: &Plan, clock: Clock, shared: &Shared, with_priority: bool) -> Result<()> {
    // By default the kernel may wake a thread 50 µs later than it asked.
    set_current_timer_slack(NonZeroU64::new(1)).context("set the timer slack")?;
    if with_priority {
        realtime::raise()?;
    }
    let mut pacer = Pacer::new(&plan.invocations);
    sleep_until(clock, 0)?;
    while !shared.progress.is_interrupted() {
        match pacer.turn(clock.now_us()) {
            Turn::Done => return Ok(()),
            Turn::Send { up_to } => {
                shared.due.store(up_to, Ordering::Release);
                shared.ring()?;
            }
            Turn::Wait { until_us } => {
                sleep_until(clock, until_us.min(clock.now_us().saturating_add(SLEEP_MAX_US)))?;
            }
        }
    }
    Ok(())
}

fn sleep_until(clock: Clock, at_us: u64) -> Result<()> {
    match clock_nanosleep_absolute(ClockId::Monotonic, &clock.moment(at_us)) {
        Ok(()) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("sleep"),
    }
}
