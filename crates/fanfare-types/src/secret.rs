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

/// Secrets and configuration files of a function, as it names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Which secrets its sandboxes get, and as what; in the order of the places, none twice.
    pub secrets: Vec<SecretUse>,
    /// Files that its sandboxes find; in the order of their paths, none twice.
    pub files: Vec<ConfigFile>,
}

impl Given {
    /// Whether there is nothing of either.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.files.is_empty()
    }

    /// The secrets that are named, in their order, each once.
    #[must_use]
    pub fn secret_names(&self) -> Vec<SecretName> {
        let names: std::collections::BTreeSet<_> = self.secrets.iter().map(|used| &used.secret).collect();
        names.into_iter().cloned().collect()
    }
}

/// A secret that a function gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretUse {
    /// Which.
    pub secret: SecretName,
    /// As what.
    pub place: SecretPlace,
}

/// As what a function gets a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecretPlace {
    /// An environment variable of this name. It has the value that the secret had when the sandbox was started.
    Env(String),
    /// A file of this name in `/run/secrets`. It has the present value.
    File(String),
}

impl SecretPlace {
    /// The variable's or the file's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            SecretPlace::Env(name) | SecretPlace::File(name) => name,
        }
    }
}

/// A file that is a part of a revision's settings.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its path below `/run/config`.
    pub path: String,
    /// What it holds.
    pub content: Arc<[u8]>,
}

impl fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.path, self.content.len())
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
