//! How many sandboxes waiting requests call for, at once.
//!
//! The autoscaler looks at averages every two seconds. Between two of its decisions a change in demand is answered
//! here, from what is in flight and queued *now*, so that a surge on an idle function is one decision.
//!
//! The rule: order what shortens the wait. When executions are long, or their length is not known, that is a slot for
//! every request. When they are known to be short, a sandbox that is ready serves many requests before another could
//! be ready, so sandboxes are counted by the work there is:
//!
//! - the work is `(in flight + queued) × execution`, in slot-seconds;
//! - a sandbox that is ready now does two rounds, each as long as one cold start: one until a sandbox ordered now is
//!   ready, one after that; every other sandbox, started or ordered, does the second round only;
//! - the order is the fewest sandboxes with which those rounds cover the work.
//!
//! So the queue is drained one cold start after the first of the ordered sandboxes is ready at the latest, sooner than
//! a sandbox ordered at that moment could help. With executions of at least two cold starts the rule is the same as
//! "one slot for every request"; from nothing, with executions of at least one.
//!
//! The mean says nothing about one stuck execution, so an order that relied on it says when to look again
//! ([`DemandOrder::recheck_after`]); by then the same question should be asked without the execution time.

use std::fmt;
use std::time::Duration;

use fanfare_types::HumanDuration;

/// The state of one function, summed over all data planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandInput {
    /// Requests being executed.
    pub in_flight: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Slots of one sandbox; 0 counts as 1.
    pub concurrency: u32,
    /// Sandboxes that take requests.
    pub ready: u32,
    /// Sandboxes ordered and not yet ready.
    pub starting: u32,
    /// The function's minimum.
    pub min: u32,
    /// The function's maximum.
    pub max: u32,
    /// At least this many when there is none yet.
    pub activation: u32,
    /// Whether only the first ones are ordered here, where there is none: the rest is left to the autoscaler.
    pub first_only: bool,
    /// Mean execution time, if known.
    pub execution: Option<Duration>,
    /// Mean time from an order to a ready sandbox, if known.
    pub cold_start: Option<Duration>,
}

/// What to order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandOrder {
    /// Sandboxes to create, in addition to those that are ready or starting.
    pub create: u32,
    /// When the queue should have drained, if fewer sandboxes than requests were ordered because executions are
    /// short. If it has not by then, one of them is not: ask again with `execution: None`.
    pub recheck_after: Option<Duration>,
    /// What decided.
    pub reason: DemandReason,
}

/// What decided a demand order. Its `Display` is one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemandReason {
    /// Nothing waits.
    NothingQueued,
    /// The sandboxes that are ready or starting have a slot for every request.
    SlotsSuffice {
        /// Requests in flight and waiting.
        requests: u32,
        /// Slots of sandboxes that are ready or starting.
        slots: u64,
    },
    /// One slot for every request.
    SlotForEach {
        /// Requests in flight and waiting.
        requests: u32,
        /// Sandboxes that takes.
        sandboxes: u32,
    },
    /// Executions are short: fewer sandboxes drain the queue before more could be ready.
    ShortExecutions {
        /// Requests in flight and waiting.
        requests: u32,
        /// Mean execution time.
        execution: Duration,
        /// Mean time to a ready sandbox.
        cold_start: Duration,
        /// Sandboxes that a slot for each would take.
        instead_of: u32,
    },
    /// There is one, and the autoscaler is to order the rest.
    FirstThere {
        /// Requests that wait.
        queued: u32,
    },
    /// The function's minimum or activation scale, which is more than its requests call for.
    AtLeast {
        /// Sandboxes there must be.
        sandboxes: u32,
    },
    /// The function's maximum, which is less than its requests call for.
    AtMost {
        /// Sandboxes wanted.
        wanted: u32,
        /// The maximum.
        max: u32,
    },
}

