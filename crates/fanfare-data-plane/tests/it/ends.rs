//! How connections of clients end.

use std::time::Duration;

use bytes::Bytes;
use fanfare_types::{Condemned, FunctionRoute, ToDataPlane};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{F, Rig, hello, within};
use crate::sandbox::{HeldSandbox, RawSandbox, Sandbox, echo};

/// A client that says all it has to say, and then nothing more.
async fn half_closed(rig: &Rig, said: &str) -> TcpStream {
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    client.write_all(said.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    client
}

async fn to_end(client: &mut TcpStream) -> String {
    let mut received = Vec::new();
    within("the end", client.read_to_end(&mut received)).await.unwrap();
    String::from_utf8(received).unwrap()
}

#[tokio::test]
async fn a_client_that_has_said_all_it_has_to_say_gets_its_answer() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let mut client = half_closed(&rig, "GET /function/hello HTTP/1.1\r\nhost: a\r\n\r\n").await;
    control.demand(1).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let held = sandbox.next().await;
    let mut asked = [0; 25];
    within("a question", client.read_exact(&mut asked)).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n", "who is there can pass it over");
    held.answer("the answer");
    let answer = to_end(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nthe answer"), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

/// That nothing more will be said comes to light while the rest of a refused request is read.
#[tokio::test]
async fn one_whose_request_is_refused_gets_the_end_of_its_connection_too() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let served = "POST /function/hello HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    let bodies = [
        "content-length: 5\r\n\r\nhello",
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n",
    ];
    for body in bodies {
        let refused = format!("POST /function/nobody HTTP/1.1\r\nhost: a\r\n{body}");
        for before in ["", served, &refused] {
            let answer = to_end(&mut half_closed(&rig, &[before, &refused].concat()).await).await;
            assert_eq!(
                answer.matches("HTTP/1.1 200 OK\r\n").count(),
                usize::from(before == served),
                "{answer}"
            );
            assert!(answer.contains("HTTP/1.1 404 Not Found\r\n"), "{body}: {answer}");
        }
    }
}

#[tokio::test]
async fn so_does_one_whose_request_has_a_body_and_one_whose_answer_is_streamed() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let cases = ["content-length: 4\r\n\r\nbody", "transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"];
    for (n, said) in (1..).zip(cases) {
        let mut client =
            half_closed(&rig, &format!("POST /function/hello HTTP/1.1\r\nhost: a\r\n{said}")).await;
        control.demand(1).await;
        let sandbox = RawSandbox::new(rig.dir(), n);
        control.grant(n, &sandbox.endpoint, 1, None);
        let mut connection = sandbox.accept().await;
        connection.head().await;
        connection.read_to("body").await;
        connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nfrom\r\n").await;
        let mut received = Vec::new();
        while !received.ends_with(b"from\r\n") {
            assert!(within("a part", client.read_buf(&mut received)).await.unwrap() > 0);
        }
        connection.write("4\r\n the\r\n0\r\n\r\n").await;
        assert_eq!(to_end(&mut client).await, "4\r\n the\r\n0\r\n\r\n");
        control.say(ToDataPlane::Revoke { sandbox: fanfare_types::SandboxId(n), slots: 1 });
        control.released().await;
    }
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn a_body_that_ends_too_early_is_an_error_whether_the_client_listens_or_not() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let said = "POST /function/hello HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nbody";
    let mut waits = half_closed(&rig, said).await;
    let received = to_end(&mut waits).await;
    assert!(received.contains("HTTP/1.1 400 Bad Request\r\n"), "{received}");
    assert!(received.contains("\r\nx-fanfare-reason: bad-request\r\n"), "{received}");
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    control.settle().await;
    let mut in_sandbox = half_closed(&rig, said).await;
    let mut connection = sandbox.accept().await;
    connection.head().await;
    let received = to_end(&mut in_sandbox).await;
    assert!(received.contains("HTTP/1.1 400 Bad Request\r\n"), "{received}");
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
}

