//! Which share of a function's traffic a request belongs to.

use rand::RngExt;

use crate::random::Rng;

/// The position of the share that the next request gets, each with the probability of its weight over the sum of all.
/// `None` when all of them together are nothing. A single share is chosen without a draw.
pub fn choose_share(
    weights: impl ExactSizeIterator<Item = u32> + Clone,
    generator: &mut Rng,
) -> Option<usize> {
    let sum: u64 = weights.clone().map(u64::from).sum();
    if weights.len() == 1 && sum > 0 {
        return Some(0);
    }
    if sum == 0 {
        return None;
    }
    let mut drawn = generator.random_range(0..sum);
    weights.map(u64::from).position(|weight| {
        let here = drawn < weight;
        drawn = drawn.saturating_sub(weight);
        here
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::seeded;

    #[test]
    fn shares_are_their_weights() {
        // Upper bounds of χ² at a significance of 1 in 100,000, by degrees of freedom.
        let bounds = [19.6, 23.1, 26.0];
        let cases: [&[u32]; 5] = [&[90, 10], &[10, 90], &[50, 50], &[1, 99], &[70, 20, 9, 1]];
        for (seed, weights) in cases.into_iter().enumerate() {
            let mut generator = seeded(seed as u64);
            let mut counts = vec![0_u32; weights.len()];
            for _ in 0..100_000 {
                counts[choose_share(weights.iter().copied(), &mut generator).unwrap()] += 1;
            }
            let chi_squared: f64 = counts
                .iter()
                .zip(weights)
                .map(|(count, weight)| {
                    let expected = 1_000.0 * f64::from(*weight);
                    (f64::from(*count) - expected).powi(2) / expected
                })
                .sum();
            assert!(chi_squared < bounds[weights.len() - 2], "{weights:?}: {counts:?}, {chi_squared}");
        }
    }

    #[test]
    fn nothing_gets_nothing() {
        let mut generator = seeded(1);
        let cases: [(&[u32], Option<usize>); 5] =
            [(&[], None), (&[0], None), (&[0, 0], None), (&[100], Some(0)), (&[0, 100, 0], Some(1))];
        for (weights, expected) in cases {
            for _ in 0..100 {
                assert_eq!(choose_share(weights.iter().copied(), &mut generator), expected, "{weights:?}");
            }
        }
    }
}
