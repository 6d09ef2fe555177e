//! When what is sent: decided without a clock, so that it can be tried in virtual time.

use fanfare_trace::Invocation;

/// Goes through a plan by the time.
#[derive(Debug)]
pub struct Pacer<'a> {
    invocations: &'a [Invocation],
    next: usize,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Send all before this place in the plan that are not sent yet.
    Send {
        /// The first that is not due.
        up_to: usize,
    },
    /// Nothing is due before this time, in microseconds from the beginning.
    Wait {
        /// When the next one is.
        until_us: u64,
    },
    /// Everything is sent.
    Done,
}

impl<'a> Pacer<'a> {
    /// At the beginning of a plan, whose invocations ascend by time.
    #[must_use]
    pub fn new(invocations: &'a [Invocation]) -> Pacer<'a> {
        Pacer { invocations, next: 0 }
    }

    /// What is to be done at `now_us`. However late it is asked, nothing is passed over: everything that has become due is
    /// sent at once, and what is not due keeps its own time, so that a delay is not carried on.
    pub fn turn(&mut self, now_us: u64) -> Turn {
        let open = &self.invocations[self.next..];
        let due = open.partition_point(|invocation| invocation.at_us <= now_us);
        self.next += due;
        match open.first() {
            None => Turn::Done,
            Some(_) if due > 0 => Turn::Send { up_to: self.next },
            Some(first) => Turn::Wait { until_us: first.at_us },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::summary::{Lateness, LatenessBound};

    fn plan(times: &[u64]) -> Vec<Invocation> {
        let invocation = |at_us: &u64| Invocation {
            at_us: *at_us,
            function: 0,
            execution_ms: 1,
            memory_mib: 1,
            column: 0,
        };
        times.iter().map(invocation).collect()
    }

    /// Replays in virtual time on a machine whose thread wakes `delay(us)` after it wanted to; gives by how much each was
    /// sent too late.
    fn replay(invocations: &[Invocation], delay: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut pacer, mut now, mut late) = (Pacer::new(invocations), 0, Vec::new());
        loop {
            match pacer.turn(now) {
                Turn::Done => return late,
                Turn::Send { up_to } => {
                    late.extend(invocations[late.len()..up_to].iter().map(|i| now - i.at_us));
                }
                Turn::Wait { until_us } => now = until_us + delay(until_us),
            }
        }
    }

    #[test]
    fn a_run_that_stalls_sends_everything_and_is_found_late() {
        let times: Vec<u64> = (0..10_000).map(|n| n * 1_000).collect();
        let invocations = plan(&times);
        let bound = LatenessBound { p99_us: 5_000 };
        let punctual = Lateness::of(replay(&invocations, |_| 40)).unwrap();
        assert!(punctual.within(bound), "{punctual:?}");
        assert_eq!((punctual.p50_us, punctual.max_us), (40, 40));
        // Two seconds in which the thread does not run.
        let late = replay(&invocations, |at| if at == 3_000_000 { 2_000_000 } else { 40 });
        assert_eq!(late.len(), 10_000);
        // What became due meanwhile is sent at once, and what follows is not late: the delay is not carried on.
        assert_eq!((late[3_000], late[4_999], late[5_001]), (2_000_000, 1_000, 40));
        let stalled = Lateness::of(late).unwrap();
        assert!(!stalled.within(bound) && stalled.max_us == 2_000_000, "{stalled:?}");
        // One that is always a little too late does not drift.
        let slow = replay(&invocations, |_| 900);
        assert!(slow.iter().all(|late| *late <= 900));
    }

    #[test]
    fn what_is_due_together_is_sent_together() {
        let invocations = plan(&[5, 5, 5, 9]);
        let mut pacer = Pacer::new(&invocations);
        let turns: Vec<Turn> = [0, 4, 5, 5, 8, 9, 9].into_iter().map(|now| pacer.turn(now)).collect();
        let wait = |until_us| Turn::Wait { until_us };
        let send = |up_to| Turn::Send { up_to };
        assert_eq!(turns, [wait(5), wait(5), send(3), wait(9), wait(9), send(4), Turn::Done]);
        assert_eq!(Pacer::new(&[]).turn(0), Turn::Done);
    }

    proptest! {
        #[test]
        fn everything_is_sent_once_and_nothing_early(
            mut times in proptest::collection::vec(0..1_000_u64, 0..50), delays in proptest::collection::vec(0..300_u64, 1..9)
        ) {
            times.sort_unstable();
            let invocations = plan(&times);
            // `replay` would underflow where something is early.
            let late = replay(&invocations, |at| delays[at as usize % delays.len()]);
            prop_assert_eq!(late.len(), times.len());
        }
    }
}
