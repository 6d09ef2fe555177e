//! What is taken in, how, and what is not.

use bytes::Bytes;
use fanfare_types::ToDataPlane;
use http::Request;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Keeping, call, ended, ids, list, options, result, send, status};
use crate::client::Connection;
use crate::rig::{F, Rig, hello, within};
use crate::sandbox::{Sandbox, echo};

/// What a function says that it has seen, without what tells one call from another.
fn same(text: &str) -> String {
    let own = ["x-request-id:", "x-fanfare-deadline-ms:", "x-fanfare-invocation-id:", "x-fanfare-attempt:"];
    text.lines().filter(|line| !own.iter().any(|name| line.starts_with(name))).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_function_sees_what_it_would_see_in_a_synchronous_call() {
    let keeping = Keeping::new().await;
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, echo);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let fields: &[(&str, &str)] = &[
        ("content-type", "application/x-thing"),
        ("x-many", "one"),
        ("x-many", "two"),
        ("x-empty", ""),
        ("authorization", "Bearer users-own"),
        ("cookie", "a=b; c=d"),
        ("x-forwarded-for", "192.0.2.9"),
        ("te", "trailers"),
        ("connection", "x-hop"),
        ("x-hop", "stays"),
        ("x-fanfare-attempt", "99"),
        ("x-fanfare-forwarded", "guess"),
    ];
    let body = Bytes::from_static(b"\0\xff bytes \r\n\r\n");
    for (index, method) in ["GET", "PUT", "DELETE", "OPTIONS", "PROPFIND", "PATCH", "POST"].iter().enumerate()
    {
        // One key for one request.
        let key = format!("key-{index}");
        let fields = &[fields, &[("idempotency-key", key.as_str())]].concat();
        let target = format!("hello/a%2Fb//c;d=1/%E2%82%AC/?x=1&x=2&y=%20+{index}");
        let path = |prefix: &str| format!("/{prefix}/{target}");
        let at_once = send(keeping.address(), method, &path("function"), fields, body.clone()).await;
        let later = send(keeping.address(), method, &path("async-function"), fields, body.clone()).await;
        assert_eq!(later.status.as_u16(), 202, "{method}: {later:?}");
        let id = later.headers["x-fanfare-invocation-id"].to_str().unwrap().to_owned();
        assert_eq!(ended(keeping.address(), &id).await["state"], "succeeded");
        let kept = result(keeping.address(), &id).await;
        let (at_once, kept) = (
            String::from_utf8_lossy(&at_once.body).into_owned(),
            String::from_utf8_lossy(&kept.body).into_owned(),
        );
        let target = target.strip_prefix("hello").unwrap();
        assert!(kept.starts_with(&format!("{method} {target}\n")), "{kept}");
        assert!(kept.contains(&format!("x-fanfare-invocation-id: {id}\nx-fanfare-attempt: 1\n")), "{kept}");
        assert_eq!(same(&at_once), same(&kept));
        assert!(kept.contains(&format!("idempotency-key: {key}\n")) && !kept.contains("x-hop"), "{kept}");
    }
}

#[tokio::test]
async fn bodies_of_untold_length_and_none_come_as_they_would() {
    let keeping = Keeping::new().await;
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, echo);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    for parts in [&[][..], &["one "][..], &["one ", "two ", "three"][..]] {
        let mut seen = Vec::new();
        for prefix in ["function", "async-function"] {
            let frames: Vec<_> = parts
                .iter()
                .map(|part| {
                    Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(part.as_bytes())))
                })
                .collect();
            let body = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
            let request =
                Request::post(format!("/{prefix}/hello/")).header("host", "127.0.0.1").body(body).unwrap();
            let mut answer = Connection::open(keeping.address()).await.call(request).await;
            if let Some(id) = answer.headers.get("x-fanfare-invocation-id") {
                let id = id.to_str().unwrap().to_owned();
                ended(keeping.address(), &id).await;
                answer = result(keeping.address(), &id).await;
            }
            seen.push(same(answer.text()));
        }
        assert_eq!(seen[0], seen[1]);
        assert!(seen[0].contains("transfer-encoding: chunked"), "{}", seen[0]);
    }
    let mut seen = Vec::new();
    for prefix in ["function", "async-function"] {
        let mut answer = send(keeping.address(), "GET", &format!("/{prefix}/hello"), &[], "").await;
        if let Some(id) = answer.headers.get("x-fanfare-invocation-id") {
            let id = id.to_str().unwrap().to_owned();
            ended(keeping.address(), &id).await;
            answer = result(keeping.address(), &id).await;
        }
        seen.push(same(answer.text()));
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn large_requests_and_results_are_kept_whole_and_larger_ones_refused_with_the_limit() {
    let keeping = Keeping::with(|options| options.payload_bytes_max = 3 << 20).await;
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, |request| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        crate::sandbox::text(body)
    });
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let whole: Bytes = (0..3_u32 << 20).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>().into();
    let id = call(keeping.address(), "hello", &[], whole.clone()).await;
    assert_eq!(ended(keeping.address(), &id).await["state"], "succeeded");
    assert!(result(keeping.address(), &id).await.body == whole, "the same bytes");

    let mut more = whole.to_vec();
    more.push(0);
    let answer = send(keeping.address(), "POST", "/async-function/hello", &[], more.clone()).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (413, "too-large"));
    let detail = answer.problem()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("3145729") && detail.contains("3145728"), "size and limit: {detail}");
    let frames = more
        .chunks(64 << 10)
        .map(|part| Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::copy_from_slice(part))));
    let body = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames.collect::<Vec<_>>())));
    let request = Request::post("/async-function/hello").header("host", "127.0.0.1").body(body).unwrap();
    let answer = Connection::open(keeping.address()).await.call(request).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (413, "too-large"));
    assert!(answer.problem()["detail"].as_str().unwrap().contains("3145728"));
}

