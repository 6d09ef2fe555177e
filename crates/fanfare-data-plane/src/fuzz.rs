//! What fuzzers drive; not part of the API.

use crate::names::{self, Host};

/// A request's host and target. What the function sees is a part of what was sent.
pub fn request_target(host: &str, path_and_query: &str) {
    if let Some(host) = Host::parse(host) {
        assert!(host.names().all(|name| !name.is_empty() && !name.bytes().any(|b| b.is_ascii_uppercase())));
    }
    if let Some((name, rest)) = names::by_path(path_and_query) {
        let target = rest.target();
        assert!(!name.is_empty() && target.starts_with('/'));
        assert!(path_and_query.ends_with(&target) || path_and_query.ends_with(&target[1..]));
    }
}
