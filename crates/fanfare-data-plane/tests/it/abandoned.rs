//! Answers that nobody waits for any more, of sandboxes with several slots.

use std::time::Duration;

use bytes::Bytes;
use fanfare_types::{Condemned, FunctionRoute};
use http_body_util::Full;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Connection, complete, get, get_later, request};
use crate::rig::{Control, PATIENCE, Rig, hello, within};
use crate::sandbox::{HeldSandbox, RawConnection, RawSandbox};

/// A function with two slots in each sandbox, and a data plane that waits so long for the end of what is left behind.
async fn shared(wait: Duration, request_timeout: Duration) -> (Rig, Control) {
    let route = FunctionRoute { concurrency: 2, request_timeout, ..hello() };
    Rig::synced_with(vec![route], |o| o.abandoned_wait = wait).await
}

/// Nobody waits for an answer any more.
async fn nobody_waits(rig: &Rig) {
    within("the client's end is seen", async {
        while rig.data_plane.stats().requests > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn slot_is_free(rig: &Rig) {
    within("the slot is free", async {
        while rig.data_plane.stats().functions[0].in_flight > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn an_answer_that_ends_after_its_client_has_left_spares_the_sandbox() {
    let (rig, control) = shared(PATIENCE, PATIENCE).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 2, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.call(request("/function/hello")).await });
    let held = sandbox.next().await;
    call.abort();
    nobody_waits(&rig).await;
    assert_eq!(rig.data_plane.stats().functions[0].in_flight, 1, "its slot is not free before it has ended");
    held.answer("for nobody");
    slot_is_free(&rig).await;
    for _ in 0..3 {
        let answer = get_later(rig.address(), "/function/hello");
        sandbox.next().await.answer("again");
        assert_eq!(answer.await.unwrap().text(), "again");
    }
}

#[tokio::test]
async fn an_answer_that_ends_after_its_time_spares_the_sandbox_too() {
    let (rig, control) = shared(PATIENCE, Duration::from_millis(100)).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 2, None);
    let answer = get_later(rig.address(), "/function/hello");
    let held = sandbox.next().await;
    assert_eq!(within("the refusal", answer).await.unwrap().reason(), "request-timeout");
    held.answer("too late");
    slot_is_free(&rig).await;
}

#[tokio::test]
async fn the_rest_of_an_answer_whose_client_has_left_is_read() {
    let (rig, control) = shared(PATIENCE, PATIENCE).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 2, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { client.start(request("/function/hello")).await });
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n").await;
    drop(call.await.unwrap());
    nobody_waits(&rig).await;
    connection.write("4\r\nrest\r\n0\r\n\r\n").await;
    slot_is_free(&rig).await;
    let answer = get_later(rig.address(), "/function/hello");
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(answer.await.unwrap().text(), "ok", "on the same connection");
}

#[tokio::test]
async fn an_answer_that_does_not_end_condemns_the_sandbox_and_its_neighbour_finishes() {
    let (rig, mut control) = shared(Duration::from_millis(50), PATIENCE).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 2, None);
    let beside = get_later(rig.address(), "/function/hello/beside");
    let neighbour = sandbox.next().await;
    let leaves = get_later(rig.address(), "/function/hello/leaves");
    let _stuck = sandbox.next().await;
    leaves.abort();
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
    assert_eq!(control.released().await, (1, 1, false), "the stuck one's slot");
    let waits = get_later(rig.address(), "/function/hello/waits");
    control.demand(1).await;
    neighbour.answer("unharmed");
    assert_eq!(within("the neighbour", beside).await.unwrap().text(), "unharmed");
    assert_eq!(control.released().await, (1, 1, false), "and not for the one that waits");
    control.gone(1, fanfare_types::ExitCause::Stopped, "");
    let other = crate::sandbox::Sandbox::named(rig.dir(), 2);
    control.grant(2, &other.endpoint, 2, None);
    assert_eq!(within("the waiting one", waits).await.unwrap().text(), "2");
}

#[tokio::test]
async fn an_endless_answer_is_not_read_without_end() {
    let (rig, mut control) = shared(PATIENCE, PATIENCE).await;
    let sandbox = crate::sandbox::Sandbox::new(rig.dir(), 1, |_| async {
        http::Response::new(Full::new(Bytes::from(vec![b'x'; 64 << 20])))
    });
    control.grant(1, &sandbox.endpoint, 2, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let response = client.start(request("/function/hello")).await;
    drop((response, client));
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
}

#[tokio::test]
async fn a_sandbox_that_ends_meanwhile_is_no_longer_waited_for() {
    let (rig, mut control) = shared(PATIENCE, PATIENCE).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 2, None);
    let mut client: Connection<Full<Bytes>> = Connection::open(rig.address()).await;
    let call = tokio::spawn(async move { complete(client.start(request("/function/hello")).await).await });
    let mut connection = sandbox.accept().await;
    connection.head().await;
    call.abort();
    nobody_waits(&rig).await;
    control.gone(1, fanfare_types::ExitCause::Signal(9), "");
    control.settle().await;
    drop(connection);
    slot_is_free(&rig).await;
    assert_eq!(rig.data_plane.stats().functions[0].sandboxes, 0);
}

#[tokio::test]
async fn shutting_down_waits_for_no_answer_that_nobody_waits_for() {
    let route = FunctionRoute { concurrency: 2, ..hello() };
    let (rig, mut control) = Rig::synced_with(vec![route], |o| {
        (o.drain_timeout, o.abandoned_wait) = (Duration::from_millis(100), PATIENCE);
    })
    .await;
    let mut stuck = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, stuck.endpoint(), 2, None);
    let answer = get_later(rig.address(), "/function/hello");
    let _held = stuck.next().await;
    rig.shutdown.cancel();
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
    control.cut();
    within("the end", rig.data_plane.stopped()).await;
    assert!(answer.await.is_err(), "its connection was closed without an answer");
}

