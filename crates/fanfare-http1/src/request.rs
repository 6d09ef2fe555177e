//! What is sent.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::{Body, Frame, SizeHint};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// A request's head, without what only concerns the connection.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// Any method but `CONNECT`.
    pub method: &'a Method,
    /// Path and query (`*` for `OPTIONS`), without spaces and control characters.
    pub target: &'a str,
    /// With exactly one `Host`. Fields that concern one connection (`Connection`, `Keep-Alive`, `Proxy-Connection`,
    /// `TE`, `Upgrade`) and the framing (`Content-Length`, `Transfer-Encoding`) are left out: this crate writes its own.
    pub headers: &'a HeaderMap,
    /// The protocol to switch to, if the peer agrees.
    pub upgrade: Option<&'a HeaderValue>,
    /// Whether trailers of the response are wanted; some peers send them only then.
    pub trailers: bool,
    /// Is told of each informational response (1xx, but not 101) as it comes.
    pub informational: Option<&'a Arc<dyn OnInformational>>,
}

/// Whoever wants to know of informational responses.
pub trait OnInformational: fmt::Debug + Send + Sync {
    /// One has come.
    fn informational(&self, status: StatusCode, fields: &HeaderMap);
}

impl<'a> RequestHead<'a> {
    /// A request that asks for nothing but its response.
    #[must_use]
    pub fn new(method: &'a Method, target: &'a str, headers: &'a HeaderMap) -> Self {
        RequestHead { method, target, headers, upgrade: None, trailers: false, informational: None }
    }
}

/// How the end of a request's body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Empty,
    Length(u64),
    Chunked,
}

impl Framing {
    fn of(body: &impl Body) -> Self {
        if body.is_end_stream() {
            return Framing::Empty;
        }
        match body.size_hint().exact() {
            Some(0) => Framing::Empty,
            Some(length) => Framing::Length(length),
            None => Framing::Chunked,
        }
    }
}

impl RequestHead<'_> {
    /// Writes the head to `out`.
    pub(crate) fn encode(&self, body: &impl Body, out: &mut BytesMut) -> Result<Framing, &'static str> {
        self.check()?;
        let framing = Framing::of(body);
        out.reserve(512);
        out.put_slice(self.method.as_str().as_bytes());
        out.put_u8(b' ');
        out.put_slice(self.target.as_bytes());
        out.put_slice(b" HTTP/1.1\r\n");
        for (name, value) in self.headers {
            if !of_connection(name) {
                put_field(out, name.as_str(), value.as_bytes());
            }
        }
        if let Some(protocol) = self.upgrade {
            out.put_slice(b"connection: upgrade\r\n");
            put_field(out, "upgrade", protocol.as_bytes());
        } else if self.trailers {
            out.put_slice(b"connection: te\r\nte: trailers\r\n");
        }
        match framing {
            // RFC 9110, section 8.6: methods that give a body a meaning say that there is none.
            Framing::Empty if expects_body(self.method) => out.put_slice(b"content-length: 0\r\n"),
            Framing::Empty => {}
            Framing::Length(length) => {
                let mut digits = [0; 20];
                put_field(out, "content-length", decimal(length, &mut digits));
            }
            Framing::Chunked => out.put_slice(b"transfer-encoding: chunked\r\n"),
        }
        out.put_slice(b"\r\n");
        Ok(framing)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.method == Method::CONNECT {
            return Err("CONNECT is not supported");
        }
        let target = self.target.as_bytes();
        if target.first() != Some(&b'/') && target != b"*" {
            return Err("the target is not a path");
        }
        if target.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
            return Err("the target holds a space or a control character");
        }
        let mut hosts = self.headers.get_all(HOST).iter();
        if hosts.next().is_none() || hosts.next().is_some() {
            return Err("there must be one Host field");
        }
        Ok(())
    }
}

pub(crate) fn of_connection(name: &HeaderName) -> bool {
    *name == CONTENT_LENGTH
        || *name == TRANSFER_ENCODING
        || *name == CONNECTION
        || *name == UPGRADE
        || *name == TE
        || *name == KEEP_ALIVE
        || *name == PROXY_CONNECTION
}

fn expects_body(method: &Method) -> bool {
    *method == Method::POST || *method == Method::PUT || *method == Method::PATCH
}

