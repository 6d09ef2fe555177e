//! Request ids: the client's, or a new one.

use std::cell::RefCell;

use fanfare_policy::{Rng, RngExt, seeded};
use http::HeaderValue;
use http::header::HeaderName;

/// On every answer, and on every request that a sandbox gets.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Characters of a client's id.
const LEN_MAX: usize = 128;

/// Draws ids of 128 random bits. Unique, not secret: two generators seeded by the operating system.
pub(crate) struct RequestIds {
    generators: RefCell<[Rng; 2]>,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        RequestIds { generators: RefCell::new([seeded(random_u64()), seeded(random_u64())]) }
    }

    /// The client's id if it is 1 to 128 visible ASCII characters, a new one otherwise.
    pub(crate) fn choose(&self, given: Option<&HeaderValue>) -> HeaderValue {
        match given {
            Some(id) if valid(id.as_bytes()) => id.clone(),
            _ => self.draw(),
        }
    }

    /// Random numbers for other names.
    pub(crate) fn numbers(&self) -> [u64; 3] {
        let mut generators = self.generators.borrow_mut();
        [generators[0].random(), generators[1].random(), generators[0].random()]
    }

    fn draw(&self) -> HeaderValue {
        let mut generators = self.generators.borrow_mut();
        written(generators.each_mut().map(|generator| generator.random()))
    }
}

/// An id for what never became a request.
pub(crate) fn stray() -> HeaderValue {
    written([random_u64(), random_u64()])
}

fn written(bits: [u64; 2]) -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (part, mut bits) in text.chunks_exact_mut(16).zip(bits) {
        for digit in part {
            *digit = DIGITS[(bits & 15) as usize];
            bits >>= 4;
        }
    }
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
}

fn valid(id: &[u8]) -> bool {
    !id.is_empty() && id.len() <= LEN_MAX && id.iter().all(u8::is_ascii_graphic)
}

/// Random bits of the operating system.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            // Only a kernel without the call fails otherwise; an address is then the best that is left.
            Err(_) => return std::ptr::from_ref(&bytes) as u64,
        }
    }
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_ids_are_kept_and_others_replaced() {
        let ids = RequestIds::new();
        let long = "x".repeat(129);
        for (given, kept) in
            [("abc-1/2", true), (&long[..128], true), (&long, false), ("a b", false), ("", false)]
        {
            let value = HeaderValue::from_str(given).unwrap();
            let chosen = ids.choose(Some(&value));
            assert_eq!(chosen == value, kept, "{given}");
            assert!(valid(chosen.as_bytes()));
        }
        let high = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        assert_ne!(ids.choose(Some(&high)), high);
        let (one, two) = (ids.choose(None), ids.choose(None));
        assert_ne!(one, two);
        assert_eq!(one.len(), 32);
    }
}
