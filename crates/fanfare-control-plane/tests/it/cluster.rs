//! Nodes and data planes come, work, hang and leave.

use std::time::{Duration, Instant};

use fanfare_link::{Dialer, LogRecord};
use fanfare_types::{
    Epoch, ExitCause, FromDataPlane, FromNode, FunctionId, GoneCause, SandboxId, SandboxRecord, StartFailure,
    StartFailureKind, ToDataPlane, ToNode, limits,
};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use serde_json::json;

use crate::peers::{data_plane, data_plane_replying, demand, node, node_hello, obedient};
use crate::world::{World, fake, soon};

fn no_lines() -> BoxStream<'static, LogRecord> {
    stream::empty().boxed()
}

/// Registers a function and returns its id.
async fn function(world: &World, name: &str) -> FunctionId {
    let id =
        world.api.create(name).await.json()["id"].as_str().unwrap().trim_start_matches('f').parse().unwrap();
    FunctionId(id)
}

fn granted(message: &ToDataPlane) -> Option<SandboxId> {
    match message {
        ToDataPlane::Grant { sandbox, .. } => Some(*sandbox),
        _ => None,
    }
}

async fn cold_start(world: World, dialer: Dialer) {
    let id = function(&world, "hello").await;
    tokio::spawn(obedient(node(&dialer, node_hello("n", 1, vec![])).await, dialer.clone(), no_lines));
    let mut data_plane = data_plane(&dialer, "d", 1).await;
    let mut routes = 0;
    data_plane
        .until(|message| match message {
            ToDataPlane::Functions(functions) => {
                routes += functions.len();
                None
            }
            ToDataPlane::Synced => Some(()),
            _ => None,
        })
        .await;
    assert_eq!(routes, 1);
    data_plane.tx.send(demand(id, 1)).unwrap();
    let sandbox = data_plane.until(granted).await;
    assert_eq!(sandbox.epoch(), Epoch(1));

    let described = world.api.call("GET", "/v1/functions/hello").await.json();
    assert_eq!(
        (&described["state"], &described["sandboxes"]["ready"]),
        (&json!("ready"), &json!(1)),
        "{described}"
    );
    assert!(
        described["decisions"][0]["reason"].as_str().is_some_and(|reason| !reason.is_empty()),
        "{described}"
    );
    let status = world.api.call("GET", "/v1/status").await.json();
    assert_eq!(
        (&status["nodes"][0]["connected"], &status["nodes"][0]["sandboxes"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(status["data_planes"][0]["address"], "127.0.0.1:8080");
    assert_eq!(status["sandboxes"]["ready"], 1);
    world.stop().await;
}

#[tokio::test]
async fn a_waiting_request_gets_a_sandbox_in_one_process() {
    let world = World::new().await;
    let dialer = world.dialer();
    cold_start(world, dialer).await;
}

#[tokio::test]
async fn a_waiting_request_gets_a_sandbox_over_the_network() {
    let world = World::new().await;
    let dialer = remote(&world);
    cold_start(world, dialer).await;
}

fn remote(world: &World) -> Dialer {
    Dialer::grpc(&format!("http://{}", world.handle().link_address().unwrap())).unwrap()
}

/// A machine so busy that no part of `fanfare up` gets to say that it lives must not take its own parts for lost: that
/// would kill what its requests run in.
#[tokio::test]
async fn a_silent_part_of_the_same_process_is_not_lost_before_its_stream_ends() {
    let world = World::new().await;
    let dialer = world.dialer();
    let mut node = node(&dialer, node_hello("n", 7, vec![])).await;
    node.until(|message| matches!(message, ToNode::Welcome { .. }).then_some(())).await;
    node.hang();
    let mut beyond = self::node(&remote(&world), node_hello("m", 7, vec![])).await;
    beyond.until(|message| matches!(message, ToNode::Welcome { .. }).then_some(())).await;
    beyond.hang();
    while beyond.next().await.is_some() {}
    let connected = async || {
        let nodes = world.api.call("GET", "/v1/nodes").await.json();
        let nodes = nodes["nodes"].as_array().unwrap().clone();
        nodes.into_iter().map(|n| (n["name"].clone(), n["connected"] == json!(true))).collect::<Vec<_>>()
    };
    assert_eq!(connected().await, [(json!("m"), false), (json!("n"), true)]);
    drop(node);
    let begun = Instant::now();
    while connected().await.iter().any(|(_, connected)| *connected) {
        assert!(begun.elapsed() < Duration::from_secs(20), "a stream that has ended is a loss");
        tokio::task::yield_now().await;
    }
    world.stop().await;
}

#[tokio::test]
async fn a_node_that_hangs_is_lost_and_one_that_reconnects_is_not() {
    let world = World::new().await;
    let dialer = remote(&world);
    let id = function(&world, "hello").await;
    let mut first = node(&dialer, node_hello("n", 7, vec![])).await;
    let mut data_plane = data_plane(&dialer, "d", 1).await;
    data_plane.until(|message| (*message == ToDataPlane::Synced).then_some(())).await;
    data_plane.tx.send(demand(id, 1)).unwrap();
    let order = |message: &ToNode| match message {
        ToNode::Create { sandbox, revision, .. } => Some((*sandbox, *revision)),
        _ => None,
    };
    let (sandbox, revision) = first.until(order).await;
    let endpoint: std::sync::Arc<str> = "unix:/run/s".into();
    let ready = FromNode::Ready { sandbox, endpoint: endpoint.clone(), stages: Default::default() };
    first.tx.send(ready).unwrap();
    assert_eq!(data_plane.until(granted).await, sandbox);

    // The same process on a new stream: nothing is lost, and the old stream is closed.
    let record = SandboxRecord { sandbox, revision, endpoint: Some(endpoint) };
    let mut second = node(&dialer, node_hello("n", 7, vec![record])).await;
    second.until(|message| matches!(message, ToNode::Welcome { .. }).then_some(())).await;
    while first.next().await.is_some() {}
    // Another process of the same name is refused while this one lives.
    let mut impostor = node(&dialer, node_hello("n", 8, vec![])).await;
    assert!(impostor.next().await.is_none());

    second.hang();
    let silent = Instant::now();
    let cause = data_plane
        .until(|message| match message {
            ToDataPlane::Gone { sandbox: gone, cause } if *gone == sandbox => Some(cause.exit),
            _ => None,
        })
        .await;
    assert_eq!(cause, ExitCause::NodeLost);
    assert!(
        silent.elapsed() >= limits::LIVENESS_TIMEOUT - limits::HEARTBEAT_INTERVAL - Duration::from_millis(50)
    );
    while second.next().await.is_some() {}
    let nodes = world.api.call("GET", "/v1/nodes").await.json();
    assert_eq!((&nodes["nodes"][0]["name"], &nodes["nodes"][0]["connected"]), (&json!("n"), &json!(false)));
    world.stop().await;
}

#[tokio::test]
async fn a_stream_that_does_not_say_who_it_is_is_closed() {
    let world = World::new().await;
    let dialer = world.dialer();
    let heartbeat = || vec![FromNode::Heartbeat];
    let named = |name: &str| vec![FromNode::Hello(node_hello(name, 1, vec![]))];
    let newer = || {
        let hello = fanfare_types::NodeHello { epoch_seen: Epoch(9), ..node_hello("n", 1, vec![]) };
        vec![FromNode::Hello(hello)]
    };
    let twice = || [named("n"), named("n")].concat();
    let runtimes = |runtimes: Vec<std::sync::Arc<str>>| {
        let hello = fanfare_types::NodeHello { runtimes, ..node_hello("n", 1, vec![]) };
        vec![FromNode::Hello(hello)]
    };
    let cases = [
        vec![],
        heartbeat(),
        named(""),
        named(&"n".repeat(254)),
        named("a/b"),
        newer(),
        twice(),
        runtimes(vec!["r".into(); 17]),
        runtimes(vec!["r".repeat(65).into()]),
    ];
    for messages in cases {
        let mut link = soon(dialer.node(Default::default())).await.unwrap();
        for message in messages.clone() {
            link.tx.send(message).unwrap();
        }
        let closed = async { while link.rx.recv().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(10), closed)
            .await
            .unwrap_or_else(|_| panic!("{messages:?}"));
    }
    let mut link = soon(dialer.data_plane(Default::default())).await.unwrap();
    let hello = fanfare_types::DataPlaneHello {
        name: "d".into(),
        address: "a".repeat(260).into(),
        incarnation: 1,
        epoch_seen: Epoch(0),
        leases: vec![],
        condemned: vec![],
    };
    link.tx.send(fanfare_types::FromDataPlane::Hello(hello)).unwrap();
    soon(async { while link.rx.recv().await.is_some() {} }).await;
    world.stop().await;
}

#[tokio::test]
async fn a_preparation_tells_what_the_node_found() {
    let world = World::new().await;
    let dialer = world.dialer();
    function(&world, "hello").await;
    let nobody = world.api.call("POST", "/v1/functions/hello/prepare").await;
    assert_eq!(nobody.status.as_u16(), 503, "{:?}", nobody.body);
    assert!(nobody.json()["detail"].as_str().unwrap().contains("no node is connected"), "{:?}", nobody.body);

    let mut node = node(&dialer, node_hello("n", 1, vec![])).await;
    node.until(|message| matches!(message, ToNode::Welcome { .. }).then_some(())).await;
    let failure = StartFailure {
        kind: StartFailureKind::HandlerNotFound,
        detail: "there is no hello.py".to_owned(),
        log_tail: "Traceback\n".to_owned(),
    };
    for result in [Some(failure), None] {
        let (answer, ()) = tokio::join!(world.api.call("POST", "/v1/functions/hello/prepare"), async {
            let revision = node
                .until(|message| match message {
                    ToNode::Prepare(revision) => Some(*revision),
                    _ => None,
                })
                .await;
            node.tx.send(FromNode::Prepared { revision, failure: result.clone() }).unwrap();
        });
        let described = world.api.call("GET", "/v1/functions/hello").await.json();
        if result.is_some() {
            let problem = answer.json();
            assert_eq!((answer.status.as_u16(), &problem["reason"]), (503, &json!("handler-not-found")));
            assert_eq!(
                (&problem["detail"], &problem["log_tail"]),
                (&json!("there is no hello.py"), &json!("Traceback\n"))
            );
            assert_eq!(
                (&described["state"], &described["last_failure"]["reason"]),
                (&json!("failed"), &problem["reason"])
            );
        } else {
            assert_eq!(
                (answer.status.as_u16(), &answer.json()["node"]),
                (200, &json!("n")),
                "{:?}",
                answer.body
            );
            assert_eq!((&described["state"], described.get("last_failure")), (&json!("idle"), None));
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_link_to_the_control_api_is_told_where_streams_are() {
    let world = World::new().await;
    let wrong = fanfare_link::Dialer::grpc(&format!("http://{}", world.api.address)).unwrap();
    let told = [
        soon(wrong.node(Default::default())).await.err().unwrap().to_string(),
        soon(wrong.data_plane(Default::default())).await.err().unwrap().to_string(),
    ];
    for told in told {
        assert!(told.contains("is the control API: streams are at") && told.contains("9090"), "{told}");
    }
    world.stop().await;
}

/// Whoever asked for the proof has left before the node answers: what it finds is kept all the same.
#[tokio::test]
async fn what_a_proof_finds_is_kept_though_nobody_waits_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::on_disk(directory.path()).await;
    function(&world, "hello").await;
    let second = r#"{"name":"hello","handler":{"kind":"fake"},"concurrency":7}"#;
    assert_eq!(world.api.call_json("PUT", "/v1/functions/hello", second).await.status.as_u16(), 200);
    let mut node = node(&world.dialer(), node_hello("n", 1, vec![])).await;
    node.until(|message| matches!(message, ToNode::Welcome { .. }).then_some(())).await;
    let prepare = |message: &ToNode| match message {
        ToNode::Prepare(revision) => Some(*revision),
        _ => None,
    };
    let revision = tokio::select! {
        revision = node.until(prepare) => revision,
        answer = world.api.call("POST", "/v1/functions/hello/prepare") => panic!("{:?}", answer.body),
    };
    let failure = StartFailure {
        kind: StartFailureKind::Timeout,
        detail: "not ready after 4.0 s".to_owned(),
        log_tail: String::new(),
    };
    node.tx.send(FromNode::Prepared { revision, failure: Some(failure) }).unwrap();
    // Another revision serves only when it is durable why.
    let degraded = async || world.api.call("GET", "/v1/functions/hello").await.json()["state"] == "degraded";
    soon(async { while !degraded().await {} }).await;
    world.stop().await;
    world = World::on_disk(directory.path()).await;
    let described = world.api.call("GET", "/v1/functions/hello").await.json();
    assert_eq!(
        (&described["state"], &described["serving_revision"], &described["last_failure"]["reason"]),
        (&json!("degraded"), &json!(1), &json!("start-timeout")),
        "{described}"
    );
    world.stop().await;
}

#[tokio::test]
async fn what_cannot_start_is_known_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    function(&world, "hello").await;
    let mut node = node(&world.dialer(), node_hello("n", 1, vec![])).await;
    node.until(|message| matches!(message, ToNode::Welcome { .. }).then_some(())).await;
    let failure = StartFailure {
        kind: StartFailureKind::ImportFailed,
        detail: "SyntaxError".to_owned(),
        log_tail: "Traceback\n".to_owned(),
    };
    let (answer, ()) = tokio::join!(world.api.call("POST", "/v1/functions/hello/prepare"), async {
        let prepare = |message: &ToNode| match message {
            ToNode::Prepare(revision) => Some(*revision),
            _ => None,
        };
        let revision = node.until(prepare).await;
        node.tx.send(FromNode::Prepared { revision, failure: Some(failure.clone()) }).unwrap();
    });
    assert_eq!(answer.status.as_u16(), 503);
    let hint = answer.json()["hint"].to_string();
    assert!(hint.contains("`fanfare logs hello`"), "{hint}");
    world.stop().await;
    let world = World::on_disk(directory.path()).await;
    let described = world.api.call("GET", "/v1/functions/hello").await.json();
    assert_eq!(described["state"], "failed", "{described}");
    let last = &described["last_failure"];
    assert_eq!((&last["detail"], &last["log_tail"]), (&json!("SyntaxError"), &json!("Traceback\n")));
    world.stop().await;
}

#[tokio::test]
async fn a_deleted_functions_sandboxes_stop_and_data_planes_forget_it() {
    let world = World::new().await;
    let dialer = world.dialer();
    let mut data_plane = data_plane(&dialer, "d", 1).await;
    data_plane.until(|message| (*message == ToDataPlane::Synced).then_some(())).await;
    let id = function(&world, "hello").await;
    let route = |message: &ToDataPlane| match message {
        ToDataPlane::Functions(functions) => functions.first().map(|route| (route.id, route.revision)),
        _ => None,
    };
    assert_eq!(data_plane.until(route).await, (id, 1));
    let changed = fake("hello").replace("}}", "},\"queue_limit\":5}");
    world.api.call_json("PUT", "/v1/functions/hello", changed).await;
    assert_eq!(data_plane.until(route).await, (id, 2));

    let mut node = node(&dialer, node_hello("n", 1, vec![])).await;
    data_plane.tx.send(demand(id, 1)).unwrap();
    let sandbox = node
        .until(|message| match message {
            ToNode::Create { sandbox, .. } => Some(*sandbox),
            _ => None,
        })
        .await;
    world.api.call("DELETE", "/v1/functions/hello").await;
    data_plane.until(|message| (*message == ToDataPlane::FunctionRemoved(id)).then_some(())).await;
    node.until(|message| {
        matches!(message, ToNode::Stop { sandbox: stopped, .. } if *stopped == sandbox).then_some(())
    })
    .await;
    let cause = GoneCause { exit: ExitCause::Stopped, log_tail: "".into() };
    node.tx.send(FromNode::Exited { sandbox, cause }).unwrap();
    world.stop().await;
}

#[tokio::test]
async fn a_registration_is_answered_when_every_data_plane_knows_it() {
    let world = World::new().await;
    let dialer = world.dialer();
    let mut prompt = data_plane(&dialer, "prompt", 1).await;
    let mut slow = data_plane_replying(&dialer, "slow", 1, |_| None).await;
    for plane in [&mut prompt, &mut slow] {
        plane.until(|message| (*message == ToDataPlane::Synced).then_some(())).await;
    }
    let mark = |message: &ToDataPlane| match message {
        ToDataPlane::Mark(number) => Some(*number),
        _ => None,
    };

    let api = world.api.clone();
    let created = tokio::spawn(async move { api.create("hello").await });
    let route = |message: &ToDataPlane| matches!(message, ToDataPlane::Functions(_)).then_some(());
    slow.until(route).await;
    let number = slow.until(mark).await;
    assert!(!created.is_finished(), "the slow one has not said that it knows");
    slow.tx.send(FromDataPlane::Reached(number)).unwrap();
    assert_eq!(soon(created).await.unwrap().status.as_u16(), 201);

    let api = world.api.clone();
    let deleted = tokio::spawn(async move { api.call("DELETE", "/v1/functions/hello").await });
    slow.until(|message| matches!(message, ToDataPlane::FunctionRemoved(_)).then_some(())).await;
    slow.until(mark).await;
    assert!(!deleted.is_finished());
    drop(slow);
    assert_eq!(soon(deleted).await.unwrap().status.as_u16(), 204, "who is gone is not waited for");
    world.stop().await;
}
