use super::*;
use proptest::prelude::*;

/// Function, has, wants, and could give down to its minimum; starved when it wants more.
fn party(function: u32, have: u32, wants: u32, min: u32) -> Party {
    Party {
        function: FunctionId(function),
        have,
        wants,
        can_give: have.saturating_sub(min.max(1)),
        starved_since: (wants > have).then_some(Timestamp::from_secs(1)),
    }
}

fn chosen(parties: &[Party], max: usize) -> Vec<(u32, u32)> {
    give_way(parties, max, &|_, _| true).iter().map(|g| (g.from.0, g.to.0)).collect()
}

#[test]
fn levels() {
    // (what, what each keeps and wants, room, level)
    type Case = (&'static str, &'static [(u32, u32)], u32, u32);
    let cases: &[Case] = &[
        ("nobody wants anything", &[], 4, u32::MAX),
        ("enough for all", &[(0, 3), (0, 1)], 4, u32::MAX),
        ("even", &[(0, 9), (0, 9)], 8, 4),
        ("what is left over is nobody's", &[(0, 9), (0, 9)], 9, 4),
        ("who wants little leaves the rest to others", &[(0, 1), (0, 9), (0, 9)], 9, 4),
        ("one at a time", &[(0, 1), (0, 3), (0, 9), (0, 9)], 14, 5),
        ("what is kept is gone", &[(9, 1), (0, 9), (0, 9)], 15, 3),
        ("who keeps more than the others can have", &[(6, 9), (0, 9), (0, 9)], 12, 3),
        ("fewer than there are functions", &[(0, 5), (0, 5), (0, 5)], 2, 0),
        ("no room", &[(0, 1)], 0, 0),
    ];
    for (what, claims, room, level) in cases {
        let claims: Vec<_> = claims.iter().map(|&(keeps, wants)| Claim { keeps, wants }).collect();
        assert_eq!(fair_level(&claims, *room), *level, "{what}");
    }
}

#[test]
fn cases() {
    type Case = (&'static str, Vec<Party>, usize, &'static [(u32, u32)]);
    let cases: [Case; 14] = [
        ("nobody starves", vec![party(1, 9, 9, 0), party(2, 1, 1, 0)], 9, &[]),
        ("one for who has none", vec![party(1, 9, 90, 0), party(2, 0, 1, 0)], 9, &[(1, 2)]),
        ("no more than are missing", vec![party(1, 9, 90, 0), party(2, 0, 2, 0)], 9, &[(1, 2), (1, 2)]),
        (
            "no more than its share",
            vec![party(1, 8, 90, 0), party(2, 0, 90, 0)],
            9,
            &[(1, 2), (1, 2), (1, 2)],
        ),
        ("no more than may be", vec![party(1, 9, 90, 0), party(2, 0, 9, 0)], 1, &[(1, 2)]),
        ("three are enough to give one", vec![party(1, 3, 9, 0), party(2, 0, 1, 0)], 9, &[(1, 2)]),
        ("two are not", vec![party(1, 2, 9, 0), party(2, 0, 1, 0)], 9, &[]),
        ("never below its minimum", vec![party(1, 9, 90, 9), party(2, 0, 1, 0)], 9, &[]),
        (
            "what nobody can give is nobody's share",
            vec![party(1, 5, 90, 0), party(2, 9, 0, 9), party(3, 0, 1, 0)],
            9,
            &[(1, 3)],
        ),
        ("down to its minimum", vec![party(1, 9, 90, 8), party(2, 0, 2, 0)], 9, &[(1, 2)]),
        (
            "the one with the most beyond its share gives",
            vec![party(1, 5, 90, 0), party(2, 8, 90, 0), party(3, 0, 1, 0)],
            9,
            &[(2, 3)],
        ),
        (
            "what is not wanted is beyond the share",
            vec![party(1, 8, 90, 0), party(2, 7, 0, 0), party(3, 0, 1, 0)],
            9,
            &[(2, 3)],
        ),
        (
            "the poorest first, and each one before any has two",
            vec![party(1, 9, 90, 0), party(2, 1, 5, 0), party(3, 0, 5, 0), party(4, 0, 5, 0)],
            3,
            &[(1, 3), (1, 4), (1, 2)],
        ),
        (
            "more functions than sandboxes: each that can be helped",
            vec![party(1, 3, 90, 0), party(2, 0, 1, 0), party(3, 0, 1, 0), party(4, 0, 1, 0)],
            9,
            &[(1, 2)],
        ),
    ];
    for (what, parties, max, want) in cases {
        assert_eq!(chosen(&parties, max), want, "{what}");
    }
}

