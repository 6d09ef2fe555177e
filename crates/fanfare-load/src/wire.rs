//! Answers of an HTTP/1.1 server, as far as a load generator needs them.

use crate::error::{Context, Error, Result};

/// Header fields of one answer.
const HEADERS_MAX: usize = 64;
/// Bytes of one answer, head and body.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where an answer is in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its status.
    pub status: u16,
    /// Bytes of its head.
    pub head_len: usize,
    /// Bytes of head and body.
    pub len: usize,
    /// The server closes the connection after it.
    pub closes: bool,
}

/// One complete answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Its status.
    pub status: u16,
    head: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
}

impl<'a> Answer<'a> {
    /// The answer of this frame, which was found at the beginning of `buffer`.
    #[must_use]
    pub fn new(frame: Frame, buffer: &'a [u8]) -> Self {
        Answer {
            status: frame.status,
            head: &buffer[..frame.head_len],
            body: &buffer[frame.head_len..frame.len],
        }
    }

    /// The first field of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        response.parse(self.head).ok()?;
        let field = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(field.value).ok()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.body).into_owned()
    }
}

/// The answer at the beginning of `buffer`; `None` while it is incomplete. A chunked body is left as it came, chunks and all:
/// what is asked for and read has a stated length.
///
/// # Errors
/// It is no HTTP/1.1, or its end cannot be known or is too far away.
pub fn parse(buffer: &[u8]) -> Result<Option<Frame>> {
    match read(buffer)? {
        Parsed::Whole(frame) => Ok(Some(frame)),
        Parsed::Partial { .. } => Ok(None),
    }
}

/// How much of an answer there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Not all of it.
    Partial {
        /// It has at least so many bytes: with fewer there is no use in another look.
        needed: usize,
    },
    /// All of it.
    Whole(Frame),
}

/// The same, with what is known of an answer that is incomplete.
///
/// # Errors
/// As of [`parse`].
pub fn read(buffer: &[u8]) -> Result<Parsed> {
    let partial = |needed: usize| Ok(Parsed::Partial { needed: needed.max(buffer.len() + 1) });
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(head_len) =
        response.parse(buffer).context("an answer that is not HTTP/1.1")?
    else {
        return partial(0);
    };
    let status = response.code.unwrap_or_default();
    let (mut length, mut closes, mut chunked) = (None, false, false);
    for field in response.headers.iter() {
        if field.name.eq_ignore_ascii_case("content-length") {
            length = std::str::from_utf8(field.value).ok().and_then(|text| text.trim().parse::<usize>().ok());
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = field.value.eq_ignore_ascii_case(b"chunked");
        } else if field.name.eq_ignore_ascii_case("connection") {
            closes = field.value.eq_ignore_ascii_case(b"close");
        }
    }
    if chunked {
        let Some(length) = chunks(&buffer[head_len..])? else { return partial(0) };
        return Ok(Parsed::Whole(Frame { status, head_len, len: head_len + length, closes }));
    }
    let length = match (status, length) {
        (204 | 304, _) => 0,
        (_, Some(length)) if length <= ANSWER_BYTES_MAX => length,
        _ => return Err(Error::new(format!("an answer with status {status} and no usable content-length"))),
    };
    let len = head_len + length;
    if buffer.len() < len {
        return partial(len);
    }
    Ok(Parsed::Whole(Frame { status, head_len, len, closes }))
}

/// The length of a body in chunks, its trailers included; `None` while it is incomplete.
fn chunks(body: &[u8]) -> Result<Option<usize>> {
    let unusable = || Error::new("an answer with a chunk of no usable size");
    let mut at = 0;
    loop {
        let parsed = httparse::parse_chunk_size(&body[at..]).map_err(|_| unusable())?;
        let httparse::Status::Complete((line, size)) = parsed else { return Ok(None) };
        at += line;
        if size == 0 {
            break;
        }
        let size =
            usize::try_from(size).ok().filter(|size| *size <= ANSWER_BYTES_MAX).ok_or_else(unusable)?;
        // The line break after it.
        at += size + 2;
        if at > body.len() {
            return Ok(None);
        }
    }
    loop {
        let Some(line) = body[at..].windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
        at += line + 2;
        if line == 0 {
            return Ok(Some(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TWO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer-Timing: a;dur=1\r\n\r\nhelloHTTP/1.1 503 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

    #[test]
    fn answers_follow_each_other() {
        let first = parse(TWO).unwrap().unwrap();
        let answer = Answer::new(first, TWO);
        assert_eq!((answer.status, answer.body, first.closes), (200, &b"hello"[..], false));
        assert_eq!(answer.header("server-timing"), Some("a;dur=1"));
        assert_eq!(answer.header("etag"), None);
        let second = parse(&TWO[first.len..]).unwrap().unwrap();
        assert_eq!((second.status, second.closes, first.len + second.len), (503, true, TWO.len()));
    }

    #[test]
    fn no_length_is_refused_and_no_content_needs_none() {
        assert!(parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse(b"SSH-2.0\r\n\r\n").is_err());
        let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 70\r\n\r\nx";
        assert_eq!(read(begun).unwrap(), Parsed::Partial { needed: begun.len() + 69 });
        assert_eq!(read(&begun[..20]).unwrap(), Parsed::Partial { needed: 21 });
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap().len, 27);
    }

    #[test]
    fn chunks_end_with_their_trailers() {
        let whole =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x\r\nhel\r\n\r\n0\r\nt: 1\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(parse(whole).unwrap().unwrap().len, whole.len());
        let more = [&whole[..], b"HTTP/1.1 "].concat();
        assert_eq!(parse(&more).unwrap().unwrap().len, whole.len());
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n").is_err());
    }

    proptest! {
        #[test]
        fn an_answer_is_complete_only_at_its_last_byte(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut whole = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
            whole.extend_from_slice(&body);
            for cut in 0..whole.len() {
                prop_assert_eq!(parse(&whole[..cut]).unwrap(), None);
            }
            let frame = parse(&whole).unwrap().unwrap();
            prop_assert_eq!(Answer::new(frame, &whole).body, &body[..]);
        }
    }
}
