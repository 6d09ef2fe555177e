//! Spans of requests, and metrics.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use bytes::Bytes;
use fanfare_data_plane::TraceOptions;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::client::{Connection, request};
use crate::rig::{Rig, hello, within};
use crate::sandbox::{Sandbox, echo};

const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Takes one export as an OpenTelemetry collector does; its spans.
async fn collect(listener: &TcpListener, status: &str) -> Vec<Value> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufReader::new(stream);
    let (mut length, mut json, mut line) = (0, false, String::new());
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(line.trim_end(), "POST /v1/traces HTTP/1.1");
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
        let field = line.to_ascii_lowercase();
        length = field.strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().unwrap());
        json |= field.trim_end() == "content-type: application/json";
    }
    assert!(json);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
    stream.write_all(answer.as_bytes()).await.unwrap();
    let document: Value = serde_json::from_slice(&body).unwrap();
    let resource = &document["resourceSpans"][0];
    assert!(resource["resource"]["attributes"].to_string().contains("service.name"), "{document}");
    resource["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

fn with_parent(parent: &str) -> Request<Full<Bytes>> {
    let request = Request::get("/function/hello/").header("host", "x").header("traceparent", parent);
    request.header("tracestate", "vendor=kept").body(Full::default()).unwrap()
}

#[tokio::test]
async fn spans_reach_the_collector_and_the_function_is_told_its_parent() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}/", collector.local_addr().unwrap());
    let traced = TraceOptions { endpoint, ratio: 0.0 };
    let (rig, control) = Rig::synced_with(vec![hello()], |options| options.tracing = Some(traced)).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = Connection::open(rig.address()).await;
    // Not sampled: by its parent, or for want of one with a share of nothing.
    let unsampled = GIVEN.replace("-01", "-00");
    assert!(client.call(with_parent(&unsampled)).await.text().contains(&format!("traceparent: {unsampled}")));
    assert!(!client.call(request("/function/hello/")).await.text().contains("traceparent"));
    let answer = client.call(with_parent(GIVEN)).await;
    let spans = within("an export", collect(&collector, "200 OK")).await;
    let (whole, stages) = spans.split_first().unwrap();
    assert_eq!(whole["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((&whole["parentSpanId"], &whole["kind"]), (&"b7ad6b7169203331".into(), &2.into()), "{whole}");
    let span = whole["spanId"].as_str().unwrap();
    let told = format!("traceparent: 00-0af7651916cd43dd8448eb211c80319c-{span}-01\n");
    assert!(
        answer.text().contains(&told) && answer.text().contains("tracestate: vendor=kept\n"),
        "{answer:?}"
    );
    let names: Vec<_> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["queue", "execute", "answer"]);
    let time = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    for stage in stages {
        assert_eq!((&stage["parentSpanId"], &stage["traceId"]), (&whole["spanId"], &whole["traceId"]));
        assert!(time(stage, "startTimeUnixNano") <= time(stage, "endTimeUnixNano"), "{stage}");
    }
}

#[tokio::test]
async fn a_collector_that_takes_nothing_costs_spans_and_no_request() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let traced = TraceOptions { endpoint, ratio: 1.0 };
    let (rig, control) = Rig::synced_with(vec![hello()], |options| options.tracing = Some(traced)).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = Connection::open(rig.address()).await;
    assert!(client.call(request("/function/hello/")).await.text().contains("traceparent: 00-"));
    let spans = within("an export", collect(&collector, "503 Busy")).await;
    assert_eq!(spans.len(), 4);
    assert_eq!(client.call(request("/function/hello/")).await.status, 200);
    // The exporter has counted the first when it comes with the second.
    within("an export", collect(&collector, "503 Busy")).await;
    let metrics = rig.data_plane.metrics();
    assert!(!metrics.contains("fanfare_data_plane_spans_dropped_total 0\n"), "{metrics}");
}

async fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

#[tokio::test]
async fn metrics_are_counted_and_promtool_accepts_them() {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let (rig, control) = Rig::synced_with(vec![hello()], |options| options.metrics = Some(address)).await;
    let sandbox = Sandbox::new(rig.dir(), 1, echo);
    control.grant(1, &sandbox.endpoint, 1, None);
    let mut client = Connection::open(rig.address()).await;
    for _ in 0..3 {
        assert_eq!(client.call(request("/function/hello/")).await.status, 200);
    }
    assert_eq!(client.call(request("/function/nobody/")).await.status, 404);
    for said in ["GET /other HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "nonsense\r\n\r\n"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        let mut refused = String::new();
        within("a refusal", stream.read_to_string(&mut refused)).await.unwrap();
        assert!(refused.starts_with("HTTP/1.1 40"), "{refused}");
        assert!(
            refused.contains("\r\nx-fanfare-reason: ") && refused.contains("\r\nx-request-id: "),
            "{refused}"
        );
    }
    let text = within("a scrape", scrape(address)).await;
    for line in [
        "fanfare_data_plane_refused_total{reason=\"function-not-found\"} 1",
        "fanfare_data_plane_requests_ended_total{end=\"refused\",slot=\"none\"} 1",
        "fanfare_data_plane_stage_seconds_count{stage=\"execute\"} 3",
        "fanfare_data_plane_function_arrivals_total{function=\"hello\"} 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    promtool(&text);
}

/// Has Prometheus' own checker look at it.
fn promtool(text: &str) {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        // It comes with the Debian package that `cargo xtask ci` installs.
        #[allow(clippy::print_stderr)]
        return eprintln!("SKIPPED: promtool (Debian: prometheus) is missing");
    };
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&said));
}
