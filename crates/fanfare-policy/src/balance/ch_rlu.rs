//! Consistent hashing with random load updates (CH-RLU).
//!
//! Source: Fuerst and Sharma, "Locality-aware Load-Balancing For Serverless Clusters" (HPDC 2022), built on bounded
//! loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018). A key has a home; its request goes there unless the home's
//! load exceeds a bound relative to the mean, in which case it is forwarded along the key's chain, a few steps at
//! most. The load that is compared with the bound carries Gaussian noise, so that near the bound keys spread out
//! instead of moving all together.
//!
//! The paper balances functions over servers; here keys are balanced over the sandboxes of one function, which gives
//! each key a cache that stays warm. The chain is the order of hashes of key and sandbox (rendezvous hashing) rather
//! than a walk on a ring: it needs no state, and as on a ring, a sandbox that comes or goes moves only its own keys.

use rand::RngExt;

use super::{Candidate, ChoiceReason, free};
use crate::Rng;
use crate::hash::mix_pair;

/// A sandbox takes a key's request while its load is within this many times the mean (Mirrokni's `1 + ε`).
const BOUND: f64 = 1.25;
/// Sandboxes tried along the chain, home included.
const CHAIN_MAX: usize = 4;
/// Standard deviation of the noise, as a share of the bound.
const NOISE_SHARE: f64 = 0.1;

pub(super) fn choose(candidates: &[Candidate], key: u64, rng: &mut Rng) -> Option<(usize, ChoiceReason)> {
    let in_flight: u64 = candidates.iter().map(|c| u64::from(c.in_flight)).sum();
    let held = candidates.iter().filter(|c| c.slots > 0).count();
    let bound = (BOUND * (in_flight + 1) as f64 / held.max(1) as f64).ceil();
    let mut passed = u64::MAX;
    let mut home = None;
    let mut least_loaded: Option<usize> = None;
    for _ in 0..CHAIN_MAX {
        let Some((index, rank)) = next_on_chain(candidates, key, passed) else {
            break;
        };
        let candidate = &candidates[index];
        let home = *home.get_or_insert(index);
        let load = f64::from(candidate.in_flight) + bound * NOISE_SHARE * standard_normal(rng);
        if candidate.is_free() && load < bound {
            return Some((index, reason(index, home)));
        }
        if candidate.is_free() && least_loaded.is_none_or(|l| candidate.in_flight < candidates[l].in_flight) {
            least_loaded = Some(index);
        }
        passed = rank;
    }
    // Nobody on the chain is below the bound: its least loaded; without a slot on it, the first beyond it.
    let beyond = || free(candidates).max_by_key(|(_, c)| rank_of(key, c)).map(|(index, _)| index);
    let index = least_loaded.or_else(beyond)?;
    Some((index, reason(index, home?)))
}

fn reason(index: usize, home: usize) -> ChoiceReason {
    if index == home { ChoiceReason::Home } else { ChoiceReason::Forwarded }
}

/// The candidate of the highest rank below `passed`. Those without slots are on no chain.
fn next_on_chain(candidates: &[Candidate], key: u64, passed: u64) -> Option<(usize, u64)> {
    let ranked =
        candidates.iter().enumerate().filter(|(_, c)| c.slots > 0).map(|(i, c)| (i, rank_of(key, c)));
    ranked.filter(|(_, rank)| *rank < passed).max_by_key(|(_, rank)| *rank)
}

/// The sandbox's place on the key's chain: higher comes first.
fn rank_of(key: u64, candidate: &Candidate) -> u64 {
    mix_pair(key, candidate.id.0)
}

/// A draw from the normal distribution, near enough: the sum of twelve uniform draws less their mean (Irwin and Hall)
/// has variance 1, and is within six deviations.
fn standard_normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidates;
    use super::*;
    use crate::seeded;
    use proptest::prelude::*;

    fn home(candidates: &[Candidate], key: u64) -> u64 {
        let (index, reason) = choose(candidates, key, &mut seeded(key)).unwrap();
        assert_eq!(reason, ChoiceReason::Home);
        candidates[index].id.0
    }

    #[test]
    fn a_key_finds_its_home_in_any_order_of_candidates() {
        let idle = candidates(&[(4, 0); 20]);
        let mut shuffled = idle.clone();
        shuffled.rotate_left(7);
        let homes: Vec<_> = (0..200).map(|key| home(&idle, key)).collect();
        assert!(homes.iter().enumerate().all(|(key, h)| home(&shuffled, key as u64) == *h));
        for id in 0..20 {
            let keys = homes.iter().filter(|h| **h == id).count();
            assert!((1..=25).contains(&keys), "sandbox {id} is home to {keys} of 200 keys");
        }
    }

    #[test]
    fn only_the_keys_of_a_sandbox_that_goes_move() {
        let all = candidates(&[(4, 0); 10]);
        let fewer: Vec<_> = all.iter().copied().filter(|c| c.id.0 != 3).collect();
        for key in 0..500 {
            let before = home(&all, key);
            assert!(before == 3 || home(&fewer, key) == before, "key {key} moved from {before}");
        }
    }

    #[test]
    fn a_loaded_home_forwards_and_a_full_one_never_serves() {
        let key = 42;
        let idle = candidates(&[(10, 0); 5]);
        let at = home(&idle, key) as usize;
        let loaded_at = |in_flight| {
            let mut loaded = idle.clone();
            loaded[at].in_flight = in_flight;
            let mut rng = seeded(1);
            (0..200).filter(|_| choose(&loaded, key, &mut rng).unwrap().0 == at).count()
        };
        assert_eq!(loaded_at(0), 200, "an idle home serves all");
        assert_eq!(loaded_at(10), 0, "a full one none");
        assert_eq!(loaded_at(6), 0, "nor one far beyond the bound");

        // The mean is 3.25 and the bound 5: just below it noise decides.
        let mut near = candidates(&[(10, 3); 4]);
        near[at % 4].in_flight = 4;
        let near_home =
            near.iter().map(|c| rank_of(key, c)).enumerate().max_by_key(|(_, rank)| *rank).unwrap().0;
        near.iter_mut().for_each(|c| c.in_flight = 3);
        near[near_home].in_flight = 4;
        let mut rng = seeded(2);
        let served = (0..1_000).filter(|_| choose(&near, key, &mut rng).unwrap().0 == near_home).count();
        assert!((930..1_000).contains(&served), "two deviations below the bound: {served} of 1000");
    }

    #[test]
    fn noise_is_normal_enough() {
        let mut rng = seeded(3);
        let draws: Vec<f64> = (0..20_000).map(|_| standard_normal(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    proptest! {
        /// A key spreads over its chain before it overloads anyone, however many requests stay.
        #[test]
        fn loads_are_bounded(sandboxes in 1_usize..12, requests in 1_usize..80, key in any::<u64>(), seed in any::<u64>()) {
            let mut loads = candidates(&vec![(1_000, 0); sandboxes]);
            let mut rng = seeded(seed);
            for _ in 0..requests {
                let (index, _) = choose(&loads, key, &mut rng).unwrap();
                loads[index].in_flight += 1;
            }
            let highest = f64::from(loads.iter().map(|c| c.in_flight).max().unwrap());
            let bound = (BOUND * requests as f64 / sandboxes as f64).ceil();
            // Noise of six deviations at most, and one request.
            let with_noise = bound * (1.0 + 6.0 * NOISE_SHARE) + 1.0;
            let over_the_chain = (requests as f64 / sandboxes.min(CHAIN_MAX) as f64).ceil();
            prop_assert!(highest <= with_noise.max(over_the_chain), "{:?}", loads);
        }
    }
}
