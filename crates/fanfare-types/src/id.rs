//! Names and numbers of things. Each is its own type, so that one cannot be passed for another.

use std::fmt;
use std::sync::Arc;

use crate::function::InvalidName;
use crate::limits::FUNCTION_NAME_LEN_MAX;

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

numeric_id!(
    /// A function, for as long as the store exists. A name that is deleted and registered again gets a new one,
    /// so a late message about the old function can never be taken for the new.
    FunctionId(u32), "f"
);
numeric_id!(
    /// A machine's node daemon, kept for its name in the store across restarts.
    NodeId(u32), "n"
);
numeric_id!(
    /// A data plane replica, kept for its name in the store across restarts.
    DataPlaneId(u32), "d"
);
numeric_id!(
    /// The leader's term. It travels on every command; receivers refuse one older than the newest they have seen.
    Epoch(u64), "e"
);

/// One immutable version of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevisionId {
    /// The function.
    pub function: FunctionId,
    /// Counts from 1 within the function.
    pub number: u32,
}

impl fmt::Display for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}r{}", self.function, self.number)
    }
}

/// One sandbox incarnation. Unique for ever: the epoch of the leader that ordered it is in its upper bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(pub u64);

impl SandboxId {
    /// Bits that count within one epoch: over a million million sandboxes.
    const COUNTER_BITS: u32 = 40;

    /// The `counter`-th sandbox that the leader of `epoch` orders.
    #[must_use]
    pub const fn new(epoch: Epoch, counter: u64) -> Self {
        SandboxId(epoch.0 << Self::COUNTER_BITS | counter & ((1 << Self::COUNTER_BITS) - 1))
    }

    /// The epoch of the leader that ordered it.
    #[must_use]
    pub const fn epoch(self) -> Epoch {
        Epoch(self.0 >> Self::COUNTER_BITS)
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{:x}", self.0)
    }
}

impl std::str::FromStr for SandboxId {
    type Err = std::num::ParseIntError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(s.strip_prefix('s').unwrap_or(s), 16).map(SandboxId)
    }
}

/// A function's name as the user gave it: a DNS label that may also hold `_` and `.` inside.
///
/// Cheap to clone. Valid by construction: 1 to 63 characters of `a-z 0-9 - _ .`, a letter or digit at both ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionName(Arc<str>);

/// What holds for names of functions and of secrets.
pub(crate) fn check_name(name: &str) -> Result<(), InvalidName> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    if name.is_empty() {
        return Err(InvalidName::Empty);
    }
    if name.len() > FUNCTION_NAME_LEN_MAX {
        return Err(InvalidName::TooLong { len: name.len() });
    }
    if let Some(bad) = name.chars().find(|c| !inner(*c)) {
        return Err(InvalidName::Character { bad });
    }
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if !edge(name.chars().next()) || !edge(name.chars().last()) {
        return Err(InvalidName::Edge);
    }
    Ok(())
}

impl FunctionName {
    /// Checks and keeps a name.
    ///
    /// # Errors
    /// [`InvalidName`] says what is wrong and what is allowed.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        check_name(name)?;
        Ok(FunctionName(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for FunctionName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "hello", "trace-func-0-18446744073709551615", "a_b.c-d", &"x".repeat(63)] {
            assert_eq!(FunctionName::new(good).unwrap().as_str(), good);
        }
        let cases = [
            ("", InvalidName::Empty),
            ("Hello", InvalidName::Character { bad: 'H' }),
            ("a/b", InvalidName::Character { bad: '/' }),
            ("-a", InvalidName::Edge),
            ("a.", InvalidName::Edge),
        ];
        for (bad, why) in cases {
            assert_eq!(FunctionName::new(bad).unwrap_err(), why, "{bad:?}");
        }
        assert_eq!(FunctionName::new(&"x".repeat(64)).unwrap_err(), InvalidName::TooLong { len: 64 });
    }

    #[test]
    fn sandbox_ids_carry_their_epoch_and_parse_back() {
        let id = SandboxId::new(Epoch(3), 7);
        assert_eq!(id.epoch(), Epoch(3));
        assert_eq!(id.to_string().parse::<SandboxId>().unwrap(), id);
        assert!(SandboxId::new(Epoch(3), u64::MAX) < SandboxId::new(Epoch(4), 0));
    }
}
