//! Requests that find a free slot, and how they reach the function.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use fanfare_types::{Balance, FunctionRoute};
use http::Request;
use http_body_util::Full;

use crate::client::{Connection, get, request};
use crate::rig::{Rig, hello};
use crate::sandbox::{Sandbox, echo};

#[tokio::test]
async fn a_warm_request_reaches_its_function_by_path_and_by_host() {
    let (rig, control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = Connection::open(rig.address()).await;
    let by_path = client.call(request("/function/hello/a%2Fb//c;d=1/%E2%82%AC/?x=1&x=2&y=%20+")).await;
    assert_eq!(by_path.status, 200);
    assert!(by_path.text().starts_with("GET /a%2Fb//c;d=1/%E2%82%AC/?x=1&x=2&y=%20+\n"), "{by_path:?}");
    for host in ["hello", "HELLO:8080", "hello.example.com"] {
        let by_host = Request::get("/function/x?y").header("host", host).body(Full::default()).unwrap();
        let answer = client.call(by_host).await;
        assert!(answer.text().starts_with("GET /function/x?y\n"), "{answer:?}");
        assert!(answer.text().contains(&format!("host: {host}\n")), "{answer:?}");
    }
    assert!(client.call(request("/function/hello")).await.text().starts_with("GET /\n"));
    assert!(client.call(request("/function/hello?q")).await.text().starts_with("GET /?q\n"));
    assert_eq!(sandbox.seen.connections.load(Ordering::SeqCst), 1, "one connection carries them all");
    let stats = &rig.data_plane.stats().functions[0];
    assert_eq!((stats.warm + stats.cold + stats.moved, stats.answered, stats.in_flight), (6, 6, 0));
}

#[tokio::test]
async fn fields_are_added_kept_and_stripped() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    control.settle().await;
    let mut client = Connection::open(rig.address()).await;
    let request = Request::post("/function/hello")
        .header("host", "gateway.test")
        .header("x-request-id", "mine-1")
        .header("x-forwarded-for", "10.0.0.1")
        .header("x-fanfare-deadline-ms", "99999999")
        .header("x-fanfare-forwarded", "guess")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("authorization", "Bearer users-own")
        .body(Full::new(Bytes::from_static(b"body")))
        .unwrap();
    let answer = client.call(request).await;
    let seen = answer.text();
    for line in [
        "POST /\n",
        "host: gateway.test\n",
        "x-request-id: mine-1\n",
        "x-forwarded-for: 10.0.0.1, 127.0.0.1\n",
        "forwarded: for=127.0.0.1;proto=http;host=gateway.test\n",
        "authorization: Bearer users-own\n",
        "content-length: 4\n",
        "\n\nbody",
    ] {
        assert!(seen.contains(line), "{line:?} is not in {seen}");
    }
    for name in ["x-fanfare-forwarded", "x-hop", "99999999", "connection"] {
        assert!(!seen.contains(name), "{name} is in {seen}");
    }
    let left = seen.split("x-fanfare-deadline-ms: ").nth(1).unwrap().split('\n').next().unwrap();
    assert!((1..=30_000).contains(&left.parse::<u32>().unwrap()), "{left}");
    assert_eq!(answer.headers["x-request-id"], "mine-1");
    let timing = answer.headers["server-timing"].to_str().unwrap();
    assert!(timing.starts_with("queue;dur=0.") && timing.contains(", execute;dur="), "{timing}");
    assert!(!timing.contains("create"), "a warm request has no cold stages: {timing}");
}

#[tokio::test]
async fn health_follows_the_control_plane() {
    let mut rig = Rig::new(|_| {});
    let before = get(rig.address(), "/_fanfare/health").await;
    assert_eq!((before.status.as_u16(), before.reason()), (503, "not-synced"));
    let mut control = rig.control().await;
    control.hello().await;
    control.sync(vec![]);
    rig.data_plane.synced().await;
    assert_eq!(get(rig.address(), "/_fanfare/health").await.status, 200);
    assert_eq!(get(rig.address(), "/_fanfare/other").await.reason(), "route-not-found");
}

#[tokio::test]
async fn q10_a_kept_connection_is_tied_to_no_sandbox() {
    for (balance, least, most) in [(Balance::RoundRobin, 250, 250), (Balance::Random, 150, 350)] {
        let (rig, mut control) = Rig::synced(vec![FunctionRoute { balance, ..hello() }]).await;
        let sandboxes: Vec<_> = (1..=4).map(|number| Sandbox::named(rig.dir(), number)).collect();
        for (number, sandbox) in (1..).zip(&sandboxes) {
            control.grant(number, &sandbox.endpoint, 1, None);
        }
        control.settle().await;
        let mut client = Connection::open(rig.address()).await;
        for _ in 0..1_000 {
            assert_eq!(client.call(request("/function/hello")).await.status, 200);
        }
        for sandbox in &sandboxes {
            let served = sandbox.seen.requests.load(Ordering::SeqCst);
            assert!((least..=most).contains(&served), "{balance:?}: {served} of 1000");
        }
    }
}
