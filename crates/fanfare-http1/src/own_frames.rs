//! For servers: what the library that knows the frames of HTTP/2 says by itself.
//!
//! A request whose header list is too large is refused by that library (`h2`) before anyone hears of it, with a status
//! (431) and nothing else. There is no hook for that, but it is the only answer that has no other field: a `HEADERS`
//! frame that begins and ends an answer and whose block is one field. It is recognised among the frames that are
//! written, and gets the fields that every refusal has, as literals that no table of the client's keeps (RFC 7541,
//! section 6.2.2). A body it cannot have, which would be subject to windows that only the library knows.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderName, HeaderValue};
use tokio::io::AsyncWrite;

const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
/// Answers that have begun and not ended, as far as is remembered. A client that resets more than these in the middle
/// is refused without a reason afterwards: what ends them could no longer be told from a refusal.
const BEGUN_MAX: usize = 4_096;

/// What a server writes on one connection.
#[derive(Debug, Default)]
pub struct OwnFrames {
    frames: Frames,
    replacing: Option<Replacing>,
}

/// A frame that is written in the place of another.
#[derive(Debug)]
struct Replacing {
    bytes: Vec<u8>,
    written: usize,
    original_bytes: usize,
}

impl OwnFrames {
    /// Writes what the server gives; a refusal of its own with the fields that `refuse` adds.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        bufs: &[IoSlice<'_>],
        refuse: impl FnOnce() -> Vec<(HeaderName, HeaderValue)>,
    ) -> Poll<io::Result<usize>> {
        let mut stream = Pin::new(stream);
        // The library writes the frames that are made of fields in one piece, before any other's data.
        let first: &[u8] = bufs.first().map_or(&[], |first| first);
        if self.replacing.is_none()
            && let Some((before, original_bytes)) = self.frames.refusal(first)
        {
            if before > 0 {
                let written = ready!(stream.poll_write(cx, &first[..before]))?;
                self.frames.pass(&first[..written]);
                return Poll::Ready(Ok(written));
            }
            let bytes = with_fields(&first[..original_bytes], &refuse());
            self.replacing = Some(Replacing { bytes, written: 0, original_bytes });
        }
        if let Some(replacing) = &mut self.replacing {
            while replacing.written < replacing.bytes.len() {
                let written = ready!(stream.as_mut().poll_write(cx, &replacing.bytes[replacing.written..]))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                replacing.written += written;
            }
            let original_bytes = replacing.original_bytes;
            self.replacing = None;
            self.frames.pass(&first[..original_bytes]);
            return Poll::Ready(Ok(original_bytes));
        }
        let written = ready!(stream.poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let passed = left.min(buf.len());
            self.frames.pass(&buf[..passed]);
            left -= passed;
        }
        Poll::Ready(Ok(written))
    }
}

/// Where among the frames the next byte is.
#[derive(Debug, Default)]
struct Frames {
    /// What has passed of the next frame's head.
    head: Vec<u8>,
    /// Bytes to come of the frame whose head has passed.
    left: usize,
    /// Streams whose answer has begun.
    begun: HashSet<u32>,
    lost: bool,
}

struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    fn of(bytes: &[u8]) -> Option<Self> {
        let [l2, l1, l0, kind, flags, s3, s2, s1, s0] = *bytes.first_chunk::<HEAD_BYTES>()?;
        let length = u32::from_be_bytes([0, l2, l1, l0]) as usize;
        let stream = u32::from_be_bytes([s3 & 0x7f, s2, s1, s0]);
        Some(Head { length, kind, flags, stream })
    }
}

impl Frames {
    /// These bytes are written.
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let passed = (HEAD_BYTES - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..passed]);
            bytes = &bytes[passed..];
            if let Some(head) = Head::of(&self.head) {
                self.head.clear();
                self.left = head.length;
                self.begin(&head);
            }
        }
    }

    fn begin(&mut self, head: &Head) {
        let ends = matches!(head.kind, DATA | HEADERS) && head.flags & END_STREAM != 0;
        if ends || head.kind == RST_STREAM {
            self.begun.remove(&head.stream);
        } else if head.kind == HEADERS && !self.lost {
            self.begun.insert(head.stream);
            self.lost = self.begun.len() > BEGUN_MAX;
        }
    }

    /// Where in what is written next the protocol's own refusal is: the bytes before it, and its own.
    fn refusal(&self, next: &[u8]) -> Option<(usize, usize)> {
        if self.lost {
            return None;
        }
        let mut at = self.left;
        if !self.head.is_empty() {
            let rest = next.get(..HEAD_BYTES - self.head.len())?;
            at = rest.len() + Head::of(&[&self.head, rest].concat())?.length;
        }
        loop {
            let head = Head::of(next.get(at..)?)?;
            let end = at + HEAD_BYTES + head.length;
            let block = next.get(at + HEAD_BYTES..end);
            let alone = head.kind == HEADERS && head.flags == END_STREAM | END_HEADERS;
            if alone && !self.begun.contains(&head.stream) && block.is_some_and(is_one_field) {
                return Some((at, end - at));
            }
            at = end;
        }
    }
}

