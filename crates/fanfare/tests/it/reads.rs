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
        "requests     3 in sandboxes, 4 waiting (within the last second)\n",
        "sandboxes    1 ready, 1 starting, 0 stopping, 2 wanted",
        "memory       16 MiB reserved, 128 MiB at most",
        "cpu          0.01 reserved, no limit",
        "timeouts     request 60 s, start 30 s",
        "scaling      0 to 100000 sandboxes (kpa, Knative's autoscaler)\n\n",
        "     1.0 s ago  2 -> 1  start failed: it raised an error\n    and more\n",
        "     2.0 s ago  1 -> 2  1 wanted, 1 there\n              these 2, 3 times within 5.0 s\n",
        "     9.0 s ago  0 -> 2  2 requests wait\n",
        "last failure, 90.0 s ago on node-1, revision 1",
        "start-failed: the module raised an error",
        "    | boom",
        "failures since revision 1 was registered, or the control plane began\n",
        "  handler-error    12 requests    last 3.0 s ago  request r-7\n",
        "    ValueError: one\n    two\n      | Traceback\n      |   line 2\n",
        "  out-of-memory    1 sandbox      last 60.0 s ago\n",
    ] {
        assert!(run.stdout.contains(part), "{part:?} in\n{}", run.stdout);
    }
    let update = [
        "update",
        "hello",
        "--tmp",
        "32MiB",
        "--target",
        "0.5",
        "--idle-timeout",
        "3s",
        "--scale-down-delay",
        "30s",
    ];
    assert_eq!(fanfare(&double.api, &update).await.code, 0);
    let run = fanfare(&double.api, &["describe", "hello"]).await;
    let chosen = "(kpa, Knative's autoscaler)\n\
                  \x20            tmp 32 MiB\n\
                  \x20            scale-down-delay 30.0 s\n\
                  \x20            target 0.5\n\
                  \x20            idle-timeout 3.0 s\n\n";
    assert!(run.stdout.contains(chosen), "{}", run.stdout);
    let run = fanfare(&double.api, &["describe", "hello", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["function"]["limits"]["memory_limit"], 128 << 20);
    let run = fanfare(&double.api, &["describe", "helo"]).await;
    assert_eq!(run.code, 4);
    assert!(run.stderr.contains("did you mean hello?"), "{run:?}");
}

#[tokio::test]
async fn revisions_are_listed_with_why_they_do_not_start() {
    let double = Double::start().await.with_function("hello");
    double.held().functions.get_mut("hello").unwrap().0 = 3;
    let run = fanfare(&double.api, &["revisions", "hello"]).await;
    let lines: Vec<Vec<&str>> = run.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "{run:?}");
    assert_eq!(lines[0], ["REVISION", "REGISTERED", "TRAFFIC", "TAGS", "READY", "DIGEST", "STATE"]);
    assert_eq!((lines[1][..2].join(" "), lines[1].last()), ("3 (latest)".to_owned(), Some(&"ready")));
    assert!(run.stdout.contains("200000000000  does not start: start-failed"), "{run:?}");
    let logs = "  start-failed: revision 2 raised an error\n    | Traceback\n    | NameError\n";
    for command in [&["revisions", "hello", "-o", "wide"][..], &["describe", "hello"]] {
        let run = fanfare(&double.api, command).await;
        assert!(
            run.stdout.contains("revision 2 does not start, found ") && run.stdout.contains(logs),
            "{run:?}"
        );
    }
    let names = fanfare(&double.api, &["revisions", "hello", "-o", "name"]).await.stdout;
    assert_eq!(names, "hello@3\nhello@2\nhello@1\n");
    let run = fanfare(&double.api, &["revisions", "helo"]).await;
    assert!(run.code == 4 && run.stderr.contains("did you mean hello?"), "{run:?}");
}

