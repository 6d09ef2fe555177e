//! What is wrong with one field.

use std::fmt;

use fanfare_types::Reason;

/// Characters of a value that an error repeats; the rest is cut.
const VALUE_CHARS_MAX: usize = 120;

/// One field is wrong: which, what is allowed, and what was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field, e.g. `scaling.max` or `env.PATH`.
    pub field: String,
    /// What is allowed, e.g. `1 to 1000`.
    pub limit: String,
    /// What was given, cut to a readable length; never the value of an environment variable.
    pub value: String,
    /// One sentence with all three.
    pub message: String,
    /// Whether the value is right by itself, and another field forbids it.
    pub disagrees: bool,
}

impl FieldError {
    /// `field` holds `value`, and only `limit` is allowed.
    pub fn new(field: impl Into<String>, value: impl fmt::Display, limit: impl Into<String>) -> Self {
        let (field, limit) = (field.into(), limit.into());
        let value = cut(&value.to_string());
        let message = format!("{field} is {value}; allowed: {limit}");
        FieldError { field, limit, value, message, disagrees: false }
    }

    /// `field` holds `value`, which another field forbids: with that one, only `limit` is allowed.
    pub fn disagreeing(field: impl Into<String>, value: impl fmt::Display, limit: impl Into<String>) -> Self {
        FieldError { disagrees: true, ..FieldError::new(field, value, limit) }
    }

    /// The stable code of what is wrong.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        if self.disagrees { Reason::FieldsDisagree } else { Reason::InvalidField }
    }

    /// `field` was left out.
    pub fn missing(field: impl Into<String>, limit: impl Into<String>) -> Self {
        let (field, limit) = (field.into(), limit.into());
        let message = format!("{field} is missing; give {limit}");
        FieldError { field, limit, value: String::new(), message, disagrees: false }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FieldError {}

fn cut(value: &str) -> String {
    match value.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}
