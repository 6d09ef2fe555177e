//! Failures of a bench: one sentence, and what was being done.

use std::fmt;

/// Why a bench cannot measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error(String);

/// Of everything in this program that can fail.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(what: impl Into<String>) -> Self {
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
pub(crate) trait Context<T> {
    /// `what` says it: "start nginx".
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error(format!("{what}: {error}")))
    }
}
