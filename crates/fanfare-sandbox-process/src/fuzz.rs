//! What fuzzers drive; not part of the API.

use crate::{deps, egress, gate, logs, zygote};

/// The head of a request to the proxy.
pub fn egress_request(bytes: &[u8]) {
    egress::fuzz(bytes);
}

/// What a shim says at its gate, why it failed included.
pub fn gate_word(packet: &[u8]) {
    gate::fuzz(packet);
}

/// Output that comes in pieces of `piece` bytes.
pub fn log_lines(piece: usize, output: &[u8]) {
    logs::fuzz(piece, output);
}

/// The list of dependencies beside a JavaScript handler.
pub fn package_json(manifest: &[u8]) {
    deps::fuzz(manifest);
}

/// What a template says of its children.
pub fn zygote_words(packets: &[&[u8]]) {
    zygote::fuzz(packets);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each in every order of three, whole and cut anywhere.
    #[test]
    fn words_in_any_order_and_of_any_length_keep_their_rules() {
        let words: [&[u8]; 8] = [
            br#"{"type":"forked","id":1,"pid":7}"#,
            br#"{"type":"forked","id":9}"#,
            br#"{"type":"fork-failed","id":1,"detail":"no"}"#,
            br#"{"type":"exited","id":1,"code":0}"#,
            br#"{"type":"exited","id":1,"signal":9}"#,
            br#"{"type":"exited","id":-1}"#,
            br#"{"type":"imported","import_us":1}"#,
            br#"{"type":"failed","kind":"import-failed","detail":"KeyError: 'PORT'","trace":""}"#,
        ];
        for a in words {
            (0..=a.len()).for_each(|end| gate_word(&a[..end]));
            for b in words {
                words.iter().for_each(|c| zygote_words(&[a, b, c]));
            }
        }
        let manifest =
            br#"{"name": 1, "dependencies": {"a": "1", "b": {}}, "overrides": [], "scripts": {"x": "y"}}"#;
        (0..=manifest.len()).for_each(|end| package_json(&manifest[..end]));
    }
}
