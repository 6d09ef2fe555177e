//! What the platform says when it cannot have a request answered.

use std::net::SocketAddr;
use std::time::Duration;

use fanfare_types::{FunctionRoute, Reason, ToDataPlane};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::client::{Connection, get, get_later, request};
use crate::rig::{F, Rig, hello, within};
use crate::sandbox::{HeldSandbox, Sandbox, echo};

#[tokio::test]
async fn every_refusal_has_a_reason_a_document_and_an_id() {
    let (rig, _control) = Rig::synced(vec![hello()]).await;
    let mut client = Connection::open(rig.address()).await;
    let answer = client.call(request("/function/helo/x")).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (404, "function-not-found"));
    let problem = answer.problem();
    assert_eq!(problem["reason"], "function-not-found");
    assert_eq!(problem["status"], 404);
    assert_eq!(problem["type"], "urn:fanfare:reason:function-not-found");
    assert_eq!(problem["title"], "function not found");
    assert_eq!(problem["detail"], "there is no function \"helo\"");
    assert_eq!(problem["hint"], Reason::FunctionNotFound.hint());
    assert_eq!(problem["request_id"], answer.headers["x-request-id"].to_str().unwrap());
    assert_eq!(answer.headers["x-request-id"].len(), 32);
    assert!(answer.headers.contains_key("server-timing"));
    assert!(!answer.headers.contains_key("retry-after"), "waiting does not help");
    let local = http::Request::get("/").header("host", "localhost:1").body(Default::default()).unwrap();
    assert_eq!(client.call(local).await.reason(), "route-not-found");
    let problems = rig.data_plane.stats().problems;
    assert_eq!(problems, [(Reason::FunctionNotFound, 1), (Reason::RouteNotFound, 1)]);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let (rig, mut control) = Rig::synced(vec![FunctionRoute { queue_limit: 2, ..hello() }]).await;
    let waiting = [get_later(rig.address(), "/function/hello"), get_later(rig.address(), "/function/hello")];
    control.demand(2).await;
    let refused = get(rig.address(), "/function/hello").await;
    assert_eq!((refused.status.as_u16(), refused.reason()), (429, "queue-full"));
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(refused.problem()["detail"].as_str().unwrap().starts_with("2 requests wait"));
    let sandbox = Sandbox::named(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    for answer in waiting {
        assert_eq!(within("the first two", answer).await.unwrap().text(), "1");
    }
    assert_eq!(rig.data_plane.stats().functions[0].problems, [(Reason::QueueFull, 1)]);
}

#[tokio::test]
async fn a_data_plane_holds_so_many_requests_and_no_more() {
    let (rig, mut control) = Rig::synced_with(vec![hello()], |options| options.requests_max = 1).await;
    let waiting = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    let refused = get(rig.address(), "/function/hello").await;
    assert_eq!((refused.status.as_u16(), refused.reason()), (503, "data-plane-full"));
    assert_eq!(refused.headers["retry-after"], "1");
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let held = sandbox.next().await;
    assert_eq!(
        get(rig.address(), "/function/hello").await.reason(),
        "data-plane-full",
        "not only while queued"
    );
    held.answer("done");
    assert_eq!(waiting.await.unwrap().text(), "done");
}