#[tokio::test]
async fn a_result_that_is_too_large_is_said_to_be() {
    let keeping = Keeping::with(|options| options.payload_bytes_max = 1_000).await;
    let sandbox =
        Sandbox::new(keeping.rig.dir(), 1, |_| async move { crate::sandbox::text(vec![b'x'; 200_000]) });
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let id = call(keeping.address(), "hello", &[], "").await;
    let document = ended(keeping.address(), &id).await;
    assert_eq!((document["state"].as_str(), document["result"].is_null()), (Some("succeeded"), true));
    let answer = result(keeping.address(), &id).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (507, "too-large"));
    assert!(answer.problem()["detail"].as_str().unwrap().contains("1000 bytes"));
}

#[tokio::test]
async fn what_cannot_be_taken_in_is_refused_at_once_with_its_reason() {
    let keeping = Keeping::new().await;
    let long = "k".repeat(256);
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], u16, &'a str);
    let cases: [Case<'_>; 14] = [
        ("/async-function/nobody/", &[], 404, "function-not-found"),
        ("/async-function/", &[], 404, "invocation-not-found"),
        ("/async-function/hello", &[("x-fanfare-delivery", "exactly-once")], 400, "bad-request"),
        ("/async-function/hello", &[("x-fanfare-max-attempts", "0")], 400, "bad-request"),
        ("/async-function/hello", &[("x-fanfare-max-attempts", "101")], 400, "bad-request"),
        (
            "/async-function/hello",
            &[("x-fanfare-max-attempts", "2"), ("x-fanfare-delivery", "at-most-once")],
            400,
            "bad-request",
        ),
        ("/async-function/hello", &[("x-fanfare-max-age", "soon")], 400, "bad-request"),
        ("/async-function/hello", &[("x-fanfare-max-age", "0s")], 400, "bad-request"),
        ("/async-function/hello", &[("x-fanfare-max-age", "1000h")], 400, "bad-request"),
        ("/async-function/hello", &[("x-fanfare-callback", "ftp://h/")], 400, "bad-request"),
        ("/async-function/hello", &[("x-fanfare-callback", "http://169.254.169.254/")], 400, "bad-request"),
        ("/async-function/hello", &[("idempotency-key", "")], 400, "bad-request"),
        ("/async-function/hello", &[("idempotency-key", &long)], 400, "bad-request"),
        ("/async-function/hello", &[("idempotency-key", "a"), ("idempotency-key", "b")], 400, "bad-request"),
    ];
    for (path, fields, code, reason) in cases {
        let answer = send(keeping.address(), "POST", path, fields, "").await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (code, reason), "{path} {fields:?}");
        let detail = answer.problem()["detail"].as_str().unwrap().to_owned();
        // A field that is wrong is named, with what it holds where that is short enough to be shown.
        for (name, value) in fields.iter().filter(|_| code == 400) {
            let shown = name.starts_with("idempotency") || detail.contains(value);
            assert!(detail.contains(name) && shown, "{fields:?}: {detail}");
        }
    }
    assert!(ids(&list(keeping.address(), "").await).is_empty(), "nothing was kept of those");
}

