//! Answers of an HTTP/1.1 server, as far as a load generator needs them.

use crate::error::{Context, Error, Result};

/// Header fields of one answer.
const HEADERS_MAX: usize = 64;
/// Bytes of one answer, head and body.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where an answer is in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) status: u16,
    pub(crate) head_len: usize,
    pub(crate) len: usize,
    /// The server closes the connection after it.
    pub(crate) closes: bool,
}

/// One complete answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    head: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> Answer<'a> {
    pub(crate) fn new(frame: Frame, buffer: &'a [u8]) -> Self {
        Answer {
            status: frame.status,
            head: &buffer[..frame.head_len],
            body: &buffer[frame.head_len..frame.len],
        }
    }

    /// The first field of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&'a str> {
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        response.parse(self.head).ok()?;
        let field = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(field.value).ok()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.body).into_owned()
    }
}

/// The answer at the beginning of `buffer`; `None` while it is incomplete. Bodies of a stated length only: what this
/// program asks for has them, and counting chunks would cost the generator more than the servers.
pub(crate) fn parse(buffer: &[u8]) -> Result<Option<Frame>> {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(head_len) =
        response.parse(buffer).context("an answer that is not HTTP/1.1")?
    else {
        return Ok(None);
    };
    let status = response.code.unwrap_or_default();
    let (mut length, mut closes) = (None, false);
    for field in response.headers.iter() {
        if field.name.eq_ignore_ascii_case("content-length") {
            length = std::str::from_utf8(field.value).ok().and_then(|text| text.trim().parse::<usize>().ok());
        } else if field.name.eq_ignore_ascii_case("connection") {
            closes = field.value.eq_ignore_ascii_case(b"close");
        }
    }
    let length = match (status, length) {
        (204 | 304, _) => 0,
        (_, Some(length)) if length <= ANSWER_BYTES_MAX => length,
        _ => return Err(Error::new(format!("an answer with status {status} and no usable content-length"))),
    };
    let len = head_len + length;
    Ok((buffer.len() >= len).then_some(Frame { status, head_len, len, closes }))
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
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(parse(b"SSH-2.0\r\n\r\n").is_err());
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap().len, 27);
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
