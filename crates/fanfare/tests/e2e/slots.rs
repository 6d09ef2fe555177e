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
                // Those beside an abandoned or timed-out request are unharmed; only their own time can run out.
                let late = matches!(answer.reason(), Some("request-timeout" | "queue-timeout"));
                assert!(late, "{} {}", answer.status, answer.text());
            }
        }
    }
    assert!(most <= 3, "a sandbox held {most} requests at once");
    assert!(most >= 2, "the test did not reach the limit: {most}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beside_one_that_times_out_get_their_answers() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(Arrangement::Together).await;
    cluster.file("beside/main.py", COUNTER);
    cluster.file(
        "beside/fanfare.toml",
        "name = \"beside\"\nconcurrency = 4\n[handler]\nkind = \"http\"\ncommand = [\"/usr/bin/python3\", \"main.py\"]\n[scaling]\nmax = 1\n[timeouts]\nrequest = \"5s\"\n",
    );
    cluster.cli_ok(&["deploy", &cluster.path("beside")]);
    let url = format!("{}/function/beside", cluster.data_planes[0]);
    let call = |seconds: &'static str| {
        let (cluster, url) = (&cluster, &url);
        async move { cluster.send("GET", url, &[("x-sleep", seconds)], "").await }
    };
    assert_eq!(call("0").await.status, 200);
    let late = call("60");
    let beside = async {
        // They begin when the other one's time is half over, and end after it.
        assert_eq!(call("3").await.status, 200);
        futures_util::future::join3(call("3"), call("3"), call("3")).await
    };
    let (late, (a, b, c)) = futures_util::future::join(late, beside).await;
    assert_eq!((late.status, late.reason()), (504, Some("request-timeout")), "{}", late.text());
    for answer in [a, b, c] {
        assert_eq!((answer.status, answer.text()), (200, "4"), "all four were in one sandbox");
    }
    let next = call("0").await;
    assert_eq!((next.status, next.text()), (200, "1"), "in a new one, which never held more");
    cluster.shut_down();
}
