//! Calls that nobody waits for, on real processes: `kill -9` of anything loses none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, Stream, StreamExt};

use crate::cluster::{Answer, Arrangement, Cluster, PATIENCE, root};
use crate::in_both_arrangements;

/// Says what it was sent, whole.
const ECHO: &str = r#"
def handler(event, context):
    own = ("x-request-id", "x-fanfare-deadline-ms", "x-fanfare-invocation-id", "x-fanfare-attempt")
    http = context.http
    headers = sorted((k, v) for k, v in http["headers"].items() if k.lower() not in own)
    return {"method": http["method"], "path": http["path"], "query": http["query"], "headers": headers, "event": event}
"#;

/// Writes its id and attempt to the ledger, which is a pipe that only this function and the test see, and then works.
const LEDGER: &str = r#"
import os, time
def handler(event, context):
    headers = context.http["headers"]
    line = headers["x-fanfare-invocation-id"] + " " + headers["x-fanfare-attempt"]
    fd = os.open("/function/ledger", os.O_WRONLY)
    os.write(fd, (line + "\n").encode())
    os.close(fd)
    time.sleep(0.03)
    return line
"#;

in_both_arrangements![
    the_function_sees_the_same_at_once_and_later,
    the_command_line_calls_looks_cancels_and_replays,
    waiting_calls_run_in_the_revision_that_is_current,
];

async fn the_function_sees_the_same_at_once_and_later(cluster: Cluster) -> Cluster {
    cluster.deploy_python("echo", ECHO, &[]);
    let fields = [("x-many", "one"), ("content-type", "application/json"), ("authorization", "Bearer mine")];
    for (method, body) in [("POST", "{\"a\": [1, \"ü\"]}"), ("PUT", "no json"), ("DELETE", ""), ("GET", "")]
    {
        let url = |prefix: &str| format!("{}/{prefix}/echo/a%2Fb//c?x=1&y=%20", cluster.data_planes[0]);
        let at_once = cluster.send(method, &url("function"), &fields, body).await;
        assert_eq!(at_once.status, 200, "{}", at_once.text());
        let taken = cluster.send(method, &url("async-function"), &fields, body).await;
        assert_eq!(taken.status, 202, "{}", taken.text());
        let id = taken.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(ended(&cluster, 0, &id).await["state"], "succeeded");
        let later = result(&cluster, &id).await;
        assert_eq!((later.status, later.text()), (200, at_once.text()));
        assert_eq!(later.header("content-type"), at_once.header("content-type"));
        assert_eq!(later.json()["path"], "/a%2Fb//c");
    }
    let nobody = format!("{}/async-function/nobody", cluster.data_planes[0]);
    let answer = cluster.send("POST", &nobody, &[], "").await;
    assert_eq!((answer.status, answer.reason()), (404, Some("function-not-found")));
    cluster
}

