//! The name of one asynchronous call.

use std::fmt;
use std::str::FromStr;

use fanfare_types::DataPlaneId;

/// One asynchronous call, for ever: the data plane that keeps it, its place in the order of that data plane's calls,
/// and a random number, so that an id can neither be guessed nor mean another call if a log is lost and begun anew.
///
/// Written as `d1-2a-9f86d081884c7d65`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvocationId {
    /// Whose log it is in.
    pub data_plane: DataPlaneId,
    /// Counts the calls of that log from 1.
    pub sequence: u64,
    /// Random.
    pub nonce: u64,
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}-{:016x}", self.data_plane, self.sequence, self.nonce)
    }
}

/// Not the id of an asynchronous call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidId;

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is not the id of an asynchronous invocation, such as d1-2a-9f86d081884c7d65")
    }
}

impl std::error::Error for InvalidId {}

impl FromStr for InvocationId {
    type Err = InvalidId;

    /// Only the written form itself: one id has one spelling.
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let mut parts = text.strip_prefix('d').ok_or(InvalidId)?.split('-');
        let (data_plane, sequence, nonce) = (parts.next(), parts.next(), parts.next());
        let data_plane = data_plane.and_then(|text| text.parse().ok()).ok_or(InvalidId)?;
        let hex = |text: Option<&str>| text.and_then(|t| u64::from_str_radix(t, 16).ok()).ok_or(InvalidId);
        let id = InvocationId {
            data_plane: DataPlaneId(data_plane),
            sequence: hex(sequence)?,
            nonce: hex(nonce)?,
        };
        if id.to_string() == text { Ok(id) } else { Err(InvalidId) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_spelling() {
        let id = InvocationId { data_plane: DataPlaneId(7), sequence: 42, nonce: 0xbeef };
        assert_eq!(id.to_string(), "d7-2a-000000000000beef");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in [
            "",
            "d",
            "dead",
            "d7-2a",
            "d7-2a-beef",
            "d7-2A-000000000000beef",
            "d07-2a-000000000000beef",
            "d7-2a-000000000000beef-",
            "d7-+a-000000000000beef",
            "7-2a-000000000000beef",
        ] {
            assert_eq!(bad.parse::<InvocationId>(), Err(InvalidId), "{bad:?}");
        }
    }
}
