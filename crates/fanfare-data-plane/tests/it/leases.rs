//! Cold starts, the order of the queue, and slots that come and go.

use std::time::Duration;

use fanfare_types::{FunctionRoute, SandboxId, Stages, ToDataPlane};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Connection, get, get_later};
use crate::rig::{F, Rig, hello, within};
use crate::sandbox::{HeldSandbox, Sandbox};

#[tokio::test]
async fn a_cold_request_waits_says_so_and_explains_its_time() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let cold = get_later(rig.address(), "/function/hello");
    let load = control.demand(1).await;
    assert_eq!((load.function, load.in_flight, load.arrivals), (F, 0, 1));
    let sandbox = Sandbox::named(rig.dir(), 1);
    let stages = Stages {
        decide: Duration::from_micros(1_500),
        create: Duration::from_micros(20),
        ..Stages::default()
    };
    control.grant(1, &sandbox.endpoint, 1, Some(stages));
    let answer = within("the cold request", cold).await.unwrap();
    assert_eq!(answer.text(), "1");
    let timing = answer.headers["server-timing"].to_str().unwrap();
    let names: Vec<_> = timing.split(", ").map(|part| part.split(';').next().unwrap()).collect();
    assert_eq!(
        names,
        ["queue", "decide", "place", "transfer", "create", "start", "ready", "propagate", "execute"]
    );
    assert!(timing.contains("decide;dur=1.500") && timing.contains("create;dur=0.020"), "{timing}");
    assert!(timing.contains(";desc=cold"), "{timing}");
    assert_eq!(control.demand(0).await.queued, 0, "the queue has drained");
    let warm = get(rig.address(), "/function/hello").await;
    let timing = warm.headers["server-timing"].to_str().unwrap();
    assert!(!timing.contains("create") && timing.contains(";desc=warm"), "{timing}");
}

#[tokio::test]
async fn a_freed_slot_goes_to_the_longest_waiter() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    let mut waiting = Vec::new();
    for (n, path) in ["/function/hello/1", "/function/hello/2", "/function/hello/3"].into_iter().enumerate() {
        waiting.push(get_later(rig.address(), path));
        control.demand(n as u32 + 1).await;
    }
    control.grant(1, sandbox.endpoint(), 1, None);
    for (expected, answer) in ["/1", "/2", "/3"].into_iter().zip(waiting) {
        let held = sandbox.next().await;
        assert_eq!(held.path, expected);
        held.answer(expected);
        assert_eq!(within("an answer", answer).await.unwrap().text(), expected);
    }
    let stats = &rig.data_plane.stats().functions[0];
    assert_eq!((stats.moved, stats.handed_over, stats.warm), (1, 2, 0));
}

#[tokio::test]
async fn requests_that_leave_the_queue_are_gone_from_it() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let leaves = get_later(rig.address(), "/function/hello/leaves");
    control.demand(1).await;
    // With a body in several parts, the server notices only if it is read while the request waits.
    let mut leaves_too = TcpStream::connect(rig.address()).await.unwrap();
    leaves_too
        .write_all(b"POST /function/hello/leaves HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\nab")
        .await
        .unwrap();
    control.demand(2).await;
    leaves_too.write_all(b"cdef").await.unwrap();
    let stays = get_later(rig.address(), "/function/hello/stays");
    control.demand(3).await;
    leaves.abort();
    drop(leaves_too);
    // Nobody is told that some of several have left: look until it is so.
    let queued = || rig.data_plane.stats().functions[0].queued;
    within("they leave", async {
        while queued() != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let held = sandbox.next().await;
    assert_eq!(held.path, "/stays");
    held.answer("ok");
    assert_eq!(stays.await.unwrap().text(), "ok");
    assert_eq!(rig.data_plane.stats().functions[0].condemned, 0);
}

#[tokio::test]
async fn a_body_that_was_read_ahead_arrives_whole() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, |request: Request<hyper::body::Incoming>| async {
        let length = request.headers().get("content-length").cloned();
        let body = http_body_util::BodyExt::collect(request.into_body()).await.unwrap().to_bytes();
        assert_eq!(length.unwrap().to_str().unwrap(), body.len().to_string());
        http::Response::new(Full::new(body))
    });
    for (n, bytes) in (1..).zip([1, 1_000, 16 * 1024, 100_000, 3_000_000]) {
        let sent: Bytes = (0..bytes).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
        let body = Full::new(sent.clone());
        let request = Request::post("/function/hello").header("host", "x.test").body(body).unwrap();
        let mut client = Connection::open(rig.address()).await;
        let answer = tokio::spawn(async move { client.call(request).await });
        control.demand(1).await;
        control.grant(n, &sandbox.endpoint, 1, None);
        assert!(within("the echo", answer).await.unwrap().body == sent, "{bytes} bytes");
        control.say(ToDataPlane::Revoke { sandbox: SandboxId(n), slots: 1 });
        control.released().await;
    }
}

