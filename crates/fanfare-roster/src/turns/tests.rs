use proptest::prelude::*;

use super::*;

const A: FunctionId = FunctionId(1);
const B: FunctionId = FunctionId(2);
const C: FunctionId = FunctionId(3);

fn turns(limit: usize, queued: &[(u64, FunctionId, bool)]) -> Turns {
    let mut turns = Turns::new(limit, 8);
    queued.iter().for_each(|(id, function, waited)| turns.push(SandboxId(*id), *function, *waited));
    turns
}

/// The order in which all begin when each ends before the next.
fn one_by_one(turns: &mut Turns) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(id) = turns.next() {
        order.push(id.0);
        turns.ended(id);
    }
    order
}

fn at_once(turns: &mut Turns) -> Vec<u64> {
    std::iter::from_fn(|| turns.next()).map(|id| id.0).collect()
}

#[test]
fn functions_take_turns_and_each_keeps_its_order() {
    let mut turns =
        turns(1, &[(1, A, true), (2, A, true), (3, A, true), (4, B, true), (5, C, true), (6, B, true)]);
    assert_eq!(one_by_one(&mut turns), [1, 4, 5, 2, 6, 3]);
}

#[test]
fn what_a_request_waits_for_comes_first_and_nothing_is_left_out() {
    let mut turns = Turns::new(1, 8);
    (0..20).for_each(|id| turns.push(SandboxId(id), A, true));
    (100..103).for_each(|id| turns.push(SandboxId(id), B, false));
    let order = one_by_one(&mut turns);
    let unwaited: Vec<usize> =
        order.iter().enumerate().filter(|(_, id)| **id >= 100).map(|(at, _)| at).collect();
    assert_eq!(unwaited, [7, 15, 22], "{order:?}");
}

#[test]
fn a_minimum_or_a_surge_of_one_function_does_not_hold_up_anothers_cold_start() {
    for surge in [false, true] {
        let mut turns = Turns::new(4, 8);
        (1..=200).for_each(|id| turns.push(SandboxId(id), A, surge));
        assert_eq!(at_once(&mut turns), [1, 2, 3, 4]);
        turns.push(SandboxId(201), B, true);
        turns.push(SandboxId(202), B, true);
        // All places are taken, and perhaps for long.
        assert_eq!(at_once(&mut turns), [201], "a first one begins nevertheless");
        turns.ended(SandboxId(1));
        assert_eq!(at_once(&mut turns), [0_u64; 0], "it took a place");
        let next = [2, 3].map(|id| {
            turns.ended(SandboxId(id));
            at_once(&mut turns)
        });
        let expected = if surge { [[5], [202]] } else { [[202], [5]] };
        assert_eq!(next, expected, "functions take turns, a minimum's after those that are waited for");
    }
}

#[test]
fn places_beyond_the_limit_are_for_cold_starts_and_have_a_limit() {
    let mut turns = turns(2, &[(1, A, true), (2, A, true), (3, A, true), (4, B, false)]);
    assert_eq!(at_once(&mut turns), [1, 2], "neither A's third nor what nobody waits for begins");
    (10..20).for_each(|id| turns.push(SandboxId(id), FunctionId(u32::try_from(id).unwrap()), true));
    assert_eq!(at_once(&mut turns).len(), 2);
    turns.close();
    (1..20).for_each(|id| turns.ended(SandboxId(id)));
    assert_eq!(at_once(&mut turns), [0_u64; 0], "nothing begins after the end");
}

#[test]
fn what_nobody_waits_for_takes_no_more_places_than_it_needs() {
    let mut turns = Turns::new(8, 2);
    (1..=20).for_each(|id| turns.push(SandboxId(id), A, false));
    assert_eq!(at_once(&mut turns), [1, 2]);
    (21..=30).for_each(|id| turns.push(SandboxId(id), B, true));
    assert_eq!(at_once(&mut turns), [21, 22, 23, 24, 25, 26]);
    turns.ended(SandboxId(1));
    assert_eq!(at_once(&mut turns), [27]);
}

#[test]
fn one_that_is_hastened_joins_its_class_and_one_that_is_cancelled_never_begins() {
    let mut turns = turns(1, &[(1, A, false), (2, A, false), (3, B, true), (4, B, true), (5, C, false)]);
    turns.hasten(SandboxId(2), A);
    turns.hasten(SandboxId(77), A);
    turns.cancel(SandboxId(3), B);
    turns.cancel(SandboxId(1), A);
    turns.cancel(SandboxId(1), A);
    assert_eq!(turns.waiting(), 3);
    assert_eq!(one_by_one(&mut turns), [2, 4, 5]);
    assert_eq!(turns.waiting(), 0);
}

proptest! {
    /// Whatever is ordered, hastened, cancelled and ended in whatever order: all else begins once, within the limits.
    #[test]
    fn everything_begins_once_within_the_limits(
        limit in 1_usize..5,
        unwaited_limit in 1_usize..5,
        steps in proptest::collection::vec((0_u8..5, 0_u32..4, any::<bool>(), any::<prop::sample::Index>()), 1..120),
    ) {
        let mut turns = Turns::new(limit, unwaited_limit);
        let (mut queued, mut running, mut begun) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut unwaited = BTreeSet::new();
        let mut ordered = 0;
        for (step, function, waited, pick) in steps {
            let function = FunctionId(function);
            let some = |all: Vec<SandboxId>| (!all.is_empty()).then(|| all[pick.index(all.len())]);
            match step {
                0 | 1 => {
                    ordered += 1;
                    turns.push(SandboxId(ordered), function, waited);
                    queued.insert(SandboxId(ordered), (function, waited));
                }
                2 => if let Some(id) = some(queued.keys().copied().collect()) {
                    turns.hasten(id, queued[&id].0);
                    queued.get_mut(&id).unwrap().1 = true;
                }
                3 => if let Some(id) = some(queued.keys().copied().collect()) {
                    turns.cancel(id, queued.remove(&id).unwrap().0);
                }
                _ => if let Some(id) = some(running.iter().copied().collect()) {
                    turns.ended(id);
                    running.remove(&id);
                }
            }
            while let Some(id) = turns.next() {
                let Some((_, waited)) = queued.remove(&id) else { panic!("{id} begins, which does not wait") };
                prop_assert!(begun.insert(id), "{} begins again", id);
                running.insert(id);
                if !waited {
                    unwaited.insert(id);
                }
            }
            prop_assert!(running.len() <= 2 * limit);
            let unwaited = running.iter().filter(|id| unwaited.contains(id)).count();
            prop_assert!(unwaited <= unwaited_limit);
            let free = |waited| running.len() < limit && (waited || unwaited < unwaited_limit);
            prop_assert!(!queued.values().any(|(_, waited)| free(*waited)), "a place is free, and something waits");
            prop_assert_eq!(turns.waiting(), queued.len());
        }
        while !running.is_empty() {
            for id in std::mem::take(&mut running) {
                turns.ended(id);
            }
            while let Some(id) = turns.next() {
                prop_assert!(queued.remove(&id).is_some() && begun.insert(id));
                running.insert(id);
            }
        }
        prop_assert!(queued.is_empty());
    }
}