/// Decides what waiting requests call for. Creates nothing when nothing waits, and never goes above the maximum; with
/// all else equal, more waiting requests never order fewer sandboxes.
#[must_use]
pub fn demand_order(input: &DemandInput) -> DemandOrder {
    if input.queued == 0 {
        return DemandOrder { create: 0, recheck_after: None, reason: DemandReason::NothingQueued };
    }
    let there = input.ready.saturating_add(input.starting);
    let concurrency = input.concurrency.max(1);
    let requests = input.in_flight.saturating_add(input.queued);
    let for_each = requests.div_ceil(concurrency);
    let by_work = short_executions(input, requests, concurrency);

    let (mut wanted, mut recheck_after, mut reason) = if input.first_only {
        let first = if there == 0 { input.activation.max(1) } else { there };
        (first, None, DemandReason::FirstThere { queued: input.queued })
    } else if for_each <= there {
        let slots = u64::from(there) * u64::from(concurrency);
        (there, None, DemandReason::SlotsSuffice { requests, slots })
    } else if let Some(short) = by_work.filter(|short| short.sandboxes < for_each) {
        let reason = DemandReason::ShortExecutions {
            requests,
            execution: short.execution,
            cold_start: short.cold_start,
            instead_of: for_each,
        };
        (short.sandboxes.max(there), Some(short.drained_after), reason)
    } else {
        (for_each, None, DemandReason::SlotForEach { requests, sandboxes: for_each })
    };
    let least = if there == 0 { input.min.max(input.activation) } else { input.min };
    if wanted < least {
        (wanted, recheck_after, reason) = (least, None, DemandReason::AtLeast { sandboxes: least });
    }
    if wanted > input.max {
        reason = DemandReason::AtMost { wanted, max: input.max };
        wanted = input.max;
    }
    DemandOrder { create: wanted.saturating_sub(there), recheck_after, reason }
}

/// What suffices because executions are short.
#[derive(Clone, Copy, Debug)]
struct Short {
    /// Sandboxes, those that are there included.
    sandboxes: u32,
    drained_after: Duration,
    execution: Duration,
    cold_start: Duration,
}

/// The rule in the module's description. `None` when a time is not known.
fn short_executions(input: &DemandInput, requests: u32, concurrency: u32) -> Option<Short> {
    let (execution, cold_start) = (input.execution?, input.cold_start?);
    // An execution too short to measure is not free, and neither is a start.
    let (execution_ns, round_ns) = (execution.as_nanos().max(1), cold_start.as_nanos().max(1));
    let work = u128::from(requests).saturating_mul(execution_ns);
    let of_one = u128::from(concurrency).saturating_mul(round_ns);
    let rounds = work.div_ceil(of_one);
    let second_round = rounds.saturating_sub(u128::from(input.ready));
    let sandboxes = u32::try_from(second_round).unwrap_or(u32::MAX);
    Some(Short {
        sandboxes,
        drained_after: cold_start.saturating_mul(2).max(execution),
        execution,
        cold_start,
    })
}

impl fmt::Display for DemandReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DemandReason::NothingQueued => f.write_str("nothing waits"),
            DemandReason::SlotsSuffice { requests, slots } => {
                write!(
                    f,
                    "{}, and {} ready or starting",
                    counted(requests.into(), "request"),
                    counted(slots, "slot")
                )
            }
            DemandReason::SlotForEach { requests, sandboxes } => match (requests, sandboxes) {
                (1, 1) => f.write_str("a request waits, and takes a sandbox"),
                _ => write!(
                    f,
                    "a slot for each of {} takes {}",
                    counted(requests.into(), "request"),
                    counted(sandboxes.into(), "sandbox")
                ),
            },
            DemandReason::ShortExecutions { requests, execution, cold_start, instead_of } => write!(
                f,
                "{} of {} are served by fewer than {instead_of} sandboxes before more could be ready, which takes {}",
                counted(requests.into(), "request"),
                HumanDuration(execution),
                HumanDuration(cold_start)
            ),
            DemandReason::FirstThere { queued } => write!(
                f,
                "{}; a first sandbox is ordered at once, others by the autoscaler",
                match queued {
                    1 => "1 request waits".to_owned(),
                    _ => format!("{queued} requests wait"),
                }
            ),
            DemandReason::AtLeast { sandboxes } => {
                write!(
                    f,
                    "at least {}, by the function's minimum or activation scale",
                    counted(sandboxes.into(), "sandbox")
                )
            }
            DemandReason::AtMost { wanted, max } => {
                write!(f, "{} wanted, the maximum is {max}", counted(wanted.into(), "sandbox"))
            }
        }
    }
}

/// A count with its word: `1 slot`, `2 slots`.
fn counted(count: u64, word: &str) -> String {
    match (count, word.ends_with('x')) {
        (1, _) => format!("1 {word}"),
        (_, true) => format!("{count} {word}es"),
        (_, false) => format!("{count} {word}s"),
    }
}

#[cfg(test)]
mod tests;