#[tokio::test]
async fn a_client_that_has_closed_its_socket_is_gone() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    for (n, line) in [(1, "connection: close\r\n"), (2, "")] {
        let mut sandbox = HeldSandbox::new(rig.dir(), n);
        control.grant(n, sandbox.endpoint(), 1, None);
        let mut client = TcpStream::connect(rig.address()).await.unwrap();
        let said = format!("GET /function/hello HTTP/1.1\r\nhost: a\r\n{line}\r\n");
        client.write_all(said.as_bytes()).await.unwrap();
        let _held = sandbox.next().await;
        drop(client);
        assert_eq!(control.condemned().await, (n, Condemned::Abandoned));
        control.gone(n, fanfare_types::ExitCause::Stopped, "");
    }
}

#[tokio::test]
async fn an_answer_without_a_length_to_an_old_client_never_ends_cleanly_when_it_breaks_off() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    client.write_all(b"GET /function/hello HTTP/1.0\r\n\r\n").await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n").await;
    let mut received = Vec::new();
    while !received.ends_with(b"part") {
        assert!(within("a part", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    drop(connection);
    let end = within("the cut", client.read_to_end(&mut received)).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(control.condemned().await, (1, Condemned::Broken));
}

#[tokio::test]
async fn what_is_no_request_is_refused_with_a_reason_and_an_id_too() {
    let (rig, _control) = Rig::synced(vec![hello()]).await;
    let of_length = |length: &str| format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    let cases = [
        ("nonsense\r\n\r\n".to_owned(), "400", "bad-request", "\"nonsense\" begins no request of HTTP"),
        (
            "\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03".to_owned(),
            "400",
            "bad-request",
            "not a request of HTTP",
        ),
        (
            "GET / HTTP/1.1\r\nhost: a\r\nno-colon\r\n\r\n".to_owned(),
            "400",
            "bad-request",
            "\"no-colon\" is no header field",
        ),
        (
            of_length("18446744073709551615"),
            "400",
            "bad-request",
            "Content-Length is \"18446744073709551615\"",
        ),
        (of_length("+5"), "400", "bad-request", "Content-Length is \"+5\"; allowed: one decimal number"),
        (of_length("5, 5"), "400", "bad-request", "Content-Length is \"5, 5\""),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000)), "431", "too-large", "98304 bytes"),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(101)), "431", "too-large", "100 fields"),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(80_000)),
            "414",
            "too-large",
            "more than 65534 bytes",
        ),
    ];
    for (said, status, reason, detail) in &cases {
        let mut client = TcpStream::connect(rig.address()).await.unwrap();
        // It may be refused before all of it is said.
        let _ = client.write_all(said.as_bytes()).await;
        let mut received = Vec::new();
        let _ = within("the end", client.read_to_end(&mut received)).await;
        let received = String::from_utf8(received).unwrap();
        let shown = &said[..said.len().min(30)];
        assert!(received.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {received}");
        assert!(received.contains(&format!("\r\nx-fanfare-reason: {reason}\r\n")), "{shown:?}: {received}");
        let id =
            received.split("\r\nx-request-id: ").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
        let (_, document) = received.split_once("\r\n\r\n").unwrap();
        let document: serde_json::Value = serde_json::from_str(document).unwrap();
        assert_eq!((&document["reason"], &document["request_id"]), (&(*reason).into(), &id.into()));
        assert!(document["detail"].as_str().unwrap().contains(detail), "{shown:?}: {document}");
        assert!(received.contains("\r\nconnection: close\r\n"), "{received}");
    }
    let counted: u64 = rig.data_plane.stats().problems.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, cases.len() as u64);
}

/// What came of a connection: its last answer, which has to have all that a refusal has.
fn last_refusal(received: &str) -> serde_json::Value {
    let (_, last) = received.rsplit_once("HTTP/1.1 400 Bad Request\r\n").expect("a refusal");
    let (head, document) = last.split_once("\r\n\r\n").unwrap();
    for field in ["x-fanfare-reason: bad-request", "connection: close"] {
        assert!(head.lines().any(|line| line == field), "{field}: {head}");
    }
    let document: serde_json::Value = serde_json::from_str(document).unwrap();
    let id = format!("x-request-id: {}", document["request_id"].as_str().unwrap());
    assert!(head.lines().any(|line| line == id), "{head}");
    document
}