#[tokio::test]
async fn paths_are_taken_only_where_the_host_names_no_function() {
    let keeping = Keeping::new().await;
    let sandbox = Sandbox::new(keeping.rig.dir(), 1, echo);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    for path in ["/async", "/async/dead", "/async-function/hello", "/async/d1-1-0000000000000001"] {
        let request = Request::get(path).header("host", "hello.example.com").body(Full::<Bytes>::default());
        let answer = Connection::open(keeping.address()).await.call(request.unwrap()).await;
        assert!(answer.text().starts_with(&format!("GET {path}\n")), "{answer:?}");
    }
    let request = Request::get("/async").header("host", "127.0.0.1:8080").body(Full::<Bytes>::default());
    let answer = Connection::open(keeping.address()).await.call(request.unwrap()).await;
    assert_eq!(answer.text(), r#"{"invocations":[]}"#);
}

#[tokio::test]
async fn lists_are_not_for_proxies_and_web_pages_unless_they_are_for_all() {
    for for_all in [false, true] {
        let keeping = Keeping::with(|options| options.lists_for_all = for_all).await;
        let cases: [&[(&str, &str)]; 4] = [
            &[("host", "gateway.test")],
            &[("host", "127.0.0.1"), ("x-forwarded-for", "192.0.2.1")],
            &[("host", "localhost:8080"), ("via", "1.1 proxy")],
            &[("host", "localhost:8080"), ("forwarded", "for=192.0.2.1")],
        ];
        for fields in cases {
            for path in ["/async", "/async/dead?limit=1"] {
                let mut request = Request::get(path);
                for (name, value) in fields {
                    request = request.header(*name, *value);
                }
                let request = request.body(Full::<Bytes>::default()).unwrap();
                let answer = Connection::open(keeping.address()).await.call(request).await;
                let expected = if for_all { (200, "") } else { (403, "forbidden") };
                assert_eq!((answer.status.as_u16(), answer.reason()), expected, "{fields:?}");
            }
        }
    }
}

#[tokio::test]
async fn methods_and_ids_that_are_not_there() {
    let keeping = Keeping::new().await;
    let id = call(keeping.address(), "hello", &[], "").await;
    let cases = [
        ("POST", "/async".to_owned(), 405, "method-not-allowed"),
        ("PUT", format!("/async/{id}"), 405, "method-not-allowed"),
        ("DELETE", format!("/async/{id}/result"), 405, "method-not-allowed"),
        ("GET", format!("/async/{id}/replay"), 405, "method-not-allowed"),
        ("GET", format!("/async/{id}/other"), 404, "invocation-not-found"),
        ("GET", "/async/d1-ff-0000000000000001".to_owned(), 404, "invocation-not-found"),
        ("DELETE", "/async/d1-1-0000000000000001".to_owned(), 404, "invocation-not-found"),
        ("GET", "/async/d9-1-0000000000000001".to_owned(), 503, "unavailable"),
        ("GET", "/async/nonsense".to_owned(), 404, "invocation-not-found"),
        ("POST", format!("/async/{id}/replay"), 409, "not-replayable"),
    ];
    for (method, path, code, reason) in cases {
        let answer = send(keeping.address(), method, &path, &[], "").await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (code, reason), "{method} {path}");
        assert_eq!(answer.headers.contains_key("allow"), code == 405, "{method} {path}");
        answer.problem();
    }
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_with_name_value_and_what_can() {
    let keeping = Keeping::new().await;
    let id = call(keeping.address(), "hello", &[], "").await;
    let long = format!("/async?limit={}", "9".repeat(9_000));
    let cases = [
        ("/async?state=lost".to_owned(), "state is \"lost\"; a state is one of"),
        ("/async?limit=0".to_owned(), "limit is \"0\"; give a number from 1 to 1000"),
        ("/async?limit=1001".to_owned(), "limit is \"1001\"; give a number from 1 to 1000"),
        (long, "999\"…; give a number from 1 to 1000"),
        ("/async?after=x".to_owned(), "after is \"x\"; it"),
        ("/async?function=NoName".to_owned(), "function is \"NoName\"; the name"),
        (
            "/async?lmit=5".to_owned(),
            "no parameter \"lmit\" here (it is given as \"5\"); there are: function",
        ),
        ("/async/dead?limit=5&limit=6".to_owned(), "limit is given more than once, the second time as \"6\""),
        (format!("/async/{id}?wait=2h"), "wait is \"2h\"; give a duration such as 10s, at most 60s"),
        (format!("/async/{id}?wiat=2s"), "there are: wait"),
    ];
    for (path, says) in cases {
        let answer = send(keeping.address(), "GET", &path, &[], "").await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (400, "bad-request"), "{path}");
        let detail = answer.problem()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(says) && detail.len() < 400, "{path}: {detail}");
    }
}

