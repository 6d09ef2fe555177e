//! Whatever a peer says, an exchange ends.

use bytes::Bytes;
use http::Method;
use proptest::prelude::*;

use crate::script::{Script, exchange};

const SEEDS: [&[u8]; 4] = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nx: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nA: b\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nall of it",
];

/// Runs to the end: a response no longer than what was said, or an error.
fn ends(bytes: &[u8], step: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let pieces = bytes.chunks(step).map(Bytes::copy_from_slice);
    let outcome = runtime.block_on(exchange(Script::new(pieces, true), Method::GET));
    if let Ok(outcome) = outcome {
        assert!(outcome.response.body().len() < bytes.len());
        assert!(outcome.frames <= bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 1..600), step in 1_usize..64) {
        ends(&bytes, step);
    }

    #[test]
    fn bytes_of_the_grammar(
        tokens in proptest::collection::vec(prop::sample::select(vec![
            "HTTP/1.1 ", "200", " OK", "\r\n", "\n", "\r", ":", " ", "Content-Length: ", "Transfer-Encoding: ",
            "chunked", "5", "0", "ffffffffffffffff", "hello", ";", ",", "Connection: close", "100", "204", "\t", "\0",
        ]), 1..60),
        step in 1_usize..64,
    ) {
        ends(tokens.concat().as_bytes(), step);
    }

    #[test]
    fn damaged_responses(
        seed in prop::sample::select(SEEDS.to_vec()),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..6),
        step in 1_usize..64,
    ) {
        let mut bytes = seed.to_vec();
        for (at, byte, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        ends(&bytes, step);
    }
}
