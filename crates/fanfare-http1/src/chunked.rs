//! Bodies in chunks (RFC 9112, section 7.1).

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

use crate::response::fields;
use crate::scan::Scan;
use crate::{CHUNK_LINE_BYTES_MAX, Malformed, TRAILER_BYTES_MAX};

/// The end of the last chunk's bytes and of the body, in the usual case.
const PLAIN_END: &[u8] = b"\r\n0\r\n\r\n";

/// Takes a chunked body apart.
#[derive(Debug)]
pub(crate) enum Chunked {
    /// Before a chunk's size.
    Size,
    /// Within a chunk that has so many bytes left.
    Data(u64),
    /// Before the line end after a chunk.
    DataEnd,
    /// After the last chunk.
    Trailers(Scan),
    Done,
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Data(Bytes),
    Trailers(HeaderMap),
    /// The body is complete.
    Done,
    /// Nothing without more bytes.
    Incomplete,
}

impl Chunked {
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Chunked::Done)
    }

    /// Takes the next part of the body from `bytes`.
    pub(crate) fn decode(&mut self, bytes: &mut BytesMut) -> Result<Decoded, Malformed> {
        loop {
            match self {
                Chunked::Size => match size(bytes)? {
                    None => return Ok(Decoded::Incomplete),
                    Some(0) => *self = Chunked::Trailers(Scan::default()),
                    Some(size) => *self = Chunked::Data(size),
                },
                Chunked::Data(_) if bytes.is_empty() => return Ok(Decoded::Incomplete),
                Chunked::Data(left) => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= len as u64;
                    let chunk_ends = *left == 0;
                    let data = bytes.split_to(len).freeze();
                    if chunk_ends && bytes.starts_with(PLAIN_END) {
                        // So that whoever takes the last bytes learns at once that they are the last.
                        bytes.advance(PLAIN_END.len());
                        *self = Chunked::Done;
                    } else if chunk_ends {
                        *self = Chunked::DataEnd;
                    }
                    return Ok(Decoded::Data(data));
                }
                Chunked::DataEnd => {
                    if !b"\r\n".starts_with(&bytes[..bytes.len().min(2)]) {
                        return Err(Malformed::ChunkEnd);
                    }
                    if bytes.len() < 2 {
                        return Ok(Decoded::Incomplete);
                    }
                    bytes.advance(2);
                    *self = Chunked::Size;
                }
                Chunked::Trailers(scan) => {
                    let Some(trailers) = trailers(scan, bytes)? else {
                        return Ok(Decoded::Incomplete);
                    };
                    *self = Chunked::Done;
                    if !trailers.is_empty() {
                        return Ok(Decoded::Trailers(trailers));
                    }
                }
                Chunked::Done => return Ok(Decoded::Done),
            }
        }
    }
}

/// The size of the chunk whose line `bytes` begins with; its extensions are ignored.
fn size(bytes: &mut BytesMut) -> Result<Option<u64>, Malformed> {
    let window = &bytes[..bytes.len().min(CHUNK_LINE_BYTES_MAX)];
    let Some(feed) = memchr::memchr(b'\n', window) else {
        let full = window.len() == CHUNK_LINE_BYTES_MAX;
        return if full { Err(Malformed::ChunkSize) } else { Ok(None) };
    };
    let line = window[..feed].strip_suffix(b"\r").ok_or(Malformed::BareLineFeed)?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, extensions) = line.split_at(digits);
    let plain = |byte: &u8| *byte == b'\t' || (b' '..0x7f).contains(byte) || *byte >= 0x80;
    let well_formed = extensions.first().is_none_or(|byte| *byte == b';') && extensions.iter().all(plain);
    if digits.is_empty() || !well_formed {
        return Err(Malformed::ChunkSize);
    }
    let mut size: u64 = 0;
    for digit in digits {
        let value = (*digit as char).to_digit(16).ok_or(Malformed::ChunkSize)?;
        size = size.checked_mul(16).ok_or(Malformed::ChunkSizeOverflow)? | u64::from(value);
    }
    bytes.advance(feed + 1);
    Ok(Some(size))
}

