//! Requests and answers pass as they are. Most tests are named after the case of another platform that they hold.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fanfare_types::{Condemned, FunctionRoute};
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Connection, complete, http2};
use crate::rig::{Control, Rig, hello, within};
use crate::sandbox::{RawSandbox, Sandbox, echo};

async fn with_raw() -> (Rig, Control, RawSandbox) {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    (rig, control, sandbox)
}

/// Calls over HTTP/1.1 and over HTTP/2; the answers.
async fn both(rig: &Rig, request: impl Fn() -> http::request::Builder) -> [crate::client::Answer; 2] {
    let body = Full::<Bytes>::default;
    let first = request().uri("/function/hello").header("host", "x.test").body(body()).unwrap();
    let second = request().uri("http://x.test/function/hello").body(body()).unwrap();
    let mut http2 = http2(rig.address()).await;
    let first = Connection::open(rig.address()).await.call(first).await;
    let second = within("a response", http2.send_request(second)).await.unwrap();
    [first, complete(second).await]
}

#[tokio::test]
async fn h1_path_and_query_byte_for_byte() {
    const TARGET: &str = "/a%2Fb//c;d=1/./../%E2%82%AC/%00/é{\"}|~/?x=1&x=2&y=%20+&z=[]{}'`^&?=/&é";
    let (rig, _control, sandbox) = with_raw().await;
    let mut connection = None;
    for (by_path, host) in [(true, "gateway.test"), (false, "hello.example")] {
        let prefix = if by_path { "/function/hello" } else { "" };
        let mut client = TcpStream::connect(rig.address()).await.unwrap();
        let request = format!("PROPFIND {prefix}{TARGET} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let connection = match &mut connection {
            Some(connection) => connection,
            none => none.insert(sandbox.accept().await),
        };
        let head = connection.head().await;
        assert_eq!(head.lines().next(), Some(format!("PROPFIND {TARGET} HTTP/1.1").as_str()));
        assert!(head.contains(&format!("\r\nhost: {host}\r\n")), "the host is kept: {head}");
        connection.write("HTTP/1.1 204 No Content\r\n\r\n").await;
        assert!(within("an answer", client.read_u8()).await.is_ok());
    }
    let connection = connection.as_mut().unwrap();
    let mut send = http2(rig.address()).await;
    let request = Request::builder().method("PROPFIND").uri(format!("http://hello{TARGET}"));
    let call = tokio::spawn(send.send_request(request.body(Empty::<Bytes>::new()).unwrap()));
    let head = connection.head().await;
    assert_eq!(head.lines().next(), Some(format!("PROPFIND {TARGET} HTTP/1.1").as_str()));
    connection.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(within("an answer", call).await.unwrap().unwrap().status(), 204);
}

#[tokio::test]
async fn h3_host_is_kept_and_the_way_is_told_also_over_ipv6() {
    let listen = |address: &str| address.parse().unwrap();
    let cases = [
        ("127.0.0.1:0", "127.0.0.1", "for=127.0.0.1;proto=http;host=\"a.test:81\""),
        ("[::1]:0", "::1", "for=\"[::1]\";proto=http;host=\"a.test:81\""),
    ];
    for (address, node, forwarded) in cases {
        if let Err(error) = std::net::TcpListener::bind(address) {
            eprintln!("SKIPPED: cannot listen on {address}: {error}");
            continue;
        }
        let (rig, control) = Rig::synced_with(vec![hello()], |o| o.listen = listen(address)).await;
        let sandbox = Sandbox::new(rig.dir(), 1, echo);
        control.grant(1, &sandbox.endpoint, 1, None);
        let request = || Request::get("/function/hello").header("host", "a.test:81");
        let plain = request().body(Full::<Bytes>::default()).unwrap();
        let seen = Connection::open(rig.address()).await.call(plain).await;
        for line in [
            "host: a.test:81".to_owned(),
            format!("x-forwarded-for: {node}"),
            "x-forwarded-proto: http".to_owned(),
            "x-forwarded-host: a.test:81".to_owned(),
            format!("forwarded: {forwarded}"),
        ] {
            assert_eq!(seen.text().lines().filter(|l| **l == line).count(), 1, "{line} in {}", seen.text());
        }
        let behind = request()
            .header("x-forwarded-for", "10.0.0.1")
            .header("x-forwarded-proto", "https")
            .header("x-forwarded-host", "public.test")
            .header("forwarded", "for=10.0.0.1;proto=https");
        let seen = Connection::open(rig.address()).await.call(behind.body(Full::default()).unwrap()).await;
        for line in [
            format!("x-forwarded-for: 10.0.0.1, {node}"),
            "x-forwarded-proto: https".to_owned(),
            "x-forwarded-host: public.test".to_owned(),
            format!("forwarded: for=10.0.0.1;proto=https, {forwarded}"),
        ] {
            assert_eq!(seen.text().lines().filter(|l| **l == line).count(), 1, "{line} in {}", seen.text());
        }
    }
}

