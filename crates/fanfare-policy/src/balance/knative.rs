//! Knative's: the first free sandbox while sandboxes take few requests at once, the better of two otherwise.
//!
//! Source: `knative/serving`, `pkg/activator/net/lb_policy.go` (`firstAvailableLBPolicy`, `randomChoice2Policy`) and
//! `throttler.go` (the first for a concurrency of up to 3). Knative draws two where concurrency is unlimited and takes
//! turns where it is limited above 3; concurrency is always limited here, and two draws serve both.
//!
//! The concurrency is read off the first free candidate, so that nothing behind it has to be looked at.

use super::{Candidate, ChoiceReason, free, random};
use crate::Rng;

/// Up to this concurrency the first free one is taken, which keeps the others idle so that they can go.
const FIRST_FREE_CONCURRENCY_MAX: u32 = 3;

pub(super) fn choose(candidates: &[Candidate], rng: &mut Rng) -> Option<(usize, ChoiceReason)> {
    let (index, first_free) = free(candidates).next()?;
    if first_free.slots <= FIRST_FREE_CONCURRENCY_MAX {
        return Some((index, ChoiceReason::FirstFree));
    }
    let first = random::draw(candidates, None, rng)?;
    let Some(second) = random::draw(candidates, Some(first), rng) else {
        return Some((first, ChoiceReason::OnlyFree));
    };
    // A tie goes to the first draw, which is as random as the second.
    let better = candidates[second].less_loaded_than(&candidates[first]);
    Some((if better { second } else { first }, ChoiceReason::BetterOfTwo))
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::*;
    use crate::seeded;

    #[test]
    fn first_free_for_small_concurrency() {
        type Loads = &'static [(u32, u32)];
        let cases: [(Loads, Option<usize>); 6] = [
            (&[(1, 1), (1, 0), (1, 0)], Some(1)),
            (&[(3, 2), (3, 0)], Some(0)),
            (&[(3, 3), (3, 3), (2, 1)], Some(2)),
            (&[(1, 1), (1, 1)], None),
            (&[(0, 0)], None),
            (&[], None),
        ];
        for (loads, want) in cases {
            let got = choose(&candidates(loads), &mut seeded(0));
            assert_eq!(got, want.map(|index| (index, ChoiceReason::FirstFree)), "{loads:?}");
        }
    }

    #[test]
    fn the_better_of_two_otherwise() {
        let mut rng = seeded(1);
        for _ in 0..50 {
            let two = choose(&candidates(&[(4, 3), (4, 1)]), &mut rng);
            assert_eq!(two, Some((1, ChoiceReason::BetterOfTwo)));
            let shares = choose(&candidates(&[(100, 50), (10, 6)]), &mut rng);
            assert_eq!(shares, Some((0, ChoiceReason::BetterOfTwo)), "by share, not by number");
            let one = choose(&candidates(&[(4, 4), (4, 3), (4, 4)]), &mut rng);
            assert_eq!(one, Some((1, ChoiceReason::OnlyFree)));
        }
        assert_eq!(choose(&candidates(&[(4, 4), (9, 9)]), &mut rng), None);
        let mut worst = 0;
        for _ in 0..300 {
            let drawn = choose(&candidates(&[(9, 1), (9, 2), (9, 8)]), &mut rng);
            worst += usize::from(drawn.is_some_and(|(index, _)| index == 2));
        }
        assert_eq!(worst, 0, "the most loaded of three is never the better of two");
    }
}
