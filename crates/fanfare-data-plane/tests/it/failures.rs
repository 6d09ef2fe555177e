//! Sandboxes that fail.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use fanfare_types::{Condemned, ExitCause, FunctionRoute};
use http_body_util::{BodyExt, Full};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Connection, get, get_later, request};
use crate::rig::{Rig, hello, within};
use crate::sandbox::{RawSandbox, Sandbox, text};

#[tokio::test]
async fn the_end_of_a_sandbox_is_told_with_its_cause() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let cases = [
        (
            ExitCause::OutOfMemory,
            "out-of-memory",
            "the sandbox was killed: out of memory while it worked on the request",
        ),
        (
            ExitCause::Status(3),
            "sandbox-exited",
            "the sandbox exited with status 3 while it worked on the request",
        ),
        (ExitCause::NodeLost, "node-lost", "the sandbox lost with its node while it worked on the request"),
    ];
    for (n, (exit, reason, detail)) in (1..).zip(cases) {
        let sandbox = RawSandbox::new(rig.dir(), n);
        control.grant(n, &sandbox.endpoint, 1, None);
        let answer = get_later(rig.address(), "/function/hello");
        let mut connection = sandbox.accept().await;
        connection.head().await;
        // The connection breaks first, and the cause comes after it.
        drop(connection);
        control.gone(n, exit, "last words");
        let answer = within("the failure", answer).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.reason()), (502, reason));
        assert_eq!(answer.problem()["detail"], detail);
        assert_eq!(answer.problem()["log_tail"], "last words");
    }
    let heard = control.until_report().await;
    assert!(!heard.iter().any(|m| matches!(m, fanfare_types::FromDataPlane::Condemned { .. })), "{heard:?}");
}

#[tokio::test]
async fn the_cause_of_an_end_may_come_a_while_after_the_connections_end() {
    const AFTER: Duration = Duration::from_millis(250);
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let answer = get_later(rig.address(), "/function/hello");
    let mut connection = sandbox.accept().await;
    connection.head().await;
    drop(connection);
    // The kernel takes so long to free the memory of a large process, whose sockets have gone first.
    tokio::time::sleep(AFTER).await;
    control.gone(1, ExitCause::OutOfMemory, "last words");
    let answer = within("the failure", answer).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (502, "out-of-memory"));
}

#[tokio::test]
async fn a_function_cannot_answer_as_the_platform() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, |_| async {
        let mut answer = text("mine");
        let said = [("x-fanfare-reason", "queue-full"), ("x_fanfare_reason", "queue-full"), ("x-own", "1")];
        for (name, value) in said.into_iter().chain([("server-timing", "db;dur=1")]) {
            answer.headers_mut().insert(name, http::HeaderValue::from_static(value));
        }
        answer
    });
    control.grant(1, &sandbox.endpoint, 1, None);
    let answer = get(rig.address(), "/function/hello").await;
    assert_eq!((answer.status.as_u16(), answer.reason(), answer.text()), (200, "", "mine"));
    assert!(!answer.headers.contains_key("x_fanfare_reason") && answer.headers["x-own"] == "1");
    let timings: Vec<_> = answer.headers.get_all("server-timing").iter().collect();
    assert_eq!(timings[0], "db;dur=1");
    assert!(timings[1].to_str().unwrap().starts_with("queue;dur=") && timings.len() == 2, "{timings:?}");
}

#[tokio::test]
async fn a_function_cannot_speak_as_the_platform_before_or_after_its_answer_either() {
    const SAID: &str = "x-fanfare-reason: queue-full\r\nx_fanfare_node: n\r\nx-own: 1\r\n";
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let answer = |body: &str| {
        format!(
            "HTTP/1.1 103 Early Hints\r\n{SAID}\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\
             trailer: x-fanfare-reason, x_fanfare_node, x-own\r\n\r\n{body}0\r\n{SAID}\r\n"
        )
    };
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let mut connection = None;
    // With the head, and after the answer has begun.
    for body in ["2\r\nok\r\n", ""] {
        client.write_all(b"GET /function/hello HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n").await.unwrap();
        let connection = match &mut connection {
            Some(connection) => connection,
            none => none.insert(sandbox.accept().await),
        };
        connection.head().await;
        connection.write(&answer(body)).await;
        let mut received = Vec::new();
        while !received.ends_with(b"0\r\nx-own: 1\r\n\r\n") {
            assert!(within("an answer", client.read_buf(&mut received)).await.unwrap() > 0);
        }
        let received = String::from_utf8(received).unwrap();
        assert!(
            received.starts_with("HTTP/1.1 103 Early Hints\r\nx-own: 1\r\n\r\nHTTP/1.1 200"),
            "{received}"
        );
        assert!(!received.contains("queue-full") && !received.contains("x_fanfare_node: "), "{received}");
    }
    let mut client = crate::client::http2(rig.address()).await;
    let request = http::Request::get("http://hello/").header("te", "trailers");
    let call = tokio::spawn(client.send_request(request.body(Full::<Bytes>::default()).unwrap()));
    let connection = connection.as_mut().unwrap();
    connection.head().await;
    connection.write(&answer("2\r\nok\r\n")).await;
    let body = within("an answer", call).await.unwrap().unwrap().into_body();
    let trailers = within("a body", body.collect()).await.unwrap().trailers().cloned().unwrap();
    assert_eq!(trailers.keys().map(http::HeaderName::as_str).collect::<Vec<_>>(), ["x-own"]);
}

