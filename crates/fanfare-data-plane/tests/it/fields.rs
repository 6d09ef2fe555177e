//! What of a request's head reaches the function, and what of an answer's head the client.

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Connection, complete, get_later};
use crate::rig::{Control, Rig, hello, within};
use crate::sandbox::{RawSandbox, Sandbox, echo};

async fn with_echo() -> (Rig, Control, Sandbox) {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    (rig, control, sandbox)
}

/// Sends bytes, and returns everything that comes back until the connection ends.
async fn raw(rig: &Rig, bytes: &str) -> String {
    let mut stream = TcpStream::connect(rig.address()).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    // The end may come as a reset.
    let _ = within("the end", stream.read_to_end(&mut received)).await;
    String::from_utf8(received).unwrap()
}

/// Reads until `end` has come.
async fn received(client: &mut TcpStream, end: &str) -> String {
    let mut received = Vec::new();
    while !received.ends_with(end.as_bytes()) {
        let read = within("the answer", client.read_buf(&mut received)).await.unwrap();
        assert!(read > 0, "the connection is kept");
    }
    String::from_utf8(received).unwrap()
}

#[tokio::test]
async fn a_function_that_speaks_http_10_costs_its_clients_no_connection() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    // Of unknown length, and of a length that is told.
    let cases = [
        ("", "h", "transfer-encoding: chunked", "1\r\nh\r\n", "1\r\ni\r\n0\r\n\r\n"),
        ("content-length: 2\r\n", "", "content-length: 2", "", "hi"),
    ];
    for (length, first, framing, seen, end) in cases {
        client.write_all(b"GET /function/hello HTTP/1.1\r\nhost: x.test\r\n\r\n").await.unwrap();
        let mut connection = sandbox.accept().await;
        connection.head().await;
        let mut answer = String::new();
        if !first.is_empty() {
            connection.write(&format!("HTTP/1.0 200 OK\r\n{length}\r\n{first}")).await;
            answer.push_str(&received(&mut client, &format!("\r\n\r\n{seen}")).await);
            connection.write("i").await;
        } else {
            connection.write(&format!("HTTP/1.0 200 OK\r\n{length}\r\nhi")).await;
        }
        drop(connection);
        answer.push_str(&received(&mut client, end).await);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let kept = !answer.contains("connection: close");
        assert!(answer.contains(&format!("{framing}\r\n")) && kept, "{answer}");
    }
    let heard = control.until_report().await;
    assert!(!heard.iter().any(|m| matches!(m, fanfare_types::FromDataPlane::Condemned { .. })), "{heard:?}");
}

#[tokio::test]
async fn cookies_that_http2_took_apart_are_one_field_again() {
    let (rig, _control, _sandbox) = with_echo().await;
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://hello.example/")
        .version(Version::HTTP_2)
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("x-other", "1")
        .header("x-other", "2")
        .body(Full::<Bytes>::default())
        .unwrap();
    let answer = complete(within("a response", send.send_request(request)).await.unwrap()).await;
    let seen = answer.text();
    assert!(seen.contains("cookie: a=1; b=2\n"), "{seen}");
    assert!(seen.contains("x-other: 1\nx-other: 2\n"), "other lists stay as they are: {seen}");
}

#[tokio::test]
async fn a_client_cannot_take_the_request_id_away_nor_speak_as_the_platform_with_underscores() {
    let (rig, _control, _sandbox) = with_echo().await;
    let request = Request::get("/function/hello")
        .header("host", "x.test")
        .header("connection", "x-request-id, x-mine")
        .header("x-mine", "1")
        .header("x_fanfare_deadline_ms", "1")
        .header("x-fanfare_forwarded", "1")
        .body(Full::<Bytes>::default())
        .unwrap();
    let answer = Connection::open(rig.address()).await.call(request).await;
    let seen = answer.text();
    let id = answer.headers["x-request-id"].to_str().unwrap();
    assert!(seen.contains(&format!("x-request-id: {id}\n")), "{seen}");
    assert!(
        !seen.contains("x-mine") && !seen.contains("x_fanfare") && !seen.contains("x-fanfare_"),
        "{seen}"
    );
}

