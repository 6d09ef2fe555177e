//! Revisions: what is kept of them, and what serves meanwhile.

use crate::cluster::{Arrangement, Cluster, root};
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
