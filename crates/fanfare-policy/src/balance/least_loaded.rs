//! The fewest requests in flight; the most recently used of those, so that the others can go.

use super::{Candidate, ChoiceReason, free};

pub(super) fn choose(candidates: &[Candidate]) -> Option<(usize, ChoiceReason)> {
    // The first of equals is kept.
    let (index, _) = free(candidates).min_by_key(|(_, candidate)| candidate.in_flight)?;
    Some((index, ChoiceReason::FewestInFlight))
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::*;

    #[test]
    fn cases() {
        type Loads = &'static [(u32, u32)];
        let cases: [(Loads, Option<usize>); 5] = [
            (&[(4, 2), (4, 1), (4, 1)], Some(1)),
            (&[(1, 1), (9, 8)], Some(1)),
            (&[(2, 0), (1, 0)], Some(0)),
            (&[(1, 1)], None),
            (&[], None),
        ];
        for (loads, want) in cases {
            let want = want.map(|index| (index, ChoiceReason::FewestInFlight));
            assert_eq!(choose(&candidates(loads)), want, "{loads:?}");
        }
    }
}