#[tokio::test]
async fn h5_internal_fields_from_outside_are_stripped() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let internal = ["forwarded", "deadline-ms", "reason", "revision", "node", "sandbox", "anything"];
    let request = || {
        let named = |prefix: &'static str| internal.map(|name| format!("{prefix}{name}"));
        let names = named("x-fanfare-").into_iter().chain(named("x_fanfare_"));
        names.fold(Request::get("/"), |request, name| request.header(name, "evil"))
    };
    for answer in both(&rig, request).await {
        assert!(!answer.text().contains("evil"), "{}", answer.text());
        assert!(answer.text().contains("x-fanfare-deadline-ms: "), "its own are there: {}", answer.text());
    }
}

#[tokio::test]
async fn h8_bodies_of_every_byte_pass_whatever_their_type() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, |request: Request<hyper::body::Incoming>| async {
        let (parts, body) = request.into_parts();
        let mut response = Response::new(Full::new(body.collect().await.unwrap().to_bytes()));
        *response.headers_mut() = HeaderMap::from_iter(
            parts
                .headers
                .into_iter()
                .filter_map(|(name, value)| name.map(|name| (name, value)))
                .filter(|(name, _)| *name == "content-type" || *name == "content-encoding"),
        );
        response
    });
    control.grant(1, &sandbox.endpoint, 1, None);
    let bytes: Bytes = (0..=255_u8).cycle().take(100_000).collect::<Vec<_>>().into();
    for kind in ["application/octet-stream", "text/plain; charset=utf-8", "application/json"] {
        for encoding in ["identity", "gzip", "br"] {
            let request = Request::post("/function/hello").header("host", "x.test");
            let request = request.header("content-type", kind).header("content-encoding", encoding);
            let request = request.body(Full::new(bytes.clone())).unwrap();
            let answer = Connection::open(rig.address()).await.call(request).await;
            assert!(answer.body == bytes, "{kind} {encoding}");
            assert_eq!(answer.headers["content-type"], kind);
            assert_eq!(answer.headers["content-encoding"], encoding);
        }
    }
}

#[tokio::test]
async fn repeated_fields_are_kept_apart_and_in_order() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, |_| async {
        Response::builder()
            .header("set-cookie", "a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT")
            .header("set-cookie", "b=2")
            .header("via", "one")
            .header("via", "two")
            .body(Empty::<Bytes>::new())
            .unwrap()
    });
    control.grant(1, &sandbox.endpoint, 1, None);
    for answer in both(&rig, || Request::get("/")).await {
        let all = |name: &str| answer.headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned());
        let cookies: Vec<_> = all("set-cookie").collect();
        assert_eq!(cookies, ["a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "b=2"]);
        assert_eq!(all("via").collect::<Vec<_>>(), ["one", "two"]);
    }
}

#[tokio::test]
async fn heads_of_64_kib_pass_both_ways() {
    const VALUE_BYTES: usize = 1_000;
    let fields = || (0..60).map(|n| (format!("x-{n:03}"), "v".repeat(VALUE_BYTES)));
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, move |request: Request<hyper::body::Incoming>| async move {
        let whole = fields().all(|(name, value)| request.headers().get(name).is_some_and(|v| *v == *value));
        let response = Response::builder().status(if whole { 200 } else { 500 });
        let response = fields().fold(response, |response, (name, value)| response.header(name, value));
        response.body(Empty::<Bytes>::new()).unwrap()
    });
    control.grant(1, &sandbox.endpoint, 1, None);
    let last = "v".repeat(64 * 1024 - 60 * (VALUE_BYTES + 9) - 300);
    let request =
        || fields().fold(Request::get("/").header("x-last", &last), |request, (n, v)| request.header(n, v));
    for answer in both(&rig, request).await {
        assert_eq!(answer.status, 200, "{:?} {:?}", answer.text(), answer.headers.len());
        assert!(fields().all(|(name, value)| answer.headers[name] == *value));
    }
}

