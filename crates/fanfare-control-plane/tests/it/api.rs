//! What the API takes, what it refuses, and how it says so.

use std::collections::BTreeSet;

use fanfare_control_plane::{openapi_document, routes};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{Answer, World, fake, soon};

fn problem(answer: &Answer, status: u16, reason: &str) -> Value {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status.as_u16(), status, "{text}");
    assert_eq!(answer.header("content-type"), "application/problem+json", "{text}");
    assert_eq!(answer.header("x-fanfare-reason"), reason, "{text}");
    let problem = answer.json();
    assert_eq!((&problem["reason"], &problem["status"]), (&json!(reason), &json!(status)));
    assert_eq!(problem["type"], format!("urn:fanfare:reason:{reason}"));
    assert_eq!(problem["request_id"], answer.header("x-request-id"));
    for field in ["title", "detail", "hint", "request_id"] {
        assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {problem}");
    }
    assert_eq!(answer.header("retry-after").is_empty(), !matches!(status, 429 | 503), "{problem}");
    problem
}

#[tokio::test]
async fn bad_requests_are_refused_with_a_reason() {
    let world = World::new().await;
    let api = &world.api;
    api.create("taken").await;
    let large = format!(r#"{{"name":"a","handler":{{"kind":"fake"}},"x":"{}"}}"#, "x".repeat(1 << 20));
    let digest = "a5".repeat(32);
    let python = format!(r#"{{"name":"a","handler":{{"kind":"python","file":"a.py"}},"code":"{digest}"}}"#);
    let (taken, two) = (fake("taken"), fake("b"));
    let blob = format!("/v1/blobs/{digest}");
    let cases: Vec<(&str, &str, &str, u16, &str, &str)> = vec![
        ("POST", "/v1/functions", "", 400, "bad-request", "not a JSON object"),
        ("POST", "/v1/functions", "{\"name\": \"a\",\n  oops}", 400, "bad-request", "line 2 column 3"),
        ("POST", "/v1/functions", "[1]", 400, "bad-request", "JSON object"),
        ("POST", "/v1/functions", "{}", 422, "invalid-field", "name"),
        (
            "POST",
            "/v1/functions",
            r#"{"name":"A","handler":{"kind":"fake"}}"#,
            422,
            "invalid-field",
            "a-z 0-9",
        ),
        (
            "POST",
            "/v1/functions",
            r#"{"name":"a","handler":{"kind":"fake"},"x":1}"#,
            422,
            "invalid-field",
            "x",
        ),
        (
            "POST",
            "/v1/functions",
            r#"{"name":"a","handler":{"kind":"cobol"}}"#,
            422,
            "invalid-field",
            "cobol",
        ),
        ("POST", "/v1/functions", &large, 413, "too-large", "1048576"),
        ("POST", "/v1/functions", &python, 422, "code-not-found", &digest),
        ("POST", "/v1/functions", &taken, 409, "function-exists", "taken"),
        ("PUT", "/v1/functions/none/traffic", "{}", 404, "function-not-found", "none"),
        ("PUT", "/v1/functions/taken/traffic", "[", 400, "bad-request", "JSON"),
        ("PUT", "/v1/functions/taken/traffic", r#"{"traffic":[]}"#, 422, "invalid-field", "traffic"),
        ("PUT", "/v1/functions/taken/traffic", r#"{"tags":{"a--b":1}}"#, 422, "invalid-field", "tags"),
        (
            "PUT",
            "/v1/functions/taken/traffic",
            r#"{"tags":{"a":9}}"#,
            404,
            "revision-not-found",
            "there are 1",
        ),
        ("POST", "/v1/functions/taken/rollback", r#"{"to":"x"}"#, 422, "invalid-field", "to"),
        ("POST", "/v1/functions/taken/rollback", r#"{"too":1}"#, 422, "invalid-field", "too"),
        ("POST", "/v1/functions/taken/rollback", r#"{"to":7}"#, 404, "revision-not-found", "there are 1"),
        ("POST", "/v1/functions/taken/rollback", "{}", 409, "no-earlier-revision", "revision 1"),
        ("POST", "/v1/functions/taken/rollback", "[", 400, "bad-request", "JSON"),
        ("PUT", "/v1/functions/a", &two, 422, "invalid-field", "as in the path"),
        ("PUT", "/v1/functions/%ff", &two, 400, "bad-request", "UTF-8"),
        ("PUT", "/v1/blobs/short", "", 422, "invalid-field", "64 hexadecimal digits"),
        ("PUT", &blob, "bytes", 422, "code-mismatch", "digest"),
    ];
    for (method, path, body, status, reason, mentions) in cases {
        let answer = api.call_json(method, path, body.to_owned()).await;
        let problem = problem(&answer, status, reason);
        assert!(problem["detail"].as_str().unwrap().contains(mentions), "{method} {path}: {problem}");
    }
    let plain: Vec<(&str, &str, u16, &str, &str)> = vec![
        ("GET", "/v1/functions/none", 404, "function-not-found", "none"),
        ("GET", "/v1/functions/Not%20A%20Name", 404, "function-not-found", "Not A Name"),
        ("DELETE", "/v1/functions/none", 404, "function-not-found", "none"),
        ("POST", "/v1/functions/none/prepare", 404, "function-not-found", "none"),
        ("POST", "/v1/functions/none/rollback", 404, "function-not-found", "none"),
        ("GET", "/v1/functions/none/revisions", 404, "function-not-found", "none"),
        ("GET", "/v1/functions/none/logs", 404, "function-not-found", "none"),
        ("GET", "/v1/functions/taken/logs?tail=10001", 422, "invalid-field", "10000"),
        ("GET", "/v1/functions/taken/logs?tail=x", 422, "invalid-field", "0 to 10000"),
        ("GET", "/v1/functions/taken/logs?tail=99999999999", 422, "invalid-field", "0 to 10000"),
        ("GET", "/v1/functions?limit=-1", 422, "invalid-field", "1 to 1000"),
        ("GET", "/v1/functions?limit=", 422, "invalid-field", "1 to 1000"),
        ("GET", "/v1/functions/taken/logs?tial=1", 422, "invalid-field", "tail, follow, since"),
        ("GET", "/v1/functions?limit=0", 422, "invalid-field", "1 to 1000"),
        ("GET", "/v1/functions?limit=1001", 422, "invalid-field", "1 to 1000"),
        ("GET", "/v1/functions?offset=1", 422, "invalid-field", "there are: limit, after"),
        ("GET", "/", 404, "route-not-found", "openapi.json"),
        ("GET", "/v1/functions/", 404, "route-not-found", "openapi.json"),
        ("POST", "/v1/functions", 415, "unsupported-media-type", "application/json"),
        ("PATCH", "/v1/functions/taken", 405, "method-not-allowed", "allowed: "),
        ("DELETE", "/v1/status", 405, "method-not-allowed", "allowed: "),
    ];
    for (method, path, status, reason, mentions) in plain {
        let answer = api.call(method, path).await;
        let problem = problem(&answer, status, reason);
        assert!(problem["detail"].as_str().unwrap().contains(mentions), "{method} {path}: {problem}");
        if status == 405 {
            assert!(answer.header("allow").contains("GET"), "{method} {path}: {:?}", answer.headers);
        }
    }
    let form =
        api.request("POST", "/v1/functions").header("content-type", "application/x-www-form-urlencoded");
    problem(&api.send(form.body(Full::from("name=a")).unwrap()).await, 415, "unsupported-media-type");
    world.stop().await;
}

/// Where a field, a header or a part of the target is to blame, the answer names it, what it holds, and what is allowed.
#[tokio::test]
async fn every_rejection_names_field_value_and_limit() {
    let world = World::new().await;
    let api = &world.api;
    api.create("f").await;
    let long = format!("/v1/functions?{}=1", "x".repeat(20_000));
    let cases: Vec<(&str, &str, &str, &str, &str)> = vec![
        ("GET", "/v1/functions?lmit=5", "lmit", "5", "limit, after"),
        ("GET", "/v1/schedules?lmit=5", "lmit", "5", "limit, after"),
        ("GET", "/v1/webhooks?limit=x", "limit", "x", "1 to 1000"),
        ("GET", "/v1/functions?limit=5&limit=6", "limit", "first as \"5\"", "one value"),
        ("GET", "/v1/functions?after=%ff", "after", "\u{fffd}", "UTF-8"),
        ("GET", &long, "xxxx", "1", "limit, after"),
        ("GET", "/v1/functions/f/logs?follow=maybe", "follow", "maybe", "true or false"),
        ("GET", "/v1/functions/f/logs?since=soon", "since", "soon", "a duration such as 30s"),
        ("GET", "/v1/functions/f/logs?sandbox=x", "sandbox", "x", "an id such as s1"),
        ("GET", "/v1/functions/%ff", "name", "%ff", "UTF-8, percent-encoded"),
        ("GET", "/v1/requests/%ff", "id", "%ff", "UTF-8, percent-encoded"),
        ("PUT", "/v1/blobs/%ff", "digest", "%ff", "UTF-8, percent-encoded"),
        ("POST", "/v1/functions", "content-type", "none", "application/json"),
        ("PUT", "/v1/secrets/s", "content-type", "none", "application/json"),
        ("PUT", "/v1/blobs/short", "digest", "short", "64 hexadecimal digits"),
        ("PATCH", "/v1/functions/f", "method", "PATCH", "GET"),
        ("POST", "/healthz", "method", "POST", "GET"),
    ];
    for (method, path, field, value, limit) in cases {
        let answer = api.call(method, path).await;
        let problem = answer.json();
        for (key, expected) in [("field", field), ("value", value), ("limit", limit)] {
            let found = problem[key].as_str().unwrap_or_default();
            assert!(found.contains(expected) && found.len() < 600, "{method} {path} {key}: {problem}");
        }
        assert!(problem["detail"].as_str().unwrap().len() < 600, "{problem}");
        assert!(problem["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{problem}");
        assert!((400..500).contains(&answer.status.as_u16()), "{problem}");
    }
    let nowhere = format!("/v1/nowhere/{}", "x".repeat(20_000));
    let nobody = format!("/v1/functions/{}", "x".repeat(20_000));
    for (path, says) in [(&nowhere, "GET \"/v1/nowhere/"), (&nobody, "\"xxx")] {
        let detail = api.call("GET", path).await.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(says) && detail.len() < 600, "{detail}");
    }
    world.stop().await;
}

#[tokio::test]
async fn web_pages_of_other_sites_are_kept_out() {
    let world = World::new().await;
    let local = world.api.address.clone();
    let cases = [
        (local.clone(), None, 200),
        (local.replace("127.0.0.1", "localhost"), None, 200),
        (local.clone(), Some(format!("http://{local}")), 200),
        (local.clone(), Some("https://evil.example".to_owned()), 403),
        (local.clone(), Some("null".to_owned()), 403),
        ("evil.example".to_owned(), None, 403),
        ("evil.example".to_owned(), Some("http://evil.example".to_owned()), 403),
    ];
    for (host, origin, status) in cases {
        let mut request = world.api.request("GET", "/v1/status").header("host", &host);
        if let Some(origin) = &origin {
            request = request.header("origin", origin);
        }
        let answer = world.api.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(answer.status.as_u16(), status, "{host} {origin:?}");
        if status == 403 {
            problem(&answer, 403, "forbidden");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_function_is_created_described_listed_replaced_and_deleted() {
    let world = World::new().await;
    let api = &world.api;
    let created = api.create("b").await;
    assert_eq!((created.status.as_u16(), created.header("location")), (201, "/v1/functions/b"));
    let document = created.json();
    assert_eq!((&document["outcome"], &document["revision"]), (&json!("created"), &json!(1)));

    let path = "/v1/functions/b";
    let same = api.call_json("PUT", path, fake("b")).await;
    assert_eq!((same.status.as_u16(), &same.json()["outcome"]), (200, &json!("unchanged")));
    let changed = r#"{"name":"b","handler":{"kind":"fake"},"queue_limit":7,"env":{"A":"1"}}"#;
    let updated = api.call_json("PUT", path, changed).await;
    assert_eq!((updated.status.as_u16(), &updated.json()["outcome"]), (200, &json!("updated")));
    assert_eq!((&updated.json()["revision"], &updated.json()["id"]), (&json!(2), &document["id"]));
    assert_eq!(api.call_json("PUT", "/v1/functions/a", fake("a")).await.status.as_u16(), 201);
    api.create("c").await;

    let described = api.call("GET", path).await.json();
    assert_eq!((&described["revision"], &described["state"]), (&json!(2), &json!("idle")));
    assert_eq!(
        (&described["function"]["queue_limit"], &described["function"]["env"]["A"]),
        (&json!(7), &json!("1"))
    );
    let names = |list: &Value| {
        let functions = list["functions"].as_array().unwrap();
        functions.iter().map(|f| f["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = api.call("GET", "/v1/functions?limit=2").await.json();
    assert_eq!((names(&first), &first["next"]), (vec!["a".to_owned(), "b".to_owned()], &json!("b")));
    let second = api.call("GET", "/v1/functions?limit=2&after=b").await.json();
    assert_eq!((names(&second), second.get("next")), (vec!["c".to_owned()], None));

    assert_eq!(api.call("DELETE", path).await.status.as_u16(), 204);
    problem(&api.call("GET", path).await, 404, "function-not-found");
    problem(&api.call("DELETE", path).await, 404, "function-not-found");
    let again = api.create("b").await.json();
    assert_ne!(
        again["id"], document["id"],
        "a late message about the old function cannot be taken for the new"
    );
    world.stop().await;
}

#[tokio::test]
async fn revisions_are_listed_and_gone_back_to() {
    let world = World::new().await;
    let api = &world.api;
    let content = |limit: u32| format!(r#"{{"name":"a","handler":{{"kind":"fake"}},"queue_limit":{limit}}}"#);
    for limit in 1..=3 {
        api.call_json("PUT", "/v1/functions/a", content(limit)).await;
    }
    let list = async || api.call("GET", "/v1/functions/a/revisions").await.json()["revisions"].clone();
    let numbers = |list: &Value| -> Vec<u64> {
        list.as_array().unwrap().iter().map(|r| r["revision"].as_u64().unwrap()).collect()
    };
    let three = list().await;
    assert_eq!(numbers(&three), [3, 2, 1]);
    assert_eq!((&three[0]["latest"], &three[0]["weight"]), (&json!(true), &json!(100)));
    assert_eq!((&three[1]["latest"], &three[1]["weight"]), (&json!(false), &json!(0)));
    assert!(three[1]["created_unix_ms"].as_u64() >= Some(1_700_000_000_000), "{three}");
    let back = api.call_json("POST", "/v1/functions/a/rollback", r#"{"to":1}"#).await.json();
    assert_eq!((&back["revision"], &back["outcome"]), (&json!(4), &json!("updated")));
    let described = api.call("GET", "/v1/functions/a").await.json();
    assert_eq!((&described["function"]["queue_limit"], &described["revision"]), (&json!(1), &json!(4)));
    let four = &described["revisions"];
    assert_eq!(numbers(four), [4, 3, 2, 1]);
    assert_eq!(four[0]["digest"], four[3]["digest"]);
    assert_ne!(four[0]["digest"], four[1]["digest"]);
    // By weight and by tag, durably; what is left out stays.
    let put =
        async |body: &str| api.call_json("PUT", "/v1/functions/a/traffic", body.to_owned()).await.json();
    let result = put(
        r#"{"traffic":[{"revision":1,"weight":10},{"revision":"latest","weight":90}],"tags":{"canary":2}}"#,
    )
    .await;
    assert_eq!((&result["pending"], &result["traffic"][0]["weight"]), (&json!(false), &json!(10)));
    let result = put(r#"{"tags":{"canary":2,"next":"latest"}}"#).await;
    assert_eq!(
        (&result["traffic"][1]["revision"], &result["tags"]["next"]),
        (&json!("latest"), &json!("latest"))
    );
    let rows = list().await;
    let row = |n: usize| (rows[n]["revision"].clone(), rows[n]["weight"].clone(), rows[n]["tags"].clone());
    assert_eq!(row(0), (json!(4), json!(90), json!(["next"])));
    assert_eq!(row(2), (json!(2), json!(0), json!(["canary"])));
    assert_eq!((&rows[3]["weight"], rows[3].get("tags")), (&json!(10), None));
    put(r#"{"traffic":[{"revision":"latest","weight":100}],"tags":{}}"#).await;
    // Without a body, and so without a content type: 4 is what 1 was, and 3 is what was before.
    let back = api.call("POST", "/v1/functions/a/rollback").await.json();
    assert_eq!(back["revision"], json!(5));
    assert_eq!(api.call("GET", "/v1/functions/a").await.json()["function"]["queue_limit"], 3);
    world.stop().await;
}

#[tokio::test]
async fn concurrent_creates_of_one_name_give_exactly_one_201() {
    let world = World::new().await;
    let creates = (0..40).map(|_| world.api.create("a"));
    let mut statuses: Vec<u16> =
        futures_util::future::join_all(creates).await.iter().map(|answer| answer.status.as_u16()).collect();
    statuses.sort_unstable();
    assert_eq!((statuses[0], &statuses[1..]), (201, &[409; 39][..]));
    world.stop().await;
}

#[tokio::test]
async fn code_is_uploaded_before_it_is_registered() {
    let world = World::new().await;
    let api = &world.api;
    let code = b"a tar archive, as far as the control plane can tell".repeat(20_000);
    let digest: String = Sha256::digest(&code).iter().map(|byte| format!("{byte:02x}")).collect();
    let path = format!("/v1/blobs/{digest}");
    let missing = api.call("HEAD", &path).await;
    assert_eq!((missing.status.as_u16(), missing.header("x-fanfare-reason")), (404, "code-not-found"));
    let upload = api.request("PUT", &path).body(Full::from(code.clone())).unwrap();
    let uploaded = api.send(upload).await;
    assert_eq!((uploaded.status.as_u16(), &uploaded.json()["size_bytes"]), (201, &json!(code.len())));
    let there = api.call("HEAD", &path).await;
    assert_eq!(
        (there.status.as_u16(), there.header("content-length")),
        (200, code.len().to_string().as_str())
    );
    let function = format!(r#"{{"name":"a","handler":{{"kind":"python","file":"a.py"}},"code":"{digest}"}}"#);
    assert_eq!(api.call_json("POST", "/v1/functions", function).await.status.as_u16(), 201);

    let mut blob = soon(world.dialer().fetch_blob(digest.parse().unwrap())).await.unwrap();
    let mut fetched = Vec::new();
    while let Some(chunk) = futures_util::StreamExt::next(&mut blob).await {
        fetched.extend_from_slice(&chunk.unwrap());
    }
    assert!(fetched == code, "a node gets the same bytes");
    world.stop().await;
}

#[tokio::test]
async fn a_declared_length_over_the_limit_is_refused_before_it_is_sent() {
    let world = World::new().await;
    let mut stream = TcpStream::connect(&world.api.address).await.unwrap();
    let head = format!(
        "PUT /v1/blobs/{} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        "a5".repeat(32),
        (256 << 20) + 1
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    world.stop().await;
}

#[tokio::test]
async fn every_route_is_described_and_every_description_is_served() {
    let document = openapi_document();
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|path| path.as_object().unwrap().values());
    let ids: Vec<_> = operations.map(|operation| operation["operationId"].to_string()).collect();
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let served: BTreeSet<(String, String)> =
        routes().into_iter().map(|(method, path)| (method.to_string(), path.to_owned())).collect();
    assert_eq!(described, served);

    let world = World::new().await;
    assert_eq!(world.api.call("GET", "/v1/openapi.json").await.json(), document);
    for (method, path) in served {
        let path = path.replace("{name}", "none").replace("{digest}", "none").replace("{id}", "none");
        let answer = world.api.call(&method, &path).await;
        assert_ne!(answer.status.as_u16(), 405, "{method} {path}");
        assert_ne!(answer.header("x-fanfare-reason"), "route-not-found", "{method} {path}");
    }
    // What may be refused says so, and how.
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            for status in ["400", "403", "500", "503"] {
                assert!(responses.contains_key(status), "{method} {path}: {status}");
            }
            for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
                let said = response["content"].as_object();
                let kinds: Vec<&String> = said.into_iter().flat_map(|said| said.keys()).collect();
                let expected: &[&str] = if method == "head" { &[] } else { &["application/problem+json"] };
                assert_eq!(kinds, expected, "{method} {path}: {status}");
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let schema = &parameter["schema"];
                let limited = ["pattern", "maximum"].iter().any(|limit| schema.get(limit).is_some());
                let free = matches!(parameter["name"].as_str(), Some("after" | "follow"));
                assert!(limited || free, "{method} {path}: {parameter}");
            }
        }
    }
    // Every reference resolves.
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
    world.stop().await;
}

#[tokio::test]
async fn health_status_and_metrics_are_about_this_cluster() {
    let world = World::new().await;
    world.api.create("a").await;
    assert_eq!(world.api.call("GET", "/healthz").await.json(), json!({"status": "ok"}));
    let status = world.api.call("GET", "/v1/status").await.json();
    assert_eq!((&status["functions"], &status["leader"]["epoch"]), (&json!(1), &json!(1)));
    assert_eq!((&status["nodes"], &status["leader"]["here"]), (&json!([]), &json!(true)));
    let metrics = world.api.call("GET", "/metrics").await;
    assert_eq!(metrics.header("content-type"), "text/plain; version=0.0.4");
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(
        text.contains("\nfanfare_functions 1\n") && text.contains("# TYPE fanfare_functions gauge"),
        "{text}"
    );
    world.stop().await;
}

#[tokio::test]
async fn a_refusal_before_the_requests_end_is_not_lost_and_says_that_it_closes() {
    let world = World::new().await;
    let connect = || async { TcpStream::connect(&world.api.address).await.unwrap() };
    let head = |path: &str, length: usize| {
        let address = &world.api.address;
        let fields = format!("content-type: application/json\r\ncontent-length: {length}");
        format!("POST {path} HTTP/1.1\r\nhost: {address}\r\n{fields}\r\n\r\n")
    };
    for path in ["/v1/nope", "/v1/functions/nope/prepare", "/healthz"] {
        // The body comes later.
        let mut client = connect().await;
        client.write_all(head(path, 2).as_bytes()).await.unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"}") {
            assert!(soon(client.read_buf(&mut received)).await.unwrap() > 0);
        }
        let refused = String::from_utf8(received).unwrap();
        assert!(refused.starts_with("HTTP/1.1 40"), "{refused}");
        assert!(refused.contains("\r\nconnection: close\r\n"), "{refused}");
        client.write_all(b"{}").await.unwrap();
        assert_eq!(soon(client.read_to_end(&mut Vec::new())).await.expect("no reset"), 0);

        // It is here, and the connection can be used again.
        let mut client = connect().await;
        let next =
            format!("GET /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", world.api.address);
        client.write_all(format!("{}{{}}{next}", head(path, 2)).as_bytes()).await.unwrap();
        let mut answers = String::new();
        soon(client.read_to_string(&mut answers)).await.unwrap();
        let (refused, next) = answers.split_once("HTTP/1.1 200 ").expect("another answer");
        assert!(!refused.contains("connection: close") && !next.is_empty(), "{refused}");

        // It is large, and all of it is sent before anything is read.
        const BYTES: usize = 8 << 20;
        let mut client = connect().await;
        client.write_all(head(path, BYTES).as_bytes()).await.unwrap();
        soon(client.write_all(&vec![b' '; BYTES])).await.expect("nobody resets it");
        let mut refused = String::new();
        soon(client.read_to_string(&mut refused)).await.expect("no reset");
        assert!(refused.starts_with("HTTP/1.1 40"), "{refused}");
    }
}

#[tokio::test]
async fn what_is_no_request_is_refused_with_a_reason_and_an_id_too() {
    let world = World::new().await;
    let good = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", world.api.address);
    let cases = [
        ("nonsense\r\n\r\n".to_owned(), "400", "bad-request"),
        (
            "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551615\r\n\r\n".to_owned(),
            "400",
            "bad-request",
        ),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(80_000)), "414", "too-large"),
        (format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000)), "431", "too-large"),
    ];
    for (said, status, reason) in cases {
        for before in ["", &good, &good.repeat(2)] {
            let mut client = TcpStream::connect(&world.api.address).await.unwrap();
            // It may be refused before all of it is said.
            let _ = client.write_all(format!("{before}{said}").as_bytes()).await;
            let mut received = String::new();
            soon(client.read_to_string(&mut received)).await.expect("no reset");
            let (_, last) = received.rsplit_once(&format!("HTTP/1.1 {status} ")).expect(&received);
            let (head, document) = last.split_once("\r\n\r\n").unwrap();
            let document: serde_json::Value = serde_json::from_str(document).unwrap();
            let id = document["request_id"].as_str().unwrap();
            for field in [format!("x-request-id: {id}"), format!("x-fanfare-reason: {reason}")] {
                assert!(head.lines().any(|line| line == field), "{field}: {head}");
            }
            assert_eq!((&document["reason"], &document["status"].to_string()[..]), (&reason.into(), status));
            assert_eq!(received.matches("HTTP/1.1 200 OK").count(), before.matches("HTTP/1.1").count());
        }
    }
}

#[tokio::test]
async fn header_lists_too_large_for_http2_are_refused_with_a_reason_and_an_id() {
    let world = World::new().await;
    let stream = TcpStream::connect(&world.api.address).await.unwrap();
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut send, connection) = soon(builder.handshake(TokioIo::new(stream))).await.unwrap();
    tokio::spawn(connection);
    for bytes in [99_000, 99_000, 10] {
        let request = http::Request::get(format!("http://{}/healthz", world.api.address));
        let request = request.header("x-large", "v".repeat(bytes)).body(String::new()).unwrap();
        let response = soon(send.send_request(request)).await.unwrap();
        if bytes == 10 {
            assert_eq!(response.status(), 200, "the connection goes on");
        } else {
            assert_eq!(response.status(), 431);
            assert_eq!(response.headers()["x-fanfare-reason"], "too-large");
            assert!(!response.headers()["x-request-id"].is_empty());
        }
    }
}
