//! `application/x-www-form-urlencoded`, bounded.

use std::str::FromStr;

use fanfare_types::limits::FORM_FIELDS_MAX;

use crate::FieldError;

/// A form's fields in the order sent; a name may come more than once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// Reads one. The caller bounds `bytes` (`limits::FORM_BYTES_MAX`).
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Vec::new();
        for (name, value) in form_urlencoded::parse(bytes) {
            if fields.len() == FORM_FIELDS_MAX {
                let limit = format!("at most {FORM_FIELDS_MAX} fields");
                return Err(FieldError::new("body", "a form with more fields", limit));
            }
            // What stands for bytes that are no text: a value must not be kept as something else than what was sent.
            if [&name, &value].iter().any(|text| text.contains(char::REPLACEMENT_CHARACTER)) {
                return Err(FieldError::new("body", "a form with bytes that are no UTF-8", "UTF-8"));
            }
            fields.push((name.into_owned(), value.into_owned()));
        }
        Ok(Form(fields))
    }

    /// Every value of this name that is not empty.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, value)| key == name && !value.is_empty()).map(|(_, value)| &**value)
    }

    /// The first value of this name that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| &**value)
    }

    /// Checks that each of these names has one value at most: of several, the one that counts would be anybody's guess.
    pub(super) fn once(&self, names: &[&str]) -> Result<(), FieldError> {
        let twice = names.iter().find(|name| self.all(name).nth(1).is_some());
        twice.map_or(Ok(()), |name| Err(FieldError::new(*name, "given twice", "once")))
    }

    /// The same as a number.
    pub(super) fn number<T: FromStr>(&self, name: &str, allowed: &str) -> Result<Option<T>, FieldError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.trim().parse();
        number.map(Some).map_err(|_| FieldError::new(name, format!("{text:?}"), allowed))
    }

    /// The same as a finite number of at least 0.
    pub(super) fn amount(&self, name: &str) -> Result<Option<f64>, FieldError> {
        const ALLOWED: &str = "a number, at least 0";
        match self.number::<f64>(name, ALLOWED)? {
            Some(number) if !number.is_finite() || number < 0.0 => {
                Err(FieldError::new(name, number, ALLOWED))
            }
            number => Ok(number),
        }
    }

    /// The same as Go writes and reads truth.
    pub(super) fn truth(&self, name: &str) -> Result<bool, FieldError> {
        match self.text(name) {
            None | Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
            Some("1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
            Some(text) => Err(FieldError::new(name, format!("{text:?}"), "true or false")),
        }
    }
}
