//! The one generator that decisions draw from.
//!
//! Source: xoshiro256++ (Blackman and Vigna, 2018), seeded through SplitMix64. It is named rather than taken as
//! `SmallRng`, whose algorithm may change with a release: a simulation must replay on every machine and version.

use rand::SeedableRng;

/// A small, fast, seedable generator. Not for secrets. Draw with the methods of [`RngExt`](crate::RngExt).
pub type Rng = rand::rngs::Xoshiro256PlusPlus;

/// The generator of this seed: the same seed, the same draws.
#[must_use]
pub fn seeded(seed: u64) -> Rng {
    Rng::seed_from_u64(seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    #[test]
    fn a_seed_is_a_sequence() {
        let draws = |seed| {
            let mut rng = seeded(seed);
            [rng.random::<u64>(), rng.random(), rng.random()]
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
        // Pinned, so that a change of the generator is noticed: it would change every recorded simulation.
        assert_eq!(seeded(0).random::<u64>(), 0x5317_5d61_490b_23df);
    }
}