#[tokio::test]
async fn revoked_slots_go_back_when_they_are_free() {
    let (rig, mut control) = Rig::synced(vec![FunctionRoute { concurrency: 2, ..hello() }]).await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 2, None);
    let answer = get_later(rig.address(), "/function/hello");
    let held = sandbox.next().await;
    control.say(ToDataPlane::Revoke { sandbox: SandboxId(1), slots: u32::MAX });
    assert_eq!(control.released().await, (1, 1, false), "the free one at once");
    held.answer("done");
    assert_eq!(answer.await.unwrap().text(), "done");
    assert_eq!(control.released().await, (1, 1, false));
    assert_eq!(rig.data_plane.stats().functions[0].sandboxes, 0);
}

#[tokio::test]
async fn retired_and_yielded_slots_go_back() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandboxes: Vec<_> = (1..=3).map(|n| Sandbox::named(rig.dir(), n)).collect();
    for (n, sandbox) in (1..).zip(&sandboxes) {
        control.grant(n, &sandbox.endpoint, 1, None);
    }
    control.say(ToDataPlane::Retire { function: F, sandboxes: 1 });
    assert_eq!(control.released().await, (1, 1, true), "the longest idle");
    control.say(ToDataPlane::Yield { function: F, slots: 1 });
    assert_eq!(control.released().await, (2, 1, false));
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "3");
}

#[tokio::test]
async fn connections_close_with_the_slots() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = crate::sandbox::RawSandbox::new(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let answer = get_later(rig.address(), "/function/hello");
    let mut connection = sandbox.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(answer.await.unwrap().text(), "ok");
    control.say(ToDataPlane::Revoke { sandbox: SandboxId(1), slots: u32::MAX });
    connection.closed().await;
    assert_eq!(control.released().await, (1, 1, false));
}

#[tokio::test]
async fn an_update_leaves_no_gap_and_retires_the_old() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let (old, new) = (Sandbox::named(rig.dir(), 1), Sandbox::named(rig.dir(), 2));
    control.grant(1, &old.endpoint, 1, None);
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "1");
    control.say(ToDataPlane::Functions(vec![FunctionRoute { revision: 2, ..hello() }]));
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "1", "until the new one is here");
    control.grant_revision(2, 2, &new.endpoint, 1, None);
    assert_eq!(control.released().await, (1, 1, true));
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "2");
}

#[tokio::test]
async fn a_surge_is_told_at_once_and_in_few_words() {
    const SURGE: u32 = 100;
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let waiting: Vec<_> = (0..SURGE).map(|_| get_later(rig.address(), "/function/hello")).collect();
    let mut words = 0;
    let mut queued = 0;
    while queued < SURGE {
        queued = control
            .hear(
                |m| if let fanfare_types::FromDataPlane::Demand(load) = m { Some(load.queued) } else { None },
            )
            .await;
        words += 1;
        assert!(words > 1 || queued == 1, "the first is told without waiting for more");
    }
    assert!(words < SURGE, "{words} messages for {SURGE} requests");
    let sandbox = Sandbox::named(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    for answer in waiting {
        assert_eq!(within("one of the surge", answer).await.unwrap().text(), "1");
    }
    control.demand(0).await;
}
