//! What fuzzers drive; not part of the API.

use crate::asynchronous::targets::Reach;
use crate::asynchronous::{self, AsyncOptions};
use crate::names::{self, Host};
use crate::webhook::{Sent, verify};

/// A request's host and target. What the function sees is a part of what was sent.
pub fn request_target(host: &str, path_and_query: &str) {
    if let Some(host) = Host::parse(host) {
        assert!(host.names().all(|name| !name.is_empty() && !name.bytes().any(|b| b.is_ascii_uppercase())));
    }
    if let Some(asynchronous::route::Route::Call(name, rest)) = asynchronous::route::parse(path_and_query) {
        assert!(!name.is_empty() && rest.target().starts_with('/'));
    }
    let url = format!("http://{host}{path_and_query}");
    // To private networks, too, and not to this machine.
    if Reach::of(&AsyncOptions::new("".into())).check(&url).is_ok() {
        let authority = url["http://".len()..].split(['/', '?', '#', '\\']).next().unwrap_or_default();
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let is_loopback = host.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_loopback());
        assert!(!authority.contains('@') && !is_loopback, "{url}");
    }
    if let Some((name, rest)) = names::by_path(path_and_query) {
        let target = rest.target();
        assert!(!name.is_empty() && target.starts_with('/'));
        assert!(path_and_query.ends_with(&target) || path_and_query.ends_with(&target[1..]));
    }
}

/// What a sender of a webhook shows: whoever does not have the key is never believed, whatever the form.
pub fn webhook_signature(fields: &[(&str, &str)], query: &str, body: &[u8], now_s: u64) {
    let mut headers = http::HeaderMap::new();
    for (name, value) in fields {
        let field = (http::HeaderName::from_bytes(name.as_bytes()), http::HeaderValue::from_str(value));
        if let (Ok(name), Ok(value)) = field {
            headers.append(name, value);
        }
    }
    // Longer than what is tried could hit upon.
    let key = b"bWFueSBieXRlcyB0aGF0IG5vYm9keSBndWVzc2Vz";
    for scheme in fanfare_types::WebhookScheme::ALL {
        let sent = Sent { headers: &headers, query, body };
        assert!(verify(scheme, key, sent, now_s, std::time::Duration::from_secs(300)).is_err());
    }
}
