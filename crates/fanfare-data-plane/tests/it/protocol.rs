//! HTTP on the client's side.

use std::time::Duration;

use bytes::Bytes;
use fanfare_types::limits::REQUEST_FIELDS_MAX;
use fanfare_types::{SandboxId, ToDataPlane};
use http::{Request, Version};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Connection, complete, http2};
use crate::rig::{Rig, hello, within};
use crate::sandbox::{RawSandbox, Sandbox, echo};

#[tokio::test]
async fn http2_without_tls_works() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for n in 0..3 {
        let request = Request::post(format!("http://hello.example/p?{n}"))
            .version(Version::HTTP_2)
            .body(Full::new(Bytes::from_static(b"over h2")))
            .unwrap();
        let response = within("a response", send.send_request(request)).await.unwrap();
        assert_eq!(response.version(), Version::HTTP_2);
        let answer = complete(response).await;
        let seen = answer.text();
        assert!(seen.starts_with(&format!("POST /p?{n}\n")) && seen.ends_with("\n\nover h2"), "{seen}");
        assert!(seen.contains("host: hello.example\n"), "{seen}");
    }
}

#[tokio::test]
async fn large_heads_are_refused_with_431() {
    let (rig, _control) = Rig::synced(vec![hello()]).await;
    let with_field = |bytes: usize| {
        Request::get("/function/hello")
            .header("host", "x.test")
            .header("x-large", "v".repeat(bytes))
            .body(Full::<Bytes>::default())
            .unwrap()
    };
    let answer = Connection::open(rig.address()).await.call(with_field(70_000)).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (431, "too-large"));
    let beyond = Connection::open(rig.address()).await.call(with_field(200_000)).await;
    assert_eq!(beyond.status, 431, "also where it is not even read to its end");
}

#[tokio::test]
async fn header_lists_too_large_for_http2_are_refused_with_a_reason_and_an_id() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = http2(rig.address()).await;
    let request = |bytes: usize| {
        let request = Request::get("http://hello/").header("x-large", "v".repeat(bytes));
        request.body(Full::<Bytes>::default()).unwrap()
    };
    // The second time it is said in one byte.
    for round in 0..3 {
        for bytes in [70_000, 99_000] {
            let refused =
                complete(within("a refusal", client.send_request(request(bytes))).await.unwrap()).await;
            assert_eq!((refused.status.as_u16(), refused.reason()), (431, "too-large"), "{round}: {bytes}");
            assert!(!refused.headers["x-request-id"].is_empty());
        }
        let answer = complete(within("an answer", client.send_request(request(10))).await.unwrap()).await;
        assert_eq!(answer.status, 200, "{round}: the connection goes on");
    }
    let mut many = request(10);
    for n in 1..=REQUEST_FIELDS_MAX {
        many.headers_mut()
            .insert(http::HeaderName::try_from(format!("x-{n}")).unwrap(), "1".parse().unwrap());
        many.headers_mut().append("cookie", "a=b".parse().unwrap());
    }
    let refused = complete(within("a refusal", client.send_request(many)).await.unwrap()).await;
    assert_eq!((refused.status.as_u16(), refused.reason()), (431, "too-large"));
    let detail = refused.problem()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("fields; at most 100"), "{detail}");
    let counted: u64 = rig.data_plane.stats().problems.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, 7);
}

#[tokio::test]
async fn heads_of_as_many_fields_as_are_allowed_are_read_and_larger_ones_refused() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let of_fields = |count: usize| {
        let mut request = Request::get("/function/hello").header("host", "x.test");
        for number in 1..count {
            request = request.header(format!("x-{number}"), "v");
        }
        request.body(Full::<Bytes>::default()).unwrap()
    };
    let mut client = Connection::open(rig.address()).await;
    let asked = tokio::spawn(async move { client.call(of_fields(REQUEST_FIELDS_MAX)).await });
    let mut connection = sandbox.accept().await;
    let head = connection.head().await;
    assert!((1..REQUEST_FIELDS_MAX).all(|number| head.contains(&format!("\r\nx-{number}: v\r\n"))), "{head}");
    connection.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(asked.await.unwrap().status, 204);
    let refused = Connection::open(rig.address()).await.call(of_fields(REQUEST_FIELDS_MAX + 1)).await;
    assert_eq!((refused.status.as_u16(), refused.reason()), (431, "too-large"));
}

