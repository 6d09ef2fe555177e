//! Whatever is given to be sent, what is written is one request, and the one that was given.

use std::convert::Infallible;

use bytes::Bytes;
use fanfare_http1::{Connection, RequestBody, RequestHead};
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::strict::Strict;

/// Fields that are written as the framing demands, not as they were given.
const NOT_PASSED: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "te", "upgrade", "content-length", "transfer-encoding"];

#[derive(Clone, Debug)]
struct Given {
    method: Method,
    target: String,
    headers: HeaderMap,
    /// Of them empty ones, too.
    pieces: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    has_length: bool,
}

/// Sends it to a peer that answers when it has read a whole request; what that is.
async fn written(given: &Given) -> Option<Strict> {
    let (ours, mut theirs) = tokio::io::duplex(64);
    let peer = async {
        let mut bytes = Vec::new();
        loop {
            // Its end is the sender's refusal.
            if theirs.read_buf(&mut bytes).await.unwrap() == 0 {
                assert!(bytes.is_empty(), "a part of a request: {:?}", String::from_utf8_lossy(&bytes));
                return None;
            }
            match Strict::read(&bytes) {
                Ok(None) => {}
                Ok(Some(request)) => {
                    theirs.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                    return Some(request);
                }
                Err(why) => panic!("{why}: {:?}", String::from_utf8_lossy(&bytes)),
            }
        }
    };
    let Given { method, target, headers, pieces, trailers, has_length } = given.clone();
    let client = async move {
        let head = RequestHead::new(&method, &target, &headers);
        let connection = Connection::new(ours);
        if has_length {
            let body = RequestBody::new(Full::new(Bytes::from(pieces.concat())));
            connection.send(head, body, |_| {}).await.map(drop).map_err(|sent| sent.error)
        } else {
            let frames = pieces.into_iter().map(Frame::data).chain(trailers.map(Frame::trailers));
            let body = RequestBody::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))));
            connection.send(head, body, |_| {}).await.map(drop).map_err(|sent| sent.error)
        }
    };
    let (request, sent) = tokio::join!(peer, client);
    assert_eq!(request.is_some(), sent.is_ok(), "{sent:?}");
    request
}

fn passed(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let kept = headers.iter().filter(|(name, _)| !NOT_PASSED.contains(&name.as_str()));
    kept.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().trim_ascii().to_vec())).collect()
}

fn field() -> impl Strategy<Value = (HeaderName, HeaderValue)> {
    let common = prop::sample::select(NOT_PASSED.to_vec()).prop_map(str::to_owned);
    let name = prop_oneof![4 => "[a-z!#$%&'*+.^_`|~0-9-]{1,12}", 1 => common];
    let value = prop_oneof![
        4 => "[ -~\t]{0,24}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..24),
        1 => Just(b"chunked".to_vec()),
        1 => Just(b"7".to_vec()),
    ];
    let made = |(name, value): (String, Vec<u8>)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(&value).ok()?))
    };
    (name, value).prop_filter_map("what no map of fields holds", made)
}

fn given() -> impl Strategy<Value = Given> {
    let method = prop_oneof![Just("GET".to_owned()), Just("POST".to_owned()), "[A-Za-z!-]{1,8}"];
    let target =
        prop_oneof![4 => "/[!-~]{0,30}", 1 => "/.{0,20}", 1 => any::<String>(), 1 => Just("*".to_owned())];
    let fields = proptest::collection::vec(field(), 0..8);
    let pieces = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..5);
    let trailers = proptest::option::of(proptest::collection::vec(field(), 0..4));
    (method, target, fields, 0..8_u8, pieces, trailers, any::<bool>()).prop_map(
        |(method, target, fields, hosts, pieces, trailers, has_length)| {
            let map = |fields: Vec<(HeaderName, HeaderValue)>| {
                let mut headers = HeaderMap::new();
                headers.extend(fields.into_iter().map(|(name, value)| (Some(name), value)));
                headers
            };
            let mut headers = map(fields);
            // Mostly one, sometimes none or two.
            for _ in 0..[1, 1, 1, 1, 1, 1, 0, 2][usize::from(hosts)] {
                headers.append("host", HeaderValue::from_static("h"));
            }
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let pieces = pieces.into_iter().map(Bytes::from).collect();
            Given { method, target, headers, pieces, trailers: trailers.map(map), has_length }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_written_is_one_request_and_the_one_that_was_given(given in given()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        if let Some(request) = runtime.block_on(written(&given)) {
            prop_assert_eq!(&request.method, given.method.as_str());
            prop_assert_eq!(&request.target, &given.target);
            prop_assert_eq!(&request.body, &given.pieces.concat());
            let mut fields = request.fields;
            fields.retain(|(name, _)| !NOT_PASSED.contains(&name.as_str()));
            prop_assert_eq!(fields, passed(&given.headers));
            let trailers = given.trailers.filter(|_| !given.has_length);
            prop_assert_eq!(request.trailers, trailers.as_ref().map(passed).unwrap_or_default());
        }
    }
}
