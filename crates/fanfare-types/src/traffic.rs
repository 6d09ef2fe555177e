//! How a function's requests are shared among its revisions.
//!
//! The latest revision is run as the function itself, whose sandboxes an update replaces. An earlier one that traffic or
//! a tag names is run as a *unit*: it has a [`FunctionId`] of its own and scales for itself, and it is reached only
//! through its function.

use std::fmt;
use std::sync::Arc;

use crate::FunctionId;
use crate::limits::TAG_LEN_MAX;

/// A name for one of a function's revisions, by which a request can choose it.
///
/// Cheap to clone. Valid by construction: 1 to 30 characters of `a-z 0-9 -`, a letter or digit at both ends, no `--`
/// (which stands between a tag and a function's name), and a letter somewhere (so that no number is a tag), but not
/// `latest`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(Arc<str>);

/// What a tag may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTag;

impl fmt::Display for InvalidTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "1 to {TAG_LEN_MAX} characters of a-z 0-9 and single -, with a letter, between letters or digits, not `latest`"
        )
    }
}

impl std::error::Error for InvalidTag {}

impl Tag {
    /// Checks and keeps a tag.
    ///
    /// # Errors
    /// [`InvalidTag`] says what is allowed.
    pub fn new(tag: &str) -> Result<Self, InvalidTag> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let bytes = tag.as_bytes();
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let valid = bytes.len() <= TAG_LEN_MAX
            && bytes.iter().all(|b| inner(*b))
            && bytes.iter().any(u8::is_ascii_lowercase)
            && edge(bytes.first())
            && edge(bytes.last())
            && !tag.contains("--")
            && tag != "latest";
        if valid { Ok(Tag(tag.into())) } else { Err(InvalidTag) }
    }

    /// The tag.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which of a function's revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Whichever is the latest.
    Latest,
    /// The one of this number, whatever is registered later.
    Revision(u32),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Latest => f.write_str("latest"),
            Target::Revision(number) => write!(f, "{number}"),
        }
    }
}

/// A part of a function's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The unit that gets it; the function's own id is its latest revision.
    pub unit: FunctionId,
    /// How much, in per cent. Those of a function add up to 100.
    pub percent: u32,
}

/// Where a function's requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Of requests that name no tag: each is for one unit, chosen once.
    pub shares: Vec<Share>,
    /// Of requests that name one.
    pub tags: Vec<(Tag, FunctionId)>,
}

/// How a function is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// By its name, and every request is for itself.
    #[default]
    Named,
    /// By its name, and its requests are shared out.
    Shared(Arc<Traffic>),
    /// Only through the function whose unit it is.
    Unit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
        for good in ["a", "canary", "v2-beta", "0a", &"x".repeat(30)] {
            assert_eq!(Tag::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "A", "-a", "a-", "a--b", "7", "latest", "a.b", "a_b", "é", &"x".repeat(31)] {
            assert!(Tag::new(bad).is_err(), "{bad}");
        }
    }
}