#[tokio::test]
async fn an_idempotency_key_stands_for_one_call() {
    let keeping = Keeping::new().await;
    let key: &[(&str, &str)] = &[("idempotency-key", "order-17")];
    let calls = (0..8).map(|_| call(keeping.address(), "hello/x", key, "body"));
    let ids: Vec<String> = futures_util::future::join_all(calls).await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let again = send(keeping.address(), "POST", "/async-function/hello/x", key, "body").await;
    let document: serde_json::Value = serde_json::from_slice(&again.body).unwrap();
    assert_eq!((document["id"].as_str(), document["known"].as_bool()), (Some(&*ids[0]), Some(true)));
    for (method, path, body) in [("POST", "x", "other"), ("POST", "y", "body"), ("PUT", "x", "body")] {
        let path = format!("/async-function/hello/{path}");
        let answer = send(keeping.address(), method, &path, key, body).await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (422, "idempotency-key-reused"));
    }
    let other = call(keeping.address(), "hello/x", &[("idempotency-key", "order-18")], "body").await;
    assert_ne!(other, ids[0]);
}

#[tokio::test]
async fn as_many_are_open_as_may_be() {
    let keeping = Keeping::with(|options| options.limits.open_max = 2).await;
    for _ in 0..2 {
        call(keeping.address(), "hello", &[], "").await;
    }
    let answer = send(keeping.address(), "POST", "/async-function/hello", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (429, "async-queue-full"));
    assert_eq!(answer.headers["retry-after"], "1");
    let keeping = Keeping::with(|options| options.limits.open_bytes_max = 10_000).await;
    let answer = send(keeping.address(), "POST", "/async-function/hello", &[], vec![0; 10_000]).await;
    assert_eq!((answer.status.as_u16(), answer.reason()), (429, "async-queue-full"));
    call(keeping.address(), "hello", &[], vec![0; 9_000]).await;
}

#[tokio::test]
async fn without_a_log_or_while_it_shuts_down_nothing_is_taken_in() {
    let (rig, _control) = Rig::synced(vec![hello()]).await;
    for path in ["/async-function/hello", "/async"] {
        let method = if path == "/async" { "GET" } else { "POST" };
        let answer = send(rig.address(), method, path, &[], "").await;
        assert_eq!((answer.status.as_u16(), answer.reason()), (503, "async-off"));
    }
}

#[tokio::test]
async fn a_call_that_waits_for_the_first_sync_is_taken_in_then() {
    let log = tempfile::tempdir().unwrap();
    let kept = options(log.path());
    let mut rig = Rig::new(|options| options.asynchronous = Some(kept));
    let mut control = rig.control().await;
    control.hello().await;
    let address = rig.address();
    let early = tokio::spawn(async move { send(address, "POST", "/async-function/hello", &[], "").await });
    control.say(ToDataPlane::Welcome { you: fanfare_types::DataPlaneId(1), epoch: fanfare_types::Epoch(1) });
    control.say(ToDataPlane::Functions(vec![hello()]));
    control.say(ToDataPlane::Synced);
    let answer = early.await.unwrap();
    assert_eq!(answer.status.as_u16(), 202, "{answer:?}");
    let id = answer.headers["x-fanfare-invocation-id"].to_str().unwrap();
    assert!(id.starts_with("d1-1-"), "{id}");
    control.say(ToDataPlane::FunctionRemoved(F));
    let document = ended(address, id).await;
    assert_eq!(
        (document["state"].as_str(), document["cause"].as_str()),
        (Some("dead"), Some("function-removed"))
    );
    assert_eq!(status(address, id).await["attempts"], 0);
}

#[tokio::test]
async fn lengths_that_are_told_take_no_room() {
    let keeping = Keeping::new().await;
    let mut open = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(keeping.address()).await.unwrap();
        let head = "POST /async-function/hello HTTP/1.1\r\nHost: x\r\nContent-Length: 16777216\r\n\
                    Expect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // It is being read when it is asked for.
        let mut leave = [0; 12];
        within("the leave to send", stream.read_exact(&mut leave)).await.unwrap();
        assert_eq!(&leave, b"HTTP/1.1 100");
        stream.write_all(b"x").await.unwrap();
        open.push(stream);
    }
    call(keeping.address(), "hello", &[], "whole").await;
}