#[tokio::test]
async fn traffic_and_tags_are_set_and_shown() {
    let double = Double::start().await.with_function("hello");
    double.held().functions.get_mut("hello").unwrap().0 = 4;
    let run = fanfare(&double.api, &["traffic", "hello", "v3=90", "latest=10%"]).await;
    let url = format!("{}/function/hello", double.api);
    let shares = format!("      90 %  revision 3        {url}\n      10 %  revision latest   {url}\n");
    assert_eq!((run.code, run.stdout.as_str()), (0, shares.as_str()), "{run:?}");
    let run = fanfare(&double.api, &["tag", "hello", "canary=4", "next=latest"]).await;
    assert!(run.stdout.starts_with(&shares) && run.stdout.contains("    canary  revision 4 "), "{run:?}");
    assert!(run.stdout.contains(&format!("{url}@next\n")), "{run:?}");
    let run = fanfare(&double.api, &["tag", "hello", "next=", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["tags"], serde_json::json!({"canary": 4}), "the others stay");
    assert_eq!(json["traffic"][0], serde_json::json!({"revision": 3, "weight": 90}));
    let urls = fanfare(&double.api, &["traffic", "hello", "-o", "url"]).await.stdout;
    assert_eq!(urls, format!("{url}\n{url}@canary\n"));
    let run = fanfare(&double.api, &["tag", "hello", "next="]).await;
    assert!(run.code == 4 && run.stderr.contains("no tag \"next\""), "{run:?}");
    let cases = [
        (&["traffic", "hello", "v3"][..], "as in v3=10"),
        (&["traffic", "hello", "three=10"], "as in v3"),
        (&["traffic", "hello", "v3=0"], "1 to 100 per cent"),
        (&["tag", "hello", "Canary=3"], "a-z 0-9"),
        (&["tag", "hello", "canary"], "as in canary=3"),
    ];
    for (args, mentions) in cases {
        let run = fanfare(&double.api, args).await;
        assert!(run.code == 2 && run.stderr.contains(mentions), "{args:?}: {run:?}");
    }
}

#[tokio::test]
async fn shares_that_are_not_the_whole_are_refused_with_some_that_are() {
    let double = Double::start().await.with_function("hello");
    let cases: [(&[&str], &str, &str); 3] = [
        (&["v3=90", "v4=20"], "traffic is 110 per cent", "`fanfare traffic hello v3=50 v4=50`"),
        (&["v3=90"], "traffic is 90 per cent", "`fanfare traffic hello v3=100`"),
        (&["v1=40", "latest=40", "v1=20"], "each revision once", "`fanfare traffic hello v1=50 latest=50`"),
    ];
    for (shares, what, hint) in cases {
        let run = fanfare(&double.api, &[&["traffic", "hello"], shares].concat()).await;
        assert!(
            run.code == 2 && run.stderr.contains(what) && run.stderr.contains(hint),
            "{shares:?}: {run:?}"
        );
    }
    assert_eq!(double.held().traffic.traffic, None);
}

#[tokio::test]
async fn tags_are_listed_where_none_is_given() {
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["tag", "hello"]).await;
    assert!(run.code == 0 && run.stderr.contains("hello has no tags"), "{run:?}");
    assert_eq!(fanfare(&double.api, &["tag", "hello", "canary=1"]).await.code, 0);
    let run = fanfare(&double.api, &["tag", "hello"]).await;
    assert!(run.code == 0 && run.stdout.contains("canary  revision 1"), "{run:?}");
    assert_eq!(run.stderr, "");
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
    let run = fanfare(&double.api, &["logs", "--tail", "1", "hello", "-o", "wide"]).await;
    assert_eq!(run.stdout, "2023-11-14T22:13:20.003Z node-1 s1 stderr two\n");
    double.held().silent = true;
    let run = fanfare(&double.api, &["logs", "hello"]).await;
    let said = (run.code, run.stdout.as_str(), run.stderr.as_str());
    assert_eq!(said, (0, "", "hello has written nothing yet\n"));
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
async fn a_follower_ends_with_its_function_and_follows_no_other_of_its_name() {
    for again in [false, true] {
        let double = Double::start().await.with_function("hello");
        let mut child = command(&double.api, &["logs", "-f", "hello"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for expected in ["[fanfare] started", "one", "two"] {
            assert_eq!(lines.next_line().await.unwrap().unwrap(), expected);
        }
        if again {
            double.replace();
        } else {
            assert_eq!(fanfare(&double.api, &["delete", "hello"]).await.code, 0);
        }
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("[fanfare] it was deleted"));
        assert_eq!((child.wait().await.unwrap().code(), lines.next_line().await.unwrap()), (Some(0), None));
    }
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
async fn doctor_knows_the_streams_of_a_platform_by_what_its_api_says() {
    let double = Double::start().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let streams = listener.local_addr().unwrap().to_string();
    // Another process than the one that answers holds it.
    let mut other = tokio::process::Command::new("sleep");
    let input = std::process::Stdio::from(std::os::fd::OwnedFd::from(listener));
    let _other = other.arg("600").stdin(input).kill_on_drop(true).spawn().unwrap();
    // It has a copy of the listener.
    drop(other);
    let dir = tempfile::tempdir().unwrap();
    let (api, run_dir) = (double.api.trim_start_matches("http://"), dir.path().display().to_string());
    let ports = ["--listen", "127.0.0.1:0", "--api-listen", api, "--grpc-listen", streams.as_str()];
    let args = [&["doctor", "-o", "json", "--run-dir", &run_dir][..], &ports].concat();
    for (stated, verdict) in [(None, "lacking"), (Some(streams.clone()), "ok")] {
        double.held().streams = stated;
        let run = fanfare("", &args).await;
        let report: Value = serde_json::from_str(&run.stdout).unwrap();
        let is_streams = |check: &&Value| check["detail"].as_str().unwrap().starts_with("streams: ");
        let check = report["checks"].as_array().unwrap().iter().find(is_streams).unwrap();
        assert_eq!(check["verdict"], verdict, "{check}");
    }
}

#[tokio::test]
async fn a_cluster_is_waited_for() {
    let double = Double::start().await;
    let run = fanfare(&double.api, &["status", "--wait"]).await;
    assert!(run.code == 0 && run.stdout.contains("leader"), "{run:?}");
    let run = fanfare("http://127.0.0.1:1", &["status", "--wait", "--wait-timeout", "50ms"]).await;
    assert_eq!(run.code, 5, "{run:?}");
    assert!(run.stderr.contains("cannot connect to 127.0.0.1:1"), "{run:?}");
    assert!(!run.stderr.contains("machine's name"), "{run:?}");
    let run = fanfare("nonsense.invalid", &["list"]).await;
    assert!(run.code == 3 && run.stderr.contains("read as a machine's name, at port 80"), "{run:?}");
}

#[tokio::test]
async fn every_reading_and_writing_command_has_every_output() {
    let double = Double::start().await.with_function("hello");
    double.held().functions.get_mut("hello").unwrap().0 = 2;
    let commands: [&[&str]; 2 + 9] = [
        &["list"],
        &["describe", "hello"],
        &["status"],
        &["logs", "hello", "--tail", "1"],
        &["update", "hello", "--min", "0"],
        &["rollback", "hello"],
        &["revisions", "hello"],
        &["traffic", "hello", "latest=100"],
        &["tag", "hello", "canary=1"],
        &["deploy", "--runtime", "fake", "--name", "other"],
        &["delete", "other"],
    ];
    for command in commands {
        for output in ["json", "yaml", "name", "url", "wide", "text"] {
            if command[0] == "delete" {
                let deployed = ["deploy", "--runtime", "fake", "--name", "other"];
                assert_eq!(fanfare(&double.api, &deployed).await.code, 0);
            }
            let run = fanfare(&double.api, &[command, &["-o", output, "--quiet"]].concat()).await;
            assert!(run.code == 0 && run.stderr.is_empty(), "{command:?} {output}: {run:?}");
            match output {
                "json" => drop(serde_json::from_str::<Value>(&run.stdout).unwrap()),
                "yaml" => assert!(run.stdout.starts_with("---\n") && run.stdout.contains(':'), "{run:?}"),
                "name" => assert!(!run.stdout.contains("://"), "{run:?}"),
                "url" => assert!(run.stdout.lines().all(|line| line.starts_with("http://")), "{run:?}"),
                _ => {}
            }
        }
    }
    let yaml = fanfare(&double.api, &["list", "-o", "yaml"]).await.stdout;
    assert!(yaml.starts_with("---\nfunctions:\n"), "{yaml}");
}

#[tokio::test]
async fn contexts_are_verified_kept_and_used() {
    let double = Double::start().await.with_function("hello");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    let run = async |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = command("", args);
        command.env("FANFARE_CONFIG", &file).envs(variables.iter().copied());
        crate::run::run(command.output().await.unwrap())
    };
    let dead = run(&[], &["context", "add", "dead", "http://127.0.0.1:1"]).await;
    assert!(dead.code == 3 && dead.stderr.contains("dead is not added"), "{dead:?}");
    assert!(!file.exists());
    let added = run(&[], &["context", "add", "lab", &double.api]).await;
    assert!(added.code == 0 && added.stderr.contains("Verified: Fanfare"), "{added:?}");
    assert_eq!(run(&[], &["list", "-o", "name"]).await.stdout, "hello\n", "the first one is used");
    assert_eq!(run(&[], &["context", "add", "dead", "http://127.0.0.1:1", "--no-verify"]).await.code, 0);
    let listed = run(&[], &["context", "list"]).await.stdout;
    let expected = format!("   NAME  API\n   dead  http://127.0.0.1:1\n*  lab   {}\n", double.api);
    assert_eq!(listed, expected);
    for (variables, args) in [
        (&[][..], &["list", "--context", "dead"][..]),
        (&[("FANFARE_CONTEXT", "dead")], &["list"]),
        (&[("FANFARE_API", "http://127.0.0.1:1")], &["list"]),
    ] {
        assert_eq!(run(variables, args).await.code, 3, "{variables:?} {args:?}");
    }
    let both = [("FANFARE_API", "http://127.0.0.1:1"), ("FANFARE_CONTEXT", "dead")];
    assert_eq!(run(&both, &["list", "--context", "lab"]).await.code, 0, "a flag is stronger");
    assert_eq!(run(&both, &["list", "--api", &double.api]).await.code, 0, "a flag is stronger");
    let unknown = run(&[], &["list", "--context", "lob"]).await;
    assert!(unknown.code == 4 && unknown.stderr.contains("did you mean lab?"), "{unknown:?}");
    assert_eq!(run(&[], &["context", "use", "dead", "-o", "name"]).await.stdout, "dead\n");
    assert_eq!(run(&[], &["list"]).await.code, 3);
    let removed = run(&[], &["context", "remove", "dead"]).await;
    assert!(removed.stderr.contains("no context is the current one now"), "{removed:?}");
}

#[tokio::test]
async fn another_release_is_warned_of_once() {
    let double = Double::start().await.with_function("hello");
    double.held().version = Some("9.9.9");
    let run = fanfare(&double.api, &["describe", "hello"]).await;
    assert_eq!(run.stderr.matches("the control plane is 9.9.9").count(), 1, "{run:?}");
    double.held().version = Some(env!("CARGO_PKG_VERSION"));
    assert_eq!(fanfare(&double.api, &["describe", "hello"]).await.stderr, "");
}

#[tokio::test]
async fn manual_pages_and_the_schema_of_settings() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    let run = fanfare("", &["man", pages.to_str().unwrap()]).await;
    assert_eq!(run.code, 0, "{run:?}");
    for page in ["fanfare.1", "fanfare-deploy.1", "fanfare-context-add.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}: {text}");
        assert!(page == "fanfare-context-add.1" || text.contains("Examples:"), "{page}: {text}");
    }
    let page = std::fs::read_to_string(pages.join("fanfare-deploy.1")).unwrap();
    assert!(page.contains("concurrency"));
    let synopsis = page.split(".SH SYNOPSIS").nth(1).unwrap().split(".SH").next().unwrap();
    assert!(synopsis.contains("[OPTIONS]") && synopsis.contains("ARGUMENTS"), "{synopsis}");
    let run = fanfare("", &["schema"]).await;
    let schema: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    assert!(schema["properties"]["scaling"].is_object());
}

