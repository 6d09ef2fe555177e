//! What is wrong with bytes that the server took for no request: it says no more than a status.

use std::borrow::Cow;

use fanfare_types::Reason;
use fanfare_types::limits::{REQUEST_FIELDS_MAX, REQUEST_HEAD_BYTES_MAX};
use http::StatusCode;

use crate::problem::{Problem, quoted};

/// The largest `Content-Length` that the server takes; the two numbers beyond stand for bodies without one.
const LENGTH_MAX: u64 = u64::MAX - 2;

/// Bytes that are kept of what a client says while it has no request under way.
const HEARD_BYTES_MAX: usize = 16 * 1024;
/// Room that is kept for the next request's.
const HEARD_BYTES_KEPT: usize = 2 * 1024;

/// The beginning of what a client has said since its last request.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    bytes: Vec<u8>,
    /// How many requests had come before.
    requests: u64,
    /// Its beginning may have come with the request before it, and is not here.
    cut: bool,
}

impl Heard {
    /// Takes what was read after so many requests.
    pub(crate) fn note(&mut self, requests: u64, read: &[u8]) {
        if requests != self.requests {
            self.requests = requests;
            self.cut |= memchr::memmem::find(&self.bytes, b"\r\n\r\n") != self.bytes.len().checked_sub(4);
            self.bytes.clear();
            self.bytes.shrink_to(HEARD_BYTES_KEPT);
        }
        let room = HEARD_BYTES_MAX - self.bytes.len();
        self.bytes.extend_from_slice(&read[..read.len().min(room)]);
    }

    /// Something was read while a request was under way: the rest of its body, or more.
    pub(crate) fn note_other(&mut self, read: &[u8]) {
        self.cut |= !read.is_empty();
    }

    /// From its beginning; nothing where that is not known to be here.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.cut { &[] } else { &self.bytes }
    }
}

/// Why the server refused with `status` what began with `heard`, of which the end may be missing.
pub(crate) fn problem(status: StatusCode, heard: &[u8]) -> Problem {
    let (line, fields) = lines(heard);
    if status == StatusCode::URI_TOO_LONG {
        return Problem::new(Reason::TooLarge, "the request's target is too long").with_status(status);
    }
    if let Some(wrong) = fields.clone().find_map(wrong_length).or_else(|| differing(fields.clone())) {
        return Problem::new(Reason::BadRequest, wrong);
    }
    if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE {
        let detail =
            format!("the head has more than {REQUEST_FIELDS_MAX} fields or {REQUEST_HEAD_BYTES_MAX} bytes");
        return Problem::new(Reason::TooLarge, detail).with_status(status);
    }
    let detail = wrong_line(line).or_else(|| fields.clone().find_map(wrong_field));
    let detail = detail.unwrap_or("this is not a request of HTTP/1.1, HTTP/1.0 or HTTP/2".into());
    Problem::new(Reason::BadRequest, detail).with_status(status)
}

/// The request line and the complete lines after it, up to the end of the head.
fn lines(heard: &[u8]) -> (&[u8], impl Iterator<Item = &[u8]> + Clone) {
    // Empty lines before a request are none of it.
    let begin = heard.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(heard.len());
    let complete = memchr::memrchr(b'\n', heard).map_or(begin, |end| end.max(begin));
    let mut lines = heard[begin..complete]
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    (first, lines.take_while(|line| !line.is_empty()))
}

fn length(line: &[u8]) -> Option<&[u8]> {
    let colon = memchr::memchr(b':', line)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    name.trim_ascii().eq_ignore_ascii_case(b"content-length").then_some(value)
}

fn wrong_length(line: &[u8]) -> Option<Cow<'static, str>> {
    let value = length(line)?;
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    match number {
        Some(0..=LENGTH_MAX) => None,
        _ => {
            let value = quoted(value);
            Some(format!("Content-Length is {value}; allowed: one decimal number, 0 to {LENGTH_MAX}").into())
        }
    }
}

fn differing<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Option<Cow<'static, str>> {
    let mut lengths = fields.filter_map(length);
    let first = lengths.next()?;
    let other = lengths.find(|other| *other != first)?;
    let (first, other) = (quoted(first), quoted(other));
    Some(format!("Content-Length is {first} and {other}; allowed: one decimal number").into())
}

fn wrong_line(line: &[u8]) -> Option<Cow<'static, str>> {
    let words = line.split(|byte| *byte == b' ').count();
    let version = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    if words == 3 && version.starts_with(b"HTTP/") && !matches!(version, b"HTTP/1.1" | b"HTTP/1.0") {
        return Some(
            format!("the version is {}; allowed: HTTP/1.1, HTTP/1.0 or HTTP/2", quoted(version)).into(),
        );
    }
    None
}

