//! Calling functions: cold and warm, by path and by host, updated and deleted.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::in_both_arrangements;

in_both_arrangements!(
    a_python_handler_is_called_cold_and_warm,
    a_program_that_binds_its_port_is_served,
    a_program_that_speaks_http2_is_served,
    a_node_handler_is_called,
    a_surge_at_zero_gets_a_sandbox_each,
    path_query_and_headers_arrive_byte_for_byte,
    an_update_takes_effect_and_a_deletion_does_too,
    imports_happen_once_for_three_cold_starts,
    logs_are_kept_per_function,
);

const HELLO: &str = "def handler(event, context):\n    return {'hello': event.get('name', 'world')}\n";

async fn a_python_handler_is_called_cold_and_warm(cluster: Cluster) -> Cluster {
    cluster.deploy_python("hello", HELLO, &[]);
    let cold = cluster.call("hello", r#"{"name":"x"}"#).await;
    assert_eq!((cold.status, cold.json()["hello"].as_str()), (200, Some("x")), "{}", cold.text());
    let timing = cold.header("server-timing").unwrap().to_owned();
    for stage in ["queue", "decide", "place", "transfer", "create", "start", "ready", "propagate", "execute"]
    {
        assert!(timing.contains(stage), "{stage} in {timing}");
    }
    let warm = cluster.call("hello", "").await;
    assert_eq!((warm.status, warm.json()["hello"].as_str()), (200, Some("world")));
    assert!(!warm.header("server-timing").unwrap().contains("create"), "a warm call has no cold stage");
    assert_ne!(warm.header("x-request-id"), cold.header("x-request-id"));
    let url = cluster.data_planes[0].clone();
    let by_host = cluster.send("POST", &format!("{url}/"), &[("host", "hello")], "{}").await;
    assert_eq!(by_host.status, 200, "{}", by_host.text());
    let kept = cluster.send("GET", &format!("{url}/function/hello"), &[("x-request-id", "mine-1")], "").await;
    assert_eq!(kept.header("x-request-id"), Some("mine-1"));
    let unknown = cluster.call("nobody", "").await;
    assert_eq!((unknown.status, unknown.reason()), (404, Some("function-not-found")));
    assert!(unknown.header("x-request-id").is_some());
    cluster
}

async fn a_program_that_binds_its_port_is_served(cluster: Cluster) -> Cluster {
    cluster.file(
        "server/main.py",
        "import http.server, os\n\
         class H(http.server.BaseHTTPRequestHandler):\n\
        \x20   protocol_version = 'HTTP/1.1'\n\
        \x20   def do_GET(self):\n\
        \x20       body = f'port {os.environ[\"PORT\"]} path {self.path}'.encode()\n\
        \x20       self.send_response(200)\n\
        \x20       self.send_header('Content-Length', str(len(body)))\n\
        \x20       self.end_headers()\n\
        \x20       self.wfile.write(body)\n\
        \x20   def log_message(self, *a): pass\n\
         http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()\n",
    );
    cluster.file(
        "server/fanfare.toml",
        "name = \"server\"\nconcurrency = 4\n[handler]\nkind = \"http\"\ncommand = [\"/usr/bin/python3\", \"main.py\"]\n",
    );
    cluster.cli_ok(&["deploy", &cluster.path("server")]);
    let url = format!("{}/function/server/a?b", cluster.data_planes[0]);
    for _ in 0..3 {
        let answer = cluster.send("GET", &url, &[], "").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.text().ends_with("path /a?b"), "{}", answer.text());
    }
    cluster
}

/// Answers every request of HTTP/2 with `200` and two bytes, knowing no more of it than that takes.
const HTTP2: &str = r#"import os, socket, threading
def frame(kind, flags, stream, payload=b''):
    return len(payload).to_bytes(3, 'big') + bytes([kind, flags]) + stream.to_bytes(4, 'big') + payload
def serve(connection):
    f = connection.makefile('rb')
    assert f.read(24) == b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
    connection.sendall(frame(4, 0, 0))
    while head := f.read(9):
        length, kind, flags = int.from_bytes(head[:3], 'big'), head[3], head[4]
        stream = int.from_bytes(head[5:], 'big')
        f.read(length)
        if kind == 4 and not flags & 1:
            connection.sendall(frame(4, 1, 0))
        if kind in (0, 1) and flags & 1:
            connection.sendall(frame(1, 4, stream, b'\x88') + frame(0, 1, stream, b'h2'))
server = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"#;

async fn a_program_that_speaks_http2_is_served(cluster: Cluster) -> Cluster {
    cluster.file("h2/main.py", HTTP2);
    cluster.file(
        "h2/fanfare.toml",
        "name = \"h2\"\nconcurrency = 4\n[handler]\nkind = \"http\"\ncommand = [\"/usr/bin/python3\", \"main.py\"]\nprotocol = \"h2c\"\n",
    );
    cluster.cli_ok(&["deploy", &cluster.path("h2")]);
    for _ in 0..3 {
        let answer = cluster.call("h2", "body").await;
        assert_eq!((answer.status, answer.text()), (200, "h2"));
    }
    cluster
}

