//! Always the same number of sandboxes.

use super::{Floor, ScaleDecision, ScaleReason};

/// The number, within the bounds.
pub(super) fn decide(sandboxes: u32, floor: Floor) -> ScaleDecision {
    let (sandboxes, reason) = floor.apply(sandboxes, ScaleReason::Fixed { sandboxes });
    ScaleDecision { sandboxes, panicking: false, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_bounds() {
        let floor = Floor { min: 2, max: 5, initial: false };
        let cases = [
            (3, 3, ScaleReason::Fixed { sandboxes: 3 }),
            (1, 2, ScaleReason::Minimum { wanted: 1, min: 2 }),
            (9, 5, ScaleReason::Maximum { wanted: 9, max: 5 }),
        ];
        for (wanted, sandboxes, reason) in cases {
            assert_eq!(decide(wanted, floor), ScaleDecision { sandboxes, panicking: false, reason });
        }
    }
}
