//! What comes back: heads and how long their bodies are.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};

use crate::chunked::Chunked;
use crate::{HEADERS_MAX, Malformed};

/// How the end of a response's body is told.
#[derive(Debug)]
pub(crate) enum Framing {
    /// So many bytes are left.
    Length(u64),
    Chunked(Chunked),
    /// Everything until the peer closes.
    Close,
}

/// A response's head, understood.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) response: Response<()>,
    pub(crate) framing: Framing,
    /// Whether the connection may serve another request after this response.
    pub(crate) keep_alive: bool,
}

/// Parses a complete head: everything up to and with its empty line.
pub(crate) fn parse(head: &Bytes, method: &Method) -> Result<Head, Malformed> {
    let mut slots = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let status =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, head, &mut slots);
    match status {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Ok(_) => return Err(Malformed::Field),
        Err(httparse::Error::TooManyHeaders) => return Err(Malformed::TooManyHeaders),
        Err(error) => return Err(Malformed::Head(error)),
    }
    let version = if parsed.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let code = parsed.code.ok_or(Malformed::Status)?;
    let status = StatusCode::from_u16(code).map_err(|_| Malformed::Status)?;
    let headers = fields(head, parsed.headers)?;
    let declared = declared_length(&headers, version)?;
    let bodiless = *method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    let framing = if bodiless { Framing::Length(0) } else { declared };
    let keep_alive = keep_alive(&headers, version) && !matches!(framing, Framing::Close);
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = version;
    *response.headers_mut() = headers;
    Ok(Head { response, framing, keep_alive })
}

/// Fields that a proxy adds to a response. A map that has to grow for them is made twice; and servers that keep the map
/// for the next request's fields, as hyper does, have room for what is added to those.
const FIELDS_ADDED: usize = 8;

/// Fields that httparse found in `block`, as slices of it.
pub(crate) fn fields(block: &Bytes, parsed: &[httparse::Header<'_>]) -> Result<HeaderMap, Malformed> {
    let mut headers = HeaderMap::with_capacity(parsed.len() + FIELDS_ADDED);
    for field in parsed {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Malformed::Field)?;
        let value = if field.value.is_empty() { Bytes::new() } else { block.slice_ref(field.value) };
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| Malformed::Field)?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// RFC 9112, section 6.3, without the lenience that it permits.
fn declared_length(headers: &HeaderMap, version: Version) -> Result<Framing, Malformed> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let (length, encoding) = (lengths.next(), encodings.next());
    if lengths.next().is_some() {
        return Err(Malformed::LengthRepeated);
    }
    match (length, encoding) {
        (Some(_), Some(_)) => Err(Malformed::LengthAndEncoding),
        (None, None) => Ok(Framing::Close),
        (Some(length), None) => decimal(length.as_bytes()).map(Framing::Length),
        (None, Some(encoding)) => {
            let chunked = encoding.as_bytes().eq_ignore_ascii_case(b"chunked") && encodings.next().is_none();
            if chunked && version == Version::HTTP_11 {
                Ok(Framing::Chunked(Chunked::Size))
            } else {
                Err(Malformed::Encoding)
            }
        }
    }
}

fn decimal(digits: &[u8]) -> Result<u64, Malformed> {
    if digits.contains(&b',') {
        return Err(Malformed::LengthRepeated);
    }
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Malformed::Length);
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let tens = number.checked_mul(10).ok_or(Malformed::Length)?;
        tens.checked_add(u64::from(digit - b'0')).ok_or(Malformed::Length)
    })
}

