//! More connections of clients than the process has descriptors for.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::run::fanfare;

/// Descriptors of the whole process; half of them are left to what is no client's connection.
const DESCRIPTORS: usize = 400;
const CONNECTIONS_MAX: usize = DESCRIPTORS / 2;
/// Ten times what anything here should take.
const SOON: Duration = Duration::from_secs(30);

/// One request on a connection of its own; its status line.
async fn ask(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = "GET /function/load HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.expect("an answer").unwrap();
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

/// The number of a metric of the data plane.
async fn metric(address: SocketAddr, name: &str) -> usize {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {answer}")).trim().parse().unwrap()
}

/// Silent clients race for all places, while others call a function and the control API is asked: those who say
/// something are heard, and the reserve is not touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_clients_that_race_for_every_place_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let free = "127.0.0.1:0";
    let up = ["up", "--emulate", "1", "--listen", free, "--api-listen", free, "--grpc-listen", free];
    let rest = ["--run-dir", "run", "--data-dir", "data"];
    let mut limited = Command::new("sh");
    let script = format!("ulimit -n {DESCRIPTORS} && exec \"$0\" \"$@\"");
    limited.args(["-c", &script, env!("CARGO_BIN_EXE_fanfare")]).args(up).args(rest);
    limited.current_dir(dir.path()).env_remove("FANFARE_API").kill_on_drop(true);
    limited.stdout(Stdio::piped()).stderr(std::fs::File::create(dir.path().join("log")).unwrap());
    let mut child = limited.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut address = async |what: &str| loop {
        let line = tokio::time::timeout(SOON, lines.next_line()).await.unwrap().unwrap().expect(what);
        if let Some(url) = line.strip_prefix(what) {
            let (_, url) = url.split_once("http://").unwrap();
            return url.split_whitespace().next().unwrap().parse::<SocketAddr>().unwrap();
        }
    };
    let (functions, api) = (address("functions").await, address("control API").await);
    address("streams").await;
    let api_url = format!("http://{api}");
    let run = fanfare(&api_url, &["deploy", "--runtime", "fake", "--name", "load"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(metric(api, "fanfare_data_plane_connections_max").await, CONNECTIONS_MAX);

    let silent: Vec<TcpStream> = {
        let mut opening = JoinSet::new();
        // Twice as many as there are places, beside calls that are answered all the while.
        for _ in 0..8 {
            opening.spawn(async move {
                let mut silent = Vec::new();
                for _ in 0..CONNECTIONS_MAX / 4 {
                    silent.push(TcpStream::connect(functions).await.unwrap());
                }
                silent
            });
        }
        let mut calling = JoinSet::new();
        for _ in 0..4 {
            calling.spawn(async move {
                for _ in 0..25 {
                    assert_eq!(ask(functions).await, "HTTP/1.1 200 OK");
                }
            });
        }
        while let Some(called) = calling.join_next().await {
            called.unwrap();
        }
        opening.join_all().await.into_iter().flatten().collect()
    };
    assert_eq!(ask(functions).await, "HTTP/1.1 200 OK");
    let (now, out) = (
        metric(api, "fanfare_data_plane_connections").await,
        metric(api, "fanfare_data_plane_connections_crowded_out_total").await,
    );
    assert!(now <= CONNECTIONS_MAX, "{now} connections");
    assert!(out >= silent.len() - CONNECTIONS_MAX, "{out} made way");
    // What is no client's connection has what it needs.
    let run = fanfare(&api_url, &["invoke", "load", "-d", "{}"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.contains("too many connections of clients"), "{log}");
    assert!(!log.contains("Too many open files"), "{log}");
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").arg(&pid).status().await.unwrap().success());
    assert_eq!(tokio::time::timeout(SOON, child.wait()).await.unwrap().unwrap().code(), Some(0));
}
