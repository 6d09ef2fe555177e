//! What nodes and data planes may call themselves.

use crate::limits::PEER_NAME_BYTES_MAX;

/// Whether a node or a data plane may have this name: 1 to [`PEER_NAME_BYTES_MAX`] of `a-z A-Z 0-9 . _ : -`.
#[must_use]
pub fn is_peer_name(name: &str) -> bool {
    (1..=PEER_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(may_be_in)
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
