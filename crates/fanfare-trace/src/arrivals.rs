//! When the invocations of one column come.

use fanfare_policy::{Rng, RngExt};

/// How the gaps between a column's invocations are drawn, as InVitro names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gaps {
    /// Exponentially distributed, then stretched so that they fill the column.
    Exponential,
    /// Uniformly distributed, then stretched so that they fill the column.
    Uniform,
    /// All equal.
    Equidistant,
}

impl Gaps {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Gaps::Exponential => "exponential",
            Gaps::Uniform => "uniform",
            Gaps::Equidistant => "equidistant",
        }
    }
}

/// `count` instants within a column of `width_us`, in microseconds from its beginning, ascending.
///
/// `count` gaps fill the column exactly. The first invocation comes at its beginning and the last gap reaches to its end:
/// so all functions fire together there. With `shift` the column is turned like a wheel, by a share of it that is drawn:
/// the gaps stay what they are, and nothing gathers at its beginning.
pub(crate) fn within(gaps: Gaps, shift: bool, count: u32, width_us: u64, rng: &mut Rng) -> Vec<u64> {
    let drawn: Vec<f64> = (0..count)
        .map(|_| {
            let u: f64 = rng.random();
            match gaps {
                // 1 - u is above 0, and so its logarithm finite.
                Gaps::Exponential => -(1.0 - u).ln(),
                Gaps::Uniform => u,
                Gaps::Equidistant => 1.0,
            }
        })
        .collect();
    let sum: f64 = drawn.iter().sum();
    let width = width_us as f64;
    let turn = if shift { rng.random::<f64>() * width } else { 0.0 };
    let stretch = if sum > 0.0 { width / sum } else { 0.0 };
    let mut at = turn;
    let mut instants: Vec<u64> = drawn
        .iter()
        .map(|gap| {
            let instant = if at >= width { at - width } else { at };
            at += gap * stretch;
            // Sums of rounded numbers may reach the column's end.
            (instant as u64).min(width_us.saturating_sub(1))
        })
        .collect();
    instants.sort_unstable();
    instants
}

#[cfg(test)]
mod tests {
    use fanfare_policy::seeded;
    use proptest::prelude::*;

    use super::*;

    const MINUTE_US: u64 = 60_000_000;
    const ALL: [Gaps; 3] = [Gaps::Exponential, Gaps::Uniform, Gaps::Equidistant];

    #[test]
    fn unshifted_columns_begin_with_an_invocation() {
        for gaps in ALL {
            assert_eq!(within(gaps, false, 5, MINUTE_US, &mut seeded(1))[0], 0, "{gaps:?}");
            assert_eq!(within(gaps, false, 1, MINUTE_US, &mut seeded(1)), [0], "{gaps:?}");
            assert!(within(gaps, false, 0, MINUTE_US, &mut seeded(1)).is_empty());
        }
        let equal = within(Gaps::Equidistant, false, 4, MINUTE_US, &mut seeded(1));
        assert_eq!(equal, [0, 15_000_000, 30_000_000, 45_000_000]);
    }

    #[test]
    fn a_shift_turns_the_column_and_keeps_its_gaps() {
        let shifted = within(Gaps::Equidistant, true, 4, MINUTE_US, &mut seeded(3));
        assert!(shifted[0] > 0);
        assert!(shifted.windows(2).all(|pair| pair[1].abs_diff(pair[0] + 15_000_000) <= 1), "{shifted:?}");
        // What comes first in many shifted columns of one invocation is anywhere in them.
        let firsts: Vec<u64> = (0..1_000)
            .map(|seed| within(Gaps::Exponential, true, 1, MINUTE_US, &mut seeded(seed))[0])
            .collect();
        let mean = firsts.iter().sum::<u64>() / 1_000;
        assert!((MINUTE_US * 45 / 100..MINUTE_US * 55 / 100).contains(&mean), "{mean}");
    }

    #[test]
    fn gaps_vary_as_their_distribution_does() {
        // The coefficient of variation of gaps: 1, 1/√3, 0.
        for (gaps, expected) in
            [(Gaps::Exponential, 1.0), (Gaps::Uniform, 1.0 / 3.0_f64.sqrt()), (Gaps::Equidistant, 0.0)]
        {
            let instants = within(gaps, false, 20_000, 1_000 * MINUTE_US, &mut seeded(5));
            let lengths: Vec<f64> = instants.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
            let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
            let variance =
                lengths.iter().map(|length| (length - mean).powi(2)).sum::<f64>() / lengths.len() as f64;
            assert!((variance.sqrt() / mean - expected).abs() < 0.03, "{gaps:?}: {}", variance.sqrt() / mean);
        }
    }

    proptest! {
        #[test]
        fn as_many_as_asked_for_sorted_and_inside(
            count in 0..300_u32, width_us in 1..MINUTE_US, seed: u64, shift: bool, which in 0..3_usize
        ) {
            let instants = within(ALL[which], shift, count, width_us, &mut seeded(seed));
            prop_assert_eq!(instants.len(), count as usize);
            prop_assert!(instants.is_sorted() && instants.iter().all(|at| *at < width_us));
            prop_assert_eq!(&instants, &within(ALL[which], shift, count, width_us, &mut seeded(seed)));
        }
    }
}
