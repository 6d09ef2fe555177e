//! Header fields on their way through.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE, EXPECT,
    Entry, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use fanfare_http1::OnInformational;
use fanfare_types::Reason;
use http::StatusCode;

use crate::client_stream::ClientState;
use crate::failures;
use crate::problem::REASON;
use crate::request_id::REQUEST_ID;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Belongs to `Upgrade: h2c`.
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// Fields that only the platform may set on the way to a sandbox.
const PLATFORM_PREFIX: &str = "x-fanfare-";
/// Fields that the platform and its framing have the last word on. Some servers take `_` in a name for `-`, and would
/// take another field for one of them.
const IMITATED: [&[u8]; 6] = [
    b"content-length",
    b"transfer-encoding",
    b"x-forwarded-for",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-request-id",
];
/// Names that a `Connection` field may list; more than any peer of good will uses.
const CONNECTION_NAMES_MAX: usize = 32;

/// Bytes of a head's fields as HTTP/1.1 would send them.
pub(crate) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// Takes out what concerns only the connection it came on (RFC 9110, section 7.6.1).
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let hop = |name: &HeaderName| {
        *name == CONNECTION
            || *name == TRANSFER_ENCODING
            || *name == KEEP_ALIVE
            || *name == TE
            || *name == UPGRADE
            || *name == PROXY_CONNECTION
            || *name == PROXY_AUTHENTICATE
            || *name == PROXY_AUTHORIZATION
    };
    // One pass that finds nothing is the common case, and cheaper than removing each name.
    if !headers.keys().any(hop) {
        return;
    }
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // `Host`, the framing and the id are not the client's to take away from the next hop.
        .filter(|name: &HeaderName| *name != HOST && *name != CONTENT_LENGTH && *name != REQUEST_ID)
        .take(CONNECTION_NAMES_MAX)
        .collect();
    headers.remove(HTTP2_SETTINGS);
    for name in listed {
        headers.remove(name);
    }
    let names = [
        CONNECTION,
        TRANSFER_ENCODING,
        KEEP_ALIVE,
        TE,
        UPGRADE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
    ];
    for name in names {
        headers.remove(name);
    }
}

/// Takes out what only the platform may say, to a sandbox as to a client.
pub(crate) fn strip_platform(headers: &mut HeaderMap) {
    strip(headers, |name| is_platforms(name) || imitates(name));
}

/// Takes out of a function's answer what only the platform says. What a shim says of an error of its handler, or of a
/// request that it refused, stays.
pub(crate) fn strip_platforms_words(status: StatusCode, headers: &mut HeaderMap) {
    let shims: &[Reason] = match status {
        StatusCode::BAD_GATEWAY => &failures::HANDLER_ERRORS,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => &[Reason::TooLarge],
        StatusCode::BAD_REQUEST => &[Reason::BadRequest],
        _ => &[],
    };
    let kept = !shims.is_empty()
        && headers.get(REASON).is_some_and(|said| shims.iter().any(|shims| said == shims.code()));
    strip(headers, |name| is_platforms(name) && !(kept && *name == REASON));
}

