//! Durations as people read them.

use std::fmt;
use std::time::Duration;

/// A duration for a sentence: in the unit that suits it, with at most one decimal, which is left out where it is 0.
///
/// The API's fields are numbers in a documented unit; this is for the words beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (amount, unit) = match seconds {
            0.0 => (0.0, "s"),
            // What would be rounded to the next unit is told in that.
            s if s < 0.999_95e-3 => (s * 1e6, "µs"),
            s if s < 0.999_95 => (s * 1e3, "ms"),
            s if s < 119.95 => (s, "s"),
            s if s < 7_197.0 => (s / 60.0, "min"),
            s => (s / 3_600.0, "h"),
        };
        let text = format!("{amount:.1}");
        write!(f, "{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_in_the_unit_that_suits_them() {
        let cases = [
            (0, "0 s"),
            (400, "0.4 µs"),
            (400_000, "400 µs"),
            (1_500, "1.5 µs"),
            (999_960, "1 ms"),
            (7_174_704, "7.2 ms"),
            (250_000_000, "250 ms"),
            (999_960_000, "1 s"),
            (3_000_000_000, "3 s"),
            (63_780_770_025, "63.8 s"),
            (150_000_000_000, "2.5 min"),
            (7_200_000_000_000, "2 h"),
            (86_400_000_000_000, "24 h"),
        ];
        for (nanos, text) in cases {
            assert_eq!(HumanDuration(Duration::from_nanos(nanos)).to_string(), text, "{nanos} ns");
        }
    }
}
