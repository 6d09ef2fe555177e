//! Revisions: what is kept of them, and what serves meanwhile.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::cluster::{Answer, Arrangement, Cluster, root};
use crate::crashes::kill;

const HELLO: &str = "def handler(event, context):\n    return 'hello'\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_update_is_kept_with_its_reason_and_last_words_after_a_restart_and_an_update() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("hello", HELLO, &[]);
    assert_eq!(cluster.call("hello", "").await.text(), "hello");
    let source =
        cluster.file("hello.py", "print('about to', flush=True)\nraise RuntimeError('boom at import')\n");
    let update = cluster.cli(&["deploy", source.to_str().unwrap()]);
    assert_eq!(update.status.code(), Some(1), "{}", String::from_utf8_lossy(&update.stderr));
    let said = String::from_utf8_lossy(&update.stderr).into_owned();
    assert!(said.contains("note: revision 1 goes on serving"), "{said}");
    let answer = cluster.call("hello", "").await;
    assert_eq!((answer.status, answer.text()), (200, "hello"), "the revision before serves");
    let status = cluster.status_of("hello").await;
    assert_eq!((&status["state"], &status["serving_revision"]), (&"degraded".into(), &1.into()), "{status}");
    // Not only while its sandboxes last: it is what the function is until the latest starts, under whichever leader.
    kill(&mut cluster, "control-plane");
    kill(&mut cluster, "node");
    let (api, grpc) = (cluster.api.replace("http://", ""), cluster.grpc.clone());
    cluster.spawn_control_plane(&api, &grpc);
    cluster.spawn_node(&[]);
    cluster.wait_until_complete(1).await;
    cluster
        .until("the revision before is started anew", async || {
            cluster.call("hello", "").await.text() == "hello"
        })
        .await;
    let broken = async |cluster: &Cluster, revision: u64| {
        let revisions = cluster.status_of("hello").await["revisions"].clone();
        let of = |r: &&serde_json::Value| r["revision"] == revision;
        revisions.as_array().unwrap().iter().find(of).unwrap()["failure"].clone()
    };
    let first = broken(&cluster, 2).await;
    assert_eq!(first["reason"], "start-failed", "{first}");
    assert!(first["log_tail"].as_str().unwrap().contains("boom at import"), "{first}");
    // It is no longer the latest, and the control plane is another.
    cluster.deploy_python("hello", "def handler(event, context):\n    return 'third'\n", &[]);
    kill(&mut cluster, "control-plane");
    let (api, grpc) = (cluster.api.replace("http://", ""), cluster.grpc.clone());
    cluster.spawn_control_plane(&api, &grpc);
    cluster.wait_until_complete(1).await;
    assert_eq!(broken(&cluster, 2).await, first);
    let described = cluster.cli_ok(&["describe", "hello"]);
    for part in ["revision 2 does not start, found ", "start-failed: ", "boom at import"] {
        assert!(described.contains(part), "{part:?} in\n{described}");
    }
    // A rollback passes it over.
    cluster.cli_ok(&["rollback", "hello"]);
    cluster.until("the first one serves", async || cluster.call("hello", "").await.text() == "hello").await;
    cluster.shut_down();
}

