//! Roles with emulated nodes, with paths as users give them, and with what cannot be.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::run::{command, fanfare};

/// Ten times what it should take.
const READY: Duration = Duration::from_secs(10);
const FREE: &str = "127.0.0.1:0";

/// `fanfare up` in `directory`, and where its control API and its functions are.
async fn up(directory: &Path, args: &[&str], variables: &[(&str, &str)]) -> (Child, String, String) {
    let mut all = vec!["up", "--listen", FREE, "--api-listen", FREE, "--grpc-listen", FREE];
    all.extend(args);
    let mut command = command("", &all);
    command.current_dir(directory).envs(variables.iter().copied());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut urls = Vec::new();
    while urls.len() < 3 {
        let line = tokio::time::timeout(READY, lines.next_line()).await.expect("ready in time").unwrap();
        let line = line.expect("it serves");
        urls.push(line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned());
    }
    // It has more to say, and ends when nobody is left to say it to.
    tokio::spawn(async move { while lines.next_line().await.is_ok_and(|line| line.is_some()) {} });
    (child, urls.remove(1), urls.remove(0))
}

async fn end(mut child: Child) {
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn emulated_nodes_are_there_when_up_says_so() {
    let dir = tempfile::tempdir().unwrap();
    // Relative paths, one given and one from the environment.
    let args = [
        "--emulate",
        "30",
        "--cpus",
        "2",
        "--memory",
        "1GiB",
        "--placement",
        "round-robin",
        "--data-dir",
        "d",
    ];
    let (child, api, functions) = up(dir.path(), &args, &[("FANFARE_RUN_DIR", "x/r")]).await;
    let status = fanfare(&api, &["status", "-o", "json"]).await;
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["placement"], "round-robin");
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 30);
    for node in nodes {
        assert_eq!(
            (&node["connected"], &node["runtimes"]),
            (&true.into(), &serde_json::json!(["fake"])),
            "{node}"
        );
        assert_eq!(
            (&node["capacity"]["cpu"], &node["capacity"]["memory_bytes"]),
            (&2.0.into(), &(1 << 30).into())
        );
    }
    let deployed = fanfare(&api, &["deploy", "--runtime", "fake", "--name", "load", "--quiet"]).await;
    assert_eq!(deployed.stdout.trim(), format!("{functions}/function/load"), "{deployed:?}");
    let answer = fanfare(&api, &["invoke", "load", "--path", "/a", "-d", "body"]).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((&answer["path"], &answer["body_bytes"]), (&"/a".into(), &4.into()));
    // Load goes to fake functions, where nothing else can run.
    let load = [
        "load",
        "--rate",
        "50",
        "--duration",
        "1s",
        "--execution",
        "20ms",
        "--lateness-max",
        "1h",
        "-o",
        "json",
    ];
    let run = fanfare(&api, &[&load[..], &["--prefix", "made", "--keep"]].concat()).await;
    assert_eq!(run.code, 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["counts"]["outcomes"], serde_json::json!({ "ok": 50 }), "{report}");
    assert!(
        report["scheduling_ms"]["p50"].is_number() && report["sandboxes_ordered"].as_u64() >= Some(1),
        "{report}"
    );
    let kept = fanfare(&api, &["list", "-o", "name"]).await;
    assert_eq!(kept.stdout.lines().collect::<Vec<_>>(), ["load", "made-00000-steady"]);
    // Those would be deleted afterwards.
    let refused = fanfare(&api, &[&load[..], &["--prefix", "made"]].concat()).await;
    assert!(refused.code == 2 && refused.stderr.contains("--prefix"), "{refused:?}");
    for made in ["d/store", "d/emulated", "x/r/emulated"] {
        assert!(dir.path().join(made).is_dir(), "{made}");
    }
    end(child).await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_what_can() {
    let cases: [(&[&str], &str); 17] = [
        (&["invoke", "x", "--async", "--wait"], "tip: `fanfare async result ID --wait 30s`"),
        (&["invoke", "x", "--async", "--wait", "3s"], "tip: `fanfare async result ID --wait 30s`"),
        (&["invoke", "x", "-o", "json"], "or call with --async"),
        (&["up", "--listen", "8080"], "give an IP address and a port, e.g. 127.0.0.1:8080"),
        (&["data-plane", "--metrics-listen", "localhost:1"], "give an IP address and a port"),
        (&["load", "--plan", "/nowhere.csv"], "as plan.csv"),
        (&["doctor", "-o", "name"], "possible values: text, wide, json, yaml"),
        (&["demo", "-o", "url"], "possible values: text, wide, json, yaml"),
        (&["node", "--emulate", "0"], "1 to 20000"),
        (&["node", "--emulate", "20001"], "1 to 20000"),
        (&["node", "--emulate", "2", "--fake"], "--fake"),
        (&["node", "--create-delay", "1ms"], "--emulate"),
        (&["node", "--emulate", "2", "--failure-rate", "1.5"], "0 to 1"),
        (&["up", "--placement", "magic"], "power-of-two"),
        (&["node", "--name", "a node"], "1 to 253 of a-z A-Z 0-9 . _ : -"),
        (&["data-plane", "--name", ""], "1 to 253 of a-z A-Z 0-9 . _ : -"),
        (&["deploy", "--runtime", "fake"], "--name"),
    ];
    for (args, named) in cases {
        let refused = fanfare("", args).await;
        assert_eq!(refused.code, 2, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains(named), "{args:?}: {refused:?}");
    }
}

#[tokio::test]
async fn nodes_beyond_the_open_files_are_refused_with_how_many_would_fit() {
    let script = format!("ulimit -n 2000; exec {} node --emulate 2000", env!("CARGO_BIN_EXE_fanfare"));
    let refused = Command::new("bash").args(["-c", &script]).output().await.unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(stderr.contains("2000 nodes need 3024 open files") && stderr.contains("up to 976"), "{stderr}");
}
