use super::*;
use proptest::prelude::*;

const IDLE: DemandInput = DemandInput {
    in_flight: 0,
    queued: 0,
    concurrency: 1,
    ready: 0,
    starting: 0,
    min: 0,
    max: 1_000,
    activation: 1,
    first_only: false,
    execution: None,
    cold_start: None,
};

const fn known(execution_ms: u64, cold_start_ms: u64) -> (Option<Duration>, Option<Duration>) {
    (Some(Duration::from_millis(execution_ms)), Some(Duration::from_millis(cold_start_ms)))
}

fn with(times: (Option<Duration>, Option<Duration>), input: DemandInput) -> DemandInput {
    DemandInput { execution: times.0, cold_start: times.1, ..input }
}

#[test]
fn cases() {
    let unknown = (None, None);
    let (long, short) = (known(1_000, 5), known(1, 100));
    let surge = DemandInput { queued: 200, ..IDLE };
    let busy = DemandInput { in_flight: 10, ready: 10, ..IDLE };
    let cases = [
        ("nothing waits", unknown, IDLE, 0),
        ("nothing waits, not even below the minimum", unknown, DemandInput { min: 3, ..IDLE }, 0),
        ("a surge of unknown length", unknown, surge, 200),
        ("a surge of long executions", long, surge, 200),
        ("executions as long as a start", known(10, 10), surge, 200),
        ("a surge of short executions", short, surge, 2),
        ("shorter than can be measured", known(0, 100), surge, 1),
        ("starts that cost nothing", known(1, 0), surge, 200),
        ("only the execution is known", (long.0, None), surge, 200),
        ("several slots", unknown, DemandInput { concurrency: 8, ..surge }, 25),
        ("no slot counts as one", unknown, DemandInput { concurrency: 0, ..surge }, 200),
        ("the maximum", unknown, DemandInput { max: 50, ..surge }, 50),
        ("the maximum is reached", unknown, DemandInput { max: 5, ready: 5, ..surge }, 0),
        ("more than the maximum", unknown, DemandInput { max: 5, ready: 9, ..surge }, 0),
        ("no sandbox allowed", unknown, DemandInput { max: 0, ..surge }, 0),
        ("activation", unknown, DemandInput { activation: 5, queued: 1, ..IDLE }, 5),
        ("the first only", unknown, DemandInput { first_only: true, ..surge }, 1),
        ("the first ones only", unknown, DemandInput { first_only: true, activation: 3, ..surge }, 3),
        ("not the second", unknown, DemandInput { first_only: true, starting: 1, ..surge }, 0),
        (
            "not the second, also when the first is busy",
            unknown,
            DemandInput { first_only: true, queued: 1, ..busy },
            0,
        ),
        (
            "the minimum beside the first",
            unknown,
            DemandInput { first_only: true, min: 4, ready: 1, ..surge },
            3,
        ),
        ("activation, also when short", short, DemandInput { activation: 5, queued: 1, ..IDLE }, 5),
        (
            "activation only from zero",
            unknown,
            DemandInput { activation: 5, queued: 1, starting: 1, ..IDLE },
            0,
        ),
        ("activation of zero is one", unknown, DemandInput { activation: 0, queued: 1, ..IDLE }, 1),
        ("the minimum", unknown, DemandInput { min: 7, queued: 1, starting: 1, ..IDLE }, 6),
        ("those on their way count", unknown, DemandInput { starting: 150, ..surge }, 50),
        ("all of them are on their way", unknown, DemandInput { starting: 200, ..surge }, 0),
        ("busy, one waits", unknown, DemandInput { queued: 1, ..busy }, 1),
        ("busy, ten wait for one round", known(100, 100), DemandInput { queued: 10, ..busy }, 0),
        ("busy, twenty wait for two rounds", known(100, 100), DemandInput { queued: 20, ..busy }, 10),
        ("busy, long executions", known(200, 100), DemandInput { queued: 10, ..busy }, 10),
        ("busy, short executions", short, DemandInput { queued: 500, ..busy }, 0),
    ];
    for (name, times, input, create) in cases {
        let order = demand_order(&with(times, input));
        assert_eq!(order.create, create, "{name}: {}", order.reason);
    }
}

#[test]
fn an_order_that_relies_on_short_executions_says_when_to_look_again() {
    let input = with(known(1, 100), DemandInput { queued: 50, in_flight: 1, ready: 1, ..IDLE });
    let order = demand_order(&input);
    assert_eq!(
        (order.create, order.recheck_after),
        (0, Some(Duration::from_millis(200))),
        "{}",
        order.reason
    );
    let with_minimum = demand_order(&DemandInput { min: 1, ..input });
    assert_eq!(with_minimum, order, "a minimum that is there already decides nothing");
    let again = demand_order(&DemandInput { execution: None, ..input });
    assert_eq!((again.create, again.recheck_after), (50, None), "one execution is stuck: {}", again.reason);
}

