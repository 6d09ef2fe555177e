//! Hashing that is the same on every machine, in every version.
//!
//! Source: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014; constants: Stafford's "variant 13").
//! It is a bijection of 64 bits in which every input bit flips every output bit with probability one half.

/// Scatters `x` over 64 bits.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Scatters a pair; `(a, b)` and `(b, a)` differ.
pub(crate) const fn mix_pair(a: u64, b: u64) -> u64 {
    mix(mix(a) ^ b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_and_ordered() {
        // The first output of SplitMix64 for seed 0, as published with the algorithm.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_ne!(mix_pair(1, 2), mix_pair(2, 1));
    }

    #[test]
    fn neighbours_scatter() {
        let mut buckets = [0_u32; 16];
        for x in 0..16_000_u64 {
            buckets[(mix(x) >> 60) as usize] += 1;
        }
        assert!(buckets.iter().all(|n| (850..1_150).contains(n)), "{buckets:?}");
    }
}
