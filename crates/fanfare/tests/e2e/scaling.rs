//! What moves a function's scale.

use futures_util::FutureExt;

use crate::cluster::Cluster;
use crate::in_both_arrangements;

in_both_arrangements!(a_busy_function_gets_more_sandboxes_by_its_cpu);

async fn a_busy_function_gets_more_sandboxes_by_its_cpu(cluster: Cluster) -> Cluster {
    cluster.file(
        "busy/handler.py",
        "import time\ndef handler(event, context):\n    end = time.monotonic() + 0.2\n    while time.monotonic() < end: pass\n    return 1\n",
    );
    cluster.file(
        "busy/fanfare.toml",
        "name = \"busy\"\n[limits]\ncpu_request = \"50m\"\n[scaling]\npolicy = \"hpa\"\nmax = 3\ntick = \"1s\"\n",
    );
    cluster.cli_ok(&["deploy", &cluster.path("busy")]);
    let load = async {
        loop {
            // CPU alone scales it: two callers of a sandbox for one are no reason.
            let calls = [cluster.call("busy", "{}"), cluster.call("busy", "{}")];
            for answer in futures_util::future::join_all(calls).await {
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        }
    };
    let ready = async || cluster.status_of("busy").await["sandboxes"]["ready"].as_u64().unwrap();
    let scaled = cluster.until("its CPU brings it to its most", async || ready().await == 3);
    futures_util::select_biased! {
        () = scaled.fuse() => {}
        () = load.fuse() => {}
    }
    let status = cluster.status_of("busy").await;
    let decided = |d: &serde_json::Value| {
        d["to"] == 3 && d["reason"].as_str().is_some_and(|reason| reason.starts_with("autoscaler"))
    };
    assert!(status["decisions"].as_array().is_some_and(|all| all.iter().any(decided)), "{status}");
    cluster
}
