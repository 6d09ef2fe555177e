use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::double::Double;
use crate::run::{command, fanfare, fanfare_with_input};

#[tokio::test]
async fn the_answer_alone_is_on_standard_output() {
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["invoke", "hello"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "hello"), "{run:?}");
    assert!(run.stderr.starts_with("200 OK, 5 bytes in "), "{run:?}");
    let run = fanfare(&double.api, &["invoke", "hello", "-d", "{\"a\": 1}", "--quiet"]).await;
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "{\"a\": 1}", ""));
}

#[tokio::test]
async fn verbose_shows_headers_and_stages() {
    let double = Double::start().await.with_function("hello");
    let args = ["invoke", "hello", "-v", "-X", "PUT", "--path", "/a/b?c=d", "-d", "x"];
    let secrets =
        ["-H", "X-Note: hi", "-H", "Authorization: Bearer canary", "-H", "content-type: text/plain"];
    let run = fanfare(&double.api, &[&args[..], &secrets[..]].concat()).await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "x"), "{run:?}");
    for part in [
        "> PUT http://",
        "> authorization: ***",
        "< 200 OK",
        "< x-seen: PUT /function/hello/a/b?c=d",
        "< x-seen-note: hi",
        "< x-seen-type: text/plain",
        "  queue        250 µs",
        "  create      12.0 ms",
    ] {
        let squeezed = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed(&run.stderr).contains(&squeezed(part)), "{part} in {}", run.stderr);
    }
    assert!(!run.stderr.contains("canary"), "{run:?}");
}

#[tokio::test]
async fn a_tag_is_called_by_its_name() {
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["invoke", "hello@canary", "-v", "--path", "/a"]).await;
    assert!(run.code == 0 && run.stderr.contains("< x-seen: GET /function/hello@canary/a"), "{run:?}");
    let cases = [
        (&["invoke", "hello@3"][..], "`fanfare tag hello TAG=3`, then hello@TAG"),
        (&["invoke", "hello@-"], "a tag is 1 to"),
        (&["invoke", "--async", "hello@canary"], "leave out --async, or @canary"),
        (&["tag", "hello", "blue-"], "as in blue=3; blue= takes it away"),
    ];
    for (args, said) in cases {
        let run = fanfare(&double.api, args).await;
        assert!(run.code == 2 && run.stderr.contains(said), "{run:?}");
    }
}

#[tokio::test]
async fn bodies_from_files_and_standard_input() {
    let double = Double::start().await.with_function("hello");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("body");
    std::fs::write(&path, "x".repeat(300_000)).unwrap();
    let from_file = format!("@{}", path.display());
    let run = fanfare(&double.api, &["invoke", "hello", "-d", &from_file, "-v"]).await;
    assert_eq!((run.code, run.stdout.len()), (0, 300_000));
    assert!(
        run.stderr.contains("x-seen-length: 300000") && run.stderr.contains("x-seen-type: application/json")
    );
    let run = fanfare_with_input(&double.api, &["invoke", "hello", "-d", "-"], b"from a pipe").await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "from a pipe"), "{run:?}");
    let run = fanfare_with_input(&double.api, &["invoke", "hello", "-d", "@-"], b"as curl does").await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "as curl does"), "{run:?}");
    let run = fanfare(&double.api, &["invoke", "hello", "-d", "@/no/such/file"]).await;
    assert!(run.code == 2 && run.stderr.contains("hint: after @ comes a file"), "{run:?}");
    let run = fanfare(&double.api, &["invoke", "hello", "--path", "/x y"]).await;
    assert!(run.code == 2 && run.stderr.contains("a space is %20"), "{run:?}");
}

/// What becomes of an invocation whose request has arrived.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Signal(&'static str),
    Connection,
    Answer,
}