/// Neither an import that takes too long nor a program that never listens takes a function down that works, whether or
/// not it had a sandbox, and whether or not anybody waited for the proof.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_that_does_not_start_in_time_leaves_the_old_revision_serving_for_good() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    let import = cluster.file("hello.py", "import time\ntime.sleep(1000)\n");
    let silent =
        cluster.file("silent/main.py", "import time\nprint('not listening', flush=True)\ntime.sleep(1000)\n");
    cluster.file("silent/fanfare.toml", "[handler]\nkind = \"http\"\ncommand = [\"python3\", \"main.py\"]\n");
    let silent = silent.parent().unwrap().to_owned();
    let cases = [
        ("cold", &import, false, (5, "start-timeout"), &[][..]),
        ("warm", &silent, true, (1, "not-listening"), &[]),
        ("unwatched", &import, true, (5, "start-timeout"), &["--wait-timeout", "200ms"]),
    ];
    for (name, source, warm, (code, _), more) in cases {
        cluster.deploy_python(name, HELLO, &[]);
        if warm {
            assert_eq!(cluster.call(name, "").await.text(), "hello");
        }
        let update = ["deploy", source.to_str().unwrap(), "--name", name, "--start-timeout", "1s"];
        let update = cluster.cli(&[&update[..], more].concat());
        let said = String::from_utf8_lossy(&update.stderr).into_owned();
        assert_eq!(update.status.code(), Some(code), "{said}");
        let unwatched = !more.is_empty();
        let expected = if unwatched {
            "it is not known yet whether it starts"
        } else {
            "note: revision 1 goes on serving"
        };
        assert!(said.contains(expected), "{said}");
        cluster
            .until("it is degraded", async || {
                let status = cluster.status_of(name).await;
                assert!(unwatched || status["state"] == "degraded", "{status}");
                status["state"] == "degraded" && status["serving_revision"] == 1
            })
            .await;
        let answer = cluster.call(name, "").await;
        assert_eq!((answer.status, answer.text()), (200, "hello"), "{name}: the revision before serves");
    }
    // Under another leader, and with no sandbox left of it.
    kill(&mut cluster, "control-plane");
    kill(&mut cluster, "node");
    let (api, grpc) = (cluster.api.replace("http://", ""), cluster.grpc.clone());
    cluster.spawn_control_plane(&api, &grpc);
    cluster.spawn_node(&[]);
    cluster.wait_until_complete(1).await;
    for (name, _, _, (_, reason), _) in cases {
        let status = cluster.status_of(name).await;
        assert_eq!(
            (&status["state"], &status["last_failure"]["reason"]),
            (&"degraded".into(), &reason.into()),
            "{status}"
        );
        cluster.until("it is started anew", async || cluster.call(name, "").await.text() == "hello").await;
    }
    // Proved anew with more time, by which it can start, it serves.
    cluster.deploy_python(
        "cold",
        "def handler(event, context):\n    return 'third'\n",
        &["--start-timeout", "30s"],
    );
    cluster.until("the latest serves", async || cluster.call("cold", "").await.text() == "third").await;
    cluster.shut_down();
}

fn version(number: u32) -> String {
    format!("def handler(event, context):\n    return 'v{number}'\n")
}

async fn numbered(cluster: &Cluster, last: u32, settings: &[&str]) {
    for number in 1..=last {
        cluster.deploy_python("hello", &version(number), settings);
    }
}