fn wrong_field(line: &[u8]) -> Option<Cow<'static, str>> {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Some(
            format!("the line {} goes on with the one before; allowed: a field a line", quoted(line)).into(),
        );
    }
    let Some(colon) = memchr::memchr(b':', line) else {
        return Some(format!("the line {} is no header field; allowed: NAME: VALUE", quoted(line)).into());
    };
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().all(token) {
        let name = quoted(name);
        return Some(
            format!("a header field is called {name}; allowed: letters, digits and -_.!#$%&'*+^`|~").into(),
        );
    }
    if value.iter().any(|byte| (*byte < 32 && *byte != b'\t') || *byte == 127) {
        let (name, value) = (String::from_utf8_lossy(name).into_owned(), quoted(value));
        return Some(
            format!("the field {name:.80} is {value}; allowed: text without control characters").into(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, head: &str) -> (u16, String) {
        let problem = problem(StatusCode::from_u16(status).unwrap(), head.as_bytes());
        (problem.status(), problem.detail().to_owned())
    }

    #[test]
    fn what_is_kept_is_of_the_last_request_and_bounded() {
        let mut heard = Heard::default();
        heard.note(0, b"GET /1");
        heard.note(0, b" HTTP/1.1");
        assert_eq!(heard.bytes(), b"GET /1 HTTP/1.1");
        heard.note(0, b"\r\n\r\n");
        heard.note(1, b"GET /2\r\n\r\n");
        heard.note(2, &[b'x'; 100_000]);
        heard.note(2, b"y");
        assert_eq!(heard.bytes(), [b'x'; HEARD_BYTES_MAX]);
        heard.note(3, b"z");
        assert!(heard.bytes.capacity() <= HEARD_BYTES_KEPT);
    }

    #[test]
    fn what_does_not_begin_here_is_not_judged() {
        let good = b"GET / HTTP/1.1\r\n\r\n".as_slice();
        let mut heard = Heard::default();
        heard.note(0, good);
        heard.note(1, b"a b HTTP/9\r\n");
        assert_eq!(heard.bytes(), b"a b HTTP/9\r\n");
        let mut heard = Heard::default();
        heard.note(0, &[good, b"POST / HTTP/1.1\r\nx: "].concat());
        heard.note(1, b"a b HTTP/9\r\n");
        assert_eq!(heard.bytes(), b"");
        let mut heard = Heard::default();
        heard.note(0, good);
        heard.note_other(b"GET ");
        heard.note(1, b"a b HTTP/9\r\n");
        assert_eq!(heard.bytes(), b"");
    }

    #[test]
    fn what_is_wrong_with_a_head_is_named() {
        let of_length =
            |value: &str| format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {value}\r\n\r\n");
        let long = "9".repeat(30_000);
        let lengths =
            ["18446744073709551615", "18446744073709551614", "18446744073709551616", "+5", "-5", "5, 5"];
        for value in lengths.iter().chain(&["5 5", "0x5", "", "five", "5\u{1b}[2J", &*long]) {
            for server in [400, 431] {
                let (status, detail) = said(server, &of_length(value));
                assert_eq!(status, 400, "{value}");
                assert!(detail.starts_with("Content-Length is \""), "{detail}");
                assert!(detail.ends_with("0 to 18446744073709551613") && detail.len() < 250, "{detail}");
                assert!(!detail.contains('\u{1b}'), "{detail}");
            }
        }
        let twice = said(400, "POST / HTTP/1.1\r\ncontent-length: 1\r\nContent-Length: 2\r\n\r\n").1;
        assert!(twice.starts_with("Content-Length is \"1\" and \"2\""), "{twice}");
        let cases = [
            (400, "GET / HTTP/2.5\r\n\r\n", 400, "the version is \"HTTP/2.5\""),
            (400, "GET / HTTP/1.1\r\nno-colon\r\n\r\n", 400, "the line \"no-colon\" is no header field"),
            (400, "GET / HTTP/1.1\r\na b: c\r\n\r\n", 400, "called \"a b\""),
            (400, "GET / HTTP/1.1\r\nx: a\0b\r\n\r\n", 400, "the field x is \" a\\0b\""),
            (400, "GET / HTTP/1.1\r\nx: a\r\n b\r\n\r\n", 400, "goes on with the one before"),
            (400, "nonsense\r\n\r\n", 400, "this is not a request of HTTP/1.1"),
            (400, "\x16\x03\x01", 400, "this is not a request of HTTP/1.1"),
            (400, "", 400, "this is not a request of HTTP/1.1"),
            (431, "GET / HTTP/1.1\r\nx: yyyyy", 431, "more than 100 fields or 98304 bytes"),
            (431, &of_length("5"), 431, "more than 100 fields or 98304 bytes"),
            (414, "GET /yyyyy", 414, "target is too long"),
        ];
        for (server, head, status, detail) in cases {
            let said = said(server, head);
            assert!(said.0 == status && said.1.contains(detail), "{head:?}: {said:?}");
        }
    }
}
