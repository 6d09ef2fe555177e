//! Cases that users of other platforms have reported (`docs/cases.md`), on emulated nodes: nothing here needs root.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::cluster::{Answer, Arrangement, Cluster, wait};

async fn start() -> Cluster {
    let nodes = ["--emulate", "2", "--cpus", "4", "--memory", "4GiB", "--create-delay", "50ms"];
    Cluster::start_with(Arrangement::Together, &nodes).await
}

async fn register(cluster: &Cluster, name: &str, settings: &str) {
    let document = format!(r#"{{"name":"{name}","runtime":"fake","handler":{{"kind":"fake"}},{settings}}}"#);
    let answer = cluster.api("POST", "/v1/functions", Some(&document)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// So many calls at once, each of which takes so long in its sandbox.
async fn call(cluster: &Cluster, name: &str, calls: usize, sleep_ms: &str) -> Vec<Answer> {
    let url = format!("{}/function/{name}", cluster.data_planes[0]);
    let one = async || cluster.send("POST", &url, &[("x-fake-sleep-ms", sleep_ms)], "").await;
    join_all((0..calls).map(|_| one())).await
}

fn sandboxes(answers: &[Answer]) -> BTreeSet<String> {
    answers.iter().map(|answer| answer.json()["sandbox"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_a_burst_on_a_cold_function_respects_its_concurrency_and_its_maximum() {
    let cluster = start().await;
    for max in [5, 3] {
        let name = format!("burst-{max}");
        register(&cluster, &name, &format!(r#""concurrency":10,"scaling":{{"max":{max}}}"#)).await;
        // Long enough that all are there before the first one ends.
        let answers = call(&cluster, &name, 50, "3000").await;
        assert!(answers.iter().all(|answer| answer.status == 200), "{:?}", answers[0]);
        let used = sandboxes(&answers);
        assert_eq!(used.len(), max, "{used:?}");
        let status = cluster.status_of(&name).await;
        let decided = status["decisions"].as_array().unwrap().iter().filter_map(|d| d["to"].as_u64()).max();
        assert_eq!(decided, Some(max as u64), "no more were ever ordered: {status}");
    }
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q3_a_full_queue_refuses_exactly_what_is_one_too_many_at_once() {
    const HELD: Duration = Duration::from_secs(8);
    let cluster = start().await;
    register(
        &cluster,
        "narrow",
        r#""queue_limit":50,"scaling":{"min":4,"max":4},"timeouts":{"request":"10s"}"#,
    )
    .await;
    let ready = async || cluster.status_of("narrow").await["sandboxes"]["ready"] == 4;
    cluster.until("four are ready", ready).await;
    let begun = Instant::now();
    let url = format!("{}/function/narrow", cluster.data_planes[0]);
    let sleep = HELD.as_millis().to_string();
    let calls = (0..300).map(|_| async {
        let answer = cluster.send("POST", &url, &[("x-fake-sleep-ms", &sleep)], "").await;
        (answer, begun.elapsed())
    });
    // Those that wait for a second turn have their time over.
    let answers = join_all(calls).await;
    let refused: Vec<_> =
        answers.iter().filter(|(answer, _)| answer.reason() == Some("queue-full")).collect();
    assert_eq!(refused.len(), 300 - 4 - 50);
    for (answer, took) in refused {
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        assert!(*took < HELD, "refused at once, and not after {took:?}");
    }
    cluster.shut_down();
}

/// Two fillings, one of a minimum and one of a surge, of which none is ready while the test runs: only the order in
/// which nodes begin decides whether others get their sandboxes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c8_neither_a_minimum_being_filled_nor_a_surge_holds_up_anothers_cold_start() {
    let nodes = ["--emulate", "1", "--cpus", "16", "--memory", "16GiB"];
    let cluster = Cluster::start_with(Arrangement::Together, &nodes).await;
    let slow = r#""env":{"FAKE_CREATE_DELAY_MS":"120000"},"timeouts":{"start":"3m","request":"3m"}"#;
    register(&cluster, "filled", &format!(r#"{slow},"scaling":{{"min":200}}"#)).await;
    register(&cluster, "surging", slow).await;
    let url = format!("{}/function/surging", cluster.data_planes[0]);
    let surge = join_all((0..200).map(|_| cluster.send("POST", &url, &[], "")));
    let others = async {
        for name in ["filled", "surging"] {
            let starting = async || cluster.status_of(name).await["sandboxes"]["starting"] == 200;
            cluster.until(&format!("{name} starts"), starting).await;
        }
        for other in ["one", "two", "three"] {
            register(&cluster, other, r#""timeouts":{"request":"20s"}"#).await;
            let answer = call(&cluster, other, 1, "0").await.remove(0);
            assert_eq!(answer.status, 200, "{other}: {}", answer.text());
        }
        for name in ["filled", "surging"] {
            assert_eq!(cluster.status_of(name).await["sandboxes"]["ready"], 0, "{name} was to be slow");
        }
    };
    tokio::select! {
        answers = surge => panic!("the surge was to wait: {:?}", answers[0]),
        () = others => {}
    }
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t2_an_interrupted_invocation_leaves_an_id_that_can_be_explained() {
    let cluster = start().await;
    register(&cluster, "slow", r#""timeouts":{"request":"60s"}"#).await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_fanfare"))
        .args(["invoke", "slow", "-H", "x-fake-sleep-ms: 30000"])
        .env("FANFARE_API", &cluster.api)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    cluster.until("it is executed", async || cluster.status_of("slow").await["in_flight"] == 1).await;
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(wait(&mut child).code(), Some(130), "{told}");
    let (_, command) = told.split_once("`fanfare explain ").expect(&told);
    let id = command.split('`').next().unwrap();
    let explained = || cluster.cli(&["explain", id, "-o", "json"]);
    cluster.until("it is explained", async || explained().status.code() == Some(0)).await;
    let text = String::from_utf8(explained().stdout).unwrap();
    assert!(text.contains("client_left"), "{text}");
    cluster.shut_down();
}