/// Whether a block is one field that is taken from the tables, or one with a value of its own and a name from them.
fn is_one_field(block: &[u8]) -> bool {
    let mut rest = block;
    // Changes of the table's size come first (RFC 7541, section 6.3).
    while let [first, ..] = rest
        && first & 0xe0 == 0x20
    {
        rest = after_number(rest, 5);
    }
    match rest.first() {
        Some(first) if first & 0x80 != 0 => after_number(rest, 7).is_empty(),
        // `:status` is the name with these numbers (RFC 7541, appendix A). Values of three letters.
        Some(0x48..=0x4e | 0x08..=0x0e) => {
            rest.get(1).is_some_and(|length| rest.len() == 2 + usize::from(length & 0x7f))
        }
        _ => false,
    }
}

/// What is behind a number that takes this many bits of its first byte (RFC 7541, section 5.1).
fn after_number(bytes: &[u8], bits: u32) -> &[u8] {
    let mask = u8::MAX >> (8 - bits);
    match bytes {
        [first, rest @ ..] if first & mask == mask => {
            let more = rest.iter().take_while(|byte| **byte & 0x80 != 0).count();
            rest.get(more + 1..).unwrap_or(&[])
        }
        [_, rest @ ..] => rest,
        [] => &[],
    }
}

/// The same refusal with more fields.
fn with_fields(frame: &[u8], fields: &[(HeaderName, HeaderValue)]) -> Vec<u8> {
    let (head, block) = frame.split_at(HEAD_BYTES);
    let mut block = block.to_vec();
    for (name, value) in fields {
        literal(&mut block, name.as_str(), value.as_bytes());
    }
    let length = u32::try_from(block.len()).unwrap_or_default().to_be_bytes();
    [&length[1..], &head[3..], &block].concat()
}

/// A field that is not indexed. Names and values here are shorter than 127 bytes, which takes one byte to say.
fn literal(block: &mut Vec<u8>, name: &str, value: &[u8]) {
    block.push(0);
    for text in [name.as_bytes(), value] {
        debug_assert!(text.len() < 127, "its length takes one byte");
        block.push(text.len() as u8);
        block.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let head = [0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        [&head, payload].concat()
    }

    const ALONE: u8 = END_STREAM | END_HEADERS;
    const STATUS: &[u8] = &[0x48, 0x83, 1, 2, 3];

    #[test]
    fn one_field_alone_is_told_from_more() {
        let cases: [(&[u8], bool); 10] = [
            (STATUS, true),
            (&[0xbe], true),
            (&[0xff, 0x01], true),
            (&[0x20, 0x3f, 0xe1, 0x1f, 0xbe], true),
            (&[0xbe, 0xbf], false),
            (&[0xff, 0x81, 0x01, 0xbe], false),
            (&[0x48, 0x83, 1, 2, 3, 0xbe], false),
            (&[0x48, 0x83, 1, 2], false),
            (&[0x40, 0x01, b'a', 0x01, b'b'], false),
            (&[], false),
        ];
        for (block, expected) in cases {
            assert_eq!(is_one_field(block), expected, "{block:x?}");
        }
    }

    #[test]
    fn a_refusal_is_found_wherever_the_frames_before_it_were_cut() {
        let before = [frame(4, 0, 0, &[9; 6]), frame(HEADERS, END_HEADERS, 1, &[0x88, 0xbe])].concat();
        let refusal = frame(HEADERS, ALONE, 3, STATUS);
        let all = [&before[..], &refusal].concat();
        for cut in 0..before.len() {
            let mut frames = Frames::default();
            frames.pass(&all[..cut]);
            assert_eq!(frames.refusal(&all[cut..]), Some((before.len() - cut, refusal.len())), "{cut}");
        }
    }

    #[test]
    fn trailers_of_one_field_are_no_refusal() {
        let mut frames = Frames::default();
        let trailers = frame(HEADERS, ALONE, 1, &[0xbe]);
        let head = frame(HEADERS, END_HEADERS, 1, &[0x88]);
        assert_eq!(frames.refusal(&trailers), Some((0, trailers.len())), "without a beginning");
        frames.pass(&head);
        frames.pass(&frame(DATA, 0, 1, b"data"));
        assert_eq!(frames.refusal(&trailers), None);
        frames.pass(&trailers);
        assert!(frames.begun.is_empty());
        frames.pass(&head);
        frames.pass(&frame(RST_STREAM, 0, 1, &[0; 4]));
        assert!(frames.begun.is_empty());
    }

    #[test]
    fn who_resets_too_many_answers_is_not_remembered_for_ever() {
        let mut frames = Frames::default();
        for stream in 0..=BEGUN_MAX as u32 {
            frames.begin(&Head { length: 0, kind: HEADERS, flags: END_HEADERS, stream });
        }
        assert_eq!(frames.refusal(&frame(HEADERS, ALONE, 3, STATUS)), None);
        assert_eq!(frames.begun.len(), BEGUN_MAX + 1);
    }

    #[test]
    fn a_refusal_gets_its_reason_and_an_id() {
        let fields = [("x-fanfare-reason", "too-large"), ("x-request-id", "1")];
        let fields =
            fields.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let replaced = with_fields(&frame(HEADERS, ALONE, 3, STATUS), &fields);
        let head = Head::of(&replaced).unwrap();
        assert_eq!(
            (head.length, head.kind, head.flags, head.stream),
            (replaced.len() - 9, HEADERS, ALONE, 3)
        );
        let text = String::from_utf8_lossy(&replaced);
        assert!(text.contains("x-fanfare-reason\ttoo-large"), "{text:?}");
        assert!(text.ends_with("x-request-id\u{1}1"), "{text:?}");
    }
}