fn keep_alive(headers: &HeaderMap, version: Version) -> bool {
    let mut close = false;
    let mut keep = false;
    for value in headers.get_all(CONNECTION) {
        for option in value.as_bytes().split(|byte| *byte == b',') {
            let option = option.trim_ascii();
            close |= option.eq_ignore_ascii_case(b"close");
            keep |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    !close && (keep || version == Version::HTTP_11)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str, method: &Method) -> Result<(String, bool), Malformed> {
        let head = super::parse(&Bytes::copy_from_slice(head.as_bytes()), method)?;
        let framing = match head.framing {
            Framing::Length(length) => length.to_string(),
            Framing::Chunked(_) => "chunked".into(),
            Framing::Close => "close".into(),
        };
        Ok((framing, head.keep_alive))
    }

    #[test]
    fn framings() {
        // Status and fields, framing for GET, whether the connection is kept.
        let cases = [
            ("1.1 200 OK\r\nContent-Length: 5", "5", true),
            ("1.1 200 OK\r\nContent-Length: 0", "0", true),
            ("1.1 200 \r\ncontent-length:18446744073709551615", "18446744073709551615", true),
            ("1.1 200 OK\r\nTransfer-Encoding: chunked", "chunked", true),
            ("1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\nConnection: close", "chunked", false),
            ("1.1 200 OK\r\nContent-Length: 5\r\nConnection: x, Close", "5", false),
            ("1.1 200 OK\r\nX: y", "close", false),
            ("1.0 200 OK\r\nContent-Length: 5", "5", false),
            ("1.0 200 OK\r\nContent-Length: 5\r\nConnection: Keep-Alive", "5", true),
            ("1.1 204 No Content\r\nX: y", "0", true),
            ("1.1 304 Not Modified\r\nContent-Length: 99", "0", true),
            ("1.1 204 No Content\r\nTransfer-Encoding: chunked", "0", true),
        ];
        for (head, framing, kept) in cases {
            let head = format!("HTTP/{head}\r\n\r\n");
            assert_eq!(parse(&head, &Method::GET), Ok((framing.into(), kept)), "{head:?}");
            assert_eq!(parse(&head, &Method::HEAD).unwrap().0, "0", "{head:?}");
        }
    }

    #[test]
    fn what_others_might_read_differently_is_refused() {
        let cases = [
            ("content-length: 5\r\ncontent-length: 5", Malformed::LengthRepeated),
            ("content-length: 5\r\ncontent-length: 6", Malformed::LengthRepeated),
            ("content-length: 5, 5", Malformed::LengthRepeated),
            ("content-length: +5", Malformed::Length),
            ("content-length: 0x5", Malformed::Length),
            ("content-length: 5 5", Malformed::Length),
            ("content-length:", Malformed::Length),
            ("content-length: 18446744073709551616", Malformed::Length),
            ("content-length: 5\r\ntransfer-encoding: chunked", Malformed::LengthAndEncoding),
            ("transfer-encoding: gzip, chunked", Malformed::Encoding),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked", Malformed::Encoding),
            ("transfer-encoding: identity", Malformed::Encoding),
            ("transfer-encoding: xchunked", Malformed::Encoding),
            ("transfer-encoding: chunked\x0b", Malformed::Head(httparse::Error::HeaderValue)),
            ("a: b\r\n folded: c", Malformed::Head(httparse::Error::HeaderName)),
            ("content-length : 5", Malformed::Head(httparse::Error::HeaderName)),
            ("a\0: b", Malformed::Head(httparse::Error::HeaderName)),
            ("a: b\rc", Malformed::Head(httparse::Error::HeaderValue)),
            ("no-colon", Malformed::Head(httparse::Error::HeaderName)),
        ];
        for (fields, why) in cases {
            for method in [Method::GET, Method::HEAD] {
                let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
                assert_eq!(parse(&head, &method), Err(why), "{fields:?}");
            }
        }
        assert_eq!(
            parse("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", &Method::GET),
            Err(Malformed::Encoding)
        );
        for line in ["", "HTTP/1.1", "HTTP/2.0 200 OK", "HTTP/1.1 99 x", "HTTP/1.1 2000 x", "http/1.1 200 OK"]
        {
            assert!(parse(&format!("{line}\r\n\r\n"), &Method::GET).is_err(), "{line:?}");
        }
    }
}
