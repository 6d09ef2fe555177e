//! For servers: what is wrong with bytes that the server took for no request. It says no more than a status.

use std::borrow::Cow;

use http::StatusCode;

use crate::own_words::Turn;

/// The largest `Content-Length` that the server takes; the two numbers beyond stand for bodies without one.
const LENGTH_MAX: u64 = u64::MAX - 2;

/// Bytes of a target that the server takes.
const TARGET_BYTES_MAX: usize = 65_534;
/// Characters of what a client said that are repeated to it.
const QUOTED_CHARS_MAX: usize = 80;
/// Bytes that are kept of what a client says while it has no request under way.
const HEARD_BYTES_MAX: usize = 16 * 1024;
/// Room that is kept for the next request's.
const HEARD_BYTES_KEPT: usize = 2 * 1024;

/// The beginning of what a client has said since its last request.
#[derive(Debug, Default)]
pub struct Heard {
    bytes: Vec<u8>,
    /// How many requests had come before.
    requests: u64,
    /// Its beginning may have come with the request before it, and is not here.
    cut: bool,
}

impl Heard {
    /// Takes what was read while it was somebody's turn to speak.
    pub fn read(&mut self, turn: &Turn, read: &[u8]) {
        match turn.settled() {
            Some(last) => self.note(last, read),
            // The rest of a request's body, or more.
            None => self.cut |= !read.is_empty(),
        }
    }

    /// Takes what was read after so many requests.
    fn note(&mut self, requests: u64, read: &[u8]) {
        if requests != self.requests {
            match after_heads(&self.bytes, requests - self.requests) {
                Some(rest) => {
                    let passed = self.bytes.len() - rest.len();
                    self.bytes.drain(..passed);
                }
                None => {
                    self.cut = true;
                    self.bytes.clear();
                }
            }
            self.requests = requests;
            self.bytes.shrink_to(HEARD_BYTES_KEPT);
        }
        let room = HEARD_BYTES_MAX - self.bytes.len();
        self.bytes.extend_from_slice(&read[..read.len().min(room)]);
    }

    /// What came after so many requests, from its beginning; nothing where that is not known to be here.
    fn after(&self, requests: u64) -> &[u8] {
        if self.cut {
            return &[];
        }
        after_heads(&self.bytes, requests - self.requests).unwrap_or_default()
    }
}

/// What is behind so many heads of requests without bodies.
fn after_heads(mut bytes: &[u8], heads: u64) -> Option<&[u8]> {
    for _ in 0..heads {
        let end = memchr::memmem::find(bytes, b"\r\n\r\n")?;
        let (head, rest) = bytes.split_at(end + 4);
        let (_, mut fields) = lines(head);
        let has_body = |line: &[u8]| {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii();
            name.eq_ignore_ascii_case(b"transfer-encoding")
                || length(line).is_some_and(|length| length.iter().any(|digit| *digit != b'0'))
        };
        if fields.any(has_body) {
            return None;
        }
        bytes = rest;
    }
    Some(bytes)
}

/// What a server's own limits are.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Fields of a head.
    pub fields_max: usize,
    /// Bytes of a head.
    pub head_bytes_max: usize,
}

/// Why bytes are no request.
#[derive(Clone, Debug)]
pub struct Misread {
    /// What they are to be answered with.
    pub status: StatusCode,
    /// What is wrong, with which value, and what is allowed.
    pub detail: Cow<'static, str>,
}

impl Misread {
    /// Why the server refused with `status` what it has `heard` since the last request, of which the end may be missing.
    pub fn new(status: StatusCode, heard: &Heard, turn: &Turn, limits: Limits) -> Self {
        Misread::of(status, turn.settled().map_or(&[], |requests| heard.after(requests)), limits)
    }

    fn of(status: StatusCode, heard: &[u8], limits: Limits) -> Self {
        let (line, fields) = lines(heard);
        if status == StatusCode::URI_TOO_LONG {
            let detail = format!("the request's target has more than {TARGET_BYTES_MAX} bytes");
            return Misread { status, detail: detail.into() };
        }
        if let Some(detail) = fields.clone().find_map(wrong_length).or_else(|| differing(fields.clone())) {
            return Misread { status: StatusCode::BAD_REQUEST, detail };
        }
        if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE {
            let Limits { fields_max, head_bytes_max } = limits;
            let detail = format!("the head has more than {fields_max} fields or {head_bytes_max} bytes");
            return Misread { status, detail: detail.into() };
        }
        let detail = wrong_line(line).or_else(|| fields.clone().find_map(wrong_field));
        let detail = detail.unwrap_or("this is not a request of HTTP/1.1, HTTP/1.0 or HTTP/2".into());
        Misread { status, detail }
    }

