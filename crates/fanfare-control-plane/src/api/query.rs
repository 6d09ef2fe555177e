//! Query strings: parameters that there are, each once, and what they say.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use fanfare_api::FieldError;
use http::Uri;

use super::problem::quoted;

/// What a request's query string says.
#[derive(Debug)]
pub(super) struct Parameters(BTreeMap<&'static str, String>);

impl Parameters {
    /// Reads those of `allowed`; anything else, and a second one of a name, is refused.
    pub(super) fn read(uri: &Uri, allowed: &[&'static str]) -> Result<Self, FieldError> {
        let mut found = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let Some(known) = allowed.iter().find(|known| **known == name) else {
                return Err(unknown(&name, &value, allowed));
            };
            // What stands for bytes that are no text.
            if value.contains(char::REPLACEMENT_CHARACTER) {
                return Err(FieldError::new(*known, quoted(&value), "UTF-8, percent-encoded"));
            }
            if let Some(first) = found.insert(*known, value.into_owned()) {
                let both = format!("given twice, first as {}", quoted(&first));
                return Err(FieldError::new(*known, both, "one value"));
            }
        }
        Ok(Parameters(found))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A number within its bounds. Whatever else is there is told them.
    pub(super) fn number(
        &self,
        name: &str,
        default: u32,
        bounds: RangeInclusive<u32>,
    ) -> Result<u32, FieldError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().ok().filter(|number| bounds.contains(number)).ok_or_else(|| {
            FieldError::new(name, quoted(text), format!("{} to {}", bounds.start(), bounds.end()))
        })
    }

    /// `true` or `false`; left out is `false`.
    pub(super) fn truth(&self, name: &str) -> Result<bool, FieldError> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(text) => Err(FieldError::new(name, quoted(text), "true or false")),
        }
    }
}

fn unknown(name: &str, value: &str, allowed: &[&str]) -> FieldError {
    let (name, value, limit) = (quoted(name), quoted(value), allowed.join(", "));
    let message = format!("there is no parameter {name} here (it is given as {value}); there are: {limit}");
    FieldError { message, ..FieldError::new(name.trim_matches('"'), value, limit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_query_cannot_say_is_told_with_parameter_value_and_what_is_allowed() {
        let long = format!("/?limit={}", "9".repeat(10_000));
        let cases = [
            ("/?lmit=5", "lmit", "\"5\"", "limit, follow"),
            ("/?%0a=%1b[2J", "\\n", "\"\\u{1b}[2J\"", "limit, follow"),
            ("/?=5", "", "\"5\"", "limit, follow"),
            ("/?limit", "limit", "\"\"", "1 to 9"),
            ("/?limit=10", "limit", "\"10\"", "1 to 9"),
            ("/?limit=%31%30", "limit", "\"10\"", "1 to 9"),
            ("/?limit=1&limit=2", "limit", "given twice, first as \"1\"", "one value"),
            ("/?limit=%ff", "limit", "\"\u{fffd}\"", "UTF-8, percent-encoded"),
            (&long, "limit", "\"9999", "1 to 9"),
            ("/?follow=maybe", "follow", "\"maybe\"", "true or false"),
            ("/?follow=1", "follow", "\"1\"", "true or false"),
        ];
        for (uri, field, value, limit) in cases {
            let read = Parameters::read(&uri.parse().unwrap(), &["limit", "follow"]);
            let error = read
                .and_then(|read| Ok((read.number("limit", 1, 1..=9)?, read.truth("follow")?)))
                .expect_err(uri);
            assert_eq!((&*error.field, &*error.limit), (field, limit), "{error}");
            assert!(error.value.starts_with(value) && error.value.len() < 400, "{error}");
            let said = [field, value, limit].iter().all(|part| error.message.contains(part));
            assert!(said && error.message.len() < 600, "{error}");
        }
        let read = Parameters::read(&Uri::from_static("/?follow=true"), &["limit", "follow"]).unwrap();
        assert_eq!((read.number("limit", 7, 1..=9), read.truth("follow")), (Ok(7), Ok(true)));
    }
}
