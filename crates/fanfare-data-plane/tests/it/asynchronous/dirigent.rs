//! Calls as Dirigent's data planes take them in their asynchronous mode.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_types::{DataPlaneId, ToDataPlane};
use http::Request;
use http_body_util::Full;

use super::cluster::member_with;
use super::{Keeping, call, ended, result, send};
use crate::client::{Answer, Connection};
use crate::sandbox::{HeldSandbox, Sandbox, text};

/// A request to a function's host.
async fn to_host(
    address: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "hello");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    Connection::open(address).await.call(request.body(body).unwrap()).await
}

/// Reads a result as InVitro does.
async fn read(address: SocketAddr, id: &str) -> Answer {
    send(address, "GET", "/", &[], id.to_owned()).await
}

/// Has a call taken in; its id, which is the whole answer.
async fn taken(address: SocketAddr, path: &str, fields: &[(&str, &str)]) -> String {
    let answer = to_host(address, "POST", path, fields, "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.headers["content-type"].to_str().unwrap()),
        (200, "text/plain")
    );
    assert_eq!(answer.headers["x-fanfare-invocation-id"], answer.text());
    answer.text().to_owned()
}

#[tokio::test]
async fn a_request_to_a_host_is_answered_with_an_id_and_an_id_with_the_result() {
    let keeping = Keeping::with(|options| options.as_dirigent = true).await;
    let address = keeping.address();
    let mut sandbox = HeldSandbox::new(keeping.rig.dir(), 1);
    keeping.control.grant(1, sandbox.endpoint(), 1, None);
    let id = taken(address, "/work?x=1", &[]).await;
    let held = sandbox.next().await;
    assert_eq!(held.path, "/work?x=1");
    let early = read(address, &id).await;
    assert_eq!((early.status.as_u16(), early.text()), (204, ""));
    assert_eq!(early.headers["x-fanfare-state"], "running");
    held.answer("{\"Status\":\"OK\"}");
    ended(address, &id).await;
    let late = read(address, &id).await;
    assert_eq!((late.status.as_u16(), late.text()), (200, "{\"Status\":\"OK\"}"));
    let took_us: u64 = late.headers["duration-microseconds"].to_str().unwrap().parse().unwrap();
    assert!((1..60_000_000).contains(&took_us), "{took_us}");
    let native = result(address, &id).await;
    assert_eq!(native.headers["x-fanfare-duration-us"], late.headers["duration-microseconds"]);
}

#[tokio::test]
async fn nothing_but_a_result_has_a_body() {
    let keeping = Keeping::with(|options| options.as_dirigent = true).await;
    let address = keeping.address();
    for wrong in ["d1-1-0000000000000001", "no id", &"x".repeat(1_000)] {
        let answer = read(address, wrong).await;
        assert_eq!(
            (answer.status.as_u16(), answer.reason(), answer.text()),
            (404, "invocation-not-found", ""),
            "{wrong}"
        );
    }
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, |_| async {
        let mut response = text("the function's own words");
        *response.status_mut() = http::StatusCode::UNPROCESSABLE_ENTITY;
        response
    });
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let id = taken(address, "/", &[]).await;
    assert_eq!(ended(address, &id).await["state"], "failed");
    let answer = read(address, &id).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (422, ""));
    assert!(answer.headers.contains_key("duration-microseconds"));
    assert_eq!(result(address, &id).await.text(), "the function's own words", "it is kept all the same");
}

#[tokio::test]
async fn what_names_no_function_by_its_host_is_answered_as_ever() {
    let keeping = Keeping::with(|options| options.as_dirigent = true).await;
    let address = keeping.address();
    let sandbox = Sandbox::named(keeping.rig.dir(), 7);
    keeping.control.grant(7, &sandbox.endpoint, 1, None);
    let by_path = send(address, "POST", "/function/hello", &[], "").await;
    assert_eq!((by_path.status.as_u16(), by_path.text()), (200, "7"));
    let grpc =
        to_host(address, "POST", "/faas.Executor/Execute", &[("content-type", "application/grpc")], "").await;
    assert_eq!((grpc.status.as_u16(), grpc.text()), (200, "7"));
    let without_id = send(address, "GET", "/", &[], "").await;
    assert_eq!((without_id.status.as_u16(), without_id.reason()), (404, "route-not-found"));
    let id = call(address, "hello", &[], "").await;
    assert_eq!(ended(address, &id).await["state"], "succeeded");
    assert_eq!(read(address, &id).await.text(), "7", "an id is an id, however the call was taken in");
    let refused = to_host(address, "POST", "/", &[("x-fanfare-max-attempts", "0")], "").await;
    assert_eq!((refused.status.as_u16(), refused.reason()), (400, "bad-request"));

    // Unless it was asked for, nothing of this is so.
    let keeping = Keeping::new().await;
    let sandbox = Sandbox::named(keeping.rig.dir(), 8);
    keeping.control.grant(8, &sandbox.endpoint, 1, None);
    assert_eq!(to_host(keeping.address(), "POST", "/", &[], "").await.text(), "8");
    let read = read(keeping.address(), "d1-1-0000000000000001").await;
    assert_eq!((read.status.as_u16(), read.reason()), (404, "route-not-found"));
}

#[tokio::test]
async fn a_result_is_read_from_any_data_plane() {
    let (one, mut one_control, _log) = member_with(1, |options| options.as_dirigent = true).await;
    let (two, mut two_control, _log_two) = member_with(2, |options| options.as_dirigent = true).await;
    let address = |rig: &crate::rig::Rig| -> Arc<str> { rig.address().to_string().into() };
    let peers = vec![(DataPlaneId(1), address(&one)), (DataPlaneId(2), address(&two))];
    for control in [&mut one_control, &mut two_control] {
        control.say(ToDataPlane::Peers(peers.clone()));
        control.settle().await;
    }
    let sandbox = Sandbox::named(two.dir(), 7);
    two_control.grant(7, &sandbox.endpoint, 1, None);
    let id = taken(two.address(), "/", &[]).await;
    assert_eq!(ended(two.address(), &id).await["state"], "succeeded");
    let answer = read(one.address(), &id).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "7"));
    assert!(answer.headers.contains_key("duration-microseconds"));
    let waiting = taken(one.address(), "/", &[]).await;
    assert_eq!(read(two.address(), &waiting).await.status.as_u16(), 204);
}