/// How many of the answers each version gave, and that the revision is told that gave it.
fn tally(answers: &[Answer]) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for answer in answers {
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(
            answer.header("x-fanfare-revision").map(|r| format!("v{r}")).as_deref(),
            Some(answer.text())
        );
        *tally.entry(answer.text().to_owned()).or_default() += 1;
    }
    tally
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_shared_90_to_10_from_zero_on_through_two_data_planes() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(Arrangement::Apart { data_planes: 2 }).await;
    numbered(&cluster, 2, &["--max", "8"]).await;
    let shown = cluster.cli_ok(&["traffic", "hello", "v1=10", "latest=90"]);
    assert!(shown.contains("10 %  revision 1 "), "{shown}");
    cluster.cli_ok(&["tag", "hello", "canary=1"]);
    let mut answers = Vec::new();
    for _ in 0..150 {
        let calls = (0..20).map(|n| cluster.call_at(n % 2, "hello", ""));
        answers.extend(futures_util::future::join_all(calls).await);
    }
    let tally = tally(&answers);
    let (all, old) = (answers.len() as f64, tally["v1"] as f64);
    let chi_squared = (old - all * 0.1).powi(2) / (all * 0.1 * 0.9);
    assert!(chi_squared < 19.6, "{tally:?}: 10 % were for v1");
    for data_plane in &cluster.data_planes {
        let by_path = cluster.send("GET", &format!("{data_plane}/function/hello@canary/x"), &[], "").await;
        let by_host = cluster.send("GET", &format!("{data_plane}/"), &[("host", "canary--hello")], "").await;
        assert_eq!((by_path.text(), by_host.text()), ("v1", "v1"));
        let none = cluster.send("GET", &format!("{data_plane}/function/hello@1/x"), &[], "").await;
        assert_eq!((none.status, none.reason()), (404, Some("tag-not-found")));
    }
    let revisions = cluster.cli_ok(&["revisions", "hello"]);
    assert!(revisions.contains("10 %") && revisions.contains("canary"), "{revisions}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_traffic_and_rollbacks_under_load_lose_no_request() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(Arrangement::Together).await;
    numbered(&cluster, 1, &["--max", "8"]).await;
    let over = tokio_util::sync::CancellationToken::new();
    let (count, mut counted) = tokio::sync::watch::channel(0);
    let load = async {
        // 100 requests per second, whether or not the ones before are answered.
        let mut ticks = tokio::time::interval(std::time::Duration::from_millis(10));
        let (mut calls, mut answers) = (FuturesUnordered::new(), Vec::new());
        while !over.is_cancelled() {
            tokio::select! {
                _ = ticks.tick() => calls.push(cluster.call("hello", "")),
                Some(answer) = calls.next() => {
                    answers.push(answer);
                    count.send_replace(answers.len());
                }
            }
        }
        answers.extend(calls.collect::<Vec<_>>().await);
        answers
    };
    let file = cluster.file("hello.py", &version(2));
    let steps: [&[&str]; 6] = [
        &["deploy", file.to_str().unwrap()],
        &["traffic", "hello", "v1=100"],
        &["traffic", "hello", "v1=50", "v2=50"],
        &["traffic", "hello", "latest=100"],
        &["rollback", "hello"],
        &["rollback", "hello@2"],
    ];
    let changes = async {
        for step in steps {
            let run = cluster.cli_later(step).await;
            assert!(run.status.success(), "{step:?}: {}", String::from_utf8_lossy(&run.stderr));
            let enough = *counted.borrow() + 30;
            counted.wait_for(|count| *count >= enough).await.unwrap();
        }
        over.cancel();
    };
    let (answers, ()) = futures_util::future::join(load, changes).await;
    assert!(answers.len() > 100, "{}", answers.len());
    let mut seen: Vec<_> = Vec::new();
    for answer in &answers {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let revision = answer.header("x-fanfare-revision").unwrap().to_owned();
        if !seen.contains(&revision) {
            seen.push(revision);
        }
    }
    assert!(seen.len() >= 3, "{seen:?}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_twenty_updates_only_what_gets_requests_has_sandboxes() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(Arrangement::Together).await;
    let settings = ["--min", "2", "--no-wait"];
    numbered(&cluster, 1, &settings).await;
    cluster.cli_ok(&["traffic", "hello", "v1=50", "latest=50"]);
    for number in 2..=21 {
        cluster.deploy_python("hello", &version(number), &settings);
    }
    let sandboxes = async || {
        let revisions = cluster.status_of("hello").await["revisions"].clone();
        let of = |r: &serde_json::Value, what: &str| r["sandboxes"][what].as_u64().unwrap();
        let busy = |r: &&serde_json::Value| of(r, "ready") + of(r, "starting") + of(r, "stopping") > 0;
        let revisions = revisions.as_array().unwrap();
        assert!(revisions.len() <= 21, "20, and the one that gets requests");
        let row =
            |r: &serde_json::Value| (r["revision"].as_u64().unwrap(), of(r, "ready"), of(r, "stopping"));
        revisions.iter().filter(busy).map(row).collect::<Vec<_>>()
    };
    cluster.until("the others have none", async || sandboxes().await == [(21, 2, 0), (1, 2, 0)]).await;
    cluster.shut_down();
}
