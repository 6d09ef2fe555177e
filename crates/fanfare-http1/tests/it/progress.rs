//! How far a request got, when it failed.

use std::io;

use bytes::Bytes;
use fanfare_http1::{Connection, ErrorKind, Malformed, RequestBody, RequestHead};
use futures_util::stream;
use http::{HeaderMap, Method};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::script::{Script, exchange_with, host};

fn head<'a>(method: &'a Method, headers: &'a HeaderMap) -> RequestHead<'a> {
    RequestHead::new(method, "/", headers)
}

async fn read_head(peer: &mut DuplexStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(peer.read_u8().await.unwrap());
    }
    bytes
}

/// A connection that has served one exchange, and its peer.
async fn reused() -> (Connection<DuplexStream>, DuplexStream) {
    let (io, mut peer) = duplex(1024);
    let first = exchange_with(Connection::new(io), Method::GET, Empty::<Bytes>::new());
    let serve = async {
        read_head(&mut peer).await;
        peer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    };
    let (outcome, ()) = tokio::join!(first, serve);
    let connection = outcome.unwrap().1.unwrap();
    assert_eq!(connection.served(), 1);
    (connection, peer)
}

#[tokio::test]
async fn a_connection_that_closed_while_idle_is_found_before_a_byte_is_written() {
    let (connection, peer) = reused().await;
    drop(peer);
    let (method, headers) = (Method::POST, host());
    let body = RequestBody::new(Full::new(Bytes::from_static(b"precious")));
    let failed = connection.send(head(&method, &headers), body, |_| panic!("kept")).await.unwrap_err();
    assert!(matches!(failed.error.kind(), ErrorKind::Closed));
    assert_eq!((failed.error.written_bytes(), failed.error.response_started()), (0, false));
    assert!(failed.error.reused());
    assert_eq!(failed.body.unwrap().collect().await.unwrap().to_bytes(), "precious");
}

#[tokio::test]
async fn what_arrives_on_an_idle_connection_is_nobodys_answer() {
    let (mut connection, mut peer) = reused().await;
    assert!(connection.is_open());
    peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    let (method, headers) = (Method::GET, host());
    let body = RequestBody::new(Empty::<Bytes>::new());
    let failed = connection.send(head(&method, &headers), body, |_| panic!("kept")).await.unwrap_err();
    assert!(matches!(failed.error.kind(), ErrorKind::Malformed(Malformed::Unsolicited)));
    assert_eq!(failed.error.written_bytes(), 0);

    let (mut connection, mut peer) = reused().await;
    peer.write_all(b"x").await.unwrap();
    assert!(!connection.is_open());
    let (mut connection, peer) = reused().await;
    drop(peer);
    assert!(!connection.is_open());
}

#[tokio::test]
async fn a_peer_that_closes_without_an_answer_is_told_from_one_that_stops_in_it() {
    for (answer, started) in [(&b""[..], false), (b"HTTP/1.1 20", true)] {
        let (io, mut peer) = duplex(1024);
        let (method, headers) = (Method::POST, host());
        let body = RequestBody::new(Full::new(Bytes::from_static(b"body")));
        let send = Connection::new(io).send(head(&method, &headers), body, |_| panic!("kept"));
        let serve = async move {
            read_head(&mut peer).await;
            let mut body = [0; 4];
            peer.read_exact(&mut body).await.unwrap();
            peer.write_all(answer).await.unwrap();
        };
        let (failed, ()) = tokio::join!(send, serve);
        let failed = failed.unwrap_err();
        assert!(matches!(failed.error.kind(), ErrorKind::Closed));
        assert!(failed.error.written_bytes() > 4);
        assert_eq!((failed.error.response_started(), failed.error.reused()), (started, false));
        assert!(failed.body.is_none(), "its bytes are gone");
    }
}

#[tokio::test]
async fn an_empty_body_can_always_be_had_again() {
    let (io, mut peer) = duplex(1024);
    let (method, headers) = (Method::GET, host());
    let body = RequestBody::new(Empty::<Bytes>::new());
    let send = Connection::new(io).send(head(&method, &headers), body, |_| panic!("kept"));
    let serve = async move { drop(read_head(&mut peer).await) };
    let (failed, ()) = tokio::join!(send, serve);
    let failed = failed.unwrap_err();
    assert!(failed.error.written_bytes() > 0);
    assert!(failed.body.unwrap().is_end_stream());
}