async fn the_command_line_calls_looks_cancels_and_replays(cluster: Cluster) -> Cluster {
    let source = "import os, time\ndef handler(event, context):\n    if event.get('wait'):\n        time.sleep(60)\n    \
                  return {'statusCode': int(os.environ.get('STATUS', '200')), 'body': 'done'}\n";
    cluster.deploy_python("work", source, &["--env", "STATUS=418"]);
    let out = |args: &[&str]| cluster.cli_ok(args).trim().to_owned();
    let id = out(&["invoke", "--async", "work", "-d", "{}"]);
    let failed = cluster.cli(&["async", "result", &id, "--wait", "20s"]);
    assert_eq!((failed.status.code(), &failed.stdout[..]), (Some(1), &b"done"[..]));
    let status: serde_json::Value =
        serde_json::from_str(&out(&["async", "status", &id, "-o", "json"])).unwrap();
    assert_eq!((status["state"].as_str(), status["status"].as_u64()), (Some("failed"), Some(418)));
    // The replay is for the function that has the name now.
    cluster.cli_ok(&["delete", "work"]);
    cluster.deploy_python("work", source, &[]);
    let again = out(&["async", "replay", &id]);
    assert_eq!(out(&["async", "result", &again, "--wait", "20s"]), "done");
    let listed = out(&["async", "list", "--function", "work", "--state", "succeeded", "-o", "name"]);
    assert_eq!(listed, again);
    let long = out(&["invoke", "--async", "--at-most-once", "work", "-d", "{\"wait\": true}"]);
    cluster
        .until("it runs", async || ended_within(&cluster, 0, &long, "0s").await["state"] == "running")
        .await;
    let early = cluster.cli(&["async", "result", &long]);
    assert_eq!(early.status.code(), Some(5), "{}", String::from_utf8_lossy(&early.stderr));
    assert!(out(&["async", "cancel", &long]).contains("cancelled"));
    let gone = cluster.cli(&["async", "cancel", &again]);
    assert_eq!(gone.status.code(), Some(2), "{}", String::from_utf8_lossy(&gone.stderr));
    let (data_plane, _) = id.split_once('-').unwrap();
    let unknown = cluster.cli(&["async", "status", &format!("{data_plane}-ffff-0000000000000000")]);
    assert_eq!(unknown.status.code(), Some(4), "{}", String::from_utf8_lossy(&unknown.stderr));
    assert_eq!(out(&["async", "dead", "-o", "name"]), "");
    cluster
}

async fn waiting_calls_run_in_the_revision_that_is_current(cluster: Cluster) -> Cluster {
    let source =
        "import os, time\ndef handler(event, context):\n    time.sleep(0.1)\n    return os.environ['V']\n";
    cluster.deploy_python("versions", source, &["--env", "V=1", "--max", "1"]);
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(take(&cluster, 0, "versions", &[]).await);
    }
    ended(&cluster, 0, &ids[0]).await;
    cluster.cli_ok(&["update", "versions", "--env", "V=2"]);
    let mut seen = BTreeSet::new();
    for id in &ids {
        let document = ended(&cluster, 0, id).await;
        assert_eq!((document["state"].as_str(), document["attempts"].as_u64()), (Some("succeeded"), Some(1)));
        seen.insert(result(&cluster, id).await.text().to_owned());
    }
    assert_eq!(result(&cluster, &ids[19]).await.text(), "2", "{seen:?}");
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_results_outlive_kill_9_of_the_data_plane() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    let source = "import time\ndef handler(event, context):\n    time.sleep(event.get('s', 0))\n    \
                  return context.http['headers']['x-fanfare-attempt']\n";
    cluster.deploy_python("work", source, &[]);
    let url = format!("{}/async-function/work", cluster.data_planes[0]);
    let take = async |fields: &[(&str, &str)], body: &str| {
        let answer = cluster.send("POST", &url, fields, body).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["id"].as_str().unwrap().to_owned()
    };
    let done = take(&[], "{}").await;
    assert_eq!(ended(&cluster, 0, &done).await["state"], "succeeded");
    let once = take(&[("x-fanfare-delivery", "at-most-once")], "{\"s\": 20}").await;
    let again = take(&[], "{\"s\": 2}").await;
    for id in [&once, &again] {
        cluster
            .until("it runs", async || ended_within(&cluster, 0, id, "0s").await["state"] == "running")
            .await;
    }
    cluster.kill("d0");
    cluster.respawn("d0");
    cluster.wait_until_complete(1).await;
    assert_eq!(result(&cluster, &done).await.text(), "1");
    let lost = ended(&cluster, 0, &once).await;
    assert_eq!((lost["state"].as_str(), lost["cause"].as_str()), (Some("dead"), Some("lost")));
    assert_eq!(ended(&cluster, 0, &again).await["state"], "succeeded");
    assert_eq!(result(&cluster, &again).await.text(), "2", "marked with its attempt");
    cluster.shut_down();
}

