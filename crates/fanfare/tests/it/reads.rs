use serde_json::Value;

use crate::double::Double;
use crate::run::{command, fanfare};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::test]
async fn lists() {
    let double = Double::start().await.with_function("a").with_function("bb").with_function("c");
    let run = fanfare(&double.api, &["list"]).await;
    let expected = "\
NAME  KIND  REVISION  STATE  READY
a     fake  1         ready  1/2
bb    fake  1         ready  1/2
c     fake  1         ready  1/2
";
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, expected, ""));
    let run = fanfare(&double.api, &["ls", "-o", "name"]).await;
    assert_eq!(run.stdout, "a\nbb\nc\n");
    let run = fanfare(&double.api, &["list", "-o", "url"]).await;
    assert_eq!(run.stdout.lines().next().unwrap(), format!("{}/function/a", double.api));
    let run = fanfare(&double.api, &["list", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["functions"][1]["name"], "bb");
    assert_eq!(json["functions"][2]["sandboxes"]["wanted"], 2);
}

#[tokio::test]
async fn an_empty_list_says_what_to_do() {
    let double = Double::start().await;
    let run = fanfare(&double.api, &["list"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (0, ""));
    assert!(run.stderr.contains("fanfare deploy"), "{run:?}");
}

#[tokio::test]
async fn describes() {
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["describe", "hello"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    for part in [
        "name         hello (f1 revision 1)",
        &format!("url          {}/function/hello", double.api),
        "state        ready",
        "sandboxes    1 ready, 1 starting, 0 stopping, 2 wanted",
        "memory       16 MiB reserved, 128 MiB at most",
        "cpu          0.01 reserved, no limit",
        "timeouts     request 60 s, start 30 s",
        "0 -> 2  2 requests wait",
        "last failure, 90.0 s ago on node-1, revision 1",
        "start-failed: the module raised an error",
        "    | boom",
        "failures since revision 1 was registered, or the control plane began\n",
        "  handler-error    12 requests    last 3.0 s ago  request r-7\n",
        "    ZeroDivisionError: division by zero\n      | Traceback\n      |   line 2\n",
        "  out-of-memory    1 sandbox      last 60.0 s ago\n",
    ] {
        assert!(run.stdout.contains(part), "{part:?} in\n{}", run.stdout);
    }
    let run = fanfare(&double.api, &["describe", "hello", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["function"]["limits"]["memory_limit"], 128 << 20);
    let run = fanfare(&double.api, &["describe", "helo"]).await;
    assert_eq!(run.code, 4);
    assert!(run.stderr.contains("did you mean hello?"), "{run:?}");
}

#[tokio::test]
async fn deletes_what_it_can() {
    let double = Double::start().await.with_function("a").with_function("b");
    let run = fanfare(&double.api, &["delete", "a", "nope", "b", "-o", "name"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (4, "a\nb\n"), "{run:?}");
    assert!(run.stderr.contains("there is no function nope"), "{run:?}");
    assert!(double.held().functions.is_empty());
}

#[tokio::test]
async fn prints_logs() {
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["logs", "hello"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "[fanfare] started\none\ntwo\n"));
    let run = fanfare(&double.api, &["logs", "--tail", "1", "hello", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((json["stream"].as_str(), json["text"].as_str()), (Some("stderr"), Some("two")));
    let run = fanfare(&double.api, &["logs", "nope"]).await;
    assert_eq!(run.code, 4);
}

#[tokio::test]
async fn follows_logs_until_interrupted() {
    let double = Double::start().await.with_function("hello");
    let mut child = command(&double.api, &["logs", "-f", "hello"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for expected in ["[fanfare] started", "one", "two"] {
        assert_eq!(lines.next_line().await.unwrap().unwrap(), expected);
    }
    let pid = child.id().unwrap().to_string();
    let killed = tokio::process::Command::new("kill").args(["-INT", &pid]).status().await.unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn shows_the_cluster() {
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["status"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    for part in
        ["leader     cp-1 (epoch 3)", "node-1  up      2          0.02/2  32 MiB/4 GiB  process,fake", "lost"]
    {
        assert!(run.stdout.contains(part), "{part:?} in\n{}", run.stdout);
    }
    let run = fanfare(&double.api, &["status", "-o", "url"]).await;
    assert_eq!(run.stdout.trim_end(), double.api);
}

#[tokio::test]
async fn debug_prints_each_request() {
    let double = Double::start().await;
    let run = fanfare(&double.api, &["list", "--debug"]).await;
    let expected = format!("debug: curl -i -X GET -H 'accept: */*' '{}/v1/functions?limit=1000'", double.api);
    assert!(run.stderr.contains(&expected), "{run:?}");
}

#[tokio::test]
async fn help_begins_with_examples_and_usage_errors_are_2() {
    let run = fanfare("http://127.0.0.1:1", &["--help"]).await;
    assert_eq!(run.code, 0);
    assert!(run.stdout.starts_with("Examples:\n  fanfare up"), "{}", run.stdout);
    let run = fanfare("http://127.0.0.1:1", &["deploy", "--help"]).await;
    assert!(run.stdout.starts_with("Examples:\n  fanfare deploy ./hello.py"), "{}", run.stdout);
    let run = fanfare("http://127.0.0.1:1", &["lst"]).await;
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("'list'"), "{run:?}");
    let run = fanfare("http://127.0.0.1:1", &["list", "--ouptut", "json"]).await;
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("--output"), "{run:?}");
    for shell in ["bash", "zsh", "fish"] {
        let run = fanfare("http://127.0.0.1:1", &["completions", shell]).await;
        assert_eq!(run.code, 0);
        assert!(run.stdout.contains("FANFARE_COMPLETE"), "{shell}: {}", run.stdout);
    }
}

#[tokio::test]
async fn a_line_being_typed_is_completed_with_verbs_and_names() {
    let double = Double::start().await.with_function("hello").with_function("hello-2").with_function("other");
    let complete = async |api: &str, words: &[&str]| {
        let mut args = vec!["--", "fanfare"];
        args.extend(words);
        let output = command(api, &args).env("FANFARE_COMPLETE", "fish").output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(complete(&double.api, &["desc"]).await, ["describe"]);
    assert_eq!(complete(&double.api, &["logs", "he"]).await, ["hello", "hello-2"]);
    assert_eq!(complete(&double.api, &["delete", "o"]).await, ["other"]);
    assert_eq!(complete("http://127.0.0.1:1", &["logs", "he"]).await, Vec::<String>::new());
}
