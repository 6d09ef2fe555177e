//! What changes under load costs no request: updates, scaling, and the replacement of a data plane.

use crate::cluster::{Arrangement, Cluster, root, wait};
use crate::load::Load;

fn any() -> impl FnMut(&str) -> Result<(), String> {
    |_| Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q8_ten_updates_under_200_requests_a_second_cost_none() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(Arrangement::Together).await;
    let deploy = |version: u32| {
        let source = format!("def handler(event, context):\n    return '{version}'\n");
        cluster.deploy_python("updated", &source, &["--max", "20"]);
    };
    deploy(0);
    let url = format!("{}/function/updated", cluster.data_planes[0]);
    // No client sees an older version again after a newer one.
    let monotonic = || {
        let mut newest = 0;
        move |text: &str| {
            let version: u32 = text.parse().map_err(|_| format!("no version: {text}"))?;
            let older = version < newest;
            newest = newest.max(version);
            if older { Err(format!("version {version} after {newest}")) } else { Ok(()) }
        }
    };
    let load = Load::start(&url, 16, 200, monotonic);
    load.goes_on(50).await;
    for version in 1..=10 {
        deploy(version);
        let expected = version.to_string();
        cluster
            .until("the new version answers", async || cluster.call("updated", "").await.text() == expected)
            .await;
        load.goes_on(20).await;
    }
    let (answered, wrong) = load.stop().await;
    assert_eq!(wrong, Vec::<String>::new(), "of {answered}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_from_10_to_5_and_back_under_load_costs_no_request() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(Arrangement::Together).await;
    let source = "import time\ndef handler(event, context):\n    time.sleep(0.01)\n    return 'ok'\n";
    cluster.deploy_python("scaled", source, &["--scale", "10"]);
    let ready = async || cluster.status_of("scaled").await["sandboxes"]["ready"].as_u64().unwrap();
    cluster.until("ten are ready", async || ready().await == 10).await;
    let load = Load::start(&format!("{}/function/scaled", cluster.data_planes[0]), 16, 200, any);
    load.goes_on(50).await;
    for scale in [5, 10, 5, 10] {
        cluster.cli_ok(&["update", "scaled", "--scale", &scale.to_string()]);
        cluster.until("it is scaled", async || ready().await == scale).await;
        load.goes_on(50).await;
    }
    let (answered, wrong) = load.stop().await;
    assert_eq!(wrong, Vec::<String>::new(), "of {answered}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_plane_is_replaced_under_1000_requests_a_second_and_costs_none() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("served", "def handler(event, context):\n    return 'ok'\n", &["--scale", "8"]);
    let url = format!("{}/function/served", cluster.data_planes[0]);
    let (listen, control_plane) =
        (cluster.data_planes[0].replace("http://", ""), format!("http://{}", cluster.grpc));
    let call = format!("{}/async-function/served", cluster.data_planes[0]);
    let accepted = cluster.send("POST", &call, &[], "{}").await;
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    let load = Load::start(&url, 32, 1_000, any);
    load.goes_on(500).await;
    for _ in 0..3 {
        let index = cluster.processes.iter().position(|p| p.role == "d0").unwrap();
        let mut old = cluster.processes.remove(index);
        cluster.spawn_data_plane_with(0, &control_plane, &listen, &["--take-over"]);
        let status = tokio::task::spawn_blocking(move || wait(&mut old.child)).await.unwrap();
        assert!(status.success(), "the old one ends by itself, and well: {status}\n{}", cluster.logs());
        load.goes_on(500).await;
    }
    let (answered, wrong) = load.stop().await;
    assert_eq!(wrong, Vec::<String>::new(), "of {answered}\n{}", cluster.logs());
    let id = accepted.json()["id"].as_str().unwrap().to_owned();
    let result = format!("{}/async/{id}/result", cluster.data_planes[0]);
    let kept = async || cluster.send("GET", &result, &[], "").await.status == 200;
    cluster.until("the successor has the asynchronous calls, too", kept).await;
    cluster.shut_down();
}

/// As systemd passes sockets.
#[tokio::test]
async fn a_socket_that_a_service_manager_passes_is_served() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let run = tempfile::tempdir().unwrap();
    let script = "exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$@\"";
    let mut child = std::process::Command::new("/bin/sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_fanfare"), "data-plane", "--run-dir"])
        .arg(run.path())
        .args(["--control-plane", "http://127.0.0.1:1"])
        .stdin(std::os::fd::OwnedFd::from(listener))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The connection waits in the backlog until the data plane is there.
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let asked = b"GET /_fanfare/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, asked).await.unwrap();
    let mut answer = String::new();
    let read = tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer);
    tokio::time::timeout(crate::cluster::PATIENCE, read).await.unwrap().unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("x-fanfare-reason: not-synced"),
        "{answer}"
    );
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(tokio::task::spawn_blocking(move || wait(&mut child)).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_dies_before_its_turn_costs_nothing() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("served", "def handler(event, context):\n    return 'ok'\n", &["--scale", "2"]);
    let listen = cluster.data_planes[0].replace("http://", "");
    let load = Load::start(&format!("{}/function/served", cluster.data_planes[0]), 4, 100, any);
    load.goes_on(50).await;
    // It never hears from a control plane.
    let nowhere = format!("http://127.0.0.1:{}", crate::cluster::free_port());
    cluster.spawn_data_plane_with(0, &nowhere, &listen, &["--take-over"]);
    load.goes_on(100).await;
    let mut dead = cluster.processes.pop().unwrap();
    dead.child.kill().unwrap();
    dead.child.wait().unwrap();
    load.goes_on(100).await;
    let (answered, wrong) = load.stop().await;
    assert_eq!(wrong, Vec::<String>::new(), "of {answered}");
    cluster.shut_down();
}
