//! What holds in every order of events.

use std::collections::VecDeque;

use fanfare_types::FunctionId;
use proptest::prelude::*;

use super::{answered, at, offer, split};
use crate::limits::FEED_MIN;
use crate::{Calls, Command, Event, Limits, Offer};

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever ends when: no function's attempts fill its queue, the bounds hold, and all calls end.
    #[test]
    fn attempts_are_fed_within_bounds_and_none_is_forgotten(
        functions in prop::collection::vec((1..5_u32, 1..40_u64), 1..120),
        picks in prop::collection::vec((any::<usize>(), any::<bool>()), 0..400),
    ) {
        let limits = Limits { running_max: 12, running_bytes_max: 100, ..Limits::default() };
        let mut calls = Calls::new(limits.clone());
        let mut under_way: Vec<(u64, bool, u64)> = Vec::new();
        let bytes: Vec<u64> = functions.iter().map(|(_, bytes)| *bytes).collect();
        let take = |calls: &mut Calls, commands: Vec<Command>, under_way: &mut Vec<(u64, bool, u64)>| {
            let mut effects: VecDeque<_> = split(calls, commands).1.into();
            while let Some(effect) = effects.pop_front() {
                match effect {
                    Command::Prepare { sequence, attempt } => {
                        let mut commands = Vec::new();
                        calls.step(at(0), Event::Durable { sequence, attempt }, &mut commands);
                        effects.extend(split(calls, commands).1);
                    }
                    Command::Start { sequence, attempt } => {
                        assert_eq!(attempt, 1);
                        let function = FunctionId(functions[sequence as usize - 1].0);
                        let (ahead, waiting, executing) = calls.feed_counts(function);
                        assert!(waiting <= executing.max(FEED_MIN), "{waiting} wait, {executing} execute");
                        assert!(ahead + waiting + executing <= 6, "half of all");
                        under_way.push((sequence, false, bytes[sequence as usize - 1]));
                    }
                    _ => {}
                }
            }
            assert!(calls.running() <= limits.running_max);
            let sum: u64 = under_way.iter().map(|(_, _, bytes)| bytes).sum();
            assert!(sum <= limits.running_bytes_max || under_way.len() == 1, "{sum}");
        };
        for (function, bytes) in &functions {
            let mut commands = Vec::new();
            let offered = Offer { payload_bytes: *bytes, ..offer(*function) };
            calls.offer(at(0), offered, &mut commands).unwrap();
            take(&mut calls, commands, &mut under_way);
        }
        let mut picks = picks.into_iter().chain(std::iter::repeat((0, true)));
        while !under_way.is_empty() {
            let (which, end) = picks.next().expect("it never ends");
            let index = which % under_way.len();
            let (sequence, assigned, _) = under_way[index];
            let event = if assigned && end {
                under_way.swap_remove(index);
                Event::Ended { sequence, attempt: 1, end: answered(200) }
            } else {
                under_way[index].1 = true;
                Event::Assigned { sequence, attempt: 1 }
            };
            let mut commands = Vec::new();
            calls.step(at(0), event, &mut commands);
            take(&mut calls, commands, &mut under_way);
        }
        prop_assert_eq!((calls.open(), calls.all().count()), (0, functions.len()));
    }
}
