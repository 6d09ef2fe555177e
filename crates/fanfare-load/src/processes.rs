//! The processes that serve an address on this machine, found by their sockets.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Sockets that are read of one table of the kernel.
const SOCKETS_MAX: usize = 1 << 20;
/// A socket's state in the kernel's table: connected …
const ESTABLISHED: &str = "01";
/// … and listening.
const LISTEN: &str = "0A";

/// One row of `/proc/net/tcp`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    is_listening: bool,
    inode: u64,
}

/// The processes that listen at `address`, as far as this one may see what others have open.
#[must_use]
pub fn listening(address: SocketAddr) -> BTreeSet<u32> {
    let at = |row: &Row| {
        let ip = row.local.ip();
        row.is_listening && row.local.port() == address.port() && (ip.is_unspecified() || ip == address.ip())
    };
    owners(&rows(at))
}

/// The processes on this machine that are connected to `address`.
#[must_use]
pub fn connected_to(address: SocketAddr) -> BTreeSet<u32> {
    owners(&rows(|row| !row.is_listening && row.remote == address))
}

/// The sockets that are wanted, by inode.
fn rows(wanted: impl Fn(&Row) -> bool) -> BTreeSet<u64> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1).take(SOCKETS_MAX)).filter_map(row);
    rows.filter(|row| wanted(row)).map(|row| row.inode).collect()
}

fn row(line: &str) -> Option<Row> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let inode = fields.nth(5)?.parse().ok()?;
    if state != ESTABLISHED && state != LISTEN {
        return None;
    }
    Some(Row { local: socket(local)?, remote: socket(remote)?, is_listening: state == LISTEN, inode })
}

/// An address as the kernel writes it: words in the machine's byte order, in hexadecimal.
fn socket(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match ip.len() {
        8 => Some((Ipv4Addr::from(word(0)?), port).into()),
        32 => {
            let mut octets = [0; 16];
            for (at, octets) in octets.chunks_exact_mut(4).enumerate() {
                octets.copy_from_slice(&word(at * 8)?);
            }
            // An IPv4 peer of an IPv6 socket is an IPv4 peer.
            Some((Ipv6Addr::from(octets).to_canonical(), port).into())
        }
        _ => None,
    }
}

/// The processes that have one of these sockets open.
fn owners(inodes: &BTreeSet<u64>) -> BTreeSet<u32> {
    if inodes.is_empty() {
        return BTreeSet::new();
    }
    let has_one = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| {
            let inode = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
            inode.and_then(|inode| inode.parse().ok()).is_some_and(|inode: u64| inodes.contains(&inode))
        })
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(has_one).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn who_listens_and_who_is_connected_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let me = BTreeSet::from([std::process::id()]);
        assert_eq!(listening(address), me);
        assert!(connected_to(address).is_empty());
        let _client = TcpStream::connect(address).unwrap();
        assert_eq!(connected_to(address), me);
        drop(listener);
        assert!(listening(address).is_empty());
    }

    #[test]
    fn rows_of_the_kernel() {
        let line = "   3: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4321 1 0 100";
        let expected = Row {
            local: "127.0.0.1:8080".parse().unwrap(),
            remote: "0.0.0.0:0".parse().unwrap(),
            is_listening: true,
            inode: 4321,
        };
        assert_eq!(row(line), Some(expected));
        let mapped = socket("0000000000000000FFFF00000100007F:0050");
        assert_eq!(mapped, Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(socket("00000000000000000000000001000000:0050"), Some("[::1]:80".parse().unwrap()));
        assert_eq!(row("nonsense"), None);
        assert_eq!(socket("0100007F"), None);
    }
}