#[tokio::test]
async fn what_cannot_start_is_told_with_the_last_log_lines() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let unavailable = || ToDataPlane::Unavailable {
        function: F,
        reason: Reason::HandlerNotFound,
        detail: "there is no `handler` in hello.py".into(),
        log_tail: "Traceback\nAttributeError".into(),
    };
    let waiting = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    control.say(unavailable());
    let answer = within("the refusal", waiting).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (503, "handler-not-found"));
    assert_eq!(answer.problem()["detail"], "there is no `handler` in hello.py");
    assert_eq!(answer.problem()["log_tail"], "Traceback\nAttributeError");
    control.demand(0).await;
    let waiting = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    control.say(unavailable());
    assert_eq!(waiting.await.unwrap().reason(), "handler-not-found");
    control.demand(0).await;
    let waiting = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    control.say(ToDataPlane::Unavailable {
        function: F,
        reason: Reason::OutOfMemory,
        detail: "it was killed while it started".into(),
        log_tail: "".into(),
    });
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (503, "out-of-memory"), "nothing of it ran");
    control.say(ToDataPlane::Functions(vec![FunctionRoute { revision: 2, ..hello() }]));
    let sandbox = Sandbox::named(rig.dir(), 1);
    control.grant_revision(2, 1, &sandbox.endpoint, 1, None);
    control.settle().await;
    assert_eq!(get(rig.address(), "/function/hello").await.text(), "1", "the update made it good");
}

#[tokio::test]
async fn before_the_first_sync_requests_are_held_and_never_404() {
    let mut rig = Rig::new(|_| {});
    let early = get_later(rig.address(), "/function/hello");
    let mut control = rig.control().await;
    control.hello().await;
    control.sync(vec![hello()]);
    control.demand(1).await;
    let sandbox = Sandbox::named(rig.dir(), 1);
    control.grant(1, &sandbox.endpoint, 1, None);
    assert_eq!(within("the early request", early).await.unwrap().text(), "1");
    assert_eq!(get(rig.address(), "/function/other").await.reason(), "function-not-found");
}

#[tokio::test]
async fn without_a_control_plane_the_hold_ends() {
    let rig = Rig::new(|_| {});
    let began = tokio::time::Instant::now();
    let answer = get(rig.address(), "/function/hello").await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (503, "not-synced"));
    assert_eq!(answer.headers["retry-after"], "1");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_removed_function_is_404_also_for_those_that_wait() {
    let (rig, mut control) = Rig::synced(vec![hello()]).await;
    let waiting = get_later(rig.address(), "/function/hello");
    control.demand(1).await;
    control.say(ToDataPlane::FunctionRemoved(F));
    let answer = within("the refusal", waiting).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.reason()), (404, "function-not-found"));
    assert_eq!(get(rig.address(), "/function/hello").await.reason(), "function-not-found");
}

/// A request that waits with a body of which nothing comes.
async fn head_alone(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    let mut client = socket.connect(to).await.unwrap();
    let head = b"POST /function/hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n\r\n";
    client.write_all(head).await.unwrap();
    client
}

#[tokio::test]
async fn heads_without_bodies_leave_three_quarters_of_a_queue_to_others() {
    let (rig, mut control) = Rig::synced(vec![FunctionRoute { queue_limit: 100, ..hello() }]).await;
    let mut waiting = Vec::new();
    for n in 1..=25 {
        waiting.push(head_alone("127.0.0.1", rig.address()).await);
        control.demand(n).await;
    }
    let mut one_more = head_alone("127.0.0.1", rig.address()).await;
    let mut answer = String::new();
    within("the refusal", one_more.read_to_string(&mut answer)).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 429 ") && answer.contains("x-fanfare-reason: queue-full\r\n"),
        "{answer}"
    );
    assert!(answer.contains("25 requests of this client's address wait"), "{answer}");
    // Whole requests of the same client wait, and so do other clients' of any kind.
    let whole = get_later(rig.address(), "/function/hello");
    control.demand(26).await;
    let other = head_alone("127.0.0.2", rig.address()).await;
    control.demand(27).await;
    // A body that comes makes room for the next one.
    waiting[0].write_all(b"whole").await.unwrap();
    let next = loop {
        let mut next = head_alone("127.0.0.1", rig.address()).await;
        let mut answer = Vec::new();
        tokio::select! {
            _ = next.read_to_end(&mut answer) => {}
            _ = control.demand(28) => break next,
        }
    };
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut answer = String::new();
    within("the answer", waiting[0].read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("whole"), "{answer}");
    drop((waiting, whole, other, next));
}
