//! Where an installation may connect to, and by which way.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use base64::Engine as _;
use parking_lot::Mutex;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::STEP_TIMEOUT;

/// Ports of public addresses.
const WEB: [u16; 2] = [80, 443];

/// A program that installs.
#[derive(Debug)]
pub(crate) struct Installer {
    /// How the names of variables with its settings begin, in lower case.
    prefix: &'static str,
    /// Which of its settings are proxies: for both protocols, for HTTPS alone.
    proxies: [&'static str; 2],
    /// Where it installs from unless told otherwise: reached wherever the node's resolver says, for a mirror may stand in.
    defaults: &'static str,
}

/// Python's.
pub(crate) const PIP: Installer = Installer {
    prefix: "pip_",
    proxies: ["pip_proxy", ""],
    defaults: "https://pypi.org https://files.pythonhosted.org",
};

/// Node.js's.
pub(crate) const NPM: Installer = Installer {
    prefix: "npm_config_",
    proxies: ["npm_config_proxy", "npm_config_https_proxy"],
    defaults: "https://registry.npmjs.org",
};

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// A name in lower case, or an address without brackets.
    host: String,
    port: u16,
}

impl Target {
    /// `HOST`, `HOST:PORT`, or the same with an address of version 6 in brackets.
    pub(super) fn parse(authority: &str, port: u16) -> Option<Self> {
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => match rest.split_once(']')? {
                (host, "") => (host, port),
                (host, port) => (host, port.strip_prefix(':')?.parse().ok()?),
            },
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, port.parse().ok()?),
                None => (authority, port),
            },
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let sound = !host.is_empty() && host.len() <= 253 && host.chars().all(plain);
        sound.then(|| Target { host: host.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The host's own proxy.
#[derive(Clone, PartialEq, Eq)]
struct Upstream {
    target: Target,
    /// A header field with its line end, or nothing.
    authorization: String,
}

/// How a target is reached.
pub(super) enum Route {
    /// By itself.
    Direct(TcpStream),
    /// Through the host's proxy, with this header field.
    Upstream(TcpStream, String),
}

/// Why a target is not reached.
enum Unreached {
    /// It is not allowed.
    Refused,
    /// It is, but was not to be had.
    Trouble(String),
}

/// What the daemon's settings allow beside the public web, and the host's proxies.
#[derive(Clone, Default)]
pub(crate) struct Policy {
    named: Vec<Target>,
    http: Option<Upstream>,
    https: Option<Upstream>,
    /// Hosts and domains that are not reached through a proxy.
    no_proxy: Vec<String>,
    /// The last connection that failed, though it was allowed.
    trouble: Arc<Mutex<Option<String>>>,
}

/// Settings may hold passwords.
impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("named", &self.named).finish_non_exhaustive()
    }
}