/// A valid `HeaderValue` holds neither CR nor LF, so a field can never become two.
pub(crate) fn put_field(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// A request's body that can be given back whole as long as nothing of it was written.
pub struct RequestBody<B> {
    first: Option<Bytes>,
    body: B,
}

impl<B> RequestBody<B> {
    /// A body that has not been read from.
    pub fn new(body: B) -> Self {
        RequestBody { first: None, body }
    }

    /// A body whose first bytes have been read already.
    pub(crate) fn with_first(first: Bytes, body: B) -> Self {
        RequestBody { first: (!first.is_empty()).then_some(first), body }
    }

    /// The body beneath, less what has been read of it already.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.body
    }

    /// The bytes that have been read already, and the rest.
    pub fn into_parts(self) -> (Option<Bytes>, B) {
        (self.first, self.body)
    }

    pub(crate) fn into_inner(self) -> B {
        self.body
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody")
            .field("read_bytes", &self.first.as_ref().map(Bytes::len))
            .finish_non_exhaustive()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let rest = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Empty, Full, StreamBody};

    fn host() -> HeaderMap {
        HeaderMap::from_iter([(HOST, HeaderValue::from_static("h"))])
    }

    fn encode(method: &Method, headers: &HeaderMap, body: &impl Body) -> String {
        let mut out = BytesMut::new();
        let head = RequestHead::new(method, "/a?b", headers);
        head.encode(body, &mut out).unwrap();
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn framing_follows_the_body() {
        let empty = Empty::<Bytes>::new();
        assert_eq!(encode(&Method::GET, &host(), &empty), "GET /a?b HTTP/1.1\r\nhost: h\r\n\r\n");
        assert_eq!(
            encode(&Method::POST, &host(), &empty),
            "POST /a?b HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
        );
        let full = Full::new(Bytes::from_static(b"0123456789"));
        assert!(encode(&Method::GET, &host(), &full).ends_with("\r\ncontent-length: 10\r\n\r\n"));
        let stream = StreamBody::new(futures_util::stream::empty::<Result<Frame<Bytes>, std::io::Error>>());
        assert!(encode(&Method::PUT, &host(), &stream).ends_with("\r\ntransfer-encoding: chunked\r\n\r\n"));
    }

    #[test]
    fn the_callers_framing_and_connection_fields_are_not_written() {
        let mut headers = host();
        for name in [
            "connection",
            "te",
            "upgrade",
            "keep-alive",
            "proxy-connection",
            "transfer-encoding",
            "content-length",
        ] {
            headers.insert(name, HeaderValue::from_static("99"));
        }
        headers.insert("x-kept", HeaderValue::from_static("yes"));
        let body = Full::new(Bytes::from_static(b"abc"));
        assert_eq!(
            encode(&Method::POST, &headers, &body),
            "POST /a?b HTTP/1.1\r\nhost: h\r\nx-kept: yes\r\ncontent-length: 3\r\n\r\n"
        );
    }

    #[test]
    fn trailers_are_asked_for_as_a_matter_of_the_connection() {
        let (method, headers) = (Method::GET, host());
        let mut out = BytesMut::new();
        let head = RequestHead { trailers: true, ..RequestHead::new(&method, "/", &headers) };
        head.encode(&Empty::<Bytes>::new(), &mut out).unwrap();
        assert_eq!(out, "GET / HTTP/1.1\r\nhost: h\r\nconnection: te\r\nte: trailers\r\n\r\n");
    }

    #[test]
    fn what_could_be_read_as_two_requests_is_refused() {
        let mut twice = host();
        twice.append(HOST, HeaderValue::from_static("b"));
        let cases = [
            (Method::CONNECT, "/", host()),
            (Method::GET, "", host()),
            (Method::GET, "http://h/", host()),
            (Method::GET, "/a b", host()),
            (Method::GET, "/a\r\nx: y", host()),
            (Method::GET, "/a\x7f", host()),
            (Method::GET, "/", HeaderMap::new()),
            (Method::GET, "/", twice),
        ];
        for (method, target, headers) in cases {
            let head = RequestHead::new(&method, target, &headers);
            assert!(
                head.encode(&Empty::<Bytes>::new(), &mut BytesMut::new()).is_err(),
                "{method} {target:?}"
            );
        }
        assert!(HeaderValue::from_bytes(b"a\r\nb: c").is_err());
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 7, 10, 12_345, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }

    #[tokio::test]
    async fn a_body_given_back_is_whole() {
        let body = RequestBody::with_first(Bytes::from_static(b"ab"), Full::new(Bytes::from_static(b"cd")));
        assert_eq!(body.size_hint().exact(), Some(4));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abcd");
        assert!(RequestBody::with_first(Bytes::new(), Empty::<Bytes>::new()).is_end_stream());
    }
}
