//! Whose callback is sent next.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use crate::limits::{CALLBACKS_AGAIN_MAX, CALLBACKS_MAX, CALLBACKS_PER_RECEIVER_MAX};

/// Callbacks that are due, and those under way.
///
/// A receiver that does not answer holds what it was sent for as long as it may: so receivers take turns, each has a
/// few at once, and what is told for the first time comes before what is told again.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    first: Lane,
    again: Lane,
    under_way: BTreeMap<u64, UnderWay>,
    busy: BTreeMap<Arc<str>, usize>,
    again_under_way: usize,
}

#[derive(Debug)]
struct UnderWay {
    receiver: Arc<str>,
    again: bool,
}

/// Those that are due, by receiver; receivers take turns.
#[derive(Debug, Default)]
struct Lane {
    due: BTreeMap<Arc<str>, BTreeSet<u64>>,
    last: Option<Arc<str>>,
}

impl Callbacks {
    /// A call's callback is due, after so many tries that failed.
    pub(crate) fn due(&mut self, sequence: u64, url: &str, tries: u32) {
        let lane = if tries == 0 { &mut self.first } else { &mut self.again };
        lane.due.entry(receiver(url)).or_default().insert(sequence);
    }

    /// The next one to be sent; it is under way from then on.
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.under_way.len() >= CALLBACKS_MAX {
            return None;
        }
        let first = self.first.take(&self.busy).map(|found| (found, false));
        let ((receiver, sequence), again) = match first {
            Some(found) => found,
            None if self.again_under_way < CALLBACKS_AGAIN_MAX => (self.again.take(&self.busy)?, true),
            None => return None,
        };
        *self.busy.entry(receiver.clone()).or_default() += 1;
        self.again_under_way += usize::from(again);
        self.under_way.insert(sequence, UnderWay { receiver, again });
        Some(sequence)
    }

    /// One that was under way has ended.
    pub(crate) fn ended(&mut self, sequence: u64) {
        let Some(UnderWay { receiver, again }) = self.under_way.remove(&sequence) else { return };
        self.again_under_way -= usize::from(again);
        if let Some(busy) = self.busy.get_mut(&receiver) {
            *busy -= 1;
            if *busy == 0 {
                self.busy.remove(&receiver);
            }
        }
    }
}

impl Lane {
    /// The first of the receiver whose turn it is. At most [`CALLBACKS_MAX`] receivers are busy, and passed over.
    fn take(&mut self, busy: &BTreeMap<Arc<str>, usize>) -> Option<(Arc<str>, u64)> {
        let is_free =
            |receiver: &Arc<str>| busy.get(receiver).is_none_or(|count| *count < CALLBACKS_PER_RECEIVER_MAX);
        let after = self.last.clone().map_or(Unbounded, Excluded);
        let mut in_turn =
            self.due.range((after, Unbounded)).chain(self.due.iter()).map(|(receiver, _)| receiver);
        let receiver = in_turn.find(|receiver| is_free(receiver))?.clone();
        let sequences = self.due.get_mut(&receiver)?;
        let sequence = sequences.pop_first()?;
        if sequences.is_empty() {
            self.due.remove(&receiver);
        }
        self.last = Some(receiver.clone());
        Some((receiver, sequence))
    }
}

/// A URL's host and port.
fn receiver(url: &str) -> Arc<str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    rest[..end].to_ascii_lowercase().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(callbacks: &mut Callbacks) -> Vec<u64> {
        std::iter::from_fn(|| callbacks.next()).collect()
    }

    #[test]
    fn a_receiver_that_is_silent_keeps_nobody_elses_callbacks_away() {
        let mut callbacks = Callbacks::default();
        for sequence in 0..600 {
            callbacks.due(sequence, "http://silent:1/x", 0);
        }
        assert_eq!(all(&mut callbacks), (0..CALLBACKS_PER_RECEIVER_MAX as u64).collect::<Vec<_>>());
        callbacks.due(1_000, "http://other/", 0);
        assert_eq!(all(&mut callbacks), [1_000]);
        callbacks.ended(3);
        assert_eq!(all(&mut callbacks), [8], "and its own go on");
    }

    #[test]
    fn receivers_take_turns_and_each_keeps_its_order() {
        let mut callbacks = Callbacks::default();
        for sequence in 0..4 {
            callbacks.due(sequence, "http://a/", 0);
        }
        callbacks.due(10, "https://B:8443/x?y", 0);
        callbacks.due(11, "https://b:8443/z#w", 0);
        assert_eq!(all(&mut callbacks), [0, 10, 1, 11, 2, 3]);
    }

    #[test]
    fn the_first_time_comes_before_repetitions_which_never_take_everything() {
        let mut callbacks = Callbacks::default();
        for sequence in 0..200 {
            callbacks.due(sequence, &format!("http://h{sequence}/"), 1);
        }
        callbacks.due(900, "http://h1/", 0);
        let begun = all(&mut callbacks);
        assert_eq!(begun[0], 900);
        assert_eq!(begun.len(), 1 + CALLBACKS_AGAIN_MAX);
        for sequence in 1_000..1_200 {
            callbacks.due(sequence, &format!("http://new{sequence}/"), 0);
        }
        assert_eq!(all(&mut callbacks).len(), CALLBACKS_MAX - 1 - CALLBACKS_AGAIN_MAX);
        begun.into_iter().for_each(|sequence| callbacks.ended(sequence));
        let next = all(&mut callbacks);
        assert_eq!(next.len(), 1 + CALLBACKS_AGAIN_MAX);
        assert!(next.iter().all(|sequence| *sequence >= 1_000), "{next:?}");
    }
}
