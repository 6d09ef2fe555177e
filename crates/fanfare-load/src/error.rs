//! Failures of programs that measure: one sentence, and what was being done.

use std::fmt;

/// Why nothing can be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

/// Of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// One sentence.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Error(what.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Adds what was being done to a failure.
pub trait Context<T> {
    /// `what` says it: "start nginx".
    ///
    /// # Errors
    /// The failure, with what was being done before it.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    ///
    /// # Errors
    /// The failure, with what was being done before it.
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error(format!("{what}: {error}")))
    }
}
