//! Which function a request is for.

use std::net::IpAddr;

/// Functions called by path live below this.
pub(crate) const PATH_PREFIX: &str = "/function/";

/// The function's name in the path, and the path and query that the function sees, byte for byte.
///
/// `/function/NAME/a%2Fb?x=1` is `NAME` and `/a%2Fb?x=1`; `/function/NAME` and `/function/NAME?x=1` are for its `/`.
pub(crate) fn by_path(path_and_query: &str) -> Option<(&str, Rest<'_>)> {
    name_and_rest(path_and_query.strip_prefix(PATH_PREFIX)?)
}

/// The same for what follows the prefix.
pub(crate) fn name_and_rest(after: &str) -> Option<(&str, Rest<'_>)> {
    let end = after.find(['/', '?']).unwrap_or(after.len());
    let (name, rest) = after.split_at(end);
    (!name.is_empty()).then_some((name, Rest(rest)))
}

/// What follows the function's name: empty, or begins with `/` or `?`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// All of a target that names no function.
    pub(crate) fn whole(target: &'a str) -> Self {
        Rest(target)
    }

    /// As a request target.
    pub(crate) fn target(self) -> String {
        if self.0.starts_with('/') {
            self.0.to_owned()
        } else {
            let mut target = String::with_capacity(1 + self.0.len());
            target.push('/');
            target.push_str(self.0);
            target
        }
    }
}

/// A host name in lower case without port and final dot, ready to be looked up.
///
/// Nothing for addresses and `localhost`: they name a machine, never a function.
pub(crate) struct Host {
    buffer: [u8; Host::LEN_MAX],
    len: usize,
}

impl Host {
    const LEN_MAX: usize = 253;

    pub(crate) fn parse(authority: &str) -> Option<Self> {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            _ => authority,
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        let address = host.starts_with('[')
            || host.ends_with(|c: char| c.is_ascii_digit()) && host.parse::<IpAddr>().is_ok();
        if host.is_empty()
            || host.len() > Self::LEN_MAX
            || address
            || host.eq_ignore_ascii_case("localhost")
            || !host.is_ascii()
        {
            return None;
        }
        let mut buffer = [0; Self::LEN_MAX];
        for (to, from) in buffer.iter_mut().zip(host.bytes()) {
            *to = from.to_ascii_lowercase();
        }
        Some(Host { buffer, len: host.len() })
    }

    /// The tag and the function of each of its [`Host::names`] that is `TAG--NAME`.
    pub(crate) fn tagged(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names()
            .filter_map(|name| name.split_once("--"))
            .filter(|(tag, name)| !tag.is_empty() && !name.is_empty())
    }

    /// All of it, and then its first label where that is less: the names to look up, in this order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let whole = std::str::from_utf8(&self.buffer[..self.len]).unwrap_or_default();
        let label = whole.split_once('.').map(|(label, _)| label).filter(|l| !l.is_empty());
        std::iter::once(whole).chain(label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_reach_the_function_byte_for_byte() {
        let cases = [
            ("/function/f", Some(("f", "/"))),
            ("/function/f/", Some(("f", "/"))),
            ("/function/f?x=1&x=2", Some(("f", "/?x=1&x=2"))),
            (
                "/function/f/a%2Fb//c;d=1/%E2%82%AC/?x=1&x=2&y=%20+",
                Some(("f", "/a%2Fb//c;d=1/%E2%82%AC/?x=1&x=2&y=%20+")),
            ),
            ("/function/f//", Some(("f", "//"))),
            ("/function/f/../g", Some(("f", "/../g"))),
            ("/function/a.b-c_d/x", Some(("a.b-c_d", "/x"))),
            ("/function/", None),
            ("/function//x", None),
            ("/function", None),
            ("/functions/f", None),
            ("/", None),
            ("*", None),
        ];
        for (path, expected) in cases {
            let got = by_path(path).map(|(name, rest)| (name, rest.target()));
            assert_eq!(got, expected.map(|(name, rest)| (name, rest.to_owned())), "{path}");
        }
    }

    #[test]
    fn tagged_hosts() {
        let cases: [(&str, &[(&str, &str)]); 6] = [
            ("canary--hello", &[("canary", "hello")]),
            ("Canary--Hello.example.com:80", &[("canary", "hello.example.com"), ("canary", "hello")]),
            ("v2-beta--a--b", &[("v2-beta", "a--b")]),
            ("hello", &[]),
            ("--hello", &[]),
            ("canary--", &[]),
        ];
        for (host, expected) in cases {
            let parsed = Host::parse(host).unwrap();
            assert_eq!(parsed.tagged().collect::<Vec<_>>(), expected, "{host}");
        }
    }

    #[test]
    fn hosts() {
        let cases: [(&str, &[&str]); 13] = [
            ("hello", &["hello"]),
            ("HeLLo:8080", &["hello"]),
            ("hello.example.com", &["hello.example.com", "hello"]),
            ("hello.example.com.:80", &["hello.example.com", "hello"]),
            ("a.b", &["a.b", "a"]),
            ("127.0.0.1:8080", &[]),
            ("127.0.0.1", &[]),
            ("[::1]:8080", &[]),
            ("localhost:9", &[]),
            ("LocalHost", &[]),
            ("", &[]),
            (":80", &[]),
            (".x", &[".x"]),
        ];
        for (host, expected) in cases {
            let parsed = Host::parse(host);
            let names: Vec<_> = parsed.iter().flat_map(Host::names).collect();
            assert_eq!(names, expected, "{host}");
        }
        assert!(Host::parse(&"x".repeat(254)).is_none());
    }
}
