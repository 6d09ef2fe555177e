//! Any free sandbox, each equally likely.
//!
//! As in placement: draw and try again, which is one draw when most are free; after a few failures count and draw.

use rand::RngExt;

use super::{Candidate, ChoiceReason, free};
use crate::Rng;

/// Draws before counting.
const DRAWS_MAX: u32 = 4;

pub(super) fn choose(candidates: &[Candidate], rng: &mut Rng) -> Option<(usize, ChoiceReason)> {
    draw(candidates, None, rng).map(|index| (index, ChoiceReason::Drawn))
}

/// A free one other than `except`, each equally likely.
pub(super) fn draw(candidates: &[Candidate], except: Option<usize>, rng: &mut Rng) -> Option<usize> {
    if candidates.is_empty() {
        return None;
    }
    for _ in 0..DRAWS_MAX {
        let index = rng.random_range(0..candidates.len());
        if Some(index) != except && candidates[index].is_free() {
            return Some(index);
        }
    }
    let others = || free(candidates).map(|(index, _)| index).filter(|index| Some(*index) != except);
    match others().count() {
        0 => None,
        some => others().nth(rng.random_range(0..some)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::*;
    use crate::seeded;

    #[test]
    fn equally_likely_also_when_few_are_free() {
        for full in [1, 100] {
            let mut loads = vec![(1, 1); full];
            loads.extend([(1, 0), (9, 8), (2, 0)]);
            let (candidates, mut rng) = (candidates(&loads), seeded(9));
            let mut counts = [0_u32; 3];
            for _ in 0..3_000 {
                counts[choose(&candidates, &mut rng).unwrap().0 - full] += 1;
            }
            assert!(counts.iter().all(|n| (880..1_120).contains(n)), "{full} full: {counts:?}");
        }
        assert_eq!(choose(&candidates(&[(1, 1), (0, 0)]), &mut seeded(0)), None);
        assert_eq!(choose(&[], &mut seeded(0)), None);
    }
}