#[tokio::test]
async fn answers_to_head_204_and_304_have_no_body_and_keep_their_fields() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, |request: Request<hyper::body::Incoming>| async move {
        let status: u16 = request.headers()["x-status"].to_str().unwrap().parse().unwrap();
        let response = Response::builder().status(status).header("etag", "\"7\"");
        let body = if status == 200 { "0123456789" } else { "" };
        response.body(Full::<Bytes>::from(body)).unwrap()
    });
    control.grant(1, &sandbox.endpoint, 1, None);
    for (method, status, length) in
        [(Method::HEAD, "200", Some("10")), (Method::GET, "204", None), (Method::GET, "304", None)]
    {
        for answer in
            both(&rig, || Request::builder().method(method.clone()).header("x-status", status)).await
        {
            assert_eq!((answer.status.as_str(), answer.text()), (status, ""));
            assert_eq!(answer.headers["etag"], "\"7\"");
            let said = answer.headers.get("content-length").map(|length| length.to_str().unwrap());
            assert_eq!(said, length, "{method} {status}");
            assert!(!answer.headers.contains_key("transfer-encoding"), "{method} {status}");
        }
    }
    assert_eq!(sandbox.seen.connections.load(std::sync::atomic::Ordering::SeqCst), 1, "each left it usable");
}

#[tokio::test]
async fn trailers_pass_both_ways_to_clients_of_both_versions() {
    let (rig, _control, sandbox) = with_raw().await;
    let mut connection = None;
    for version in [1, 2] {
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
        let frames = [Frame::data(Bytes::from_static(b"body")), Frame::trailers(trailers)];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
        let request =
            Request::post(if version == 1 { "/function/hello" } else { "http://x.test/function/hello" })
                .header("te", "trailers")
                .header("trailer", "x-sum");
        let call = if version == 1 {
            let request = request.header("host", "x.test").body(body).unwrap();
            let mut client = Connection::open(rig.address()).await;
            tokio::spawn(async move { client.send.send_request(request).await })
        } else {
            let mut client = http2(rig.address()).await;
            let request = request.body(body).unwrap();
            tokio::spawn(async move { client.send_request(request).await })
        };
        let connection = match &mut connection {
            Some(connection) => connection,
            none => none.insert(sandbox.accept().await),
        };
        let head = connection.head().await;
        assert!(head.contains("\r\nte: trailers\r\n"), "{head}");
        assert_eq!(connection.read_to("\r\n\r\n").await, "4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n");
        let answer = "HTTP/1.1 200 OK\r\ntrailer: x-status\r\ntransfer-encoding: chunked\r\n\r\n";
        connection.write(&format!("{answer}2\r\nok\r\n0\r\nx-status: fine\r\n\r\n")).await;
        let response = within("a response", call).await.unwrap().unwrap();
        let body = within("a body", response.into_body().collect()).await.unwrap();
        assert_eq!(
            body.trailers().map(|t| t["x-status"].clone()),
            Some("fine".parse().unwrap()),
            "{version}"
        );
        assert_eq!(body.to_bytes(), "ok");
    }
}

#[tokio::test]
async fn s1_small_chunks_pass_at_once() {
    // Ten times what is promised: the machine may be busy.
    const BOUND: Duration = Duration::from_millis(200);
    let (rig, _control, sandbox) = with_raw().await;
    let mut connection = None;
    for version in [1, 2] {
        let request = crate::client::request("/function/hello");
        let call = if version == 1 {
            let mut client = Connection::open(rig.address()).await;
            tokio::spawn(async move { client.send.send_request(request).await })
        } else {
            let mut client = http2(rig.address()).await;
            let request = Request::get("http://x.test/function/hello").body(Full::default()).unwrap();
            tokio::spawn(async move { client.send_request(request).await })
        };
        let connection = match &mut connection {
            Some(connection) => connection,
            none => none.insert(sandbox.accept().await),
        };
        connection.head().await;
        connection.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n").await;
        connection.write("transfer-encoding: chunked\r\n\r\n").await;
        let mut body = within("the head", call).await.unwrap().unwrap().into_body();
        for n in 0..50 {
            let sent = Instant::now();
            connection.write("1\r\nx\r\n").await;
            let frame = within("a chunk", body.frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "x");
            assert!(sent.elapsed() < BOUND, "chunk {n} took {:?} over HTTP/{version}", sent.elapsed());
        }
        connection.write("0\r\n\r\n").await;
        assert_eq!(within("the end", body.collect()).await.unwrap().to_bytes(), "");
    }
}