#[test]
fn who_has_waited_longest_is_first_and_who_cannot_use_the_room_is_passed_over() {
    let since = |party: Party, secs| Party { starved_since: Some(Timestamp::from_secs(secs)), ..party };
    let parties = [party(1, 4, 90, 0), since(party(2, 0, 1, 0), 9), since(party(3, 0, 1, 0), 5)];
    assert_eq!(chosen(&parties, 1), [(1, 3)]);
    let gifts = give_way(&parties, 9, &|_, to| to.0 == 2);
    assert_eq!(gifts, [Gift { from: FunctionId(1), to: FunctionId(2), has: 0 }]);
}

#[test]
fn reasons() {
    assert_eq!((Has(0).to_string(), Has(2).to_string()), ("which has none".into(), "which has 2".into()));
}

fn parties() -> impl Strategy<Value = Vec<Party>> {
    prop::collection::vec((0_u32..12, 0_u32..20, 0_u32..4), 0..10)
        .prop_map(|all| (0..).zip(all).map(|(n, (have, wants, min))| party(n, have, wants, min)).collect())
}

/// What everybody has afterwards, with minimums as they were.
fn after(parties: &[Party], gifts: &[Gift]) -> Vec<Party> {
    let mut after = parties.to_vec();
    for gift in gifts {
        after[gift.from.0 as usize].have -= 1;
        after[gift.from.0 as usize].can_give -= 1;
        let to = &mut after[gift.to.0 as usize];
        to.have += 1;
        to.can_give += u32::from(to.have > 1);
        to.starved_since = to.starved_since.filter(|_| to.wants > to.have);
    }
    after
}

proptest! {
    #[test]
    fn shares_are_max_min_fair(claims in prop::collection::vec((0_u32..9, 0_u32..20), 0..10), more in 0_u32..100) {
        let claims: Vec<_> = claims.into_iter().map(|(keeps, wants)| Claim { keeps, wants }).collect();
        let room = claims.iter().map(|c| c.keeps).sum::<u32>() + more;
        let level = fair_level(&claims, room);
        let given = |level: u32| claims.iter().map(|c| c.share(level)).sum::<u32>();
        prop_assert!(given(level) <= room, "no more than there is");
        if level < u32::MAX {
            prop_assert!(given(level + 1) > room, "nobody at the level could have more");
        }
    }

    #[test]
    fn nobody_falls_below_its_minimum_its_share_or_who_is_given_to(
        parties in parties(),
        max in 0_usize..20,
        unsuited in 0_u32..10,
    ) {
        let gifts = give_way(&parties, max, &|from, _| from.0 != unsuited);
        prop_assert!(gifts.len() <= max);
        let room = parties.iter().map(|p| p.have).sum();
        let level = fair_level(&parties.iter().map(Party::claim).collect::<Vec<_>>(), room);
        let after = after(&parties, &gifts);
        for (before, after) in parties.iter().zip(&after) {
            let gave = gifts.iter().filter(|g| g.from == before.function).count();
            let got = gifts.iter().filter(|g| g.to == before.function).count();
            prop_assert!(gave == 0 || got == 0, "{before:?} gave and got");
            prop_assert!(gave <= before.can_give as usize, "{before:?} fell below its minimum");
            if gave > 0 {
                prop_assert!(before.function.0 != unsuited);
                prop_assert!(after.have >= before.claim().share(level).max(1), "{before:?} fell below its share");
            }
            if got > 0 {
                prop_assert!(after.have <= after.wants && after.have <= level.max(1), "{before:?} got too much");
            }
        }
        for gift in &gifts {
            let from = &after[gift.from.0 as usize];
            prop_assert!(from.have > gift.has + 1, "{from:?} has no more than who was given {gift:?}");
        }
    }

    /// Applied until nothing changes, it ends, takes nothing back, and leaves nobody without while another could help.
    #[test]
    fn it_ends_with_nobody_in_want_whom_another_could_help(parties in parties(), max in 1_usize..5) {
        let mut now = parties.clone();
        let (mut gave, mut got) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
        let most: u32 = parties.iter().map(|p| p.have).sum();
        for round in 0.. {
            let gifts = give_way(&now, max, &|_, _| true);
            if gifts.is_empty() {
                break;
            }
            prop_assert!(round <= most, "it does not end");
            gave.extend(gifts.iter().map(|g| g.from));
            got.extend(gifts.iter().map(|g| g.to));
            now = after(&now, &gifts);
        }
        prop_assert!(gave.is_disjoint(&got), "{gave:?} {got:?}");
        let level = fair_level(&now.iter().map(Party::claim).collect::<Vec<_>>(), most);
        for poor in now.iter().filter(|p| p.have == 0 && p.wants > 0) {
            let helper = now.iter().find(|r| {
                r.can_give > 0 && r.have > MORE_THAN_THE_OTHER && r.have > r.claim().share(level).max(1)
            });
            prop_assert!(helper.is_none(), "{helper:?} could help {poor:?}");
        }
    }
}