/// Calls of one round of the ledger's test.
const CALLS: usize = 30;

/// Has a round's calls taken in, all at once; each key with its id and whether it may run once only, as they come.
fn batch(cluster: &Cluster, round: usize) -> impl Stream<Item = (String, (String, bool))> {
    let call = move |call: usize| async move {
        let key = format!("{round}-{call}");
        let once = call.is_multiple_of(3);
        let (delivery, attempts) = if once { ("at-most-once", "1") } else { ("at-least-once", "50") };
        let fields = [
            ("idempotency-key", key.as_str()),
            ("x-fanfare-delivery", delivery),
            ("x-fanfare-max-attempts", attempts),
        ];
        let id = take(cluster, call % 2, "ledger", &fields).await;
        (key, (id, once))
    };
    (0..CALLS).map(call).collect::<FuturesUnordered<_>>()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_anything_loses_no_call_and_repeats_none_that_may_not_be() {
    const ROUNDS: usize = 10;
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 2 }).await;
    cluster.deploy_python("ledger", LEDGER, &["--max", "6", "--timeout", "10s"]);
    let ledger = Ledger::open(&cluster, "ledger.py");
    // By key: the id, and whether it may run once only.
    let mut accepted: BTreeMap<String, (String, bool)> = BTreeMap::new();
    let victims = ["d0", "node", "d1", "control-plane", "d0", "d1", "node", "d0", "control-plane", "d1"];
    for (round, victim) in victims.iter().enumerate().take(ROUNDS) {
        // Half of them are answered when something is killed; the others' clients do not know how far they came.
        let first: Vec<_> = batch(&cluster, round).take(CALLS / 2).collect().await;
        cluster.kill(victim);
        cluster.respawn(victim);
        ledger.ensure();
        let all: Vec<_> = batch(&cluster, round).collect().await;
        accepted.extend(all);
        for (key, call) in first {
            assert_eq!(accepted[&key], call, "one call for one key, whatever happened in between");
        }
    }
    cluster.wait_until_complete(2).await;
    ledger.ensure();
    assert_eq!(accepted.len(), ROUNDS * CALLS);
    let ids: BTreeSet<_> = accepted.values().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), accepted.len(), "a call for each key");
    let mut ends = BTreeMap::new();
    for (id, once) in accepted.values() {
        // Asked of one data plane, whichever keeps it.
        let document = ended(&cluster, 0, id).await;
        ends.insert(id.clone(), (document, *once));
    }
    let runs = ledger.close();
    let (mut repeated, mut lost) = (0, 0);
    for (id, (document, once)) in &ends {
        let ran = runs.get(id).map_or(&[][..], Vec::as_slice);
        let state = document["state"].as_str().unwrap();
        assert!(ran.is_sorted_by(|a, b| a < b), "{id}: a repetition has a higher number: {ran:?}");
        if *once {
            assert!(ran.len() <= 1, "{id} may run once: {ran:?}");
            assert!(state == "dead" || ran.len() == 1, "{document} {ran:?}");
            lost += usize::from(state == "dead");
        } else {
            assert_eq!(state, "succeeded", "{document}");
            assert!(!ran.is_empty(), "{document}");
            let cut = document["interrupted_attempts"].as_u64().unwrap_or(0);
            let cut = cut + document["failed_attempts"].as_u64().unwrap();
            assert!(ran.len() as u64 <= 1 + cut, "repeated without need: {document} {ran:?}");
            repeated += usize::from(ran.len() > 1);
        }
        if state == "succeeded" {
            let answer = result(&cluster, id).await;
            let attempt = ran.last().unwrap();
            assert_eq!(answer.text(), format!("{id} {attempt}"), "the last attempt's answer");
            assert_eq!(document["attempts"].as_u64(), Some(*attempt));
        }
        let again = ended(&cluster, 1, id).await;
        assert_eq!(again["state"], document["state"], "one end, for good");
    }
    let strangers: Vec<_> = runs.keys().filter(|id| !ends.contains_key(*id)).collect();
    assert!(strangers.is_empty(), "nothing ran that was not accepted: {strangers:?}");
    eprintln!("{} calls, {repeated} repeated, {lost} of those that may run once lost", ends.len());
    cluster.shut_down();
}