#[tokio::test]
async fn a_sandbox_of_its_own_is_condemned_at_once() {
    let (rig, mut control) = Rig::synced_with(vec![hello()], |o| o.abandoned_wait = PATIENCE * 10).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let leaves = get_later(rig.address(), "/function/hello");
    let _held = sandbox.next().await;
    leaves.abort();
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
    assert_eq!(control.released().await, (1, 1, false));
    let good = crate::sandbox::Sandbox::named(rig.dir(), 2);
    control.grant(2, &good.endpoint, 1, None);
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "2");
}

/// An upgraded connection whose client has gone without a word; the sandbox's end of it.
async fn broken_upgrade(rig: &Rig, sandbox: &RawSandbox) -> RawConnection {
    let mut client = TcpStream::connect(rig.address()).await.unwrap();
    let asked = "GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection
        .write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await;
    client.write_all(b"ping.").await.unwrap();
    assert_eq!(connection.read_to(".").await, "ping.");
    client.set_zero_linger().unwrap();
    drop(client);
    connection
}

#[tokio::test]
async fn an_upgraded_connection_that_breaks_spares_a_sandbox_that_hangs_up() {
    let (rig, control) = shared(PATIENCE, PATIENCE).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 2, None);
    let mut connection = broken_upgrade(&rig, &sandbox).await;
    connection.closed().await;
    assert_eq!(rig.data_plane.stats().functions[0].in_flight, 1, "it has not hung up yet");
    drop(connection);
    slot_is_free(&rig).await;
}

#[tokio::test]
async fn an_upgraded_connection_that_breaks_condemns_a_sandbox_that_does_not_hang_up() {
    let (rig, mut control) = shared(Duration::from_millis(50), PATIENCE).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 2, None);
    let mut connection = broken_upgrade(&rig, &sandbox).await;
    assert_eq!(control.condemned().await, (1, Condemned::Abandoned));
    connection.closed().await;
}