#[tokio::test]
async fn an_answer_before_the_body_is_read_passes_and_costs_no_sandbox() {
    let (rig, _control, sandbox) = with_raw().await;
    for version in [1, 2] {
        let endless =
            stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[7; 16_384]))));
        let body = StreamBody::new(endless);
        let call = if version == 1 {
            let request = Request::post("/function/hello").header("host", "x.test").body(body).unwrap();
            let mut client = Connection::open(rig.address()).await;
            tokio::spawn(async move { client.send.send_request(request).await })
        } else {
            let request = Request::post("http://x.test/function/hello").body(body).unwrap();
            let mut client = http2(rig.address()).await;
            tokio::spawn(async move { client.send_request(request).await })
        };
        let mut connection = sandbox.accept().await;
        connection.head().await;
        connection.write("HTTP/1.1 413 Content Too Large\r\ncontent-length: 8\r\n\r\ntoo much").await;
        let response = within("a response", call).await.unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(within("a body", response.into_body().collect()).await.unwrap().to_bytes(), "too much");
        connection.closed().await;
    }
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn s2_a_websocket_may_be_silent() {
    const IDLE_MAX: Duration = Duration::from_millis(100);
    let (rig, control) = Rig::synced_with(vec![hello()], |o| o.header_read_timeout = IDLE_MAX).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let asked =
        "GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection
        .write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        assert!(within("the answer", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    let cut = tokio::time::timeout(4 * IDLE_MAX, client.read_u8()).await;
    assert!(cut.is_err(), "{cut:?}");
    client.write_all(b"ping.").await.unwrap();
    assert_eq!(connection.read_to(".").await, "ping.");
}

#[tokio::test]
async fn s5_a_client_that_leaves_is_seen_by_the_function_and_its_sandbox_is_replaced() {
    // Ten times what is promised.
    const BOUND: Duration = Duration::from_secs(10);
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    for (number, version, begun) in [(1, 1, true), (2, 2, true), (3, 1, false), (4, 2, false)] {
        let sandbox = RawSandbox::new(rig.dir(), number);
        control.grant(number, &sandbox.endpoint, 1, None);
        control.settle().await;
        let request = crate::client::request("/function/hello");
        let call = if version == 1 {
            let mut client = Connection::open(rig.address()).await;
            tokio::spawn(async move { client.send.send_request(request).await })
        } else {
            let mut client = http2(rig.address()).await;
            let request = Request::get("http://x.test/function/hello").body(Full::default()).unwrap();
            tokio::spawn(async move { client.send_request(request).await })
        };
        let mut connection = sandbox.accept().await;
        connection.head().await;
        if begun {
            let part = "x".repeat(1_000);
            connection.write(&format!("HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n{part}")).await;
            drop(within("a response", call).await.unwrap().unwrap());
        } else {
            call.abort();
        }
        let left = Instant::now();
        connection.closed().await;
        assert!(left.elapsed() < BOUND, "HTTP/{version}: {:?}", left.elapsed());
        assert_eq!(control.condemned().await, (number, Condemned::Abandoned));
        assert_eq!(rig.data_plane.stats().functions[0].in_flight, 0);
        control.gone(number, fanfare_types::ExitCause::Stopped, "");
    }
}

#[tokio::test]
async fn s6_a_timeout_in_mid_stream_resets_the_stream_and_no_other() {
    let timeout = FunctionRoute { request_timeout: Duration::from_millis(500), concurrency: 2, ..hello() };
    let (rig, mut control) = Rig::synced(vec![timeout]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 2, None);
    let mut client = http2(rig.address()).await;
    let request = || Request::get("http://x.test/function/hello").body(Empty::<Bytes>::new()).unwrap();
    let call = tokio::spawn(client.send_request(request()));
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n").await;
    let mut body = within("the head", call).await.unwrap().unwrap().into_body();
    assert_eq!(within("a part", body.frame()).await.unwrap().unwrap().into_data().unwrap(), "part");
    let cut = within("the cut", body.frame()).await.unwrap().unwrap_err();
    assert!(format!("{cut:?}").contains("Reset("), "reset, and not ended: {cut:?}");
    assert_eq!(control.condemned().await, (1, Condemned::Timeout));
    let fresh = Sandbox::named(rig.dir(), 2);
    control.grant(2, &fresh.endpoint, 2, None);
    let answer = within("a response", client.send_request(request())).await.unwrap();
    assert_eq!(complete(answer).await.text(), "2", "the connection goes on");
}
