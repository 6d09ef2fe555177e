//! Amounts as people write them: a number in the field's unit, or text with a unit.

use std::fmt;
use std::time::Duration;

use fanfare_types::limits::QUANTITY_LEN_MAX;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A number in the field's documented unit (bytes, CPUs, seconds), or text such as `"128MiB"`, `"0.5"`, `"30s"`.
///
/// The API always answers with numbers.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Quantity {
    /// Whole units.
    Integer(u64),
    /// Parts of units.
    Number(f64),
    /// With a unit.
    Text(String),
}

impl<'de> Deserialize<'de> for Quantity {
    /// What is neither number nor text is taken as its JSON in text, which is no amount: so the field's own check
    /// refuses it, and says what is allowed there.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Quantity::Text(text),
            serde_json::Value::Number(number) => match (number.as_u64(), number.as_f64()) {
                (Some(whole), _) => Quantity::Integer(whole),
                (None, Some(part)) => Quantity::Number(part),
                (None, None) => Quantity::Text(number.to_string()),
            },
            other => Quantity::Text(other.to_string()),
        })
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Quantity::Text(text.to_owned())
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantity::Integer(n) => write!(f, "{n}"),
            Quantity::Number(n) => write!(f, "{n}"),
            Quantity::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl Quantity {
    pub(crate) fn from_bytes(bytes: u64) -> Self {
        Quantity::Integer(bytes)
    }

    pub(crate) fn from_cpu_milli(milli: u64) -> Self {
        if milli.is_multiple_of(1_000) {
            Quantity::Integer(milli / 1_000)
        } else {
            Quantity::Number(milli as f64 / 1_000.0)
        }
    }

    pub(crate) fn from_duration(duration: Duration) -> Self {
        if duration.subsec_nanos() == 0 {
            Quantity::Integer(duration.as_secs())
        } else {
            Quantity::Number(duration.as_secs_f64())
        }
    }

    pub(crate) fn bytes(&self) -> Option<u64> {
        match self {
            Quantity::Integer(n) => Some(*n),
            Quantity::Number(n) => whole(*n),
            Quantity::Text(text) => parse_bytes(text),
        }
    }

    pub(crate) fn cpu_milli(&self) -> Option<u64> {
        match self {
            Quantity::Integer(n) => n.checked_mul(1_000),
            Quantity::Number(n) => whole(n * 1_000.0),
            Quantity::Text(text) => parse_cpus(text),
        }
    }

    pub(crate) fn duration(&self) -> Option<Duration> {
        match self {
            Quantity::Integer(n) => Some(Duration::from_secs(*n)),
            Quantity::Number(n) => Duration::try_from_secs_f64(*n).ok(),
            Quantity::Text(text) => parse_duration(text),
        }
    }
}

/// Bytes in `text`: a number with `B`, `KB`, `MB`, `GB`, `TB` (powers of 1000), `KiB`, `MiB`, `GiB`, `TiB`
/// (powers of 1024; the `B` may be left out), or none. `None` when it is something else.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return None,
    };
    match number.parse::<u64>() {
        Ok(n) => n.checked_mul(scale),
        Err(_) => whole(number.parse::<f64>().ok()? * scale as f64),
    }
}

/// Thousandths of a CPU in `text`: CPUs as `2` or `0.5`, or `500m`. `None` when it is something else.
#[must_use]
pub fn parse_cpus(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let number: f64 = number.parse().ok()?;
    match unit {
        "" => whole(number * 1_000.0),
        "m" => whole(number),
        _ => None,
    }
}

/// The duration in `text`: a number with `ns`, `us`, `ms`, `s`, `m`, `h`, or none for seconds.
/// `None` when it is something else.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let number: f64 = number.parse().ok()?;
    let seconds = match unit {
        "ns" => number / 1e9,
        "us" | "µs" => number / 1e6,
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3_600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok()
}

/// Bytes as [`parse_bytes`] reads them, in the largest binary unit that leaves a whole number.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(scale, _)| bytes > 0 && bytes.is_multiple_of(*scale)) {
        Some((scale, unit)) => format!("{} {unit}", bytes / scale),
        None => format!("{bytes} B"),
    }
}

/// A duration as [`parse_duration`] reads it.
pub(crate) fn show_duration(duration: Duration) -> String {
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let ms = duration.as_millis();
    let exact = Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)) == duration;
    match units.into_iter().find(|(scale, _)| ms.is_multiple_of(*scale)) {
        Some((scale, unit)) if exact && ms > 0 => format!("{} {unit}", ms / scale),
        _ => format!("{} s", duration.as_secs_f64()),
    }
}

fn split(text: &str) -> Option<(&str, &str)> {
    if text.chars().count() > QUANTITY_LEN_MAX {
        return None;
    }
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then_some((number, unit.trim()))
}

/// `value` as a whole number: rounded to absorb binary fractions (`0.07 * 1000`), refused when it is truly fractional.
fn whole(value: f64) -> Option<u64> {
    let rounded = value.round();
    let exact = (value - rounded).abs() <= 1e-6 * value.abs().max(1.0);
    (exact && rounded >= 0.0 && rounded < u64::MAX as f64).then_some(rounded as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory() {
        let cases = [
            ("128MiB", Some(128 << 20)),
            ("128Mi", Some(128 << 20)),
            ("1.5 GiB", Some(3 << 29)),
            ("1MB", Some(1_000_000)),
            ("4096", Some(4096)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551615KiB", None),
            ("0.3B", None),
            ("-1MiB", None),
            ("MiB", None),
            ("12 parsecs", None),
            ("1.2.3MiB", None),
            ("", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text), bytes, "{text:?}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        let amounts = [(0, "0 B"), (1, "1 B"), (1 << 10, "1 KiB"), (3 << 29, "1536 MiB"), (1 << 40, "1 TiB")];
        for (bytes, text) in amounts {
            assert_eq!((show_bytes(bytes).as_str(), parse_bytes(text)), (text, Some(bytes)));
        }
        let durations = [(0, "0 s"), (1, "1 ms"), (1_500, "1500 ms"), (30_000, "30 s"), (86_400_000, "24 h")];
        for (ms, text) in durations {
            let duration = Duration::from_millis(ms);
            assert_eq!((show_duration(duration).as_str(), parse_duration(text)), (text, Some(duration)));
        }
    }

    #[test]
    fn amounts_of_cpu() {
        let cases = [
            ("0.5", Some(500)),
            ("2", Some(2_000)),
            ("250m", Some(250)),
            ("0.07", Some(70)),
            ("0.0001", None),
            ("half", None),
        ];
        for (text, milli) in cases {
            assert_eq!(parse_cpus(text), milli, "{text:?}");
        }
        assert_eq!(Quantity::Number(f64::NAN).cpu_milli(), None);
        assert_eq!(Quantity::Number(-1.0).cpu_milli(), None);
    }

    #[test]
    fn durations() {
        let cases = [
            ("30s", Some(Duration::from_secs(30))),
            ("500ms", Some(Duration::from_millis(500))),
            ("1.5", Some(Duration::from_millis(1_500))),
            ("5m", Some(Duration::from_secs(300))),
            ("2 h", Some(Duration::from_secs(7_200))),
            ("1d", None),
            ("soon", None),
            ("99999999999999999999h", None),
        ];
        for (text, duration) in cases {
            assert_eq!(parse_duration(text), duration, "{text:?}");
        }
        assert_eq!(Quantity::Number(f64::INFINITY).duration(), None);
    }
}
