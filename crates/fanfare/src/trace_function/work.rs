//! Taking time and memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Square roots between two looks at the clock: some microseconds.
const ROOTS_PER_LOOK: u32 = 500;

/// What a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Time on the CPU.
    pub(super) cpu_ms: u32,
    /// Time in which it waits, as for input and output.
    pub(super) io_ms: u32,
    /// Memory.
    pub(super) memory_mib: u32,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// By the wall clock.
    pub(super) took: Duration,
    /// Whether there was as much memory.
    pub(super) had_memory: bool,
}

impl Work {
    /// So much time, of which this share waits.
    pub(super) fn new(runtime_ms: u32, io_percentage: u32, memory_mib: u32) -> Self {
        let io_ms = u64::from(runtime_ms) * u64::from(io_percentage.min(100)) / 100;
        // No more than the whole, which fits.
        let io_ms = u32::try_from(io_ms).unwrap_or(runtime_ms);
        Work { cpu_ms: runtime_ms - io_ms, io_ms, memory_mib }
    }

    /// Does it, and blocks meanwhile. Without the memory it does nothing.
    ///
    /// Memory is reserved and touched at its first page, as InVitro's own functions do: to touch all of it would take
    /// longer than most requests are to run. Time on the CPU is measured by the thread's own clock, not counted in turns
    /// of a loop that was calibrated for another machine: a neighbour on the same CPU makes it last longer, not do less.
    #[allow(clippy::disallowed_methods, reason = "to take time is what this work is")]
    pub(super) fn run(self) -> Done {
        let begun = Instant::now();
        let mut memory: Vec<u8> = Vec::new();
        let bytes = usize::try_from(u64::from(self.memory_mib) << 20).unwrap_or(usize::MAX);
        let had_memory = memory.try_reserve_exact(bytes).is_ok();
        if had_memory {
            if bytes > 0 {
                memory.push(1);
            }
            burn(Duration::from_millis(self.cpu_ms.into()));
            if self.io_ms > 0 {
                std::thread::sleep(Duration::from_millis(self.io_ms.into()));
            }
        }
        black_box(&memory);
        Done { took: begun.elapsed(), had_memory }
    }
}

/// Computes until this thread has used so much time of a CPU.
fn burn(time: Duration) {
    let begun = thread_time();
    while thread_time().saturating_sub(begun) < time {
        for number in 0..ROOTS_PER_LOOK {
            black_box(f64::from(black_box(number)).sqrt());
        }
    }
}

fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_waits_is_taken_off_the_rest() {
        let cases = [
            ((0, 50), (0, 0)),
            ((100, 0), (100, 0)),
            ((100, 30), (70, 30)),
            ((3, 50), (2, 1)),
            ((100, 101), (0, 100)),
            ((u32::MAX, 100), (0, u32::MAX)),
        ];
        for ((runtime_ms, io), (cpu_ms, io_ms)) in cases {
            assert_eq!(Work::new(runtime_ms, io, 0), Work { cpu_ms, io_ms, memory_mib: 0 });
        }
    }

    #[test]
    fn as_much_of_the_cpu_is_used_as_was_asked_for() {
        let before = thread_time();
        let done = Work::new(30, 0, 64).run();
        let used = thread_time() - before;
        assert!(done.had_memory && done.took >= Duration::from_millis(30), "{done:?}");
        assert!(used >= Duration::from_millis(30) && used < Duration::from_millis(60), "{used:?}");
    }

    #[test]
    fn waiting_uses_no_cpu() {
        let before = thread_time();
        let done = Work::new(40, 100, 0).run();
        assert!(done.took >= Duration::from_millis(40));
        assert!(thread_time() - before < Duration::from_millis(20));
    }

    #[test]
    fn what_there_is_no_memory_for_is_not_done() {
        let begun = thread_time();
        let done = Work::new(60_000, 0, u32::MAX).run();
        // 4 PiB are more than a process can address.
        assert!(!done.had_memory && thread_time() - begun < Duration::from_secs(10));
    }
}
