//! Concurrency is exact however many data planes there are, counted inside the sandbox.

use std::time::Duration;

use crate::cluster::{Arrangement, Cluster, root};

/// Serves HTTP with a thread per connection and counts, inside, how many requests it holds at once.
const COUNTER: &str = r#"import http.server, os, threading, time
now, most, lock = 0, 0, threading.Lock()
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        global now, most
        with lock:
            now += 1
            most = max(most, now)
        try:
            time.sleep(float(self.headers.get('x-sleep', '0.02')))
        finally:
            with lock:
                now -= 1
                seen = most
        body = str(seen).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer.daemon_threads = True
http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_data_planes_never_exceed_a_sandbox_s_concurrency() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(Arrangement::Apart { data_planes: 2 }).await;
    cluster.file("counter/main.py", COUNTER);
    cluster.file(
        "counter/fanfare.toml",
        "name = \"counter\"\nconcurrency = 3\n[handler]\nkind = \"http\"\ncommand = [\"/usr/bin/python3\", \"main.py\"]\n[scaling]\nmax = 2\n[timeouts]\nrequest = \"2s\"\n",
    );
    cluster.cli_ok(&["deploy", &cluster.path("counter")]);
    let mut most = 0_u32;
    for round in 0..6 {
        let calls = (0..24).map(|i| {
            let url = format!("{}/function/counter", cluster.data_planes[i % 2]);
            let cluster = &cluster;
            async move {
                match (round + i) % 8 {
                    // The client leaves while the request is in the sandbox.
                    3 => {
                        let call = cluster.try_send("GET", &url, &[("x-sleep", "0.5")], "");
                        let _ = tokio::time::timeout(Duration::from_millis(40), call).await;
                        None
                    }
                    // The request's time runs out in the sandbox.
                    5 if round == 2 => Some(cluster.send("GET", &url, &[("x-sleep", "4")], "").await),
                    _ => Some(cluster.send("GET", &url, &[], "").await),
                }
            }
        });
        for answer in futures_util::future::join_all(calls).await.into_iter().flatten() {
            if answer.status == 200 {
                most = most.max(answer.text().parse().unwrap());
            } else {
                // A sandbox that is killed for an abandoned request takes its neighbours' answers with it only when
                // they were in it; each such answer says so.
                assert!(answer.reason().is_some(), "{} {}", answer.status, answer.text());
            }
        }
    }
    assert!(most <= 3, "a sandbox held {most} requests at once");
    assert!(most >= 2, "the test did not reach the limit: {most}");
    cluster.shut_down();
}