#[tokio::test]
async fn so_is_what_is_no_request_after_one_that_was() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let good = "POST /function/hello HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok";
    let unknown = "GET /function/nobody HTTP/1.1\r\nhost: a\r\n\r\n";
    for before in [good, unknown, &good.repeat(3), &unknown.repeat(2)] {
        for nonsense in ["nonsense\r\n\r\n", "GET / HTTP/1.1\r\nno-colon\r\n\r\n"] {
            // In one piece, and when the answers are there.
            let mut pipelined = TcpStream::connect(rig.address()).await.unwrap();
            pipelined.write_all(format!("{before}{nonsense}").as_bytes()).await.unwrap();
            let received = to_end(&mut pipelined).await;
            assert_eq!(last_refusal(&received)["reason"], "bad-request");
            let answers = |received: &str| received.matches("\r\nx-request-id: ").count();
            let expected = before.matches("HTTP/1.1").count();
            assert_eq!(answers(&received), expected + 1, "{received}");
            let mut later = TcpStream::connect(rig.address()).await.unwrap();
            later.write_all(before.as_bytes()).await.unwrap();
            let mut first = Vec::new();
            let last: &[u8] = if before.starts_with("POST") { b"\n\nok" } else { b"}" };
            while answers(&String::from_utf8_lossy(&first)) < expected || !first.ends_with(last) {
                assert!(within("the answers", later.read_buf(&mut first)).await.unwrap() > 0);
            }
            later.write_all(nonsense.as_bytes()).await.unwrap();
            assert_eq!(last_refusal(&to_end(&mut later).await)["reason"], "bad-request");
        }
    }
}

/// The answer before it waits in the server, which has read on.
#[tokio::test]
async fn so_is_what_follows_an_answer_that_nobody_has_read_yet() {
    const ANSWER_BYTES: usize = 8 << 20;
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let mut client = socket.connect(rig.address()).await.unwrap();
    client.write_all(b"GET /function/hello HTTP/1.1\r\nhost: a\r\n\r\nnonsense\r\n\r\n").await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    let body = "HTTP/1.1 400 Bad Request\r\n\r\n".repeat(ANSWER_BYTES / 28);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let answering = tokio::spawn(async move {
        connection.write(&head).await;
        connection.write(&body).await;
        (connection, body)
    });
    let received = to_end(&mut client).await;
    let (_connection, body) = answering.await.unwrap();
    let (_, rest) = received.split_once("\r\n\r\n").unwrap();
    let after = rest.strip_prefix(&body).expect("the whole answer, as it was");
    assert_eq!(last_refusal(after)["reason"], "bad-request");
}

#[tokio::test]
async fn answers_that_look_like_a_refusal_pass_unchanged() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    control.say(ToDataPlane::Owners(vec![(F, None)]));
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let body = "HTTP/1.1 400 Bad Request\r\n\r\n";
    let said = format!(
        "POST /function/hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 28\r\n\r\n{body}"
    );
    client.write_all(said.as_bytes()).await.unwrap();
    assert!(to_end(&mut client).await.ends_with(body));
}

#[tokio::test]
async fn a_client_that_stops_reading_is_held_no_longer_than_its_request_may_take() {
    let impatient = FunctionRoute { request_timeout: Duration::from_millis(300), ..hello() };
    let (rig, control) =
        Rig::synced_with(vec![impatient], |o| o.header_read_timeout = Duration::from_millis(200)).await;
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    let sandbox = Sandbox::new(rig.dir(), 1, move |_| {
        let large = large.clone();
        async move { http::Response::new(Full::new(large)) }
    });
    control.grant(1, &sandbox.endpoint, 1, None);
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let (mut send, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(16 * 1024)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::get("http://hello/").body(Full::<Bytes>::default()).unwrap();
    let response = within("a response", send.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    // The connection is alive and answers pings; only this stream stands still.
    let _ = within("the end of the connection", connection).await.unwrap();
    drop(response);
    within("nothing is held", async {
        while rig.data_plane.stats().requests + rig.data_plane.stats().connections > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn shutting_down_lets_an_upgraded_connection_finish() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let asked = "GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection
        .write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await;
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        assert!(within("the answer", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    rig.shutdown.cancel();
    // It has stopped accepting, and so is past the point where it lets go of what it does not wait for.
    while TcpStream::connect(rig.address()).await.is_ok() {}
    client.write_all(b"ping.").await.unwrap();
    assert_eq!(connection.read_to(".").await, "ping.");
    drop(connection);
    assert_eq!(to_end(&mut client).await, "");
    drop(client);
    assert_eq!(control.released().await, (1, 1, false));
    within("the end", rig.data_plane.stopped()).await;
}
