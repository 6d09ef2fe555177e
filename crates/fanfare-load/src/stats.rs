//! Medians and spreads.

use serde::Serialize;

/// What is told of many measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many there are.
    pub n: usize,
    /// The least.
    pub min: f64,
    /// A quarter is not more.
    pub p25: f64,
    /// Half are not more.
    pub p50: f64,
    /// Three quarters are not more.
    pub p75: f64,
    /// 99 of 100 are not more.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

impl Summary {
    /// `None` when nothing was measured, or something that is not a number.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Summary {
            n: sorted.len(),
            min: sorted[0],
            p25: quantile(&sorted, 0.25),
            p50: quantile(&sorted, 0.50),
            p75: quantile(&sorted, 0.75),
            p99: quantile(&sorted, 0.99),
            max: sorted[sorted.len() - 1],
        })
    }
}

/// The quantile `q` in \[0, 1\] of sorted samples: linear between order statistics (Hyndman and Fan, 1996, type 7).
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

/// Ours as a multiple of the peer's, round by round: what disturbs the machine for a minute disturbs both. Rounds in
/// which the peer measured zero have no ratio.
pub fn paired_ratios(ours: &[f64], peer: &[f64]) -> Vec<f64> {
    ours.iter().zip(peer).filter(|(_, peer)| **peer > 0.0).map(|(ours, peer)| ours / peer).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_of_known_samples() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.n, summary.min, summary.max), (4, 1.0, 4.0));
        assert_eq!((summary.p25, summary.p50, summary.p75), (1.75, 2.5, 3.25));
        assert!((summary.p99 - 3.97).abs() < 1e-9);
        assert_eq!(Summary::of(&[7.0]).unwrap().p99, 7.0);
    }

    #[test]
    fn nothing_measured_is_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[f64::INFINITY]), None);
    }

    #[test]
    fn ratios_pair_by_round() {
        assert_eq!(paired_ratios(&[2.0, 9.0, 1.0], &[1.0, 3.0, 0.0]), [2.0, 3.0]);
        assert!(paired_ratios(&[1.0], &[]).is_empty());
    }

    proptest! {
        #[test]
        fn quantiles_are_ordered_and_within(samples in proptest::collection::vec(0.0..1e9, 1..50)) {
            let s = Summary::of(&samples).unwrap();
            let order = [s.min, s.p25, s.p50, s.p75, s.p99, s.max];
            prop_assert!(order.windows(2).all(|w| w[0] <= w[1]), "{s:?}");
        }
    }
}
