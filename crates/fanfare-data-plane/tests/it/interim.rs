//! What passes before the answer: informational responses, and the leave to send a body.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{Control, Rig, hello, within};
use crate::sandbox::{RawConnection, RawSandbox};

async fn with_raw() -> (Rig, Control, RawSandbox, TcpStream) {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let client = TcpStream::connect(rig.address()).await.unwrap();
    (rig, control, sandbox, client)
}

async fn read_to(client: &mut TcpStream, end: &str) -> String {
    let mut received = Vec::new();
    while !received.ends_with(end.as_bytes()) {
        assert!(within(end, client.read_buf(&mut received)).await.unwrap() > 0, "{received:?}");
    }
    String::from_utf8(received).unwrap()
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn early_hints_pass_before_the_answer() {
    let (_rig, _control, sandbox, mut client) = with_raw().await;
    for round in 0..2 {
        client.write_all(b"GET /function/hello HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut connection: RawConnection = sandbox.accept().await;
        connection.head().await;
        connection.write("HTTP/1.1 103 Early Hints\r\nlink: </s.css>\r\nconnection: x\r\n\r\n").await;
        let hints = read_to(&mut client, "\r\n\r\n").await;
        assert_eq!(hints, "HTTP/1.1 103 Early Hints\r\nlink: </s.css>\r\n\r\n", "round {round}: at once");
        connection.write("HTTP/1.1 102 Processing\r\n\r\n").await;
        connection.write(&format!("HTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\n{OK}")).await;
        let rest = read_to(&mut client, "\r\n\r\nok").await;
        let expected = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\nHTTP/1.1 200 OK\r\n";
        assert!(rest.starts_with(expected), "{rest}");
    }
}

#[tokio::test]
async fn older_clients_get_the_answer_alone() {
    let (_rig, _control, sandbox, mut client) = with_raw().await;
    client.write_all(b"GET /function/hello HTTP/1.0\r\n\r\n").await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write(&format!("HTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\n{OK}")).await;
    let answer = read_to(&mut client, "\r\n\r\nok").await;
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
}

/// A connection of HTTP/2 that shows what comes before the answer.
async fn http2(rig: &Rig) -> h2::client::SendRequest<Bytes> {
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send.ready().await.unwrap()
}

async fn informational(response: &mut h2::client::ResponseFuture) -> http::Response<()> {
    let said = std::future::poll_fn(|cx| response.poll_informational(cx));
    within("something before the answer", said).await.expect("an informational response").unwrap()
}

#[tokio::test]
async fn early_hints_pass_to_clients_of_http2_too() {
    let (rig, _control, sandbox, _client) = with_raw().await;
    let mut send = http2(&rig).await;
    for round in 0..2 {
        let request = http::Request::get("http://hello/").body(()).unwrap();
        let (mut response, _) = send.send_request(request, true).unwrap();
        let mut connection: RawConnection = sandbox.accept().await;
        connection.head().await;
        connection.write("HTTP/1.1 103 Early Hints\r\nlink: </s.css>\r\nkeep-alive: x\r\n\r\n").await;
        let hints = informational(&mut response).await;
        assert_eq!(hints.status(), 103, "round {round}");
        assert_eq!(hints.headers()["link"], "</s.css>");
        assert_eq!(hints.headers().len(), 1, "{hints:?}");
        connection.write(&format!("HTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\n{OK}")).await;
        assert_eq!(informational(&mut response).await.headers()["link"], "</b>", "also with the answer");
        assert_eq!(within("the answer", response).await.unwrap().status(), 200);
        drop(connection);
    }
}

#[tokio::test]
async fn what_is_said_before_the_answer_is_bounded_where_nothing_tells_how_much_waits() {
    let (rig, _control, sandbox, _client) = with_raw().await;
    let mut send = http2(&rig).await;
    let (mut response, _) =
        send.send_request(http::Request::get("http://hello/").body(()).unwrap(), true).unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    let hint = format!("HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n", "x".repeat(8_000));
    for _ in 0..12 {
        connection.write(&hint).await;
    }
    connection.write(OK).await;
    let mut passed = 0;
    while let Some(said) =
        within("the head", std::future::poll_fn(|cx| response.poll_informational(cx))).await
    {
        assert_eq!(said.unwrap().status(), 103);
        passed += 1;
    }
    assert_eq!(passed, 8, "of 64 KiB");
    assert_eq!(within("the answer", response).await.unwrap().status(), 200);
}

#[tokio::test]
async fn clients_of_http2_are_told_that_they_may_send_a_body_too() {
    let (rig, _control, sandbox, _client) = with_raw().await;
    let mut send = http2(&rig).await;
    let request = http::Request::post("http://hello/").header("expect", "100-continue");
    let request = request.header("content-length", "4").body(()).unwrap();
    let (mut response, mut stream) = send.send_request(request, false).unwrap();
    let mut connection = sandbox.accept().await;
    let head = connection.head().await;
    assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
    connection.write("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(informational(&mut response).await.status(), 100);
    stream.send_data(Bytes::from_static(b"body"), true).unwrap();
    assert_eq!(connection.read_to("body").await, "body");
    connection.write(OK).await;
    assert_eq!(within("the answer", response).await.unwrap().status(), 200);
}

const EXPECTS: &[u8] =
    b"POST /function/hello HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";

#[tokio::test]
async fn a_body_that_is_held_back_is_asked_for_by_the_function_and_nobody_else() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    client.write_all(EXPECTS).await.unwrap();
    // The queue reads ahead, but not this one.
    control.demand(1).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut connection = sandbox.accept().await;
    let head = connection.head().await;
    assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
    let early = tokio::time::timeout(Duration::from_millis(100), client.read_u8()).await;
    assert!(early.is_err(), "the platform gives no leave of its own: {early:?}");
    connection.write("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(read_to(&mut client, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").await.unwrap();
    assert_eq!(connection.read_to("body").await, "body");
    connection.write(OK).await;
    assert!(read_to(&mut client, "ok").await.starts_with("HTTP/1.1 200 OK\r\n"));
    // The next one on the same connections needs no leave.
    client
        .write_all(b"POST /function/hello HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nmore")
        .await
        .unwrap();
    connection.head().await;
    connection.read_to("more").await;
    connection.write(OK).await;
    read_to(&mut client, "ok").await;
}

#[tokio::test]
async fn a_function_that_refuses_a_body_never_gets_it() {
    let (rig, _control, sandbox, mut client) = with_raw().await;
    client.write_all(EXPECTS).await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno").await;
    let answer = read_to(&mut client, "\r\n\r\nno").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "no leave was given: {answer}");
    connection.closed().await;
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn a_function_that_never_asks_gets_the_body_all_the_same() {
    let (_rig, _control, sandbox, mut client) = with_raw().await;
    client.write_all(EXPECTS).await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    assert_eq!(read_to(&mut client, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").await.unwrap();
    assert_eq!(connection.read_to("body").await, "body");
    connection.write(OK).await;
    read_to(&mut client, "ok").await;
}
