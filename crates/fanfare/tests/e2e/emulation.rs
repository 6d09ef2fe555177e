//! Nodes that are emulated: many of them, whose sandboxes are fake and whose answers are real.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use crate::cluster::{Answer, Arrangement, Cluster, root};

const NODES: usize = 200;
const FUNCTIONS: usize = 50;
const CALLS_EACH: usize = 10;

/// A cluster of emulated nodes, all of them connected. Needs no root: nothing is isolated.
async fn start(arrangement: Arrangement, args: &[&str]) -> Cluster {
    let nodes = NODES.to_string();
    let mut all = vec!["--emulate", &nodes, "--cpus", "4", "--memory", "4GiB"];
    all.extend(args);
    let cluster = Cluster::start_with(arrangement, &all).await;
    cluster
        .until("every node is connected", async || {
            nodes_where(&cluster, |n| n["connected"] == true).await == NODES
        })
        .await;
    cluster
}

async fn nodes_where(cluster: &Cluster, holds: impl Fn(&serde_json::Value) -> bool) -> usize {
    let status = cluster.api("GET", "/v1/status", None).await.json();
    status["nodes"].as_array().unwrap().iter().filter(|node| holds(node)).count()
}

async fn register(cluster: &Cluster, name: &str) {
    let document = format!(r#"{{"name":"{name}","runtime":"fake","handler":{{"kind":"fake"}}}}"#);
    let answer = cluster.api("POST", "/v1/functions", Some(&document)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// So many calls at once, of each function in turn, each of which takes `sleep_ms` in its sandbox.
async fn call_all(cluster: &Cluster, calls: usize, sleep_ms: &str) -> Vec<Answer> {
    let url = |function: usize| format!("{}/function/f{function}/x", cluster.data_planes[0]);
    let calls = (0..calls).map(|call| {
        let url = url(call % FUNCTIONS);
        async move { cluster.send("POST", &url, &[("x-fake-sleep-ms", sleep_ms)], "four").await }
    });
    join_all(calls).await
}

async fn cold_starts_are_placed_and_answered(arrangement: Arrangement) {
    let cluster = start(arrangement, &["--create-delay", "20ms", "--jitter", "10ms"]).await;
    for function in 0..FUNCTIONS {
        register(&cluster, &format!("f{function}")).await;
    }
    let answers = call_all(&cluster, FUNCTIONS * CALLS_EACH, "3000").await;
    let mut sandboxes = BTreeSet::new();
    for answer in &answers {
        assert_eq!((answer.status, answer.reason()), (200, None), "{}", answer.text());
        let body = answer.json();
        assert_eq!((body["path"].as_str(), body["body_bytes"].as_u64()), (Some("/x"), Some(4)), "{body}");
        sandboxes.insert(body["sandbox"].as_str().unwrap().to_owned());
    }
    // A machine that needs longer than an execution for all of them lets the first ones serve twice.
    assert!(sandboxes.len() > 450, "{} sandboxes for {} calls", sandboxes.len(), answers.len());
    let used = nodes_where(&cluster, |node| node["sandboxes"].as_u64().unwrap() > 0).await;
    assert!(used > NODES / 2, "{used} nodes were used");
    cluster.cli_ok(&["deploy", "--runtime", "fake", "--name", "by-cli", "--env", "FAKE_SAY=up and running"]);
    assert_eq!(cluster.call("by-cli", "").await.status, 200);
    // 200 nodes are asked, and one of them tells.
    let told = || {
        let logs = cluster.cli_ok(&["logs", "by-cli"]);
        assert!(!logs.contains("missing"), "{logs}");
        logs.lines().filter(|line| line.contains("up and running")).count()
    };
    cluster.until("the line is in the log", async || told() == 1).await;
    assert!(cluster.cli_ok(&["status"]).contains("placement  kubernetes"));
    cluster.shut_down();
}

async fn starts_that_fail_by_chance_leave_no_request_without_an_answer(arrangement: Arrangement) {
    let cluster = start(arrangement, &["--failure-rate", "0.2", "--seed", "7"]).await;
    for function in 0..FUNCTIONS {
        register(&cluster, &format!("f{function}")).await;
    }
    let served = |answers: &[Answer]| {
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            assert_eq!((answer.status, answer.reason()), (503, Some("start-failed")), "{}", answer.text());
        }
        answers.iter().filter(|answer| answer.status == 200).count()
    };
    // One start for each: chance takes a fifth, which the seed chooses.
    let first = served(&call_all(&cluster, FUNCTIONS, "0").await);
    assert!((FUNCTIONS / 2..FUNCTIONS).contains(&first), "{first} of {FUNCTIONS}");
    // One of several that fails is made up for. Only where all have failed are the waiting told.
    let then = served(&call_all(&cluster, FUNCTIONS * CALLS_EACH, "100").await);
    assert!(then > FUNCTIONS * CALLS_EACH * 3 / 4, "{then}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_starts_together() {
    cold_starts_are_placed_and_answered(Arrangement::Together).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_together() {
    starts_that_fail_by_chance_leave_no_request_without_an_answer(Arrangement::Together).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_starts_apart() {
    cold_starts_are_placed_and_answered(Arrangement::Apart { data_planes: 1 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_apart() {
    starts_that_fail_by_chance_leave_no_request_without_an_answer(Arrangement::Apart { data_planes: 1 })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_offers_fake_sandboxes_beside_real_ones() {
    if !root() {
        return;
    }
    let cluster = Cluster::start_with(Arrangement::Together, &["--fake"]).await;
    register(&cluster, "pretended").await;
    cluster.deploy_python("real", "def handler(event, context):\n    return 'real'\n", &[]);
    assert!(cluster.call("pretended", "").await.json()["sandbox"].is_string());
    assert_eq!(cluster.call("real", "").await.text(), "real");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_told_that_a_function_exists_can_call_it_anywhere() {
    let cluster = Cluster::start_with(
        Arrangement::Apart { data_planes: 3 },
        &["--emulate", "2", "--cpus", "64", "--memory", "64GiB"],
    )
    .await;
    for round in 0..40 {
        let name = format!("f{round}");
        register(&cluster, &name).await;
        let answers = join_all((0..3).map(|data_plane| cluster.call_at(data_plane, &name, "x"))).await;
        for answer in answers {
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let deleted = cluster.api("DELETE", &format!("/v1/functions/{name}"), None).await;
        assert_eq!(deleted.status, 204);
        let answers = join_all((0..3).map(|data_plane| cluster.call_at(data_plane, &name, "x"))).await;
        assert!(answers.iter().all(|answer| answer.status == 404), "nobody calls what is deleted");
    }
    cluster.shut_down();
}
