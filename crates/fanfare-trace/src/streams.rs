//! One seed, many generators: each function's draws are its own, so that another function, another minute or another
//! purpose shifts none of them.

use fanfare_policy::{Rng, seeded};

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// When invocations come.
    Arrivals = 1,
    /// How long they take, and how much memory.
    Demands = 2,
    /// Where scaled counts are rounded up.
    Rounding = 3,
}

/// The generator of this seed for this purpose, function and column. The name is hashed by FNV-1a (Fowler, Noll, Vo),
/// whose value the generator's own seeding mixes.
pub(crate) fn stream(seed: u64, purpose: Purpose, name: &str, column: u64) -> Rng {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = seed.to_le_bytes().into_iter().chain([purpose as u8]).chain(column.to_le_bytes());
    let hash =
        bytes.chain(name.bytes()).fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    seeded(hash)
}

#[cfg(test)]
mod tests {
    use fanfare_policy::RngExt;

    use super::*;

    #[test]
    fn every_purpose_function_and_column_draws_its_own() {
        let first = |seed, purpose, name, column| stream(seed, purpose, name, column).random::<u64>();
        let all = [
            first(1, Purpose::Arrivals, "a", 0),
            first(2, Purpose::Arrivals, "a", 0),
            first(1, Purpose::Demands, "a", 0),
            first(1, Purpose::Rounding, "a", 0),
            first(1, Purpose::Arrivals, "b", 0),
            first(1, Purpose::Arrivals, "a", 1),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(all[0], first(1, Purpose::Arrivals, "a", 0));
    }
}