#[tokio::test]
async fn trailers_cannot_speak_as_the_platform_either() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut trailers = http::HeaderMap::new();
    for name in ["x-sum", "x-fanfare-deadline-ms", "host", "authorization", "x-request-id", "forwarded"] {
        trailers.insert(name, "7".parse().unwrap());
    }
    let frames = [Frame::data(Bytes::from_static(b"body")), Frame::trailers(trailers)];
    let frames = frames.map(Ok::<_, std::convert::Infallible>);
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let names = "x-sum, x-fanfare-deadline-ms, host, authorization, x-request-id, forwarded";
    let request = Request::post("/function/hello").header("host", "x.test").header("trailer", names);
    let request = request.body(body).unwrap();
    let mut client = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.call(request).await });
    let mut connection = sandbox.accept().await;
    connection.head().await;
    assert_eq!(connection.read_to("\r\n\r\n").await, "4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n");
    connection.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(within("an answer", call).await.unwrap().status, 204);
}

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused_before_it_waits() {
    // Without a slot: what is refused for its form must not start a sandbox.
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let cases = [
        ("GET /function/hello HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "HTTP/1.1 400 ", "bad-request"),
        ("GET http://hello/ HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "HTTP/1.1 400 ", "bad-request"),
        (
            "POST /function/hello HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 501 ",
            "bad-request",
        ),
        (
            "POST /function/hello HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\
             transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 501 ",
            "bad-request",
        ),
    ];
    for (request, status, reason) in cases {
        let answer = raw(&rig, &request.replacen("\r\n", "\r\nconnection: close\r\n", 1)).await;
        assert!(answer.starts_with(status), "{request:?}: {answer}");
        assert!(answer.contains(&format!("\r\nx-fanfare-reason: {reason}\r\n")), "{request:?}: {answer}");
        assert!(answer.contains("\r\nx-request-id: "), "{answer}");
    }
    let heard = control.until_report().await;
    assert!(!heard.iter().any(|m| matches!(m, fanfare_types::FromDataPlane::Demand(_))), "{heard:?}");
}

#[tokio::test]
async fn answers_without_a_body_may_speak_of_its_length() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut connection = None;
    for (status, length) in [("304 Not Modified", "99"), ("204 No Content", "5"), ("204 No Content", "0")] {
        let call = get_later(rig.address(), "/function/hello");
        let connection = match &mut connection {
            Some(connection) => connection,
            none => none.insert(sandbox.accept().await),
        };
        connection.head().await;
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\n"
        );
        connection.write(&answer).await;
        let answer = within("an answer", call).await.unwrap();
        assert_eq!(answer.status.as_str(), &status[..3]);
        assert_eq!(answer.headers.get_all("set-cookie").iter().count(), 2, "{answer:?}");
    }
}

#[tokio::test]
async fn the_protocol_that_the_function_chose_is_told() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let asked = "GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: one, two\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: two\r\n\r\n").await;
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        assert!(within("the answer", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    let received = String::from_utf8(received).unwrap().to_ascii_lowercase();
    assert!(received.contains("\r\nupgrade: two\r\n"), "{received}");
}

#[tokio::test]
async fn what_a_server_says_on_an_idle_connection_is_no_answer_to_the_next_request() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let first = get_later(rig.address(), "/function/hello");
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(within("the first", first).await.unwrap().text(), "ok");
    // As many servers do before they close a connection that has been idle for long.
    connection.write("HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let second = get_later(rig.address(), "/function/hello");
    let mut fresh = sandbox.accept().await;
    fresh.head().await;
    fresh.write("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfresh").await;
    assert_eq!(within("the second", second).await.unwrap().text(), "fresh");
    let heard = control.until_report().await;
    assert!(!heard.iter().any(|m| matches!(m, fanfare_types::FromDataPlane::Condemned { .. })), "{heard:?}");
}

#[tokio::test]
async fn bodies_are_collected_whatever_their_method() {
    let (rig, _control, _sandbox) = with_echo().await;
    for method in ["GET", "DELETE", "PROPFIND"] {
        let request = Request::builder().method(method).uri("/function/hello").header("host", "x.test");
        let request = request.body(Full::new(Bytes::from_static(b"body"))).unwrap();
        let answer = Connection::open(rig.address()).await.start(request).await;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.ends_with(b"\n\nbody"), "{method}: {body:?}");
    }
}
