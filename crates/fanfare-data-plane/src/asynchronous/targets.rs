//! Which addresses a callback may go to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use fanfare_async::limits::CALLBACK_URL_LEN_MAX;
use http::Uri;

use super::options::{AsyncOptions, CallbackTargets};

/// Where callbacks may go.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    targets: CallbackTargets,
    /// Where the platform itself listens.
    own: Vec<SocketAddr>,
}

impl Reach {
    pub(crate) fn of(options: &AsyncOptions) -> Self {
        Reach { targets: options.callbacks, own: options.own_addresses.clone() }
    }

    /// Checks a callback's URL as far as that goes before its host is looked up.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn check(&self, url: &str) -> Result<(), String> {
        if self.targets == CallbackTargets::None {
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
        let host = uri.host().unwrap_or_default();
        if host.is_empty() {
            return Err("the callback's URL names no host".to_owned());
        }
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) if !allowed(address, self.targets) => {
                Err(format!("this data plane sends no callbacks to {address}; --callbacks says where to"))
            }
            Ok(address) if self.is_own(SocketAddr::new(address, port_of(&uri))) => {
                Err("the platform itself listens there, and takes no callbacks".to_owned())
            }
            Ok(_) => Ok(()),
            Err(_) if ends_in_a_number(host) => {
                Err("the callback's host is a number; write addresses as in 192.0.2.1 or [2001:db8::1]"
                    .to_owned())
            }
            Err(_) => Ok(()),
        }
    }

    /// Whether a callback may be sent there.
    pub(crate) fn allows(&self, to: SocketAddr) -> bool {
        allowed(to.ip(), self.targets) && !self.is_own(to)
    }

    fn is_own(&self, to: SocketAddr) -> bool {
        let address = plain(to.ip());
        self.own.iter().any(|own| {
            own.port() == to.port()
                && (plain(own.ip()) == address || own.ip().is_unspecified() && is_this_machines(address))
        })
    }
}

/// The port that a URL leads to.
pub(crate) fn port_of(uri: &Uri) -> u16 {
    uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 })
}

/// Whether a host that is no address in the usual notation would be taken for one by a resolver: 0x7f000001, 127.1,
/// 017700000001 (the URL standard's "ends in a number").
fn ends_in_a_number(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or_default();
    let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X")).is_some_and(is_hex);
    hex || !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit())
}

/// An IPv4 address in IPv6's clothes reaches the same place.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Whether an address is one of this machine's: only those can be bound to.
fn is_this_machines(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

/// Whether callbacks may go to an address.
pub(crate) fn allowed(address: IpAddr, targets: CallbackTargets) -> bool {
    let (never, own, private) = match plain(address) {
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
            assert_eq!(reach(Private).check(good), Ok(()), "{good}");
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
            assert!(reach(Private).check(bad).is_err(), "{bad}");
        }
        assert!(reach(None).check("http://example.com/").is_err());
    }

    #[test]
    fn addresses_in_other_notations_are_no_hosts() {
        for bad in [
            "0xa9fea9fe",
            "0XA9FEA9FE",
            "2852039166",
            "0251.0376.0251.0376",
            "169.254.43518",
            "0xa9.254.0xa9fe",
            "127.1",
            "127.0.0.1.",
            "127.0.0.0x",
            "1.2.3.4.5",
        ] {
            let why = reach(Any).check(&format!("http://{bad}/")).unwrap_err();
            assert!(why.contains("a number"), "{bad}: {why}");
        }
        for good in ["0xa9fea9fe.example", "1.example", "127.0.0.1.nip.example", "10.0.0.1", "a-1", "x1"] {
            assert_eq!(reach(Any).check(&format!("http://{good}/")), Ok(()), "{good}");
        }
    }

    #[test]
    fn nothing_goes_to_where_the_platform_listens() {
        let own = ["127.0.0.1:9091", "0.0.0.0:8080", "[::]:8443", "10.0.0.1:443"];
        let own = own.map(|address| address.parse().unwrap()).to_vec();
        let reach = Reach { targets: Any, own };
        for bad in [
            "http://127.0.0.1:9091/v1/functions",
            "http://[::ffff:127.0.0.1]:9091/",
            "http://127.0.0.1:8080/",
            "http://127.7.7.7:8080/",
            "https://[::1]:8443/",
            "https://10.0.0.1/",
        ] {
            assert!(reach.check(bad).unwrap_err().contains("the platform itself"), "{bad}");
        }
        for good in [
            "http://127.0.0.1:9092/",
            "http://127.0.0.2:9091/",
            "http://10.0.0.1/",
            // No machine has an address that is for documentation.
            "http://192.0.2.1:8080/",
        ] {
            assert_eq!(reach.check(good), Ok(()), "{good}");
        }
        assert!(!reach.allows("127.0.0.1:9091".parse().unwrap()));
        assert!(reach.allows("127.0.0.1:9092".parse().unwrap()));
    }

    fn reach(targets: CallbackTargets) -> Reach {
        Reach { targets, own: Vec::new() }
    }
}
