//! What nodes and data planes may call themselves.

use crate::limits::PEER_NAME_BYTES_MAX;

/// Whether a node or a data plane may have this name: 1 to [`PEER_NAME_BYTES_MAX`] of `a-z A-Z 0-9 . _ : -`.
#[must_use]
pub fn is_peer_name(name: &str) -> bool {
    (1..=PEER_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(may_be_in)
}

/// Names that data planes which take over from each other have in turn, the given one among them: `d`, `d:1`, to `d:7`.
pub const SUCCESSOR_NAMES: u32 = 8;

/// The name that a data plane was given, of the one that it has: a successor's ends in `:1` to `:7`.
#[must_use]
pub fn given_peer_name(name: &str) -> &str {
    let turn = |text: &str| text.parse().ok().filter(|turn| (1..SUCCESSOR_NAMES).contains(turn));
    match name.rsplit_once(':') {
        Some((given, text)) if text.len() == 1 && turn(text).is_some() => given,
        _ => name,
    }
}

/// The name of a node or data plane on a machine that calls itself `host`: the same, with a `-` for each byte that may
/// not be in one, and `unnamed` where the machine has no name (the kernel then says `(none)`).
#[must_use]
pub fn peer_name_of(host: &str) -> String {
    let cut = host.bytes().take(PEER_NAME_BYTES_MAX);
    match host {
        "" | "(none)" => "unnamed".to_owned(),
        _ => cut.map(|byte| if may_be_in(byte) { char::from(byte) } else { '-' }).collect(),
    }
}

fn may_be_in(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successors_were_given_their_predecessors_name() {
        for (name, given) in [
            ("d", "d"),
            ("d:1", "d"),
            ("d:7", "d"),
            ("d:8", "d:8"),
            ("d:0", "d:0"),
            ("d:01", "d:01"),
            ("d:+1", "d:+1"),
            ("a:b", "a:b"),
        ] {
            assert_eq!(given_peer_name(name), given, "{name}");
        }
    }

    #[test]
    fn whatever_a_machine_is_called_its_roles_have_a_name() {
        let long = "h".repeat(300);
        for (host, name) in [
            ("vm", "vm"),
            ("node-7.rack_2", "node-7.rack_2"),
            ("(none)", "unnamed"),
            ("", "unnamed"),
            ("my laptop", "my-laptop"),
            ("büro", "b--ro"),
            (&long, &long[..PEER_NAME_BYTES_MAX]),
        ] {
            assert_eq!(peer_name_of(host), name);
            assert!(is_peer_name(name), "{name}");
            assert_eq!(is_peer_name(host), host == name, "{host}");
        }
    }
}
