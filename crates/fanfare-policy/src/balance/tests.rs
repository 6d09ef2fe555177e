use super::*;
use crate::seeded;
use proptest::prelude::*;
use std::collections::BTreeSet;

const ALL: [Balance; 6] = [
    Balance::Knative,
    Balance::LeastLoaded,
    Balance::RoundRobin,
    Balance::Random,
    Balance::ChRlu,
    Balance::Hermod,
];

/// Sandboxes 0, 1, … with these slots and requests in flight.
pub(super) fn candidates(loads: &[(u32, u32)]) -> Vec<Candidate> {
    let ids = (0..).map(SandboxId);
    ids.zip(loads).map(|(id, &(slots, in_flight))| Candidate { slots, in_flight, id }).collect()
}

#[test]
fn names_and_sentences() {
    for balance in ALL {
        assert_eq!(Balancer::new(balance).balance(), balance);
    }
    assert_eq!(ChoiceReason::FirstFree.to_string(), "the first free sandbox, used most recently");
}

proptest! {
    #[test]
    fn never_a_full_one_and_none_only_if_all_are_full(
        balance in prop::sample::select(ALL.to_vec()),
        loads in prop::collection::vec((0_u32..6, 0_u32..6), 0..40),
        keys in prop::collection::vec(any::<u64>(), 1..20),
        seed in any::<u64>(),
    ) {
        let candidates = candidates(&loads);
        let free: BTreeSet<usize> = free(&candidates).map(|(index, _)| index).collect();
        let (mut balancer, mut rng) = (Balancer::new(balance), seeded(seed));
        for key in keys {
            let (mut twin, mut twin_rng) = (balancer.clone(), rng.clone());
            let choice = balancer.choose(&candidates, key, &mut rng);
            prop_assert_eq!(choice, twin.choose(&candidates, key, &mut twin_rng), "reproducible");
            match choice {
                Some(choice) => prop_assert!(free.contains(&choice.index), "{:?} of {:?}", choice, candidates),
                None => prop_assert!(free.is_empty(), "{:?} left {:?} unused", balance, candidates),
            }
        }
    }

    /// Any policy drains a queue through all slots, and no slot is used twice.
    #[test]
    fn every_slot_is_found(
        balance in prop::sample::select(ALL.to_vec()),
        slots in prop::collection::vec(0_u32..5, 1..20),
        seed in any::<u64>(),
    ) {
        let mut candidates = candidates(&slots.iter().map(|s| (*s, 0)).collect::<Vec<_>>());
        let (mut balancer, mut rng) = (Balancer::new(balance), seeded(seed));
        let mut served = 0;
        while let Some(choice) = balancer.choose(&candidates, served, &mut rng) {
            candidates[choice.index].in_flight += 1;
            served += 1;
            prop_assert!(served <= 100);
        }
        prop_assert_eq!(served, slots.iter().map(|s| u64::from(*s)).sum::<u64>());
    }
}
