//! Counts in JSON, where `4` and `4.0` are one number.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

/// Reads a count that may be left out.
///
/// # Errors
/// It is no whole number from 0 to 4294967295.
pub(crate) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    deserializer.deserialize_any(Count)
}

struct Count;

impl<'de> Visitor<'de> for Count {
    type Value = Option<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {}", u32::MAX)
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<Option<u32>, E> {
        u32::try_from(n).map(Some).map_err(|_| E::invalid_value(Unexpected::Unsigned(n), &self))
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Option<u32>, E> {
        u32::try_from(n).map(Some).map_err(|_| E::invalid_value(Unexpected::Signed(n), &self))
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Option<u32>, E> {
        if n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&n) {
            Ok(Some(n as u32))
        } else {
            Err(E::invalid_value(Unexpected::Float(n), &self))
        }
    }

    fn visit_none<E>(self) -> Result<Option<u32>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<u32>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u32>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct One {
        #[serde(default, deserialize_with = "super::optional")]
        n: Option<u32>,
    }

    #[test]
    fn counts() {
        let cases = [
            ("{}", Ok(None)),
            (r#"{"n":null}"#, Ok(None)),
            (r#"{"n":7}"#, Ok(Some(7))),
            (r#"{"n":439.0}"#, Ok(Some(439))),
            (r#"{"n":4294967295}"#, Ok(Some(u32::MAX))),
            (r#"{"n":4e9}"#, Ok(Some(4_000_000_000))),
            (r#"{"n":-0.0}"#, Ok(Some(0))),
            (r#"{"n":4294967296}"#, Err("integer `4294967296`, expected a whole number")),
            (r#"{"n":4294967295.5}"#, Err("floating point `4294967295.5`, expected a whole number")),
            (r#"{"n":-1}"#, Err("integer `-1`, expected a whole number")),
            (r#"{"n":1.5}"#, Err("floating point `1.5`, expected a whole number")),
            (r#"{"n":"1"}"#, Err("string \"1\", expected a whole number")),
            (r#"{"n":[1]}"#, Err("sequence, expected a whole number")),
        ];
        for (json, read) in cases {
            let found = serde_json::from_str::<One>(json).map(|one| one.n).map_err(|error| error.to_string());
            match (&found, read) {
                (Ok(n), Ok(expected)) => assert_eq!(*n, expected, "{json}"),
                (Err(error), Err(mentions)) => assert!(error.contains(mentions), "{json}: {error}"),
                _ => panic!("{json}: {found:?}"),
            }
        }
    }
}
