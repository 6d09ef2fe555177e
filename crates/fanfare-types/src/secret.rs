//! Secrets: their names, and values that do not show.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::function::InvalidName;
use crate::id::check_name;

/// A secret's name: 1 to 63 characters of `a-z 0-9 - _ .`, a letter or digit at both ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName(Arc<str>);

impl SecretName {
    /// Checks and keeps a name.
    ///
    /// # Errors
    /// [`InvalidName`] says what is wrong and what is allowed.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        check_name(name)?;
        Ok(SecretName(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for SecretName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// What a secret holds. It is shown by nothing that formats it, and its memory is overwritten when the last clone goes.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Arc<Zeroizing<Vec<u8>>>);

impl SecretValue {
    /// Keeps bytes. Give them their full capacity from the start: what a vector leaves behind when it grows stays in memory.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        SecretValue(Arc::new(Zeroizing::new(bytes)))
    }

    /// The bytes: for where they are used, never for an output.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_does_not_show() {
        let value = SecretValue::new(b"canary".to_vec());
        assert_eq!(
            format!("{value:?} {:?}", Some((SecretName::new("db").unwrap(), &value)))
                .matches("canary")
                .count(),
            0
        );
        assert_eq!(value.expose(), b"canary");
    }

    #[test]
    fn names() {
        assert_eq!(SecretName::new("db.password_2").unwrap().as_str(), "db.password_2");
        for bad in ["", "Db", "../db", ".db", "a/b", &"x".repeat(64)] {
            assert!(SecretName::new(bad).is_err(), "{bad:?}");
        }
    }
}
