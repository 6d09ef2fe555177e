//! What the load generator InVitro sends to Dirigent, byte for byte as its Go client writes it, and what it needs to
//! read in return.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Arrangement, Cluster, PATIENCE, root};

const TRACE_IMAGE: &str = "docker.io/cvetkovic/dirigent_trace_function:latest";
const EMPTY_IMAGE: &str = "docker.io/cvetkovic/dirigent_empty_function:latest";
/// How long InVitro lets a connection to the control plane take …
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);
/// … and the answer to a registration, in the version that waits less.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// A request as Go's HTTP/1.1 client writes it.
fn go_request(method: &str, target: &str, host: &str, fields: &[(&str, &str)], body: &str) -> String {
    let mut text =
        format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Go-http-client/1.1\r\n");
    if method == "POST" || !body.is_empty() {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    for (name, value) in fields {
        text += &format!("{name}: {value}\r\n");
    }
    text + "Accept-Encoding: gzip\r\n\r\n" + body
}

/// A registration: names in the order in which Go sorts them.
fn form(name: &str, image: &str, more: &[(&str, &str)], scale: (u32, u32)) -> String {
    let (min, max) = scale;
    let image = image.replace('/', "%2F").replace(':', "%3A");
    let mut fields: Vec<(&str, String)> = vec![
        ("image", image),
        ("name", name.to_owned()),
        ("port_forwarding", "80".to_owned()),
        ("port_forwarding", "tcp".to_owned()),
        ("requested_cpu", "10".to_owned()),
        ("requested_memory", "20".to_owned()),
        ("scaling_lower_bound", min.to_string()),
        ("scaling_upper_bound", max.to_string()),
    ];
    fields.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    fields.sort_by_key(|(name, _)| *name);
    fields.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// What the current version sends beside that.
const CURRENT: [(&str, &str); 6] = [
    ("node_affinity", ""),
    ("node_port", "0"),
    ("num_args", "0"),
    ("num_rets", "0"),
    ("prepull_mode", ""),
    ("requested_gpu", "0"),
];

fn register_request(api: &str, path: &str, form: &str) -> String {
    let fields = [("Content-Type", "application/x-www-form-urlencoded")];
    go_request("POST", path, api, &fields, form)
}

/// The fields of an invocation, as Go spells them.
fn invocation<'a>(function: &'a str, image: &'a str, cpu: &'a str) -> [(&'a str, &'a str); 6] {
    [
        ("Function", function),
        ("Io_percentage", "0"),
        ("Multiplier", "102"),
        ("Requested_cpu", cpu),
        ("Requested_memory", "170"),
        ("Workload", image),
    ]
}

/// Sends one request on a connection of its own: the answer's status, head and body.
fn exchange(address: &str, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(whole) = complete(&answer) {
            return whole;
        }
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the connection ended: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..read]);
    }
}

/// An answer of a length that its head tells, once it is whole.
fn complete(answer: &[u8]) -> Option<(u16, String, String)> {
    let text = std::str::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let head = head.to_lowercase();
    let status = head.split(' ').nth(1)?.parse().unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    (body.len() == length).then(|| (status, head, body.to_owned()))
}

/// Whether this process may have so many files open; says so when not.
fn descriptors(count: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    let enough = most.is_none_or(|most| most >= count);
    if !enough {
        eprintln!("SKIPPED: needs {count} open files, and {most:?} are allowed");
    }
    enough
}

async fn start(more: &[&str]) -> Cluster {
    Cluster::start_with(Arrangement::Together, &[&["--dirigent"], more].concat()).await
}

fn addresses(cluster: &Cluster) -> (String, String) {
    (cluster.api.replace("http://", ""), cluster.data_planes[0].replace("http://", ""))
}