    /// Whether it is the size that is wrong.
    pub fn is_too_large(&self) -> bool {
        matches!(self.status, StatusCode::URI_TOO_LONG | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
    }
}

/// What a client said, in quotation marks, cut, and without anything that would move a cursor.
pub fn quoted(said: impl AsRef<[u8]>) -> String {
    let said = said.as_ref();
    let text = String::from_utf8_lossy(&said[..said.len().min(4 * QUOTED_CHARS_MAX + 4)]);
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
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
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let &[method, target, version] = words.as_slice() else {
        let detail = format!("{} begins no request of HTTP/1.1, HTTP/1.0 or HTTP/2", quoted(line));
        return (!line.is_empty()).then(|| detail.into());
    };
    if !matches!(version, b"HTTP/1.1" | b"HTTP/1.0") {
        let version = quoted(version);
        return Some(format!("the version is {version}; allowed: HTTP/1.1, HTTP/1.0 or HTTP/2").into());
    }
    if method.is_empty() || !method.iter().all(is_of_token) {
        let method = quoted(method);
        return Some(format!("the method is {method}; allowed: letters, digits and -_.!#$%&'*+^`|~").into());
    }
    // The server takes more than a target may have, but not these.
    if target.iter().any(|byte| byte.is_ascii_control() || b"<>`".contains(byte)) {
        let target = quoted(target);
        return Some(
            format!("the target is {target}; what is not visible, and <>`, is to be percent-encoded").into(),
        );
    }
    None
}

fn is_of_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

fn wrong_field(line: &[u8]) -> Option<Cow<'static, str>> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Some(
            format!("the line {} goes on with the one before; allowed: a field a line", quoted(line)).into(),
        );
    }
    let Some(colon) = memchr::memchr(b':', line) else {
        return Some(format!("the line {} is no header field; allowed: NAME: VALUE", quoted(line)).into());
    };
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().all(is_of_token) {
        let name = quoted(name);
        return Some(
            format!("a header field is called {name}; allowed: letters, digits and -_.!#$%&'*+^`|~").into(),
        );
    }
    if value.iter().any(|byte| (*byte < 32 && *byte != b'\t') || *byte == 127) {
        let (name, value) = (String::from_utf8_lossy(name), quoted(value));
        return Some(
            format!("the field {name:.80} is {value}; allowed: text without control characters").into(),
        );
    }
    let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
    if name.eq_ignore_ascii_case(b"transfer-encoding") && !last.eq_ignore_ascii_case(b"chunked") {
        return Some(format!("Transfer-Encoding is {}; allowed: chunked", quoted(value.trim_ascii())).into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, head: &str) -> (u16, String) {
        let limits = Limits { fields_max: 100, head_bytes_max: 98_304 };
        let misread = Misread::of(StatusCode::from_u16(status).unwrap(), head.as_bytes(), limits);
        (misread.status.as_u16(), misread.detail.into_owned())
    }

    #[test]
    fn what_is_kept_is_of_the_last_request_and_bounded() {
        let mut heard = Heard::default();
        heard.note(0, b"GET /1");
        heard.note(0, b" HTTP/1.1");
        assert_eq!(heard.after(0), b"GET /1 HTTP/1.1");
        heard.note(0, b"\r\n\r\n");
        assert_eq!(heard.after(1), b"");
        heard.note(1, b"GET /2\r\n\r\n");
        heard.note(2, &[b'x'; 100_000]);
        heard.note(2, b"y");
        assert_eq!(heard.after(2), [b'x'; HEARD_BYTES_MAX]);
        heard.note(3, b"z");
        assert!(heard.bytes.capacity() <= HEARD_BYTES_KEPT);
    }

    #[test]
    fn what_does_not_begin_here_is_not_judged() {
        let good = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".as_slice();
        let with_body = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo".as_slice();
        let chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n".as_slice();
        type Case<'a> = (&'a [&'a [u8]], u64, &'a [u8]);
        let cases: [Case<'_>; 6] = [
            (&[b"a b"], 0, b"a b"),
            (&[good, b"a b"], 1, b"a b"),
            (&[good, good, b"a b"], 2, b"a b"),
            (&[with_body, b"a b"], 1, b""),
            (&[chunked, b"a b"], 1, b""),
            (&[good, chunked, b"a b"], 2, b""),
        ];
        for (said, requests, begins) in cases {
            let mut heard = Heard::default();
            heard.note(0, &said.concat());
            assert_eq!(heard.after(requests), begins, "in one piece: {said:?}");
            heard.note(requests, b" c");
            let all = if begins.is_empty() { Vec::new() } else { [begins, b" c"].concat() };
            assert_eq!(heard.after(requests), all, "in two: {said:?}");
        }
        let (mut heard, turn) = (Heard::default(), Turn::default());
        heard.note(0, good);
        turn.begin();
        heard.read(&turn, b"GET ");
        assert_eq!(heard.after(1), b"", "while a request is under way");
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
            (400, "nonsense\r\n\r\n", 400, "\"nonsense\" begins no request of HTTP/1.1"),
            (400, "GET /a b HTTP/1.1\r\n\r\n", 400, "\"GET /a b HTTP/1.1\" begins no request"),
            (400, "G(T / HTTP/1.1\r\n\r\n", 400, "the method is \"G(T\""),
            (400, "GET /<a> HTTP/1.1\r\n\r\n", 400, "the target is \"/<a>\""),
            (400, "POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 400, "Transfer-Encoding is \"gzip\""),
            (400, "\x16\x03\x01", 400, "this is not a request of HTTP/1.1"),
            (400, "", 400, "this is not a request of HTTP/1.1"),
            (431, "GET / HTTP/1.1\r\nx: yyyyy", 431, "more than 100 fields or 98304 bytes"),
            (431, &of_length("5"), 431, "more than 100 fields or 98304 bytes"),
            (414, "GET /yyyyy", 414, "more than 65534 bytes"),
        ];
        for (server, head, status, detail) in cases {
            let said = said(server, head);
            assert!(said.0 == status && said.1.contains(detail), "{head:?}: {said:?}");
        }
    }
}