async fn a_node_handler_is_called(cluster: Cluster) -> Cluster {
    if !std::path::Path::new("/usr/bin/node").exists() {
        eprintln!("SKIPPED: needs /usr/bin/node");
        return cluster;
    }
    let file = cluster.file("greet.js", "exports.handler = async (event) => ({ hi: event.name });\n");
    cluster.cli_ok(&["deploy", file.to_str().unwrap()]);
    let answer = cluster.call("greet", r#"{"name":"node"}"#).await;
    assert_eq!((answer.status, answer.json()["hi"].as_str()), (200, Some("node")), "{}", answer.text());
    cluster
}

async fn a_surge_at_zero_gets_a_sandbox_each(cluster: Cluster) -> Cluster {
    let source = "import time, os\ndef handler(event, context):\n    time.sleep(1)\n    return {'tmp': os.environ.get('TMPDIR', ''), 'pid': os.getpid()}\n";
    cluster.deploy_python("slow", source, &[]);
    let calls = (0..200).map(|_| cluster.call("slow", "{}"));
    let begun = std::time::Instant::now();
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|a| a.status == 200));
    let status = cluster.status_of("slow").await;
    let decisions = status["decisions"].as_array().unwrap();
    assert!(decisions.iter().any(|d| d["to"] == 200), "200 requests wait, nothing is known: {decisions:?}");
    // On a slow machine the first ones are done before the last ones are ready, and serve who still waits.
    let pids: BTreeSet<u64> = answers.iter().map(|a| a.json()["pid"].as_u64().unwrap()).collect();
    assert!(pids.len() > 100, "{} sandboxes served", pids.len());
    // The bound is ten times generous: one after the other they would take 200 s.
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    cluster
}

async fn path_query_and_headers_arrive_byte_for_byte(cluster: Cluster) -> Cluster {
    let source = "def handler(event, context):\n    h = context.http\n    return {'path': h.path, 'query': h.query, 'method': h.method, 'x': h.headers.get('x-some'), 'internal': [k for k in h.headers if k.startswith('x-fanfare-node')]}\n";
    cluster.deploy_python("echo", source, &[]);
    let url = format!("{}/function/echo/a%2Fb//c;d=1/%E2%82%AC/?x=1&x=2&y=%20+", cluster.data_planes[0]);
    let answer = cluster.send("PUT", &url, &[("x-some", "Value"), ("x-fanfare-node", "evil")], "").await;
    let json = answer.json();
    assert_eq!(json["path"], "/a%2Fb//c;d=1/%E2%82%AC/", "{json}");
    assert_eq!(json["query"], "x=1&x=2&y=%20+", "{json}");
    assert_eq!(json["method"], "PUT");
    assert_eq!(json["x"], "Value");
    assert_eq!(
        json["internal"].as_array().map(Vec::len),
        Some(0),
        "internal headers from outside are stripped"
    );
    cluster
}

async fn an_update_takes_effect_and_a_deletion_does_too(cluster: Cluster) -> Cluster {
    cluster.deploy_python("f", "def handler(e, c):\n    return 'one'\n", &[]);
    assert_eq!(cluster.call("f", "").await.text(), "one");
    cluster.deploy_python("f", "def handler(e, c):\n    return 'two'\n", &[]);
    cluster
        .until("the new revision answers", async || {
            let answer = cluster.call("f", "").await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.text() == "two"
        })
        .await;
    cluster.cli_ok(&["delete", "f"]);
    cluster.until("it is gone", async || cluster.call("f", "").await.status == 404).await;
    let missing = cluster.cli(&["describe", "f"]);
    assert_eq!(missing.status.code(), Some(4), "not found has its own exit code");
    cluster
}

async fn imports_happen_once_for_three_cold_starts(cluster: Cluster) -> Cluster {
    let source = "import os, time\nMARK = os.urandom(8).hex()\ndef handler(event, context):\n    time.sleep(0.3)\n    return {'mark': MARK, 'pid': os.getpid()}\n";
    cluster.deploy_python("once", source, &[]);
    let answers = futures_util::future::join_all((0..3).map(|_| cluster.call("once", "{}"))).await;
    let marks: BTreeSet<String> = answers.iter().map(|a| a.json()["mark"].to_string()).collect();
    let pids: BTreeSet<String> = answers.iter().map(|a| a.json()["pid"].to_string()).collect();
    assert_eq!((marks.len(), pids.len()), (1, 3), "three sandboxes, one import");
    cluster
}

async fn logs_are_kept_per_function(cluster: Cluster) -> Cluster {
    cluster.deploy_python(
        "chatty",
        "def handler(e, c):\n    print('a line of', e['who'])\n    return 1\n",
        &[],
    );
    cluster.deploy_python("other", "def handler(e, c):\n    print('not mine')\n    return 1\n", &[]);
    cluster.call("chatty", r#"{"who":"chatty"}"#).await;
    cluster.call("other", "{}").await;
    cluster
        .until("the line is in the log", async || {
            cluster.cli_ok(&["logs", "chatty"]).contains("a line of chatty")
        })
        .await;
    assert!(!cluster.cli_ok(&["logs", "chatty"]).contains("not mine"));
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requirements_beside_a_handler_are_installed() {
    if !crate::cluster::root() {
        return;
    }
    let cluster = Cluster::start(crate::cluster::Arrangement::Together).await;
    cluster.file("sums/requirements.txt", "numpy\n");
    cluster.file(
        "sums/main.py",
        "import numpy\ndef handler(event, context):\n    return {'sum': int(numpy.arange(event['n']).sum()), 'numpy': numpy.__version__}\n",
    );
    // numpy starts threads for its linear algebra unless told not to, and reserves address space for them.
    cluster.cli_ok(&["deploy", &cluster.path("sums"), "--memory", "256MiB"]);
    let answer = cluster.call("sums", r#"{"n": 5}"#).await;
    assert_eq!((answer.status, answer.json()["sum"].as_u64()), (200, Some(10)), "{}", answer.text());
    cluster.shut_down();
}
