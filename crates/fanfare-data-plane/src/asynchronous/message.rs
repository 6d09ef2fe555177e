//! A request or a response as bytes, to be kept: every byte of target, fields and body as it was.
//!
//! A first line (`METHOD TARGET`, with ` chunked` if the length was not told, and ` trailers` if the client
//! takes those; or the status), a line `name: value` for each field, an empty line, the body. Field
//! values and targets hold no line ends, so there is one way to read it.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

/// A target holds no space, so this is never part of one.
const CHUNKED: &[u8] = b" chunked";
const TRAILERS: &[u8] = b" trailers";

/// A request that is kept.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    /// Whether its length was told before it was sent.
    pub(crate) counted: bool,
    /// Whether its client takes trailers.
    pub(crate) trailers: bool,
    pub(crate) body: Bytes,
}

/// A response that is kept.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Request {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(1024 + self.body.len());
        out.put_slice(self.method.as_str().as_bytes());
        out.put_u8(b' ');
        out.put_slice(self.target.as_bytes());
        if !self.counted {
            out.put_slice(CHUNKED);
        }
        if self.trailers {
            out.put_slice(TRAILERS);
        }
        out.put_slice(b"\r\n");
        finish(out, &self.headers, &self.body)
    }

    /// `None`: these are not the bytes of a request.
    pub(crate) fn decode(mut bytes: Bytes) -> Option<Self> {
        let (first, headers) = head(&mut bytes)?;
        let (line, trailers) = without(&first, TRAILERS);
        let (line, chunked) = without(line, CHUNKED);
        let (method, target) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        Some(Request { method, target: target.to_owned(), headers, counted: !chunked, trailers, body: bytes })
    }
}

impl Response {
    pub(crate) fn encode(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(512 + body.len());
        out.put_slice(status.as_str().as_bytes());
        out.put_slice(b"\r\n");
        finish(out, headers, body)
    }

    /// `None`: these are not the bytes of a response.
    pub(crate) fn decode(mut bytes: Bytes) -> Option<Self> {
        let (status, headers) = head(&mut bytes)?;
        Some(Response { status: StatusCode::from_bytes(&status).ok()?, headers, body: bytes })
    }
}

fn without<'a>(line: &'a [u8], mark: &[u8]) -> (&'a [u8], bool) {
    line.strip_suffix(mark).map_or((line, false), |line| (line, true))
}

fn finish(mut out: BytesMut, headers: &HeaderMap, body: &[u8]) -> Bytes {
    for (name, value) in headers {
        // The body says how long it is.
        if *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING {
            field(&mut out, name.as_str(), value.as_bytes());
        }
    }
    out.put_slice(b"\r\n");
    out.put_slice(body);
    out.freeze()
}

fn field(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

/// Takes the first line and the fields off.
fn head(bytes: &mut Bytes) -> Option<(Bytes, HeaderMap)> {
    let first = line(bytes)?;
    let mut headers = HeaderMap::new();
    loop {
        let line = line(bytes)?;
        if line.is_empty() {
            return Some((first, headers));
        }
        let colon = line.windows(2).position(|pair| pair == b": ")?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        headers.append(name, HeaderValue::from_bytes(&line[colon + 2..]).ok()?);
    }
}

fn line(bytes: &mut Bytes) -> Option<Bytes> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = bytes.split_to(end);
    let _ = bytes.split_to(2);
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_byte_for_byte() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static(""));
        headers.append("x-a", HeaderValue::from_bytes(b" caf\xe9: a ").unwrap());
        headers.append("cookie", HeaderValue::from_static("a=b; c=d"));
        for (counted, body) in
            [(true, &b"\r\n\r\nx: y\r\n\0\xff"[..]), (false, b"abc"), (true, b""), (false, b"")]
        {
            let request = Request {
                method: Method::from_bytes(b"PROPFIND").unwrap(),
                target: "/a%2Fb//?x=%20&\"q\"".into(),
                headers: headers.clone(),
                counted,
                trailers: !counted,
                body: Bytes::from_static(body),
            };
            let back = Request::decode(request.encode()).unwrap();
            assert_eq!((&back.method, &back.target), (&request.method, &request.target));
            assert_eq!((&back.headers, back.counted, &back.body[..]), (&headers, counted, body));
            let response = Response::encode(StatusCode::IM_A_TEAPOT, &headers, body);
            let back = Response::decode(response).unwrap();
            assert_eq!(
                (back.status, &back.headers, &back.body[..]),
                (StatusCode::IM_A_TEAPOT, &headers, body)
            );
        }
        for bad in [&b""[..], b"GET", b"GET /\r\n", b"GET /\r\nx\r\n\r\n", b"GET /\r\n: x\r\n\r\n"] {
            assert!(Request::decode(Bytes::from_static(bad)).is_none(), "{bad:?}");
        }
    }
}
