//! Deadlines, and clients that leave.

use std::time::Duration;

use bytes::Bytes;
use fanfare_types::{Condemned, FunctionRoute};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Connection, get, get_later, request};
use crate::rig::{Rig, hello, within};
use crate::sandbox::{HeldSandbox, RawSandbox, Sandbox};

fn impatient(millis: u64) -> FunctionRoute {
    FunctionRoute { request_timeout: Duration::from_millis(millis), ..hello() }
}

#[tokio::test]
async fn time_that_runs_out_in_the_queue() {
    let (rig, mut control) = Rig::synced(vec![impatient(50)]).await;
    let answer = get(rig.address(), "/function/hello").await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (504, "queue-timeout"));
    control.demand(1).await;
    control.demand(0).await;
}

/// A limit is what a client waits, loading included; but whose time it was is never left open.
#[tokio::test]
async fn q13_time_that_a_function_took_to_load_is_told_from_its_own() {
    let (rig, mut control) = Rig::synced(vec![impatient(500)]).await;
    let loading = get(rig.address(), "/function/hello").await;
    assert_eq!((loading.status.as_u16(), loading.reason()), (504, "queue-timeout"));
    let timing = loading.headers["server-timing"].to_str().unwrap();
    assert!(timing.starts_with("queue;dur=") && !timing.contains("execute"), "{timing}");
    control.demand(1).await;
    control.demand(0).await;
    let slow = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let _held = sandbox.next().await;
    let slow = within("the refusal", slow).await.unwrap();
    assert_eq!((slow.status.as_u16(), slow.reason()), (504, "request-timeout"));
    let timing = slow.headers["server-timing"].to_str().unwrap();
    assert!(timing.starts_with("queue;dur=") && timing.contains(", execute;dur="), "{timing}");
}

#[tokio::test]
async fn time_that_runs_out_in_user_code_condemns_the_sandbox() {
    let (rig, mut control) = Rig::synced(vec![impatient(1_000)]).await;
    let mut stuck = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, stuck.endpoint(), 1, None);
    let answer = get_later(rig.address(), "/function/hello");
    let held = stuck.next().await;
    let answer = within("the refusal", answer).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (504, "request-timeout"));
    let timing = answer.headers["server-timing"].to_str().unwrap();
    assert!(timing.contains(", execute;dur="), "it says where the time went: {timing}");
    assert_eq!(control.condemned().await, (1, Condemned::Timeout));
    let next = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    held.answer("too late");
    let good = Sandbox::named(rig.dir(), 2);
    control.grant(2, &good.endpoint, 1, None);
    assert_eq!(next.await.unwrap().text(), "2", "the condemned one is never used again");
}

#[tokio::test]
async fn time_that_runs_out_in_a_response_cuts_it() {
    let (rig, mut control) = Rig::synced(vec![impatient(200)]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    client.write_all(b"GET /function/hello HTTP/1.1\r\nhost: x.test\r\n\r\n").await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n").await;
    let mut received = Vec::new();
    // The end may come as a reset.
    let _ = within("the cut", client.read_to_end(&mut received)).await;
    let received = String::from_utf8(received).unwrap();
    assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
    assert!(received.ends_with("4\r\npart\r\n"), "an exact prefix and no last chunk: {received}");
    assert_eq!(control.condemned().await, (1, Condemned::Timeout));
    connection.closed().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_hold_a_slot_beyond_the_deadline() {
    // More than all socket buffers on the way take.
    let large = Bytes::from(vec![b'x'; 64 << 20]);
    let (rig, mut control) = Rig::synced(vec![impatient(1_000)]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, move |_| {
        let large = large.clone();
        async move { http::Response::new(Full::new(large)) }
    });
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let response = client.start(request("/function/hello")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(control.condemned().await, (1, Condemned::Timeout));
    assert_eq!(rig.data_plane.stats().functions[0].in_flight, 0);
    assert!(within("the cut", response.into_body().collect()).await.is_err(), "never a clean end");
}

#[tokio::test]
async fn a_client_that_leaves_user_code_behind_condemns_the_sandbox() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.call(request("/function/hello")).await });
    let _held = sandbox.next().await;
    call.abort();
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_response_condemns_the_sandbox() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.start(request("/function/hello")).await });
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n").await;
    let response = call.await.unwrap();
    drop(response);
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
    connection.closed().await;
}

#[tokio::test]
async fn a_client_that_leaves_after_the_response_was_read_condemns_nothing() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::named(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    for _ in 0..20 {
        // Sends, and hangs up with the answer unread.
        let mut client = TcpStream::connect(rig.address()).await.unwrap();
        client.write_all(b"GET /function/hello HTTP/1.1\r\nhost: x.test\r\n\r\n").await.unwrap();
        client.readable().await.unwrap();
        drop(client);
    }
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "1");
    let heard = control.until_report().await;
    assert!(!heard.iter().any(|m| matches!(m, fanfare_types::FromDataPlane::Condemned { .. })), "{heard:?}");
}

/// Silent for at most 300 ms; the whole may take long.
fn fidgety() -> FunctionRoute {
    FunctionRoute { idle_timeout: Some(Duration::from_millis(300)), ..hello() }
}

/// Less than that, and many of them are more.
const STEP: Duration = Duration::from_millis(50);
const STEPS: usize = 12;

#[tokio::test]
async fn silence_before_the_answer_has_a_limit_and_a_reason_of_its_own() {
    for endpoint in ["", "h2c+"] {
        let (rig, mut control) = Rig::synced(vec![fidgety()]).await;
        let sandbox = RawSandbox::new(rig.dir(), 1);
        control.grant(1, &format!("{endpoint}{}", sandbox.endpoint), 1, None);
        let answer = within("the refusal", get_later(rig.address(), "/function/hello")).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.reason()), (504, "idle-timeout"), "{endpoint}");
        assert!(answer.problem()["detail"].as_str().unwrap().contains("0.3 s"), "{}", answer.text());
        assert_eq!(control.condemned().await, (1, Condemned::Timeout));
    }
}

#[tokio::test]
async fn an_answer_that_goes_on_is_not_silent_and_one_that_stops_is_cut() {
    let (rig, mut control) = Rig::synced(vec![fidgety()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.start(request("/function/hello")).await });
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let mut body = call.await.unwrap().into_body();
    for _ in 0..STEPS {
        tokio::time::sleep(STEP).await;
        connection.write("1\r\nx\r\n").await;
        assert_eq!(within("a chunk", body.frame()).await.unwrap().unwrap().into_data().unwrap(), "x");
    }
    assert!(within("the cut", body.frame()).await.unwrap().is_err(), "never a clean end");
    assert_eq!(control.condemned().await, (1, Condemned::Timeout));
}

#[tokio::test]
async fn a_body_that_goes_on_is_not_silent_either_nor_is_a_websocket() {
    let (rig, mut control) = Rig::synced(vec![fidgety()]).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let head = format!("POST /function/hello HTTP/1.1\r\nhost: a\r\ncontent-length: {STEPS}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    for _ in 0..STEPS {
        tokio::time::sleep(STEP).await;
        client.write_all(b"x").await.unwrap();
        connection.read_to("x").await;
    }
    connection.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        assert!(within("the answer", client.read_buf(&mut received)).await.unwrap() > 0);
    }
    let asked = "GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    connection.head().await;
    connection
        .write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await;
    for _ in 0..STEPS {
        tokio::time::sleep(STEP).await;
        client.write_all(b"y").await.unwrap();
        connection.read_to("y").await;
    }
    assert_eq!(control.condemned().await, (1, Condemned::Timeout));
}