#[tokio::test]
async fn help_fits_on_a_screen() {
    let commands = [
        "up",
        "demo",
        "deploy",
        "dev",
        "invoke",
        "async",
        "schedule",
        "webhook",
        "list",
        "describe",
        "update",
        "rollback",
        "revisions",
        "traffic",
        "tag",
        "delete",
        "secret",
        "logs",
        "load",
        "status",
        "doctor",
        "control-plane",
        "data-plane",
        "node",
        "context",
        "schema",
        "completions",
        "man",
    ];
    for command in commands {
        let run = fanfare("", &[command, "-h"]).await;
        assert!(run.stdout.starts_with("Examples:\n"), "{command}: {}", run.stdout);
        let lines = run.stdout.lines().count();
        assert!(lines <= 50, "{command}: {lines} lines\n{}", run.stdout);
    }
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
    assert_eq!(complete(&double.api, &["delete", "hello", "o"]).await, ["other"]);
    assert_eq!(complete(&double.api, &["deploy", "--name", "o"]).await, ["other"]);
    let words = ["load", "--rate", "1", "--duration", "1s", "--function", "o"];
    assert_eq!(complete(&double.api, &words).await, ["other"]);
    for verb in ["invoke", "describe", "update", "rollback", "revisions", "traffic", "tag"] {
        assert_eq!(complete(&double.api, &[verb, "o"]).await, ["other"], "{verb}");
    }
    assert_eq!(complete("http://127.0.0.1:1", &["logs", "he"]).await, Vec::<String>::new());
}
