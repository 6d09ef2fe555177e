//! Every way to end a response, however its bytes are cut.

use bytes::Bytes;
use fanfare_http1::{ErrorKind, HEAD_BYTES_MAX, HEADERS_MAX, INFORMATIONAL_MAX, Malformed};
use http::Method;
use proptest::prelude::*;

use crate::script::{Outcome, Script, exchange};

struct Case {
    method: Method,
    bytes: &'static [u8],
    /// Whether the peer closes afterwards.
    then_end: bool,
    status: u16,
    body: &'static [u8],
    trailers: usize,
    kept: bool,
}

fn cases() -> Vec<Case> {
    let case = |method, bytes, then_end, status, body, trailers, kept| Case {
        method,
        bytes,
        then_end,
        status,
        body,
        trailers,
        kept,
    };
    let (get, head) = (|| Method::GET, Method::HEAD);
    vec![
        case(get(), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, 200, b"hello", 0, true),
        case(get(), b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, 200, b"", 0, true),
        case(get(), b"HTTP/1.1 204 No Content\r\n\r\n", false, 204, b"", 0, true),
        case(get(), b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", false, 304, b"", 0, true),
        case(head, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false, 200, b"", 0, true),
        case(
            get(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
            false,
            200,
            b"hello",
            0,
            true,
        ),
        case(
            get(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\ny: z\r\n\r\n",
            false,
            200,
            b"hello",
            2,
            true,
        ),
        case(get(), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false, 200, b"", 0, true),
        case(get(), b"HTTP/1.1 200 OK\r\n\r\nuntil the end", true, 200, b"until the end", 0, false),
        case(get(), b"HTTP/1.0 200 OK\r\n\r\n", true, 200, b"", 0, false),
        case(get(), b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", true, 200, b"hi", 0, false),
        case(
            get(),
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi",
            false,
            200,
            b"hi",
            0,
            true,
        ),
        case(
            get(),
            b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
            false,
            500,
            b"hi",
            0,
            false,
        ),
        case(
            get(),
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            false,
            200,
            b"hi",
            0,
            true,
        ),
        // What follows a response is never the beginning of the next one.
        case(get(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiX", true, 200, b"hi", 0, false),
    ]
}

fn pieces(bytes: &'static [u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        pieces.push(Bytes::from_static(&bytes[from..cut]));
        from = cut;
    }
    pieces
}

fn check(case: &Case, outcome: &Outcome, cuts: &[usize]) {
    let text = String::from_utf8_lossy(case.bytes);
    let context = format!("{text:?} cut at {cuts:?}");
    assert_eq!(outcome.response.status(), case.status, "{context}");
    assert_eq!(outcome.response.body(), case.body, "{context}");
    assert_eq!(outcome.trailers.as_ref().map_or(0, http::HeaderMap::len), case.trailers, "{context}");
    // Where a byte too many comes after the connection was given back, the next exchange finds it.
    let late = case.bytes.ends_with(b"X") && cuts.last() == Some(&(case.bytes.len() - 1));
    assert_eq!(outcome.kept, case.kept || late, "{context}");
}

async fn run(case: &Case, cuts: &[usize]) {
    let io = Script::new(pieces(case.bytes, cuts), case.then_end);
    let outcome = exchange(io, case.method.clone()).await.unwrap();
    check(case, &outcome, cuts);
}

#[tokio::test]
async fn responses_are_the_same_wherever_they_are_cut() {
    for case in cases() {
        run(&case, &[]).await;
        for cut in 1..case.bytes.len() {
            run(&case, &[cut]).await;
        }
        run(&case, &(1..case.bytes.len()).collect::<Vec<_>>()).await;
    }
}

proptest! {
    #[test]
    fn responses_are_the_same_however_they_are_cut(
        case in 0..cases().len(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let case = &cases()[case];
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(case.bytes.len())).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(case, &cuts));
    }
}

async fn malformed(bytes: &[u8], then_end: bool) -> Malformed {
    let error = exchange(Script::whole(bytes, then_end), Method::GET).await.unwrap_err();
    assert!(error.response_started());
    match error.kind() {
        ErrorKind::Malformed(malformed) => *malformed,
        other => panic!("{other:?} for {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(80)])),
    }
}

#[tokio::test]
async fn what_could_smuggle_a_response_is_an_error() {
    let ok = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}").into_bytes();
    let chunked = |rest: &str| ok(&format!("Transfer-Encoding: chunked\r\n\r\n{rest}"));
    let cases = [
        (ok("Content-Length: 1\r\nContent-Length: 1\r\n\r\na"), Malformed::LengthRepeated),
        (ok("Content-Length: 1, 1\r\n\r\na"), Malformed::LengthRepeated),
        (ok("Content-Length: -1\r\n\r\n"), Malformed::Length),
        (
            ok("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            Malformed::LengthAndEncoding,
        ),
        (ok("Transfer-Encoding: chunked, identity\r\n\r\n"), Malformed::Encoding),
        (ok("X: a\r\n b\r\nContent-Length: 0\r\n\r\n"), Malformed::Head(httparse::Error::HeaderName)),
        (ok("Content-Length: 0\n\n"), Malformed::BareLineFeed),
        (b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n".to_vec(), Malformed::BareLineFeed),
        (b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(), Malformed::Field),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n".to_vec(), Malformed::Status),
        (chunked("1\na\r\n0\r\n\r\n"), Malformed::BareLineFeed),
        (chunked("1\r\nab\r\n0\r\n\r\n"), Malformed::ChunkEnd),
        (chunked("fffffffffffffffff\r\n"), Malformed::ChunkSizeOverflow),
        (chunked("1 \r\na\r\n"), Malformed::ChunkSize),
        (chunked(&"a".repeat(300)), Malformed::ChunkSize),
        (ok(&format!("X: {}\r\n\r\n", "y".repeat(HEAD_BYTES_MAX))), Malformed::HeadTooLarge),
        (ok(&"a: b\r\n".repeat(HEADERS_MAX + 1)), Malformed::TooManyHeaders),
        (b"HTTP/1.1 102 x\r\n\r\n".repeat(INFORMATIONAL_MAX + 1), Malformed::TooManyInformational),
    ];
    for (bytes, why) in cases {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
        assert_eq!(malformed(&bytes, false).await, why, "{text:?}");
    }
}

#[tokio::test]
async fn heads_up_to_the_limits_are_read() {
    let fields = "a: b\r\n".repeat(HEADERS_MAX - 1);
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n");
    let outcome = exchange(Script::whole(head, false), Method::GET).await.unwrap();
    assert_eq!(outcome.response.headers().len(), HEADERS_MAX);

    let rest = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: \r\n\r\n";
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: {}\r\n\r\n",
        "y".repeat(HEAD_BYTES_MAX - rest.len())
    );
    assert_eq!(head.len(), HEAD_BYTES_MAX);
    assert!(exchange(Script::whole(head, false), Method::GET).await.unwrap().kept);
}
