//! Figures: metrics and `fanfare top`.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::in_both_arrangements;

in_both_arrangements!(metrics_are_what_promtool_accepts, top_shows_functions_sandboxes_queues_and_rates);

async fn metrics_are_what_promtool_accepts(cluster: Cluster) -> Cluster {
    cluster.deploy_python("counted", "def handler(e, c):\n    return 1\n", &[]);
    cluster.call("counted", "{}").await;
    let text = cluster.api("GET", "/metrics", None).await.text().to_owned();
    assert!(
        text.contains("\nfanfare_functions 1\n") && text.contains("fanfare_node_sandboxes{node="),
        "{text}"
    );
    if cluster.processes.len() == 1 {
        // All roles are in one process, and in one answer.
        let line = "fanfare_data_plane_function_arrivals_total{function=\"counted\"} 1";
        assert!(text.lines().any(|found| found == line), "{text}");
    }
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: promtool (Debian: prometheus) is missing");
        return cluster;
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{text}");
    cluster
}

async fn top_shows_functions_sandboxes_queues_and_rates(cluster: Cluster) -> Cluster {
    let source =
        "import time\ndef handler(e, c):\n    time.sleep(e.get('s', 0))\n    return 1 / e.get('by', 1)\n";
    cluster.deploy_python("busy", source, &["--max", "1"]);
    cluster.call("busy", r#"{"by":0}"#).await;
    let top = || -> Value { serde_json::from_str(&cluster.cli_ok(&["top", "-o", "json"])).unwrap() };
    cluster
        .until("the failure is told", async || {
            top()["functions"][0]["load"]["last_reason"] == "handler-error"
        })
        .await;
    let calls = futures_util::future::join_all((0..3).map(|_| cluster.call("busy", r#"{"s":2}"#)));
    let looks = async {
        cluster
            .until("the load is seen", async || {
                let load = &top()["functions"][0]["load"];
                (load["in_flight"].as_u64(), load["queued"].as_u64()) == (Some(1), Some(2))
                    && load["requests_per_second"].as_f64().is_some_and(|rate| rate > 0.0)
            })
            .await;
        let look = top();
        let function = &look["functions"][0];
        assert_eq!(
            (&function["name"], &function["sandboxes"]["ready"]),
            (&"busy".into(), &1.into()),
            "{look}"
        );
        assert_eq!(function["load"]["last_reason"], "handler-error", "{look}");
        assert_eq!(look["cluster"]["nodes"][0]["connected"], true, "{look}");
        let text = cluster.cli_ok(&["top"]);
        assert!(text.contains("REQ/S") && text.contains("busy") && text.contains("handler-error"), "{text}");
    };
    tokio::join!(calls, looks);
    cluster
}
