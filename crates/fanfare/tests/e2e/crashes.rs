//! `kill -9` of anything: what was acknowledged stays, what is left over is found, and calls are answered again.

use crate::cluster::{Arrangement, Cluster, leftovers, root, wait};

const HELLO: &str = "def handler(event, context):\n    return 'hello'\n";

pub(crate) fn kill(cluster: &mut Cluster, role: &str) {
    let index = cluster.processes.iter().position(|p| p.role == role).unwrap();
    let mut process = cluster.processes.remove(index);
    process.child.kill().unwrap();
    process.child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registrations_survive_a_killed_control_plane_and_warm_calls_go_on() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("hello", HELLO, &[]);
    assert_eq!(cluster.call("hello", "").await.text(), "hello");
    let registered =
        r#"{"name":"late","runtime":"process","handler":{"kind":"http","command":["/bin/true"]}}"#;
    let answer = cluster.api("POST", "/v1/functions", Some(registered)).await;
    let created = answer.status;
    kill(&mut cluster, "control-plane");
    assert_eq!(cluster.call("hello", "").await.text(), "hello", "warm calls need no control plane");
    let api = cluster.api.replace("http://", "");
    let grpc = cluster.grpc.clone();
    cluster.spawn_control_plane(&api, &grpc);
    cluster.wait_until_complete(1).await;
    assert_eq!(cluster.call("hello", "").await.text(), "hello");
    let late = cluster.api("GET", "/v1/functions/late", None).await.status;
    assert_eq!(late == 200, created == 201, "acknowledged: {created}, after the restart: {late}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_leaves_nothing_and_its_successor_serves() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("hello", HELLO, &["--min", "2"]);
    assert_eq!(cluster.call("hello", "").await.text(), "hello");
    kill(&mut cluster, "node");
    cluster.spawn_node(&[]);
    cluster.wait_until_complete(1).await;
    cluster.until("calls are answered again", async || cluster.call("hello", "").await.status == 200).await;
    let doctor = cluster.cli_ok(&[
        "doctor",
        "--run-dir",
        &cluster.path("run"),
        "--data-dir",
        &cluster.path("node-data"),
    ]);
    assert!(doctor.contains("0 orphans"), "{doctor}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_that_never_returns_leaves_no_process_behind() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("hello", HELLO, &["--min", "3"]);
    assert_eq!(cluster.call("hello", "").await.text(), "hello");
    kill(&mut cluster, "node");
    let run = cluster.dir.path().join("run");
    cluster
        .until("its processes are gone", async || leftovers(&run).iter().all(|l| !l.starts_with("process")))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_data_plane_s_successor_serves_without_exceeding_anything() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("hello", HELLO, &["--max", "1"]);
    assert_eq!(cluster.call("hello", "").await.text(), "hello");
    kill(&mut cluster, "d0");
    let listen = cluster.data_planes[0].replace("http://", "");
    let control_plane = format!("http://{}", cluster.grpc);
    cluster.spawn_data_plane(0, &control_plane, &listen);
    cluster.wait_until_complete(1).await;
    assert_eq!(cluster.call("hello", "").await.text(), "hello");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_plane_that_is_replaced_after_a_broken_update_serves_the_old_revision() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("hello", HELLO, &[]);
    assert_eq!(cluster.call("hello", "").await.text(), "hello");
    let broken = cluster.file("hello.py", "raise RuntimeError('boom at import')\n");
    let update = cluster.cli(&["deploy", broken.to_str().unwrap()]);
    assert!(!update.status.success(), "{}", String::from_utf8_lossy(&update.stdout));
    assert_eq!(cluster.call("hello", "").await.text(), "hello", "the old revision serves");
    for _ in 0..2 {
        let index = cluster.processes.iter().position(|p| p.role == "d0").unwrap();
        let mut process = cluster.processes.remove(index);
        let pid = rustix::process::Pid::from_child(&process.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(wait(&mut process.child).success());
        let listen = cluster.data_planes[0].replace("http://", "");
        let control_plane = format!("http://{}", cluster.grpc);
        cluster.spawn_data_plane(0, &control_plane, &listen);
        cluster.wait_until_complete(1).await;
        let answer = cluster.call("hello", "").await;
        assert_eq!((answer.status, answer.text()), (200, "hello"));
    }
    cluster.shut_down();
}