#[tokio::test]
async fn a_sandbox_that_hangs_up_and_lives_is_condemned_and_nothing_is_repeated() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    let spare = Sandbox::named(rig.dir(), 2);
    control.grant(1, &sandbox.endpoint, 1, None);
    let answer = get_later(rig.address(), "/function/hello");
    let mut connection = sandbox.accept().await;
    connection.head().await;
    control.grant(2, &spare.endpoint, 1, None);
    drop(connection);
    let answer = within("the failure", answer).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (502, "connection-closed"));
    assert_eq!(control.condemned().await, (1, Condemned::Broken));
    assert_eq!(spare.seen.requests.load(Ordering::SeqCst), 0, "it may have been executed");
}

#[tokio::test]
async fn what_is_not_http_is_a_bad_response() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let cases = [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n",
    ];
    for (n, said) in (1..).zip(cases) {
        let sandbox = RawSandbox::new(rig.dir(), n);
        control.grant(n, &sandbox.endpoint, 1, None);
        let answer = get_later(rig.address(), "/function/hello");
        let mut connection = sandbox.accept().await;
        connection.head().await;
        connection.write(said).await;
        let answer = within("the failure", answer).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.reason()), (502, "bad-response"), "{said:?}");
        assert_eq!(control.condemned().await, (n, Condemned::Broken));
    }
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_reached_is_passed_over() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let answer = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    let missing = format!("unix:{}", rig.dir().join("missing").display());
    control.grant(1, &missing, 1, None);
    assert_eq!(control.condemned().await, (1, Condemned::Broken));
    control.demand(1).await;
    let sandbox = Sandbox::named(rig.dir(), 2);
    control.grant(2, &sandbox.endpoint, 1, None);
    assert_eq!(within("the second", answer).await.unwrap().text(), "2");
}

#[tokio::test]
async fn five_unreachable_sandboxes_are_enough() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let answer = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    for n in 1..=5 {
        control.grant(n, "tcp:127.0.0.1:1", 1, None);
        assert_eq!(control.condemned().await, (n, Condemned::Broken));
    }
    let answer = within("the failure", answer).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (502, "connection-closed"));
    let stats = &rig.data_plane.stats().functions[0];
    assert_eq!((stats.queued, stats.in_flight), (0, 0));
}

#[tokio::test]
async fn a_pooled_connection_that_was_closed_is_replaced_unnoticed() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    for _ in 0..3 {
        let answer = get_later(rig.address(), "/function/hello");
        let mut connection = sandbox.accept().await;
        connection.head().await;
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        assert_eq!(within("an answer", answer).await.unwrap().text(), "ok");
        drop(connection);
    }
}

#[tokio::test]
async fn connection_close_is_obeyed_and_the_slot_stays_good() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    for _ in 0..2 {
        let answer = get_later(rig.address(), "/function/hello");
        let mut connection = sandbox.accept().await;
        connection.head().await;
        connection.write("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").await;
        assert_eq!(within("an answer", answer).await.unwrap().text(), "ok");
        connection.closed().await;
    }
}

#[tokio::test]
async fn sockets_come_from_a_broker() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let path = rig.dir().join("broker.sock");
    let broker = tokio::net::UnixListener::bind(&path).unwrap();
    let sandbox = Sandbox::named(rig.dir(), 7);
    let endpoint = sandbox.endpoint.strip_prefix("unix:").unwrap().to_owned();
    let ask = |name: &str| format!("broker:{}#{name}", path.display());
    let refused = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    control.grant(1, &ask("s1"), 1, None);
    let (mut stream, _) = within("the broker is asked", broker.accept()).await.unwrap();
    let mut line = [0; 3];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"s1\n");
    stream.write_all(b"1").await.unwrap();
    assert_eq!(control.condemned().await, (1, Condemned::Broken));
    control.grant(7, &ask("s7"), 1, None);
    let (mut stream, _) = within("the broker is asked", broker.accept()).await.unwrap();
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"s7\n");
    let connected = std::os::unix::net::UnixStream::connect(endpoint).unwrap();
    let descriptors = [connected.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let granted = [std::io::IoSlice::new(b"0")];
    rustix::net::sendmsg(&stream, &granted, &mut ancillary, SendFlags::empty()).unwrap();
    assert_eq!(within("the answer", refused).await.unwrap().text(), "7");
}

#[tokio::test]
async fn tcp_endpoints_work() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    control.grant(1, &format!("tcp:{}", listener.local_addr().unwrap()), 1, None);
    let answer = get_later(rig.address(), "/function/hello");
    let (mut stream, _) = within("a connection", listener.accept()).await.unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntcp").await.unwrap();
    assert_eq!(within("an answer", answer).await.unwrap().text(), "tcp");
    assert_eq!(get(rig.address(), "/function/nothing").await.status, 404);
}