#[tokio::test]
async fn connections_are_upgraded_when_the_function_agrees() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let asked =
        "GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    assert!(connection.head().await.contains("connection: upgrade\r\nupgrade: websocket\r\n"));
    let agreed = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nfirst";
    connection.write(agreed).await;
    let mut received = Vec::new();
    while !received.ends_with(b"first") {
        assert!(within("the answer", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    let received = String::from_utf8(received).unwrap().to_ascii_lowercase();
    assert!(received.starts_with("http/1.1 101 "), "{received}");
    assert!(received.contains("connection: upgrade\r\n") && received.contains("upgrade: websocket\r\n"));
    client.write_all(b"ping.").await.unwrap();
    assert_eq!(connection.read_to(".").await, "ping.");
    connection.write("pong.").await;
    let mut pong = [0; 5];
    within("the echo", client.read_exact(&mut pong)).await.unwrap();
    assert_eq!(&pong, b"pong.");
    assert_eq!(rig.data_plane.stats().functions[0].in_flight, 1, "the slot is taken all the while");
    client.shutdown().await.unwrap();
    connection.closed().await;
    drop(connection);
    let mut rest = Vec::new();
    within("the end", client.read_to_end(&mut rest)).await.unwrap();
    control.say(ToDataPlane::Revoke { sandbox: SandboxId(1), slots: 1 });
    assert_eq!(control.released().await, (1, 1, false), "and free again afterwards");
}

/// Sends bytes and returns the status line that comes back.
async fn raw(rig: &Rig, bytes: &str) -> String {
    let mut stream = TcpStream::connect(rig.address()).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut received = vec![0; 4_096];
    let read = within("an answer", stream.read(&mut received)).await.unwrap();
    String::from_utf8_lossy(&received[..read]).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn odd_requests_get_an_answer_and_not_a_sandbox() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let cases = [
        ("GET /function/hello HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        ("CONNECT hello:80 HTTP/1.1\r\nhost: hello:80\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        ("nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (
            "POST /function/hello HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            "HTTP/1.1 400 Bad Request",
        ),
    ];
    for (bytes, status) in cases {
        assert_eq!(raw(&rig, bytes).await, status, "{bytes:?}");
    }
    assert_eq!(sandbox.seen.requests.load(std::sync::atomic::Ordering::SeqCst), 0);
    // Old clients have no host; absolute targets name one.
    assert_eq!(raw(&rig, "GET /function/hello HTTP/1.0\r\n\r\n").await, "HTTP/1.0 200 OK");
    assert_eq!(raw(&rig, "GET http://hello/ HTTP/1.1\r\nhost: other\r\n\r\n").await, "HTTP/1.1 200 OK");
    assert_eq!(raw(&rig, "HEAD /function/hello HTTP/1.1\r\nhost: a\r\n\r\n").await, "HTTP/1.1 200 OK");
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn a_client_that_takes_too_long_for_its_head_is_cut_off() {
    let (rig, _control) =
        Rig::synced_with(vec![], |o| o.header_read_timeout = std::time::Duration::from_millis(50)).await;
    let mut stream = TcpStream::connect(rig.address()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let mut rest = Vec::new();
    within("the end", stream.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed() {
    let (rig, control) = Rig::synced_with(vec![hello()], |options| options.connections_max = 1).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut first: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let answer = tokio::spawn(async move { first.call(crate::client::request("/function/hello")).await });
    let mut working = sandbox.accept().await;
    working.head().await;
    let mut second = TcpStream::connect(rig.address()).await.unwrap();
    let mut rest = Vec::new();
    let _ = within("the end", second.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
    working.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(within("the answer", answer).await.unwrap().status, 200);
    let stats = rig.data_plane.stats();
    assert_eq!((stats.crowded_out, stats.connections_max), (1, 1));
    assert!(rig.data_plane.metrics().contains("\nfanfare_data_plane_connections_crowded_out_total 1\n"));
}

#[tokio::test]
async fn idle_connections_make_way_for_new_ones() {
    const MAX: usize = 8;
    let (rig, control) = Rig::synced_with(vec![hello()], |options| options.connections_max = MAX).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut busy: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    assert_eq!(busy.call(crate::client::request("/function/hello")).await.status, 200);
    let mut silent = Vec::new();
    for n in 0..5 * MAX {
        silent.push(TcpStream::connect(rig.address()).await.unwrap());
        // Whoever says something is heard, however many say nothing.
        assert_eq!(crate::client::get(rig.address(), "/function/hello").await.status, 200, "{n}");
        assert_eq!(busy.call(crate::client::request("/function/hello")).await.status, 200, "{n}");
    }
    let mut first = silent.remove(0);
    let _ = within("the end of the first", first.read_to_end(&mut Vec::new())).await;
    assert!(rig.data_plane.stats().crowded_out > 0);
}

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    const IDLE_MAX: Duration = Duration::from_millis(200);
    let (rig, control) = Rig::synced_with(vec![hello()], |o| o.header_read_timeout = IDLE_MAX).await;
    let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".as_slice();
    for said in [b"".as_slice(), b"GET /function/hello HT", b"PRI * HTTP/2.0\r\n", settings] {
        let mut client = TcpStream::connect(rig.address()).await.unwrap();
        client.write_all(said).await.unwrap();
        let what = format!("the end after {:?}", String::from_utf8_lossy(said));
        within(&what, client.read_to_end(&mut Vec::new())).await.unwrap();
    }
    // One that waits for its answer is of use, however long that takes.
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("http://hello.example/").body(Full::<Bytes>::default()).unwrap();
    let answer = tokio::spawn(send.send_request(request));
    tokio::time::sleep(3 * IDLE_MAX).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    assert_eq!(within("a response", answer).await.unwrap().unwrap().status(), 200);
    within("the end of an idle connection", connection).await.unwrap().unwrap();
}
