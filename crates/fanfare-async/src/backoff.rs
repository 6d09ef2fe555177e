//! Pauses between attempts.

use std::time::Duration;

/// `min` doubled with every time after the first, at most `max`.
pub(crate) fn doubled(min: Duration, max: Duration, times: u32) -> Duration {
    let factor = 1_u32.checked_shl(times.saturating_sub(1)).unwrap_or(u32::MAX);
    min.saturating_mul(factor).min(max)
}

/// Between half and all of it, by `bits`: calls that failed together do not come again together.
pub(crate) fn spread(pause: Duration, bits: u64) -> Duration {
    // SplitMix64's finaliser, so that numbers that differ little give shares that differ much.
    let mut mixed = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let half = pause / 2;
    let share = (mixed % 1_024) as u32;
    half + half * share / 1_023
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_within_their_bounds() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(300));
        let pauses: Vec<_> = (0..12).map(|times| doubled(min, max, times).as_secs()).collect();
        assert_eq!(pauses, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(doubled(min, max, u32::MAX), max);
    }

    #[test]
    fn a_spread_pause_is_half_to_all_of_it() {
        let pause = Duration::from_secs(8);
        let all: Vec<_> = (0..500).map(|bits| spread(pause, bits)).collect();
        assert!(all.iter().all(|p| (pause / 2..=pause).contains(p)));
        assert!(all.iter().any(|p| *p < pause * 5 / 8) && all.iter().any(|p| *p > pause * 7 / 8));
    }
}