impl Policy {
    /// From environment variables and the text of the installer's own settings: every URL in what concerns it names a
    /// target.
    pub(crate) fn new<'a>(
        installer: &Installer,
        vars: impl Iterator<Item = (&'a str, &'a str)>,
        config: &str,
    ) -> Self {
        let mut policy = Policy::default();
        // The installer's own, whose order in the environment means nothing: for HTTPS alone goes before for both.
        let mut own = [None, None];
        for (name, value) in vars {
            let name = name.to_ascii_lowercase();
            match name.as_str() {
                "http_proxy" => policy.http = Upstream::parse(value),
                "https_proxy" => policy.https = Upstream::parse(value),
                name if installer.proxies[0] == name => own[0] = Some(Upstream::parse(value)),
                name if installer.proxies[1] == name => own[1] = Some(Upstream::parse(value)),
                "no_proxy" => {
                    policy.no_proxy = value.split(',').map(|s| s.trim().to_ascii_lowercase()).collect();
                }
                name if name.starts_with(installer.prefix) => policy.named.extend(targets(value)),
                _ => {}
            }
        }
        let [both, https] = own;
        if let Some(both) = both {
            policy.https = both.clone();
            policy.http = both;
        }
        if let Some(https) = https {
            policy.https = https;
        }
        policy.named.extend(targets(config));
        policy.named.extend(targets(installer.defaults));
        policy
    }

    /// What kept an allowed target from being reached, if that has happened: another time it may not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Connects to the target, or says why not.
    pub(super) async fn connect(&self, target: &Target, is_tunnel: bool) -> Result<Route, String> {
        let connected = timeout(STEP_TIMEOUT, self.route(target, is_tunnel)).await;
        match connected.unwrap_or_else(|_| Err(Unreached::Trouble("it does not answer".into()))) {
            Ok(route) => Ok(route),
            Err(Unreached::Refused) => Err(
                "only public addresses on ports 80 and 443 may be reached, and what the node's settings for the installer name"
                    .to_owned(),
            ),
            Err(Unreached::Trouble(why)) => {
                *self.trouble.lock() = Some(format!("no connection to {target}: {why}"));
                Err(why)
            }
        }
    }

    async fn route(&self, target: &Target, is_tunnel: bool) -> Result<Route, Unreached> {
        let allowed = |ip: IpAddr| self.named.contains(target) || WEB.contains(&target.port) && is_public(ip);
        let upstream = if is_tunnel { &self.https } else { &self.http };
        if let Some(upstream) = upstream.as_ref().filter(|_| !self.bypasses(&target.host)) {
            // Its resolver decides what a name means; an address means itself.
            let ip = target.host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)));
            if !allowed(ip) || target.host == "localhost" {
                return Err(Unreached::Refused);
            }
            let address = (upstream.target.host.as_str(), upstream.target.port);
            let trouble = |e| Unreached::Trouble(format!("the node's proxy: {e}"));
            let stream = TcpStream::connect(address).await.map_err(trouble)?;
            return Ok(Route::Upstream(stream, upstream.authorization.clone()));
        }
        let found = lookup_host((target.host.as_str(), target.port)).await;
        let mut why = Unreached::Refused;
        for address in found.map_err(|e| Unreached::Trouble(e.to_string()))?.filter(|a| allowed(a.ip())) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(Route::Direct(stream)),
                Err(error) => why = Unreached::Trouble(error.to_string()),
            }
        }
        Err(why)
    }

    fn bypasses(&self, host: &str) -> bool {
        self.no_proxy.iter().any(|entry| {
            let domain = entry.trim_start_matches('.');
            entry == "*"
                || !domain.is_empty()
                    && host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    }
}

impl Upstream {
    fn parse(url: &str) -> Option<Self> {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next()?;
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, authority),
        };
        let encoded = user.map(|user| base64::engine::general_purpose::STANDARD.encode(unescaped(user)));
        let field = |encoded| format!("Proxy-Authorization: Basic {encoded}\r\n");
        Some(Upstream {
            target: Target::parse(authority, 80)?,
            authorization: encoded.map(field).unwrap_or_default(),
        })
    }
}

