//! Whose a request is whose body is not here to its end: each client has a share of a queue for those.

use std::net::IpAddr;

use http::HeaderMap;

use crate::asynchronous::intake::network;
use crate::headers::Client;

/// Of a request that another data plane has forwarded it is the client which that has appended to those that it names.
pub(crate) fn of(headers: &HeaderMap, client: &Client, forwarded: bool) -> u128 {
    let address = told(headers).filter(|_| forwarded).unwrap_or(client.ip());
    match network(address) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn told(headers: &HeaderMap) -> Option<IpAddr> {
    let named = headers.get_all("x-forwarded-for").iter().next_back()?.to_str().ok()?;
    named.rsplit(',').next()?.trim().trim_matches(['[', ']']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_is_named_is_the_one_that_was_appended() {
        let cases = [
            ("10.0.0.1", Some("10.0.0.1")),
            ("10.9.9.9, 10.0.0.2", Some("10.0.0.2")),
            ("evil, [2001:db8::1]", Some("2001:db8::1")),
            ("10.0.0.1, unknown", None),
            ("", None),
        ];
        for (field, address) in cases {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static("x-forwarded-for"),
                field.parse().unwrap(),
            )]);
            assert_eq!(told(&headers), address.map(|address| address.parse().unwrap()), "{field}");
        }
    }
}
