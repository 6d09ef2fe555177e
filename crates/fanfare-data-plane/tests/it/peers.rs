//! Two data planes of one cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fanfare_types::{DataPlaneId, ToDataPlane};
use http::Request;
use http_body_util::Full;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Connection, get, get_later};
use crate::rig::{Control, F, Rig, hello, within};
use crate::sandbox::{RawSandbox, Sandbox, echo};

async fn member() -> (Rig, Control) {
    Rig::synced_with(vec![hello()], |options| options.cluster_token = Some("cluster-secret".into())).await
}

/// Tells a data plane, which is number 1, that number 2 at `address` owns the function, and waits until it knows.
async fn own_elsewhere(control: &mut Control, address: &str) {
    let address: Arc<str> = address.into();
    control.say(ToDataPlane::Peers(vec![(DataPlaneId(1), "me".into()), (DataPlaneId(2), address)]));
    control.say(ToDataPlane::Owners(vec![(F, Some(DataPlaneId(2)))]));
    control.settle().await;
}

#[tokio::test]
async fn a_request_is_forwarded_once_to_its_owner() {
    let (entry, mut entry_control) = member().await;
    let (owner, owner_control) = member().await;
    let sandbox = Sandbox::new(owner.dir(), 1, echo);
    owner_control.grant(1, &sandbox.endpoint, 1, None);
    own_elsewhere(&mut entry_control, &owner.address().to_string()).await;
    let request = || {
        Request::post("/function/hello/a%2Fb?q")
            .header("host", "gateway.test")
            .header("x-request-id", "one-id")
            .body(Full::new(Bytes::from_static(b"body")))
            .unwrap()
    };
    let mut client = Connection::open(entry.address()).await;
    for _ in 0..3 {
        let answer = client.call(request()).await;
        let seen = answer.text();
        assert!(seen.starts_with("POST /a%2Fb?q\n") && seen.ends_with("\n\nbody"), "{seen}");
        assert!(seen.contains("x-forwarded-for: 127.0.0.1\n"), "one hop for the client: {seen}");
        assert!(seen.contains("x-request-id: one-id\n") && !seen.contains("secret"), "{seen}");
        assert_eq!(answer.headers["x-request-id"], "one-id");
        assert_eq!(answer.headers.get_all("server-timing").iter().count(), 1);
    }
    let (entry_stats, owner_stats) = (entry.data_plane.stats(), owner.data_plane.stats());
    assert_eq!((entry_stats.forwarded, entry_stats.functions[0].arrivals), (3, 0));
    assert_eq!((owner_stats.forwarded, owner_stats.functions[0].answered), (0, 3));
    assert_eq!(owner_stats.connections, 1, "one connection between them carries all");
    assert_eq!(sandbox.seen.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn two_that_disagree_do_not_send_a_request_in_circles() {
    let (one, mut one_control) = member().await;
    let (other, mut other_control) = member().await;
    own_elsewhere(&mut one_control, &other.address().to_string()).await;
    own_elsewhere(&mut other_control, &one.address().to_string()).await;
    let sandbox = Sandbox::named(other.dir(), 1);
    other_control.grant(1, &sandbox.endpoint, 1, None);
    assert_eq!(get(one.address(), "/function/hello").await.text(), "1");
    assert_eq!((one.data_plane.stats().forwarded, other.data_plane.stats().forwarded), (1, 0));
}

#[tokio::test]
async fn problems_of_the_owner_pass_unchanged() {
    let (entry, mut entry_control) = member().await;
    let (owner, mut owner_control) = member().await;
    own_elsewhere(&mut entry_control, &owner.address().to_string()).await;
    let waiting = get_later(entry.address(), "/function/hello");
    owner_control.demand(1).await;
    owner_control.say(ToDataPlane::Unavailable {
        function: F,
        reason: fanfare_types::Reason::NoCapacity,
        detail: "no node has room".into(),
        log_tail: "".into(),
    });
    let answer = within("the refusal", waiting).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (503, "no-capacity"));
    assert_eq!(answer.problem()["detail"], "no node has room");
    assert_eq!(answer.headers["retry-after"], "5");
}

#[tokio::test]
async fn an_owner_that_cannot_be_reached_is_stood_in_for() {
    let (entry, mut control) = member().await;
    own_elsewhere(&mut control, "127.0.0.1:1").await;
    let sandbox = Sandbox::new(entry.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let request = Request::post("/function/hello")
        .header("host", "gateway.test")
        .body(Full::new(Bytes::from_static(b"whole body")))
        .unwrap();
    let answer = Connection::open(entry.address()).await.call(request).await;
    assert!(answer.text().ends_with("\n\nwhole body"), "{answer:?}");
    assert!(!answer.text().contains("x-fanfare-forwarded"), "{answer:?}");
}

#[tokio::test]
async fn without_the_token_nobody_forwards_and_nobody_is_believed() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    own_elsewhere(&mut control, "127.0.0.1:1").await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let request = Request::get("/function/hello")
        .header("host", "gateway.test")
        .header("x-fanfare-forwarded", "cluster-secret")
        .body(Full::<Bytes>::default())
        .unwrap();
    let answer = Connection::open(rig.address()).await.call(request).await;
    assert!(answer.text().contains("x-forwarded-for: 127.0.0.1\n"), "{answer:?}");
    assert!(!answer.text().contains("cluster-secret"), "{answer:?}");
    assert_eq!(rig.data_plane.stats().forwarded, 0);
}

#[tokio::test]
async fn nor_do_two_that_have_different_tokens() {
    let member = |token: &'static str| {
        Rig::synced_with(vec![hello()], move |options| options.cluster_token = Some(token.into()))
    };
    let (one, mut one_control) = member("old-secret").await;
    let (other, mut other_control) = member("new-secret").await;
    own_elsewhere(&mut one_control, &other.address().to_string()).await;
    own_elsewhere(&mut other_control, &one.address().to_string()).await;
    let sandbox = Sandbox::new(other.dir(), 1, echo);
    other_control.grant(1, &sandbox.endpoint, 1, None);
    let answer = get(one.address(), "/function/hello").await;
    assert!(answer.text().contains("x-forwarded-for: 127.0.0.1, 127.0.0.1\n"), "not believed: {answer:?}");
    assert!(!answer.text().contains("secret"), "{answer:?}");
    assert_eq!((one.data_plane.stats().forwarded, other.data_plane.stats().forwarded), (1, 0));
}

#[tokio::test]
async fn what_asks_for_another_protocol_is_served_where_it_came() {
    let (entry, mut control) = member().await;
    let (owner, _owner_control) = member().await;
    own_elsewhere(&mut control, &owner.address().to_string()).await;
    let sandbox = RawSandbox::new(entry.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = TcpStream::connect(entry.address()).await.unwrap();
    let asked =
        "GET /function/hello HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut connection = sandbox.accept().await;
    assert!(connection.head().await.contains("\r\nupgrade: websocket\r\n"));
    assert_eq!(owner.data_plane.stats().functions[0].arrivals, 0);
}