/// Undoes `%XX`.
fn unescaped(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let code = (*byte == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        let code = code.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(code.unwrap_or(*byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    out
}

/// What the URLs in a text name.
fn targets(text: &str) -> Vec<Target> {
    let words = text.split(|c: char| c.is_whitespace() || "\"',=".contains(c));
    let target = |word: &str| {
        let (scheme, rest) = word.split_once("://")?;
        let port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?;
        Target::parse(authority.rsplit_once('@').map_or(authority, |(_, host)| host), port)
    };
    words.filter_map(target).collect()
}

/// Whether an address is one of the internet's, by the IANA registries of special addresses.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_public_v4(ip),
            None => is_public_v6(ip),
        },
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let special = match ip.octets() {
        [0 | 10 | 127 | 224..=255, ..] => true,
        [100, b, ..] => (64..128).contains(&b),
        [169, 254, ..] | [192, 168, ..] | [192, 0, 0 | 2, _] | [192, 88, 99, _] => true,
        [172, b, ..] => (16..32).contains(&b),
        [198, b, c, _] => b == 18 || b == 19 || (b == 51 && c == 100),
        [203, 0, 113, _] => true,
        _ => false,
    };
    !special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    // Global unicast, without what leads to addresses of version 4 (Teredo, 6to4) and the examples of documents.
    let [a, b, ..] = ip.segments();
    a & 0xe000 == 0x2000
        && !(a == 0x2001 && (b < 0x200 || b == 0xdb8))
        && a != 0x2002
        && !(a == 0x3fff && b < 0x1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_told_from_public_ones() {
        for public in [
            "1.1.1.1",
            "151.101.0.223",
            "172.32.0.1",
            "100.128.0.1",
            "2a04:4e42::223",
            "2606:4700::1",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for special in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "100.64.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "fe80::1",
            "fd00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "64:ff9b::7f00:1",
        ] {
            assert!(!is_public(special.parse().unwrap()), "{special}");
        }
    }

    #[test]
    fn settings_name_targets_and_proxies() {
        let vars = [
            ("PIP_INDEX_URL", "https://user:secret@index.example/simple"),
            ("PIP_EXTRA_INDEX_URL", "http://10.0.0.1:8080/a http://[fd00::1]/b"),
            ("PIP_CERT", "/etc/ssl/cert.pem"),
            ("HTTPS_PROXY", "http://me:p%40ss@proxy.example:3128"),
            ("no_proxy", "localhost, .internal.example"),
            ("OTHER", "http://no.example"),
        ];
        let policy =
            Policy::new(&PIP, vars.into_iter(), "[global]\nfind-links = http://files.example:81/x\n");
        let named: Vec<_> = policy.named.iter().map(Target::to_string).collect();
        let settings = ["index.example:443", "10.0.0.1:8080", "[fd00::1]:80", "files.example:81"];
        let defaults = ["pypi.org:443", "files.pythonhosted.org:443"];
        assert_eq!(named, [&settings[..], &defaults[..]].concat());
        let https = policy.https.clone().unwrap();
        assert_eq!(https.target.to_string(), "proxy.example:3128");
        assert_eq!(https.authorization, "Proxy-Authorization: Basic bWU6cEBzcw==\r\n");
        assert!(policy.http.is_none());
        for (host, direct) in
            [("a.internal.example", true), ("internal.example", true), ("notinternal.example", false)]
        {
            assert_eq!(policy.bypasses(host), direct, "{host}");
        }
        assert!(!format!("{policy:?}").contains("ss"), "{policy:?}");
    }

    #[test]
    fn the_proxy_for_https_alone_goes_first_in_any_order() {
        let mut vars = [
            ("npm_config_proxy", "http://both.example:1"),
            ("npm_config_https_proxy", "http://https.example:2"),
            ("https_proxy", "http://general.example:3"),
        ];
        for _ in 0..vars.len() {
            vars.rotate_left(1);
            let policy = Policy::new(&NPM, vars.into_iter(), "");
            let target = |upstream: &Option<Upstream>| upstream.as_ref().map(|u| u.target.to_string());
            assert_eq!(target(&policy.http).as_deref(), Some("both.example:1"), "{vars:?}");
            assert_eq!(target(&policy.https).as_deref(), Some("https.example:2"), "{vars:?}");
        }
    }

    #[tokio::test]
    async fn what_is_refused_is_no_trouble_of_the_network() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let index = format!("http://{closed}/simple");
        let policy = Policy::new(&PIP, [("PIP_INDEX_URL", index.as_str())].into_iter(), "");
        let target = |text: &str| Target::parse(text, 80).unwrap();
        assert!(policy.connect(&target("127.0.0.1:1"), false).await.is_err());
        assert_eq!(policy.trouble(), None, "it is not allowed");
        assert!(policy.connect(&target(&closed.to_string()), false).await.is_err());
        let trouble = policy.trouble().unwrap();
        assert!(trouble.contains(&closed.to_string()) && trouble.contains("refused"), "{trouble}");
    }

    #[test]
    fn targets_are_hosts_with_ports() {
        let parse = |text| Target::parse(text, 80).map(|t| t.to_string());
        assert_eq!(parse("A.example").as_deref(), Some("a.example:80"));
        assert_eq!(parse("[::1]:443").as_deref(), Some("[::1]:443"));
        for bad in ["", ":80", "a:b", "a b:80", "[::1", "u@h:80", "a:70000", "a/b"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
