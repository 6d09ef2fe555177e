//! What a request is made of: the client's method, target, fields and body, as far as they are let in.

#![no_main]

use std::cell::RefCell;
use std::convert::Infallible;

use bytes::Bytes;
use fanfare_http1::{Connection, RequestBody, RequestHead};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::StreamBody;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[path = "../../crates/fanfare-http1/tests/it/strict.rs"]
#[expect(unreachable_pub, reason = "it is a module of a test there")]
mod strict;

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers"),
    );
}

type Fields<'a> = Vec<(&'a str, &'a [u8])>;

libfuzzer_sys::fuzz_target!(|input: (&str, &str, Fields, Vec<&[u8]>, Fields)| {
    let (method, target, fields, pieces, trailers) = input;
    let Ok(method) = Method::from_bytes(method.as_bytes()) else { return };
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(exchange(&method, target, &map(&fields), &pieces, map(&trailers)));
    });
});

fn map(fields: &Fields) -> HeaderMap {
    let made = fields.iter().filter_map(|(name, value)| {
        Some((HeaderName::try_from(*name).ok()?, HeaderValue::from_bytes(value).ok()?))
    });
    let mut headers = HeaderMap::new();
    made.for_each(|(name, value)| {
        headers.append(name, value);
    });
    headers
}

/// What is written is one request by the strictest reading, with this line and this body; or nothing.
async fn exchange(method: &Method, target: &str, headers: &HeaderMap, pieces: &[&[u8]], trailers: HeaderMap) {
    let (ours, mut theirs) = tokio::io::duplex(4096);
    let peer = async {
        let mut bytes = Vec::new();
        loop {
            let read = theirs.read_buf(&mut bytes).await;
            if matches!(read, Ok(0) | Err(_)) {
                assert!(bytes.is_empty(), "a part of a request");
                return None;
            }
            let request = strict::Strict::read(&bytes).expect("one request");
            if request.is_some() {
                let _ = theirs.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                return request;
            }
        }
    };
    let client = async {
        let frames = pieces.iter().map(|piece| http_body::Frame::data(Bytes::copy_from_slice(piece)));
        let frames = frames.chain([http_body::Frame::trailers(trailers)]);
        let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, Infallible>)));
        let head = RequestHead::new(method, target, headers);
        Connection::new(ours).send(head, RequestBody::new(body), |_| {}).await.is_ok()
    };
    let (request, sent) = tokio::join!(peer, client);
    assert_eq!(request.is_some(), sent);
    if let Some(request) = request {
        assert_eq!((request.method.as_str(), request.target.as_str()), (method.as_str(), target));
        assert_eq!(request.body, pieces.concat());
    }
}
