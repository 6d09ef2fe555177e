//! Bodies larger than any buffer pass through a data plane that does not grow with them.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::cluster::{Arrangement, Cluster, root};

const CHUNK_BYTES: usize = 64 << 10;
/// Each way. What a data plane that collected bodies would need is eight times what is allowed.
const BODY_BYTES: usize = 256 << 20;
const GROWTH_BYTES_MAX: u64 = 32 << 20;

/// Counts what it gets, and then answers with as much.
const MIRROR: &str = r#"import http.server, os
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        left = size = int(self.headers['content-length'])
        while left:
            left -= len(self.rfile.read(min(left, 1 << 20)))
        self.send_response(200)
        self.send_header('Content-Length', str(size))
        self.end_headers()
        block = bytes(1 << 20)
        while size:
            size -= self.wfile.write(block[:min(size, 1 << 20)])
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()
"#;

/// The most memory that a process has had so far.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

async fn mirror(host: &str, bytes: usize) -> usize {
    let stream = TcpStream::connect(host).await.unwrap();
    let (mut send, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let chunk = Bytes::from(vec![7; CHUNK_BYTES]);
    let chunks = (0..bytes / CHUNK_BYTES).map(move |_| Ok::<_, Infallible>(Frame::data(chunk.clone())));
    let request = http::Request::post("/function/mirror")
        .header("host", host)
        .header("content-length", bytes)
        .body(StreamBody::new(stream::iter(chunks)))
        .unwrap();
    let response = send.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut body, mut received) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        received += frame.unwrap().data_ref().map_or(0, Bytes::len);
    }
    received
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_cost_a_data_plane_less_than_32_mib() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.file("mirror/main.py", MIRROR);
    cluster.file(
        "mirror/fanfare.toml",
        "name = \"mirror\"\n[handler]\nkind = \"http\"\ncommand = [\"/usr/bin/python3\", \"main.py\"]\n",
    );
    cluster.cli_ok(&["deploy", &cluster.path("mirror")]);
    let host = cluster.data_planes[0].replace("http://", "");
    // Whatever the first request makes it load is there before.
    assert_eq!(mirror(&host, CHUNK_BYTES).await, CHUNK_BYTES);
    let data_plane = cluster.processes.iter().find(|process| process.role == "d0").unwrap();
    let pid = data_plane.child.id();
    let before = peak_bytes(pid);
    assert_eq!(mirror(&host, BODY_BYTES).await, BODY_BYTES);
    let grown = peak_bytes(pid) - before;
    assert!(grown < GROWTH_BYTES_MAX, "{BODY_BYTES} bytes each way cost {grown}");
    cluster.shut_down();
}