#[tokio::test]
async fn an_invocation_that_is_cut_short_leaves_an_id_to_ask_for() {
    let double = Double::start().await.with_function("hello");
    let cases = [
        (Cut::Signal("-INT"), 130, "interrupted"),
        (Cut::Signal("-TERM"), 130, "interrupted"),
        (Cut::Connection, 3, "broke off before it answered"),
        (Cut::Answer, 3, "the answer broke off after 2 bytes"),
    ];
    for (cut, code, what) in cases {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let data_plane = format!("http://{}", listener.local_addr().unwrap());
        let child = command(&double.api, &["invoke", "hello", "--data-plane", &data_plane]).spawn().unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(stream.read_buf(&mut head).await.unwrap() > 0, "{cut:?}: the request has an end");
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let id = head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap().to_owned();
        match cut {
            Cut::Signal(signal) => {
                let pid = child.id().unwrap().to_string();
                assert!(
                    tokio::process::Command::new("kill")
                        .args([signal, &pid])
                        .status()
                        .await
                        .unwrap()
                        .success()
                );
            }
            Cut::Connection => drop(stream),
            Cut::Answer => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe").await.unwrap();
                drop(stream);
            }
        }
        let output = child.wait_with_output().await.unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{cut:?}: {told}");
        assert!(told.contains(what) && told.contains(&format!("(request {id})")), "{cut:?}: {told}");
        assert!(told.contains(&format!("`fanfare explain {id}`")), "{cut:?}: {told}");
    }
    // Nothing was sent: there is nothing to ask for.
    let run = fanfare(&double.api, &["invoke", "hello", "--data-plane", "http://127.0.0.1:1"]).await;
    assert!(run.code == 3 && !run.stderr.contains("explain"), "{run:?}");
    let run = fanfare(&double.api, &["invoke", "hello", "-H", "X-Request-Id: a b"]).await;
    assert!(run.code == 2 && run.stderr.contains("visible ASCII"), "{run:?}");
}

#[tokio::test]
async fn exit_codes() {
    let double = Double::start().await.with_function("hello");
    let cases = [
        ("/status/204", 0),
        ("/status/302", 0),
        ("/status/404", 1),
        ("/status/500", 1),
        ("/handler-error", 1),
        ("/refuse/sandbox-exited", 1),
        ("/refuse/out-of-memory", 1),
        ("/refuse/start-failed", 1),
        ("/refuse/bad-request", 2),
        ("/refuse/queue-full", 3),
        ("/refuse/no-capacity", 3),
        ("/refuse/internal", 3),
        ("/refuse/route-not-found", 4),
        ("/refuse/queue-timeout", 5),
        ("/refuse/request-timeout", 5),
        ("/refuse/start-timeout", 5),
    ];
    for (path, code) in cases {
        let run = fanfare(&double.api, &["invoke", "hello", "--path", path]).await;
        assert_eq!(run.code, code, "{path}: {run:?}");
        if path.starts_with("/refuse") {
            assert_eq!(run.stdout, "", "{path}: {run:?}");
            assert!(
                run.stderr.contains("error: refused as told") && run.stderr.contains("request: r-9"),
                "{run:?}"
            );
        }
    }
    let run = fanfare(&double.api, &["invoke", "hello", "--path", "/handler-error"]).await;
    assert_eq!(run.stdout, "ZeroDivisionError");
    let run = fanfare(&double.api, &["invoke", "hello", "--path", "/silent", "--timeout", "50ms"]).await;
    assert_eq!(run.code, 5, "{run:?}");
    let run = fanfare(&double.api, &["invoke", "Hello"]).await;
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("the name holds 'H'"), "{run:?}");
    let run = fanfare(&double.api, &["invoke", "hello", "-H", "nonsense"]).await;
    assert_eq!(run.code, 2, "{run:?}");
}

#[tokio::test]
async fn a_misspelt_name_is_corrected() {
    let double = Double::start().await.with_function("hello").with_function("other");
    let run = fanfare(&double.api, &["invoke", "helo"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (4, ""));
    let expected = "error: there is no function helo\n  reason: function-not-found\n  request: r-1\nhint: did you mean hello?\n";
    assert_eq!(run.stderr, expected);
    let run = fanfare(&double.api, &["invoke", "zzz"]).await;
    assert_eq!(run.code, 4);
    assert!(run.stderr.contains("hint: list what there is"), "{run:?}");
}

#[tokio::test]
async fn an_api_that_is_not_there() {
    // Port 1 is reserved and nothing listens on it.
    let run = fanfare("http://127.0.0.1:1", &["invoke", "hello"]).await;
    assert_eq!(run.code, 3, "{run:?}");
    assert!(
        run.stderr.contains("cannot connect to 127.0.0.1:1") && run.stderr.contains("fanfare up"),
        "{run:?}"
    );
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["invoke", "hello", "--data-plane", "http://127.0.0.1:1"]).await;
    assert!(run.code == 3 && run.stderr.contains("or drains; `fanfare status` shows"), "{run:?}");
    let run = fanfare("https://127.0.0.1:1", &["list"]).await;
    assert_eq!(run.code, 2, "{run:?}");
    let double = Double::start().await;
    let run = fanfare(&double.api, &["list", "--api", &format!("{}/data-plane", double.api)]).await;
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("/data-plane is a data plane, not a control API"), "{run:?}");
    assert!(run.stderr.contains("http://127.0.0.1:9091 by default"), "{run:?}");
    let wrong = format!("{}/elsewhere", double.api);
    let run = fanfare(&wrong, &["list"]).await;
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("404") && run.stderr.contains("--api"), "{run:?}");
}