/// Has a call taken in, however often that has to be tried: under a key it is one call.
async fn take(cluster: &Cluster, data_plane: usize, name: &str, fields: &[(&str, &str)]) -> String {
    let begun = Instant::now();
    let url = format!("{}/async-function/{name}", cluster.data_planes[data_plane]);
    loop {
        let answer = cluster.try_send("POST", &url, fields, "").await;
        match answer {
            Ok(answer) if answer.status == 202 => return answer.json()["id"].as_str().unwrap().to_owned(),
            answer => assert!(begun.elapsed() < PATIENCE, "{answer:?}\n{}", cluster.logs()),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn ended_within(cluster: &Cluster, data_plane: usize, id: &str, wait: &str) -> serde_json::Value {
    let url = format!("{}/async/{id}?wait={wait}", cluster.data_planes[data_plane]);
    let answer = cluster.send("GET", &url, &[], "").await;
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), cluster.logs());
    answer.json()
}

/// How a call stands once it has ended.
async fn ended(cluster: &Cluster, data_plane: usize, id: &str) -> serde_json::Value {
    let document = ended_within(cluster, data_plane, id, "40s").await;
    assert!(document["finished_unix_ms"].is_u64(), "{document}\n{}", cluster.logs());
    document
}

async fn result(cluster: &Cluster, id: &str) -> Answer {
    cluster.send("GET", &format!("{}/async/{id}/result", cluster.data_planes[0]), &[], "").await
}

/// Attempts by call, in the order in which user code began them.
type Runs = BTreeMap<String, Vec<u64>>;

/// A pipe beside the function's code, where the sandboxes see it.
struct Ledger {
    pipe: PathBuf,
    /// Where it is kept when the node has tidied its code away.
    origin: PathBuf,
    runs: Arc<Mutex<Runs>>,
    reader: std::thread::JoinHandle<()>,
}

impl Ledger {
    fn open(cluster: &Cluster, file: &str) -> Ledger {
        let code = find(Path::new(&cluster.path("node-data")), file).expect("the code is unpacked");
        let pipe = code.parent().unwrap().join("ledger");
        let origin = PathBuf::from(cluster.path("ledger"));
        assert!(Command::new("mkfifo").args(["-m", "666"]).arg(&origin).status().unwrap().success());
        std::fs::hard_link(&origin, &pipe).unwrap();
        // Open at both ends: reading does not end with a writer.
        let open = std::fs::OpenOptions::new().read(true).write(true).open(&origin).unwrap();
        let runs = Arc::new(Mutex::new(Runs::new()));
        let into = runs.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(open).lines().map_while(Result::ok) {
                let Some((id, attempt)) = line.split_once(' ') else { return };
                into.lock().unwrap().entry(id.to_owned()).or_default().push(attempt.parse().unwrap());
            }
        });
        Ledger { pipe, origin, runs, reader }
    }

    /// Puts it back if the node has unpacked the code anew.
    fn ensure(&self) {
        if self.pipe.parent().unwrap().exists() && !self.pipe.exists() {
            std::fs::hard_link(&self.origin, &self.pipe).unwrap();
        }
    }

    fn close(self) -> Runs {
        std::fs::OpenOptions::new().write(true).open(&self.origin).unwrap().write_all(b"end\n").unwrap();
        self.reader.join().unwrap();
        Arc::into_inner(self.runs).unwrap().into_inner().unwrap()
    }
}

fn find(directory: &Path, file: &str) -> Option<PathBuf> {
    std::fs::read_dir(directory).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() { find(&path, file) } else { path.ends_with(file).then_some(path) }
    })
}