#[tokio::test]
async fn requests_of_a_lost_node_are_answered_when_it_is_lost() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let waits_for_head = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &waits_for_head.endpoint, 1, None);
    let answer = get_later(rig.address(), "/function/hello");
    let mut silent = waits_for_head.accept().await;
    silent.head().await;
    let in_its_body = RawSandbox::new(rig.dir(), 2);
    control.grant(2, &in_its_body.endpoint, 1, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.start(request("/function/hello")).await });
    let mut begun = in_its_body.accept().await;
    begun.head().await;
    begun.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n").await;
    let response = within("the head", call).await.unwrap();
    // A machine that is gone closes no connection.
    control.gone(1, ExitCause::NodeLost, "");
    control.gone(2, ExitCause::NodeLost, "");
    let answer = within("the failure", answer).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (502, "node-lost"));
    assert!(within("the cut", response.into_body().collect()).await.is_err(), "never a clean end");
    drop((silent, begun));
    let heard = control.until_report().await;
    assert!(!heard.iter().any(|m| matches!(m, fanfare_types::FromDataPlane::Condemned { .. })), "{heard:?}");
}

#[tokio::test]
async fn what_a_sandbox_said_before_its_end_is_still_passed_on() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    for n in 1..=20 {
        let sandbox = RawSandbox::new(rig.dir(), n);
        control.grant(n, &sandbox.endpoint, 1, None);
        let answer = get_later(rig.address(), "/function/hello");
        let mut connection = sandbox.accept().await;
        connection.head().await;
        // Which of the two is heard first is up to chance.
        control.gone(n, ExitCause::Status(0), "");
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlast").await;
        assert_eq!(within("the answer", answer).await.unwrap().text(), "last");
    }
    control.settle().await;
}

#[tokio::test]
async fn a_sandbox_does_not_pay_for_the_time_that_another_one_took() {
    let impatient = FunctionRoute { request_timeout: Duration::from_millis(300), ..hello() };
    let (rig, mut control) = Rig::synced(vec![impatient]).await;
    // Its backlog is full: a connection waits until the request's time is over.
    let path = rig.dir().join("full.sock");
    let full = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    full.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    full.listen(0).unwrap();
    let _fills_it = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let answer = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    control.grant(1, &format!("unix:{}", path.display()), 1, None);
    let sound = Sandbox::named(rig.dir(), 2);
    control.grant(2, &sound.endpoint, 1, None);
    let answer = within("the refusal", answer).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (504, "queue-timeout"), "{answer:?}");
    assert_eq!(control.condemned().await, (1, Condemned::Broken));
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "2");
    assert_eq!(sound.seen.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_response_that_broke_off_before_it_was_passed_on_is_a_refusal() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp:{}", listener.local_addr().unwrap());
    for (n, rest) in
        [(1, "content-length: 9\r\n\r\npart"), (2, "transfer-encoding: chunked\r\n\r\n4\r\npart\r\n")]
    {
        control.grant(n, &endpoint, 1, None);
        let waiting = get_later(rig.address(), "/function/hello");
        let (mut sandbox, _) = within("a connection", listener.accept()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            within("a request", sandbox.read_buf(&mut head)).await.unwrap();
        }
        // Held back until the end goes along in the same segment, so that neither can be seen without the other.
        socket2::SockRef::from(&sandbox).set_tcp_cork(true).unwrap();
        sandbox.write_all(format!("HTTP/1.1 200 OK\r\n{rest}").as_bytes()).await.unwrap();
        sandbox.shutdown().await.unwrap();
        let answer = within("a refusal", waiting).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.reason()), (502, "connection-closed"), "{rest}");
        assert_eq!(control.condemned().await, (n, Condemned::Broken));
    }
}

#[tokio::test]
async fn c1_sandboxes_that_could_not_be_reached_slow_no_later_cold_start_down() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    for number in 1..=3 {
        control.grant(number, &format!("unix:{}/nobody{number}", rig.dir().display()), 1, None);
    }
    let first = Sandbox::named(rig.dir(), 10);
    control.grant(10, &first.endpoint, 1, None);
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "10");
    control.gone(10, ExitCause::Stopped, "");
    control.settle().await;
    for number in 11..31 {
        let answer = get_later(rig.address(), "/function/hello");
        let sandbox = Sandbox::named(rig.dir(), number);
        control.grant(number, &sandbox.endpoint, 1, None);
        assert_eq!(within("an answer", answer).await.unwrap().text(), number.to_string());
        // As before: one connection, one request, nothing that asks whether it is there.
        let seen = &sandbox.seen;
        let counts = (seen.connections.load(Ordering::SeqCst), seen.requests.load(Ordering::SeqCst));
        assert_eq!(counts, (1, 1), "sandbox {number}");
        control.gone(number, ExitCause::Stopped, "");
        control.settle().await;
    }
}
