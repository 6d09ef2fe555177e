//! Several cores share one function.

use std::sync::atomic::Ordering;

use fanfare_types::FunctionRoute;
use tokio::io::AsyncWriteExt;

use crate::client::{Connection, request};
use crate::rig::{Rig, hello, within};
use crate::sandbox::{RawConnection, RawSandbox, Sandbox, text};

#[tokio::test]
async fn cores_share_slots_and_connections_never_outnumber_them() {
    const CLIENTS: usize = 24;
    const REQUESTS: usize = 40;
    let route = FunctionRoute { concurrency: 2, queue_limit: 1_000, ..hello() };
    let (rig, control) = Rig::synced_with(vec![route], |options| options.threads = 3).await;
    let sandboxes: Vec<_> = (1..=2)
        .map(|n| {
            Sandbox::new(rig.dir(), n, |_| async {
                // Long enough that requests of all cores wait for slots.
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                text("ok")
            })
        })
        .collect();
    for (n, sandbox) in (1..).zip(&sandboxes) {
        control.grant(n, &sandbox.endpoint, 2, None);
    }
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let address = rig.address();
            tokio::spawn(async move {
                let mut client = Connection::open(address).await;
                for _ in 0..REQUESTS {
                    let answer = client.call(request("/function/hello")).await;
                    assert_eq!((answer.status.as_u16(), answer.text()), (200, "ok"));
                }
            })
        })
        .collect();
    for client in clients {
        within("a client", client).await.unwrap();
    }
    let mut requests = 0;
    for sandbox in &sandboxes {
        let seen = &sandbox.seen;
        requests += seen.requests.load(Ordering::SeqCst);
        assert!(seen.busy_max.load(Ordering::SeqCst) <= 2, "more requests than slots");
        assert!(seen.connections.load(Ordering::SeqCst) <= 2, "connections move between cores");
    }
    assert_eq!(requests, CLIENTS * REQUESTS);
    let stats = rig.data_plane.stats();
    assert_eq!((stats.functions[0].answered, stats.functions[0].in_flight, stats.requests), (960, 0, 0));
}

/// One sandbox of one slot, and clients of several cores that take turns. After each answer `spoil` is done to the
/// connection that it came on, which the next request must not use.
async fn each_on_a_connection_of_its_own(spoil: impl AsyncFn(&mut RawConnection)) {
    let (rig, control) = Rig::synced_with(vec![hello()], |options| options.threads = 3).await;
    let sandbox = RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut spoilt = Vec::new();
    // That one of 3 cores accepts all of them is one case in 3^23.
    for turn in 0..24 {
        let mut client = Connection::open(rig.address()).await;
        let call =
            tokio::spawn(async move { client.call(request(&format!("/function/hello/{turn}"))).await });
        let mut connection = sandbox.accept().await;
        let head = connection.head().await;
        assert!(head.starts_with(&format!("GET /{turn} ")), "each comes once, and in its turn: {head}");
        let answer = format!("answer {turn:2}");
        connection.write(&format!("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{answer}")).await;
        let got = within("an answer", call).await.unwrap();
        assert_eq!((got.status.as_u16(), got.text()), (200, answer.as_str()));
        spoil(&mut connection).await;
        spoilt.push(connection);
    }
    // The last one still rests.
    spoilt.pop();
    for mut connection in spoilt {
        assert_eq!(connection.rest().await, "", "nothing more was sent on it");
    }
    let stats = rig.data_plane.stats();
    assert_eq!((stats.functions[0].answered, stats.functions[0].condemned), (24, 0));
}

#[tokio::test]
async fn a_connection_that_its_server_closed_is_used_by_no_core() {
    // Closed by halves, so that what is sent on it would be lost without an error, as over TCP.
    each_on_a_connection_of_its_own(async |connection| connection.stream.shutdown().await.unwrap()).await;
}

#[tokio::test]
async fn what_was_said_unasked_reaches_no_request_of_any_core() {
    each_on_a_connection_of_its_own(async |connection| {
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsomeone's").await;
    })
    .await;
}

#[test]
fn a_taken_address_is_an_error_though_cores_share_theirs() {
    let rig = Rig::new(|options| options.threads = 2);
    let address = rig.address();
    let (to_nobody, _links) = tokio::sync::mpsc::unbounded_channel();
    let started = crate::rig::start_at(address, to_nobody);
    assert!(started.unwrap_err().to_string().contains("in use"));
}