/// When a queue of equal executions drains, counted in nanoseconds from now: free slots take the next request, the
/// ordered sandboxes and the starting ones join after one cold start, and what is in flight has just begun.
fn drained_after(input: &DemandInput, create: u32) -> u64 {
    let execution = input.execution.map_or(0, |d| d.as_nanos() as u64);
    let cold_start = input.cold_start.map_or(0, |d| d.as_nanos() as u64);
    let mut free_at = std::collections::BinaryHeap::new();
    let slots = |sandboxes: u32| sandboxes * input.concurrency;
    for slot in 0..slots(input.ready) {
        free_at.push(std::cmp::Reverse(if slot < input.in_flight { execution } else { 0 }));
    }
    for _ in 0..slots(input.starting + create) {
        free_at.push(std::cmp::Reverse(cold_start));
    }
    let mut end = 0;
    for _ in 0..input.queued {
        let std::cmp::Reverse(start) = free_at.pop().unwrap();
        end = end.max(start + execution);
        free_at.push(std::cmp::Reverse(start + execution));
    }
    end
}

fn inputs() -> impl Strategy<Value = DemandInput> {
    let counts = (0_u32..40, 0_u32..300, 1_u32..9, 0_u32..20, 0_u32..20);
    let bounds = (0_u32..10, 0_u32..200, 0_u32..10);
    let times = (prop::option::of(0_u64..5_000), prop::option::of(0_u64..5_000));
    (counts, bounds, times).prop_map(|((in_flight, queued, concurrency, ready, starting), bounds, times)| {
        let micros = |t: Option<u64>| t.map(Duration::from_micros);
        DemandInput {
            in_flight: in_flight.min(ready * concurrency),
            queued,
            concurrency,
            ready,
            starting,
            min: bounds.0,
            max: bounds.1,
            activation: bounds.2,
            first_only: false,
            execution: micros(times.0),
            cold_start: micros(times.1),
        }
    })
}

proptest! {
    #[test]
    fn never_above_the_maximum_and_nothing_for_nobody(input in inputs()) {
        let order = demand_order(&input);
        let there = input.ready + input.starting;
        prop_assert!(order.create == 0 || there + order.create <= input.max);
        if input.queued == 0 {
            prop_assert_eq!(order.create, 0);
        }
        if input.queued > 0 && there == 0 && input.max > 0 {
            prop_assert!(order.create > 0, "someone waits and nothing comes");
        }
    }

    #[test]
    fn more_waiting_never_orders_fewer(input in inputs(), more in 0_u32..100) {
        let longer = DemandInput { queued: input.queued + more, ..input };
        prop_assert!(demand_order(&longer).create >= demand_order(&input).create);
    }

    #[test]
    fn of_the_first_only_no_more_are_ordered_than_there_must_be(input in inputs()) {
        let first = demand_order(&DemandInput { first_only: true, ..input });
        let there = input.ready + input.starting;
        let must = if there == 0 { input.min.max(input.activation).max(1) } else { input.min };
        prop_assert!(there + first.create <= there.max(must));
        prop_assert!(input.queued == 0 || input.max == 0 || there + first.create > 0);
    }

    #[test]
    fn knowing_the_times_never_orders_more(input in inputs()) {
        let unknown = DemandInput { execution: None, ..input };
        prop_assert!(demand_order(&input).create <= demand_order(&unknown).create);
        prop_assert!(demand_order(&unknown).recheck_after.is_none());
    }

    #[test]
    fn long_executions_get_a_slot_each(input in inputs()) {
        let cold_start = input.cold_start.unwrap_or_default().max(Duration::from_micros(1));
        let input = DemandInput {
            in_flight: input.ready * input.concurrency,
            execution: Some(cold_start * 2),
            cold_start: Some(cold_start),
            ..input
        };
        let unknown = DemandInput { execution: None, ..input };
        prop_assert_eq!(demand_order(&input).create, demand_order(&unknown).create);
    }

    /// The work argument, checked by running the queue: fewer sandboxes cost at most two cold starts and the
    /// executions that straddle the ends of the two rounds.
    #[test]
    fn a_short_queue_drains_within_two_cold_starts(input in inputs()) {
        let input = DemandInput { max: 100_000, ..input };
        let order = demand_order(&input);
        if let DemandReason::ShortExecutions { execution, cold_start, .. } = order.reason {
            let bound = cold_start * 2 + execution * 2;
            let drained = Duration::from_nanos(drained_after(&input, order.create));
            prop_assert!(drained <= bound, "{:?} > {:?} with {}", drained, bound, order.create);
        }
    }
}