fn trailers(scan: &mut Scan, bytes: &mut BytesMut) -> Result<Option<HeaderMap>, Malformed> {
    let window = &bytes[..bytes.len().min(TRAILER_BYTES_MAX)];
    let Some(end) = scan.end(window)? else {
        let full = window.len() == TRAILER_BYTES_MAX;
        return if full { Err(Malformed::TrailersTooLarge) } else { Ok(None) };
    };
    let block = bytes.split_to(end).freeze();
    let mut slots = [httparse::EMPTY_HEADER; crate::HEADERS_MAX];
    match httparse::parse_headers(&block, &mut slots) {
        Ok(httparse::Status::Complete((_, parsed))) => {
            let mut trailers = fields(&block, parsed)?;
            // RFC 9110, section 6.5.1: nothing that decides framing or routing may come this late.
            for name in
                [http::header::CONTENT_LENGTH, http::header::TRANSFER_ENCODING, http::header::CONNECTION]
            {
                trailers.remove(name);
            }
            Ok(Some(trailers))
        }
        Ok(httparse::Status::Partial) => Err(Malformed::Field),
        Err(error) => Err(Malformed::Head(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `bytes` given in pieces of `step`; what is left over comes back, too.
    fn decode(bytes: &[u8], step: usize) -> Result<(Vec<u8>, HeaderMap, Vec<u8>), Malformed> {
        let mut chunked = Chunked::Size;
        let mut buffer = BytesMut::new();
        let mut body = Vec::new();
        let mut trailers = HeaderMap::new();
        let mut pieces = bytes.chunks(step);
        loop {
            match chunked.decode(&mut buffer)? {
                Decoded::Data(data) => body.extend_from_slice(&data),
                Decoded::Trailers(fields) => trailers = fields,
                Decoded::Done => {
                    let rest = [&buffer[..], &pieces.collect::<Vec<_>>().concat()].concat();
                    return Ok((body, trailers, rest));
                }
                Decoded::Incomplete => match pieces.next() {
                    Some(piece) => buffer.extend_from_slice(piece),
                    None => return Ok((body, trailers, b"INCOMPLETE".to_vec())),
                },
            }
        }
    }

    #[test]
    fn bodies_are_the_same_however_they_are_split() {
        let cases: [(&[u8], &[u8], usize); 6] = [
            (b"0\r\n\r\n", b"", 0),
            (b"5\r\nhello\r\n0\r\n\r\n", b"hello", 0),
            (b"00000005;a=b; c=\"d\"\r\nhello\r\nA\r\n0123456789\r\n0;x\r\n\r\n", b"hello0123456789", 0),
            (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n", 0),
            (b"1\r\na\r\n0\r\nx-sum: 1\r\nx-more: 2\r\n\r\n", b"a", 2),
            (b"1\r\na\r\n0\r\ncontent-length: 5\r\nx: y\r\n\r\n", b"a", 1),
        ];
        for (bytes, body, trailers) in cases {
            for step in 1..=bytes.len() + 4 {
                let with_rest = [bytes, b"REST"].concat();
                let decoded = decode(&with_rest, step).unwrap();
                assert_eq!(decoded.0, body);
                assert_eq!(decoded.1.len(), trailers);
                assert_eq!(decoded.2, b"REST");
            }
        }
    }

    #[test]
    fn what_others_might_read_differently_is_refused() {
        let long =
            [b"1;".to_vec(), vec![b'x'; CHUNK_LINE_BYTES_MAX], b"\r\na\r\n0\r\n\r\n".to_vec()].concat();
        let large = [b"0\r\nx: ".to_vec(), vec![b'y'; TRAILER_BYTES_MAX], b"\r\n\r\n".to_vec()].concat();
        let cases: [(&[u8], Malformed); 15] = [
            (b"5\nhello", Malformed::BareLineFeed),
            (b"\r\n", Malformed::ChunkSize),
            (b"5 \r\nhello", Malformed::ChunkSize),
            (b" 5\r\nhello", Malformed::ChunkSize),
            (b"0x5\r\nhello", Malformed::ChunkSize),
            (b"-5\r\nhello", Malformed::ChunkSize),
            (b"+5\r\nhello", Malformed::ChunkSize),
            (b"5;\ra\r\nhello", Malformed::ChunkSize),
            (b"10000000000000000\r\n", Malformed::ChunkSizeOverflow),
            (b"fffffffffffffffff\r\n", Malformed::ChunkSizeOverflow),
            (b"5\r\nhelloX\r\n", Malformed::ChunkEnd),
            (b"5\r\nhello\n0\r\n\r\n", Malformed::ChunkEnd),
            (b"0\r\nx: y\n\r\n", Malformed::BareLineFeed),
            (&long, Malformed::ChunkSize),
            (&large, Malformed::TrailersTooLarge),
        ];
        for (bytes, why) in cases {
            for step in [1, 3, bytes.len()] {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
                assert_eq!(decode(bytes, step).unwrap_err(), why, "{text:?} by {step}");
            }
        }
        assert!(matches!(decode(b"0\r\n x: folded\r\n\r\n", 99), Err(Malformed::Head(_))));
    }

    #[test]
    fn the_largest_size_is_a_size() {
        let decoded = decode(b"ffffffffffffffff\r\nabc", 99).unwrap();
        assert_eq!((&decoded.0[..], &decoded.2[..]), (&b"abc"[..], &b"INCOMPLETE"[..]));
    }
}
