//! What fuzzers drive; not part of the API.

use fanfare_types::{FromDataPlane, FromNode, ToDataPlane, ToNode};
use prost::Message as _;

use crate::wire::Wire;

/// A frame of one of the four directions. What is understood can be said again, and is understood again.
pub fn frame(direction: u8, bytes: &[u8]) {
    match direction % 4 {
        0 => decode::<ToNode>(bytes),
        1 => decode::<FromNode>(bytes),
        2 => decode::<ToDataPlane>(bytes),
        _ => decode::<FromDataPlane>(bytes),
    }
}

fn decode<M: Wire>(bytes: &[u8]) {
    let Ok(frame) = M::Frame::decode(bytes) else { return };
    let Ok(batch) = M::decode(frame) else { return };
    let messages = batch.messages.len();
    let again = M::decode(M::encode(batch));
    assert_eq!(again.ok().map(|batch| batch.messages.len()), Some(messages));
}
