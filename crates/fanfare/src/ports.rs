//! Who holds a port.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::exit::Failure;

/// Processes that are looked through.
const PROCESSES_MAX: usize = 100_000;

/// A process that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) name: String,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.pid)
    }
}

/// The process that listens where `address` would; `None` when there is none, or it is not ours to see.
pub(crate) fn owner(address: SocketAddr) -> Option<Owner> {
    let mut inodes = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        inodes.extend(
            text.lines().filter_map(listener).filter(|(at, _)| clash(*at, address)).map(|(_, inode)| inode),
        );
    }
    if inodes.is_empty() {
        return None;
    }
    let sockets: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten().take(PROCESSES_MAX);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| holds(*pid, &sockets)).map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Owner { pid, name: name.trim_end().to_owned() }
    })
}

/// Whether another process of this program listens at one of these addresses.
pub(crate) fn another_of_us(addresses: &[SocketAddr]) -> bool {
    let us = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    addresses.iter().any(|address| owner(*address).is_some_and(|owner| owner.name == us.trim_end()))
}

/// Refuses listeners of one process that would keep each other out. Port 0 is any that is free.
///
/// # Errors
/// Which two.
pub(crate) fn apart(listeners: &[(&str, SocketAddr)]) -> Result<(), Failure> {
    for (at, (flag, address)) in listeners.iter().enumerate() {
        let other =
            listeners[at + 1..].iter().find(|(_, other)| address.port() != 0 && clash(*address, *other));
        if let Some((other_flag, other)) = other {
            let what = format!("{flag} {address} and {other_flag} {other} are one port");
            return Err(Failure::usage(what).next(format!("give {other_flag} another port")));
        }
    }
    Ok(())
}

fn holds(pid: u32, sockets: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

/// Whether a listener at one address keeps another from the other: the same port, and the same or any host.
pub(crate) fn clash(held: SocketAddr, wanted: SocketAddr) -> bool {
    let any = held.ip().is_unspecified() || wanted.ip().is_unspecified();
    held.port() == wanted.port() && (any || held.ip().to_canonical() == wanted.ip().to_canonical())
}

/// Address and inode of a listening socket in a line of `/proc/net/tcp` or `tcp6`.
fn listener(line: &str) -> Option<(SocketAddr, u64)> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    if state != LISTEN {
        return None;
    }
    let (host, port) = local.split_once(':')?;
    Some((SocketAddr::new(host_of(host)?, u16::from_str_radix(port, 16).ok()?), inode.parse().ok()?))
}

/// The kernel prints addresses as 32-bit words in its own byte order.
fn host_of(hex: &str) -> Option<IpAddr> {
    let mut bytes = Vec::with_capacity(16);
    for at in (0..hex.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|b| Ipv4Addr::from(b).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn our_own_listener_is_found() {
        let me = std::process::id();
        for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(bind) else {
                assert!(bind.starts_with('['), "{bind} cannot be bound");
                eprintln!("skipped: this machine has no IPv6 loopback");
                continue;
            };
            let address = listener.local_addr().unwrap();
            let found = owner(address).unwrap();
            assert_eq!(found.pid, me, "{bind}: {found}");
            assert!(!found.name.is_empty());
        }
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(owner(gone), None);
    }

    #[test]
    fn lines_of_the_kernels_tables() {
        if cfg!(target_endian = "big") {
            eprintln!("skipped: the samples are from a little-endian machine");
            return;
        }
        let v4 = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 x";
        assert_eq!(listener(v4), Some(("127.0.0.1:8080".parse().unwrap(), 4242)));
        let v6 = "   0: 00000000000000000000000001000000:2383 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 77 1";
        assert_eq!(listener(v6), Some(("[::1]:9091".parse().unwrap(), 77)));
        let connected = v4.replace(" 0A ", " 01 ");
        for bad in ["", "  sl  local_address rem_address   st", connected.as_str()] {
            assert_eq!(listener(bad), None, "{bad}");
        }
    }

    #[test]
    fn listeners_of_one_process_have_ports_of_their_own() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let (a, b) = (at("127.0.0.1:8080"), at("127.0.0.1:9091"));
        assert!(apart(&[("--listen", a), ("--api-listen", b)]).is_ok());
        let any = at("127.0.0.1:0");
        assert!(apart(&[("--listen", any), ("--api-listen", any)]).is_ok());
        let failure = apart(&[("--listen", a), ("--api-listen", b), ("--grpc-listen", at("0.0.0.0:8080"))]);
        let told = failure.unwrap_err().what;
        assert_eq!(told, "--listen 127.0.0.1:8080 and --grpc-listen 0.0.0.0:8080 are one port");
    }

    #[test]
    fn which_listeners_clash() {
        let cases = [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("10.0.0.1:80", "127.0.0.1:80", false),
            ("127.0.0.1:81", "127.0.0.1:80", false),
        ];
        for (held, wanted, clashes) in cases {
            assert_eq!(clash(held.parse().unwrap(), wanted.parse().unwrap()), clashes, "{held} {wanted}");
        }
    }
}
