//! Hermod's hybrid: pack while the load is low, spread when it is high.
//!
//! Source: Kaffes, Yadwadkar and Kozyrakis, "Hermod: Principled and Practical Scheduling for Serverless Functions"
//! (SoCC 2022). At low load requests are consolidated, so that few sandboxes stay warm and the others can go; once
//! every processor of those in use is taken, the least loaded one is chosen.
//!
//! Hermod packs a server up to its cores and lets further requests share them. Slots here are a hard limit, so the
//! point where sharing begins is set at half of a sandbox's slots (at least one).

use super::{Candidate, ChoiceReason, free};

pub(super) fn choose(candidates: &[Candidate]) -> Option<(usize, ChoiceReason)> {
    let unshared = |c: &Candidate| c.in_flight < c.slots.div_ceil(2);
    // The busiest that need not share; an idle one only if there is no other, as it is the least busy. Of equals the
    // first, which was used most recently: `max_by_key` would keep the last.
    let packed = free(candidates)
        .filter(|(_, c)| unshared(c))
        .reduce(|best, next| if next.1.in_flight > best.1.in_flight { next } else { best });
    if let Some((index, _)) = packed {
        return Some((index, ChoiceReason::Packed));
    }
    let spread =
        free(candidates).reduce(|best, next| if next.1.less_loaded_than(best.1) { next } else { best });
    spread.map(|(index, _)| (index, ChoiceReason::Spread))
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::*;
    use ChoiceReason::{Packed, Spread};

    #[test]
    fn cases() {
        type Case = (&'static str, &'static [(u32, u32)], Option<(usize, ChoiceReason)>);
        let cases: [Case; 8] = [
            ("idle: the most recently used", &[(8, 0), (8, 0)], Some((0, Packed))),
            ("onto the busy one", &[(8, 0), (8, 3)], Some((1, Packed))),
            ("until it would share", &[(8, 4), (8, 0)], Some((1, Packed))),
            ("the busiest that need not share", &[(8, 1), (8, 3), (8, 4)], Some((1, Packed))),
            ("all share: the smallest share", &[(8, 6), (8, 5), (4, 2)], Some((2, Spread))),
            ("one slot each", &[(1, 1), (1, 0)], Some((1, Packed))),
            ("full", &[(2, 2), (1, 1)], None),
            ("none", &[], None),
        ];
        for (name, loads, want) in cases {
            assert_eq!(choose(&candidates(loads)), want, "{name}");
        }
    }

    #[test]
    fn a_low_load_uses_few_sandboxes() {
        let mut loads = candidates(&[(8, 0); 10]);
        for _ in 0..10 {
            let (index, _) = choose(&loads).unwrap();
            loads[index].in_flight += 1;
        }
        assert_eq!(loads.iter().filter(|c| c.in_flight > 0).count(), 3, "{loads:?}");
        for _ in 0..50 {
            let (index, _) = choose(&loads).unwrap();
            loads[index].in_flight += 1;
        }
        assert!(loads.iter().all(|c| c.in_flight == 6), "a high load is even: {loads:?}");
    }
}