/// Whether the client sends its body only when told to.
pub(crate) fn expects_leave(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Whether the client takes trailers.
pub(crate) fn accepts_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(TE).iter().any(|value| {
        let mut codings = value.as_bytes().split(|byte| *byte == b',');
        codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

/// Takes out of a request's trailers what decides about framing, routing or rights, and so comes too late (RFC 9110,
/// section 6.5.1): a server that merges trailers into the fields would be told by the client what only the platform
/// may say.
pub(crate) fn strip_trailers(trailers: &mut HeaderMap) {
    strip(trailers, |name| {
        is_platforms(name)
            || imitates(name)
            || name.as_str().starts_with("x-forwarded-")
            || [
                HOST,
                CONTENT_LENGTH,
                TRANSFER_ENCODING,
                CONTENT_TYPE,
                CONTENT_ENCODING,
                CONTENT_RANGE,
                TRAILER,
                AUTHORIZATION,
                PROXY_AUTHORIZATION,
                COOKIE,
                EXPECT,
                FORWARDED,
                REQUEST_ID,
            ]
            .contains(name)
    });
}

/// HTTP/2 clients may send each cookie in a field of its own, HTTP/1.1 knows one (RFC 9113, section 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_some()
        && let Some(cookies) = joined(headers.get_all(COOKIE), b"; ")
    {
        headers.insert(COOKIE, cookies);
    }
}

/// With `_` for `-`, too.
fn is_platforms(name: &HeaderName) -> bool {
    let (name, prefix) = (name.as_str().as_bytes(), PLATFORM_PREFIX.as_bytes());
    name.len() >= prefix.len() && resembles(&name[..prefix.len()], prefix)
}

/// Whether it is not one of the [`IMITATED`], and could be taken for it.
fn imitates(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    name.contains(&b'_') && IMITATED.iter().any(|imitated| resembles(name, imitated))
}

fn resembles(name: &[u8], other: &[u8]) -> bool {
    let same = |(byte, of_other): (&u8, &u8)| byte == of_other || (*byte, *of_other) == (b'_', b'-');
    name.len() == other.len() && name.iter().zip(other).all(same)
}

fn strip(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    // One pass that finds nothing is the common case, and allocates nothing.
    if headers.keys().any(&unwanted) {
        let names: Vec<HeaderName> = headers.keys().filter(|name| unwanted(name)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}

/// A client's connection of HTTP/1 or one stream of HTTP/2.
pub(crate) struct Client {
    pub(crate) state: Arc<ClientState>,
    pub(crate) informational: Arc<dyn OnInformational>,
    address: Rc<Address>,
}

/// What the proxy fields say about a client, made once.
struct Address {
    ip: IpAddr,
    for_field: HeaderValue,
    forwarded_for: String,
    proto: HeaderValue,
    /// `Forwarded` of the last request, with the host it is for: clients rarely change it.
    last: RefCell<Option<(HeaderValue, HeaderValue)>>,
}

impl Client {
    /// Of a client at this address, with TLS if it is `secure`.
    pub(crate) fn new(address: SocketAddr, secure: bool) -> Self {
        let ip = address.ip().to_canonical();
        let node = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("\"[{ip}]\""),
        };
        let proto = if secure { "https" } else { "http" };
        Client::at(Rc::new(Address {
            ip,
            for_field: HeaderValue::try_from(ip.to_string()).unwrap_or(HeaderValue::from_static("unknown")),
            forwarded_for: format!("for={node};proto={proto}"),
            proto: HeaderValue::from_static(proto),
            last: RefCell::new(None),
        }))
    }

    /// The same client on one stream of its connection.
    pub(crate) fn on_stream(&self) -> Self {
        Client::at(self.address.clone())
    }

    fn at(address: Rc<Address>) -> Self {
        let state = Arc::<ClientState>::default();
        Client { informational: state.clone(), state, address }
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip
    }

    /// Appends this hop to `X-Forwarded-For` and `Forwarded` (RFC 7239). `X-Forwarded-Proto` and `-Host` have no place
    /// for more than one hop: what a proxy in front has said stays.
    pub(crate) fn append(&self, headers: &mut HeaderMap) {
        let host = headers.get(HOST).cloned();
        append(headers, X_FORWARDED_FOR, self.address.for_field.clone());
        append(headers, FORWARDED, self.address.forwarded(host.as_ref()));
        headers.entry(X_FORWARDED_PROTO).or_insert_with(|| self.address.proto.clone());
        if let Some(host) = host {
            headers.entry(X_FORWARDED_HOST).or_insert(host);
        }
    }
}

impl Address {
    fn forwarded(&self, host: Option<&HeaderValue>) -> HeaderValue {
        let Some(host) = host else {
            return HeaderValue::try_from(&self.forwarded_for)
                .unwrap_or(HeaderValue::from_static("for=unknown"));
        };
        let mut last = self.last.borrow_mut();
        if let Some((last_host, value)) = &*last
            && last_host == host
        {
            return value.clone();
        }
        let mut text = self.forwarded_for.clone();
        if let Ok(host) = host.to_str() {
            let token = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
            let quote = if token { "" } else { "\"" };
            let escaped = host.replace('\\', "\\\\").replace('"', "\\\"");
            text.push_str(&format!(";host={quote}{escaped}{quote}"));
        }
        let value = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("for=unknown"));
        *last = Some((host.clone(), value.clone()));
        value
    }
}

/// Puts a value at the end of a list field, of which there is one afterwards.
fn append(headers: &mut HeaderMap, name: HeaderName, last: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(place) => {
            place.insert(last);
        }
        Entry::Occupied(mut there) => {
            let all = joined(there.iter().chain([&last]), b", ").unwrap_or(last);
            there.insert(all);
        }
    }
}

fn joined<'a>(values: impl IntoIterator<Item = &'a HeaderValue>, separator: &[u8]) -> Option<HeaderValue> {
    let mut bytes = Vec::new();
    for value in values {
        if !bytes.is_empty() {
            bytes.extend_from_slice(separator);
        }
        bytes.extend_from_slice(value.as_bytes());
    }
    HeaderValue::from_bytes(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = [(&'static str, &'static str)];

    fn map(fields: &Fields) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn fields_of_the_connection_stay_on_it() {
        let mut headers = map(&[
            ("connection", "close, X-Mine"),
            ("connection", "host"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "secret"),
            ("transfer-encoding", "chunked"),
            ("host", "f"),
            ("accept", "*/*"),
            ("authorization", "Bearer users-own"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("host", "f"), ("accept", "*/*"), ("authorization", "Bearer users-own")]));
    }

    #[test]
    fn clients_cannot_speak_as_the_platform() {
        let mut headers = map(&[
            ("x-fanfare-forwarded", "guess"),
            ("x-fanfare-deadline-ms", "1"),
            ("X-Fanfare-Reason", "queue-full"),
            ("x_fanfare_forwarded", "guess"),
            ("x-fanfares", "not ours"),
            ("x-fanfare", "not ours"),
            ("transfer_encoding", "chunked"),
            ("content_length", "9"),
            ("x-forwarded_for", "10.0.0.1"),
            ("x_forwarded_prot", "not ours"),
        ]);
        strip_platform(&mut headers);
        let kept = [("x-fanfares", "not ours"), ("x-fanfare", "not ours"), ("x_forwarded_prot", "not ours")];
        assert_eq!(headers, map(&kept));
    }

    #[test]
    fn functions_cannot_answer_as_the_platform_and_shims_say_what_was_wrong() {
        let cases = [
            (502, "handler-error", true),
            (502, "process-limit", true),
            (502, "no-space", true),
            (413, "too-large", true),
            (431, "too-large", true),
            (400, "bad-request", true),
            (200, "handler-error", false),
            (429, "queue-full", false),
            (502, "node-lost", false),
        ];
        for (status, reason, kept) in cases {
            let mut headers = map(&[("x-fanfare-reason", reason), ("x_fanfare_node", "n"), ("x-own", "1")]);
            strip_platforms_words(StatusCode::from_u16(status).unwrap(), &mut headers);
            assert_eq!(headers.contains_key(REASON), kept, "{status} {reason}");
            assert_eq!(headers.len(), 1 + usize::from(kept), "{status} {reason}");
        }
    }

    #[test]
    fn proxy_fields_are_appended_without_port_and_quoted_where_they_must_be() {
        let cases: [(&str, &Fields, &str, &str); 4] = [
            ("192.0.2.7:4711", &[("host", "f")], "192.0.2.7", "for=192.0.2.7;proto=http;host=f"),
            (
                "192.0.2.7:1",
                &[("host", "f:8080"), ("x-forwarded-for", "10.0.0.1"), ("x-forwarded-for", "10.0.0.2")],
                "10.0.0.1, 10.0.0.2, 192.0.2.7",
                "for=192.0.2.7;proto=http;host=\"f:8080\"",
            ),
            (
                "[2001:db8::1]:443",
                &[("forwarded", "for=_hidden")],
                "2001:db8::1",
                "for=_hidden, for=\"[2001:db8::1]\";proto=http",
            ),
            ("[::ffff:192.0.2.7]:1", &[("host", "f")], "192.0.2.7", "for=192.0.2.7;proto=http;host=f"),
        ];
        for (address, fields, x_forwarded_for, forwarded) in cases {
            let client = Client::new(address.parse().unwrap(), false);
            for _ in 0..2 {
                let mut headers = map(fields);
                client.append(&mut headers);
                assert_eq!(headers[X_FORWARDED_FOR], x_forwarded_for);
                assert_eq!(headers[FORWARDED], forwarded);
                assert_eq!(headers.get_all(FORWARDED).iter().count(), 1);
            }
        }
    }
}
