//! Chance, repeatable: what happens to a sandbox depends on the seed and its id, not on who came first.

/// Numbers for one sandbox.
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64, sandbox: u64) -> Self {
        Draw(seed ^ sandbox.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in [0, 1).
    pub(super) fn uniform(&mut self) -> f64 {
        // 53 bits: as many as a double holds.
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_and_repeatable() {
        let draws: Vec<f64> = (0..10_000).map(|n| Draw::new(7, n).uniform()).collect();
        assert!(draws.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        // Ten standard deviations of the mean of 10,000 uniform numbers.
        assert!((mean - 0.5).abs() < 10.0 * (1.0 / 12.0f64).sqrt() / 100.0, "{mean}");
        assert_eq!(Draw::new(7, 3).uniform().to_bits(), draws[3].to_bits());
        assert_ne!(Draw::new(8, 3).uniform().to_bits(), draws[3].to_bits());
        let mut one = Draw::new(1, 1);
        assert_ne!(one.uniform().to_bits(), one.uniform().to_bits());
    }
}
