//! A distribution of which some percentiles are known.

use fanfare_policy::{Rng, RngExt};

/// Values at percentiles; between two of them every value is equally likely, as InVitro takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantiles {
    /// Probability and value, both ascending.
    points: Vec<(f64, f64)>,
}

impl Quantiles {
    /// Values at these percentiles (0 to 100, ascending). What decreases is raised to what precedes it.
    ///
    /// Gives back, beside the distribution, whether a value had to be raised.
    #[must_use]
    pub fn new(percentiles: &[f64], values: &[f64]) -> (Quantiles, bool) {
        let (mut floor, mut raised) = (0.0_f64, false);
        let points = percentiles.iter().zip(values).map(|(percentile, value)| {
            raised |= *value < floor;
            floor = floor.max(*value);
            (percentile / 100.0, floor)
        });
        (Quantiles { points: points.collect() }, raised)
    }

    /// The value that a share `u` (0 to 1) of all do not exceed: linear between two percentiles, and beyond the first
    /// and the last what these have.
    #[must_use]
    pub fn at(&self, u: f64) -> f64 {
        let after = self.points.partition_point(|(probability, _)| *probability < u);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after).copied()) {
            (Some((from, low)), Some((to, high))) if to > from => {
                low + (high - low) * (u - from) / (to - from)
            }
            (_, Some((_, value))) | (Some((_, value)), None) => value,
            (None, None) => 0.0,
        }
    }

    /// A value drawn from it. One draw: the share falls into a bucket with the bucket's probability, and is uniform
    /// within it.
    pub fn draw(&self, rng: &mut Rng) -> f64 {
        self.at(rng.random())
    }
}

#[cfg(test)]
mod tests {
    use fanfare_policy::seeded;
    use proptest::prelude::*;

    use super::*;

    const PERCENTILES: [f64; 7] = [0.0, 1.0, 25.0, 50.0, 75.0, 99.0, 100.0];

    #[test]
    fn values_between_percentiles_are_linear() {
        let (quantiles, raised) =
            Quantiles::new(&PERCENTILES, &[0.0, 10.0, 34.0, 50.0, 100.0, 124.0, 1_000.0]);
        assert!(!raised);
        for (u, value) in
            [(0.0, 0.0), (0.005, 5.0), (0.01, 10.0), (0.13, 22.0), (0.5, 50.0), (0.625, 75.0), (1.0, 1_000.0)]
        {
            assert!((quantiles.at(u) - value).abs() < 1e-9, "{u}: {}", quantiles.at(u));
        }
        // Memory has no value below the first percentile.
        let (memory, _) = Quantiles::new(&[1.0, 100.0], &[7.0, 9.0]);
        assert_eq!((memory.at(0.0), memory.at(0.009), memory.at(1.0)), (7.0, 7.0, 9.0));
        assert_eq!(Quantiles::new(&[], &[]).0.at(0.5), 0.0);
    }

    #[test]
    fn draws_fall_into_buckets_by_their_probability() {
        let (quantiles, _) = Quantiles::new(&PERCENTILES, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut rng = seeded(7);
        let mut counts = [0_u32; 6];
        for _ in 0..100_000 {
            counts[(quantiles.draw(&mut rng) as usize).min(5)] += 1;
        }
        for (count, share) in counts.into_iter().zip([0.01, 0.24, 0.25, 0.25, 0.24, 0.01]) {
            assert!((f64::from(count) / 100_000.0 - share).abs() < 0.01, "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn shares_and_values_ascend_together(
            values in proptest::collection::vec(0.0..1e6_f64, 7), mut us in proptest::collection::vec(0.0..=1.0_f64, 2..20)
        ) {
            let (quantiles, raised) = Quantiles::new(&PERCENTILES, &values);
            prop_assert_eq!(raised, !values.is_sorted());
            us.sort_by(f64::total_cmp);
            let drawn: Vec<f64> = us.iter().map(|u| quantiles.at(*u)).collect();
            prop_assert!(drawn.windows(2).all(|pair| pair[0] <= pair[1] + 1e-6), "{drawn:?}");
            let most = values.iter().copied().fold(0.0, f64::max);
            prop_assert!(drawn.iter().all(|value| (0.0..=most + 1e-6).contains(value)));
        }
    }
}