/// Registers one function; where it is called.
fn register(cluster: &Cluster, path: &str, form: &str) -> String {
    let (api, _) = addresses(cluster);
    let (status, _, body) = exchange(&api, &register_request(&api, path, form));
    assert_eq!(status, 200, "{body}\n{}", cluster.logs());
    body
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invitro_registers_checks_and_invokes() {
    if !root() {
        return;
    }
    let cluster = start(&[]).await;
    let (api, data_plane) = addresses(&cluster);
    let name = "trace-func-0-8674665223082153551";
    let check = go_request("GET", &format!("/check?name={name}"), &api, &[], "");
    assert_eq!(exchange(&api, &check).0, 404);
    assert_eq!(register(&cluster, "/", &form(name, TRACE_IMAGE, &CURRENT, (0, 2))), data_plane);
    assert_eq!(exchange(&api, &check).0, 200);

    // HTTP/1.1, cold and warm.
    let invoke = |cpu| go_request("POST", "/", name, &invocation(name, TRACE_IMAGE, cpu), "");
    for cpu in ["25", "1"] {
        let (status, _, body) = exchange(&data_plane, &invoke(cpu));
        assert_eq!(status, 200, "{body}\n{}", cluster.logs());
        let answer = json(&body);
        assert_eq!((&answer["Status"], &answer["Function"]), (&"OK".into(), &name.into()), "{body}");
        assert!(answer["MachineName"].as_str().is_some_and(|name| !name.is_empty()), "{body}");
        let took_us = answer["ExecutionTime"].as_u64().unwrap();
        assert!(took_us >= cpu.parse::<u64>().unwrap() * 1_000, "{body}");
    }

    // The version of the artifact: another path, a method without a body, a function that does nothing.
    let empty = "cold-function-3-605394647632969758";
    let sweep = form(empty, EMPTY_IMAGE, &[("cold_start_sweep", "true")], (0, 1));
    assert_eq!(register(&cluster, "/registerService", &sweep), data_plane);
    let begun = Instant::now();
    let (status, _, body) =
        exchange(&data_plane, &go_request("GET", "/", empty, &invocation(empty, EMPTY_IMAGE, "10"), ""));
    assert_eq!((status, &json(&body)["Status"]), (200, &"OK - EMPTY".into()), "{body}");
    let ready = async |name| cluster.status_of(name).await["sandboxes"]["ready"].as_u64().unwrap();
    cluster.until("its sandbox is gone", async || ready(empty).await == 0).await;
    assert!(begun.elapsed() > Duration::from_secs(4), "it stays for its window: {:?}", begun.elapsed());
    assert_eq!(ready(name).await, 1, "those of other functions stay longer");
    cluster.shut_down();
}

/// A connection as Go's HTTP/2 client begins it without TLS: with prior knowledge, all functions on it.
async fn http2(address: &str) -> http2::SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (send, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(1 << 30)
        .max_header_list_size(10 << 20)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    send
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invitro_invokes_over_h2c_many_at_once_on_one_connection() {
    if !root() {
        return;
    }
    let cluster = start(&[]).await;
    let (_, data_plane) = addresses(&cluster);
    let names: Vec<String> = (0..3).map(|index| format!("trace-func-{index}-42")).collect();
    for name in &names {
        assert_eq!(register(&cluster, "/", &form(name, TRACE_IMAGE, &CURRENT, (0, 4))), data_plane);
    }
    let send = http2(&data_plane).await;
    let calls = (0..250).map(|index| {
        let (name, mut send) = (names[index % names.len()].clone(), send.clone());
        async move {
            let mut request =
                Request::post(format!("http://{name}/")).header("user-agent", "Go-http-client/2.0");
            for (field, value) in invocation(&name, TRACE_IMAGE, "2") {
                request = request.header(field, value);
            }
            let request = request.header("accept-encoding", "gzip").body(Full::default()).unwrap();
            let response =
                tokio::time::timeout(PATIENCE * 2, send.send_request(request)).await.unwrap().unwrap();
            let status = response.status();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(status, 200, "{body:?}");
            assert_eq!(json(std::str::from_utf8(&body).unwrap())["Function"], name.as_str());
        }
    });
    futures_util::future::join_all(calls).await;
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invitro_invokes_over_grpc() {
    if !root() {
        return;
    }
    let cluster = start(&[]).await;
    let (_, data_plane) = addresses(&cluster);
    let name = "trace-func-7-1443635317331776148";
    let image = "docker.io/cvetkovic/dirigent_grpc_function:latest";
    assert_eq!(register(&cluster, "/", &form(name, image, &CURRENT, (0, 1))), data_plane);
    // A message, 30 ms and 170 MiB.
    let message = b"\0\0\0\0\x0e\x0a\x07nothing\x10\x1e\x18\xaa\x01";
    for _ in 0..2 {
        // A connection for each call.
        let mut send = http2(&data_plane).await;
        let request = Request::post(format!("http://{name}/faas.Executor/Execute"))
            .header("content-type", "application/grpc")
            .header("user-agent", "grpc-go/1.65.0")
            .header("te", "trailers")
            .header("grpc-timeout", "899999m")
            .body(Full::new(Bytes::from_static(message)))
            .unwrap();
        let response = tokio::time::timeout(PATIENCE, send.send_request(request)).await.unwrap().unwrap();
        assert_eq!(response.status(), 200, "{:?}\n{}", response.headers(), cluster.logs());
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        let reply = body.to_bytes();
        let text = String::from_utf8_lossy(&reply);
        // What follows the functions' common beginning is the instance.
        let instance = &text[text.rfind("trace-func").unwrap()..];
        assert!(text.contains("OK - ") && instance.starts_with(&format!("{name}-s")), "{text:?}");
    }
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invitro_invokes_now_and_collects_later() {
    if !root() {
        return;
    }
    let cluster = start(&["--dirigent-async"]).await;
    let (_, data_plane) = addresses(&cluster);
    let name = "trace-func-1-3510942875414458836";
    assert_eq!(register(&cluster, "/", &form(name, TRACE_IMAGE, &CURRENT, (0, 3))), data_plane);
    let call = go_request("POST", "/", name, &invocation(name, TRACE_IMAGE, "40"), "");
    let taken: Vec<_> = (0..10).map(|_| exchange(&data_plane, &call)).collect();
    for (status, _, id) in taken {
        assert_eq!(status, 200, "{id}\n{}", cluster.logs());
        let collect = go_request("GET", "/", &data_plane, &[], &id);
        cluster.until("the answer is there", async || exchange(&data_plane, &collect).0 == 200).await;
        let (_, head, body) = exchange(&data_plane, &collect);
        assert_eq!(
            (&json(&body)["Status"], &json(&body)["Function"]),
            (&"OK".into(), &name.into()),
            "{body}"
        );
        let took_us = head.lines().find_map(|line| line.strip_prefix("duration-microseconds: "));
        let took_us: u64 = took_us.unwrap().parse().unwrap();
        assert!(took_us >= json(&body)["ExecutionTime"].as_u64().unwrap(), "{head}{body}");
    }
    let unknown = exchange(&data_plane, &go_request("GET", "/", &data_plane, &[], "d1-1-0000000000000001"));
    assert_eq!((unknown.0, unknown.2.as_str()), (404, ""));
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_registrations_at_once_are_all_answered() {
    const COUNT: usize = 2_000;
    if !root() || !descriptors(COUNT as u64 + 200) {
        return;
    }
    let cluster = start(&[]).await;
    let (api, data_plane) = addresses(&cluster);
    let together = Arc::new(tokio::sync::Barrier::new(COUNT));
    let registrations = (0..COUNT).map(|index| {
        let (api, together) = (api.clone(), together.clone());
        tokio::spawn(async move {
            let connect = tokio::net::TcpStream::connect(&api);
            let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
            let mut stream =
                stream.map_err(|_| "no connection in time".to_owned())?.map_err(|e| e.to_string())?;
            together.wait().await;
            let form = form(&format!("trace-func-{index}-1"), TRACE_IMAGE, &CURRENT, (0, 1));
            let begun = Instant::now();
            stream
                .write_all(register_request(&api, "/", &form).as_bytes())
                .await
                .map_err(|e| e.to_string())?;
            let mut answer = Vec::new();
            loop {
                if let Some((status, _, body)) = complete(&answer) {
                    return if status == 200 { Ok((body, begun.elapsed())) } else { Err(body) };
                }
                let read = tokio::time::timeout(PATIENCE, stream.read_buf(&mut answer)).await;
                match read.map_err(|_| "no answer".to_owned())?.map_err(|e| e.to_string())? {
                    0 => return Err("the connection ended".to_owned()),
                    _ => continue,
                }
            }
        })
    });
    let answers =
        tokio::time::timeout(PATIENCE * 2, futures_util::future::join_all(registrations)).await.unwrap();
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    let wrong: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(wrong.is_empty(), "{} of {COUNT}, the first: {}\n{}", wrong.len(), wrong[0], cluster.logs());
    let longest = answers.iter().flatten().map(|(_, took)| *took).max().unwrap();
    assert!(answers.iter().flatten().all(|(body, _)| *body == data_plane));
    assert!(longest < REGISTER_TIMEOUT * 10, "ten times as long as InVitro waits: {longest:?}");
    eprintln!("{COUNT} registrations at once, the longest took {longest:?}");
    let status = cluster.api("GET", "/v1/status", None).await.json();
    assert_eq!(status["functions"], COUNT);
    let last = format!("trace-func-{}-1", COUNT - 1);
    let (status, _, body) =
        exchange(&data_plane, &go_request("POST", "/", &last, &invocation(&last, TRACE_IMAGE, "1"), ""));
    assert_eq!((status, &json(&body)["Status"]), (200, &"OK".into()), "{body}");
    cluster.shut_down();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_may_be_a_directory_and_emulated_nodes_answer_too() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("main.py"),
        "import os\ndef handler(event, context):\n    return {'mode': os.environ['MODE'], 'path': context.http.path}\n",
    )
    .unwrap();
    let own = format!("registry.example/own:1={}", dir.path().display());
    let cluster = start(&["--dirigent-image", &own]).await;
    let (_, data_plane) = addresses(&cluster);
    let registered = form("own", "registry.example/own:1", &[("env_vars", "MODE%3Da+b")], (1, 1));
    assert_eq!(register(&cluster, "/", &registered), data_plane);
    cluster
        .until("the lower bound holds before anybody calls", async || {
            cluster.status_of("own").await["sandboxes"]["ready"] == 1
        })
        .await;
    let (status, _, body) = exchange(&data_plane, &go_request("POST", "/p", "own", &[], ""));
    assert_eq!((status, json(&body)), (200, serde_json::json!({"mode": "a b", "path": "/p"})));
    cluster.shut_down();

    let cluster = start(&["--emulate", "50"]).await;
    let (_, data_plane) = addresses(&cluster);
    assert_eq!(
        register(&cluster, "/", &form("cold-function-0-1", EMPTY_IMAGE, &CURRENT, (0, 1))),
        data_plane
    );
    let call =
        go_request("POST", "/", "cold-function-0-1", &invocation("cold-function-0-1", EMPTY_IMAGE, "1"), "");
    let (status, _, body) = exchange(&data_plane, &call);
    assert_eq!(status, 200, "{body}");
    assert!(!body.is_empty());
    cluster.shut_down();
}