#[tokio::test]
async fn a_write_that_fails_at_once_gives_the_body_back() {
    let (io, peer) = duplex(1024);
    drop(peer);
    let (method, headers) = (Method::POST, host());
    let frames = [Bytes::from_static(b"first "), Bytes::from_static(b"second")];
    let frames = frames.map(|data| Ok::<_, io::Error>(Frame::data(data)));
    let body = RequestBody::new(StreamBody::new(stream::iter(frames)));
    let failed =
        Connection::new(io).send(head(&method, &headers), body, |_| panic!("kept")).await.unwrap_err();
    assert_eq!(failed.error.written_bytes(), 0);
    assert_eq!(failed.body.unwrap().collect().await.unwrap().to_bytes(), "first second");
}

#[tokio::test]
async fn a_body_that_lies_about_itself_ends_the_exchange() {
    struct Lying(Option<Bytes>, u64);
    impl Body for Lying {
        type Data = Bytes;
        type Error = io::Error;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            std::task::Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
        }
        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(self.1)
        }
    }
    for said in [4, 6] {
        let io = Script::whole("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false);
        let body = Lying(Some(Bytes::from_static(b"hello")), said);
        let error = exchange_with(Connection::new(io), Method::POST, body).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::RequestBody(_)), "{error}");
    }
}

#[tokio::test]
async fn a_body_that_fails_ends_the_exchange_with_its_error() {
    let io = Script::whole("", false);
    let frames = [Ok(Frame::data(Bytes::from_static(b"a"))), Err(io::Error::other("the client left"))];
    let body = StreamBody::new(stream::iter(frames));
    let error = exchange_with(Connection::new(io), Method::POST, body).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RequestBody(_)));
    assert!(error.to_string().contains("the client left"), "{error}");
}

#[tokio::test]
async fn a_request_that_is_not_one_writes_nothing() {
    let io = Script::whole("", false);
    let written = io.written.clone();
    let (method, headers) = (Method::GET, HeaderMap::new());
    let body = RequestBody::new(Full::new(Bytes::from_static(b"body")));
    let failed =
        Connection::new(io).send(head(&method, &headers), body, |_| panic!("kept")).await.unwrap_err();
    assert!(matches!(failed.error.kind(), ErrorKind::Request(_)));
    assert!(failed.body.is_some());
    assert!(written.lock().unwrap().is_empty());
}

#[tokio::test]
async fn requests_are_the_same_however_little_a_write_takes() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let fields = HeaderMap::from_iter([
        (http::HeaderName::from_static("x-sum"), http::HeaderValue::from_static("7")),
        (http::header::CONTENT_LENGTH, http::HeaderValue::from_static("9")),
    ]);
    let expected = "POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n\
                    5\r\nhello\r\n11\r\nworld, and beyond\r\n0\r\nx-sum: 7\r\n\r\n";
    for write_max in [1, 2, 3, 7, 20, 1_000] {
        let io = Script::whole(answer, false).write_max(write_max);
        let written = io.written.clone();
        let frames = [
            Frame::data(Bytes::from_static(b"hello")),
            Frame::data(Bytes::new()),
            Frame::data(Bytes::from_static(b"world, and beyond")),
            Frame::trailers(fields.clone()),
        ];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, io::Error>)));
        let (outcome, _) = exchange_with(Connection::new(io), Method::POST, body).await.unwrap();
        assert!(outcome.kept);
        assert_eq!(String::from_utf8(written.lock().unwrap().clone()).unwrap(), expected);
    }
}

#[tokio::test]
async fn an_answer_before_the_requests_end_closes_the_connection() {
    let io = Script::whole("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno", false);
    let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, io::Error>>());
    let (outcome, _) = exchange_with(Connection::new(io), Method::POST, body).await.unwrap();
    assert_eq!(outcome.response.status(), 413);
    assert_eq!(outcome.response.body(), "no");
    assert!(!outcome.kept);
}

#[tokio::test]
async fn a_body_that_stops_early_is_an_error() {
    let io = Script::whole("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", true);
    let error = exchange_with(Connection::new(io), Method::GET, Empty::<Bytes>::new()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed));
    assert!(error.response_started());
    let io = Script::whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", true);
    let error = exchange_with(Connection::new(io), Method::GET, Empty::<Bytes>::new()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed));
}
