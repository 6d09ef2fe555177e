//! Which addresses a callback may go to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fanfare_async::limits::CALLBACK_URL_LEN_MAX;
use http::Uri;

use super::options::CallbackTargets;

/// Checks a callback's URL as far as that goes before its host is looked up.
///
/// # Errors
/// One sentence.
pub(crate) fn check_url(url: &str, targets: CallbackTargets) -> Result<(), String> {
    if targets == CallbackTargets::None {
        return Err("this data plane sends no callbacks".to_owned());
    }
    if url.len() > CALLBACK_URL_LEN_MAX {
        return Err(format!(
            "the callback's URL has {} characters; the limit is {CALLBACK_URL_LEN_MAX}",
            url.len()
        ));
    }
    let uri: Uri = url.parse().map_err(|_| "the callback is no URL".to_owned())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("the callback must be an http or https URL".to_owned());
    }
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return Err("the callback's URL must hold no user name".to_owned());
    }
    match host_address(&uri) {
        Some(address) if !allowed(address, targets) => Err(forbidden(address)),
        _ if uri.host().is_none_or(str::is_empty) => Err("the callback's URL names no host".to_owned()),
        _ => Ok(()),
    }
}

/// Why a callback does not go to an address.
pub(crate) fn forbidden(address: IpAddr) -> String {
    format!("this data plane sends no callbacks to {address}; --callbacks says where to")
}

/// The address that a URL names as its host, if it is one.
pub(crate) fn host_address(uri: &Uri) -> Option<IpAddr> {
    let host = uri.host()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether callbacks may go to an address.
pub(crate) fn allowed(address: IpAddr, targets: CallbackTargets) -> bool {
    // An IPv4 address in IPv6's clothes reaches the same place.
    let address = match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    let (never, own, private) = match address {
        IpAddr::V4(v4) => kinds_v4(v4),
        IpAddr::V6(v6) => kinds_v6(v6),
    };
    match targets {
        _ if never => false,
        CallbackTargets::None => false,
        CallbackTargets::Public => !own && !private,
        CallbackTargets::Private => !own,
        CallbackTargets::Any => true,
    }
}

/// IPv4-mapped, 6to4 and NAT64.
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let part = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => part(high, low),
        [0x2002, high, low, ..] => part(high, low),
        _ => None,
    }
}

/// Never, this machine's own, of a private network.
fn kinds_v4(v4: Ipv4Addr) -> (bool, bool, bool) {
    let octets = v4.octets();
    let never =
        v4.is_link_local() || v4.is_multicast() || octets[0] == 0 || v4.is_broadcast() || octets[0] >= 240;
    // 100.64.0.0/10 is shared by carriers, and by some clouds for their metadata.
    let shared = octets[0] == 100 && octets[1] & 0xc0 == 64;
    let benchmarking = octets[0] == 198 && octets[1] & 0xfe == 18;
    (never, v4.is_loopback(), v4.is_private() || shared || benchmarking)
}

fn kinds_v6(v6: Ipv6Addr) -> (bool, bool, bool) {
    // Where one cloud keeps its machines' metadata.
    const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    let never = v6.is_unicast_link_local() || v6.is_multicast() || v6.is_unspecified() || v6 == METADATA;
    (never, v6.is_loopback(), v6.is_unique_local())
}

#[cfg(test)]
mod tests {
    use super::*;
    use CallbackTargets::{Any, None, Private, Public};

    #[test]
    fn addresses() {
        // From which setting on an address is allowed.
        let cases = [
            ("93.184.216.34", Some(Public)),
            ("2606:2800:220:1::1", Some(Public)),
            ("10.1.2.3", Some(Private)),
            ("172.16.0.1", Some(Private)),
            ("192.168.1.1", Some(Private)),
            ("100.100.100.200", Some(Private)),
            ("198.18.0.1", Some(Private)),
            ("fd12::1", Some(Private)),
            ("127.0.0.1", Some(Any)),
            ("127.8.8.8", Some(Any)),
            ("::1", Some(Any)),
            ("::ffff:127.0.0.1", Some(Any)),
            ("::ffff:10.0.0.1", Some(Private)),
            ("64:ff9b::7f00:1", Some(Any)),
            ("2002:7f00:1::", Some(Any)),
            ("169.254.169.254", Option::None),
            ("::ffff:169.254.169.254", Option::None),
            ("2002:a9fe:a9fe::1", Option::None),
            ("fe80::1", Option::None),
            ("fd00:ec2::254", Option::None),
            ("0.0.0.0", Option::None),
            ("::", Option::None),
            ("224.0.0.1", Option::None),
            ("ff02::1", Option::None),
            ("255.255.255.255", Option::None),
        ];
        for (address, from) in cases {
            let settings = [None, Public, Private, Any];
            let first = from.and_then(|from| settings.iter().position(|setting| *setting == from));
            for (index, setting) in settings.into_iter().enumerate() {
                let expected = first.is_some_and(|first| index >= first);
                assert_eq!(allowed(address.parse().unwrap(), setting), expected, "{address} {setting:?}");
            }
        }
    }

    #[test]
    fn urls() {
        for good in [
            "http://example.com/x?y=z",
            "https://example.com:8443",
            "http://10.0.0.1/",
            "http://[fd12::1]:9/",
        ] {
            assert_eq!(check_url(good, Private), Ok(()), "{good}");
        }
        let long = format!("http://h/{}", "x".repeat(CALLBACK_URL_LEN_MAX));
        for bad in [
            "",
            "/path",
            "example.com",
            "ftp://example.com/",
            "file:///etc/passwd",
            "http://user@example.com/",
            "http://user:secret@example.com/",
            "http://127.0.0.1:9091/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://169.254.169.254/latest/meta-data",
            &long,
        ] {
            assert!(check_url(bad, Private).is_err(), "{bad}");
        }
        assert!(check_url("http://example.com/", None).is_err());
    }
}
