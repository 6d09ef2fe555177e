use std::fs;
use std::path::Path;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

use fanfare_api::Problem;
use fanfare_types::Reason;

use crate::double::Double;
use crate::run::{command, fanfare, fanfare_in, without_times};

fn hello(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("hello.py"), text).unwrap();
    dir
}

#[tokio::test]
async fn stages_then_the_url_alone() {
    let double = Double::start().await;
    let dir = hello("def handler(event, context): return 1");
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "./hello.py"]).await;
    assert_eq!((run.code, run.stdout), (0, format!("{}/function/hello\n", double.api)), "{}", run.stderr);
    let expected = "\
T Packed ./hello.py (1 file, 2 KiB)
T Uploaded 2 KiB
T Registered hello
T Ready: started once on node-1 in 21.5 ms";
    assert_eq!(without_times(&run.stderr), expected);
    let held = double.held();
    assert_eq!(held.prepared, ["hello"]);
    let (digest, code) = held.blobs.first_key_value().unwrap();
    assert_eq!(held.functions["hello"].1.code.as_ref(), Some(digest));
    assert!(code.windows(11).any(|window| window == b"def handler"));
}

#[tokio::test]
async fn again_is_unchanged() {
    let double = Double::start().await;
    let dir = hello("x");
    assert_eq!(fanfare_in(dir.path(), &double.api, &["deploy", "hello.py"]).await.code, 0);
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    let expected = "T Packed hello.py (1 file, 2 KiB)\nT Code is there already\nT hello is unchanged";
    assert_eq!(without_times(&run.stderr), expected);
    assert_eq!(double.held().prepared.len(), 1);
    let run =
        fanfare_in(dir.path(), &double.api, &["deploy", "hello.py", "--memory", "64MiB", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((json["revision"].as_u64(), json["outcome"].as_str()), (Some(2), Some("updated")));
}

#[tokio::test]
async fn a_deploy_keeps_what_an_update_has_set_and_says_so() {
    let double = Double::start().await;
    let dir = hello("x");
    let deploy = async |args: &[&str]| {
        fanfare_in(dir.path(), &double.api, &[&["deploy", "hello.py", "--no-wait"], args].concat()).await
    };
    assert_eq!(deploy(&[]).await.code, 0);
    let update = ["update", "hello", "--no-wait", "--memory", "256MiB", "-e", "A=canary", "--min", "1"];
    let run = fanfare(&double.api, &update).await;
    let changed = "\
T Changed env A added
T Changed memory 128 MiB -> 256 MiB
T Changed min 0 -> 1
T Registered hello, revision 2";
    assert_eq!((run.code, without_times(&run.stderr).as_str()), (0, changed));

    let run = deploy(&[]).await;
    let kept =
        "T Kept as it was: env A, memory 256 MiB, min 1 (--reset gives the defaults)\nT hello is unchanged";
    assert!(run.code == 0 && without_times(&run.stderr).ends_with(kept), "{run:?}");
    let run = deploy(&["--min", "2"]).await;
    let kept = "\
T Kept as it was: env A, memory 256 MiB (--reset gives the defaults)
T Changed min 1 -> 2
T Registered hello, revision 3";
    assert!(run.code == 0 && without_times(&run.stderr).ends_with(kept), "{run:?}");

    let run = deploy(&["--reset", "--min", "2"]).await;
    let changed = "\
T Code is there already
T Changed env A removed
T Changed memory 256 MiB -> 128 MiB (default)
T Registered hello, revision 4";
    assert!(run.code == 0 && without_times(&run.stderr).ends_with(changed), "{run:?}");
    assert_eq!(double.held().functions["hello"].1.env.0, []);
}

/// Nobody has chosen it: it depends on the memory.
#[tokio::test]
async fn a_default_that_follows_from_another_setting_is_not_kept_as_if_it_were_chosen() {
    let double = Double::start().await;
    let dir = hello("x");
    let deploy = async |args: &[&str]| {
        fanfare_in(dir.path(), &double.api, &[&["deploy", "hello.py", "--no-wait"], args].concat()).await
    };
    assert_eq!(deploy(&["--memory", "32MiB"]).await.code, 0);
    let run = deploy(&["--memory", "128MiB"]).await;
    let changed = "\
T Code is there already
T Changed memory 32 MiB -> 128 MiB (default)
T Changed tmp 16 MiB -> 64 MiB (default)
T Registered hello, revision 2";
    assert!(run.code == 0 && without_times(&run.stderr).ends_with(changed), "{run:?}");
    let run = fanfare(&double.api, &["update", "hello", "--no-wait", "--memory", "32MiB"]).await;
    let changed = "\
T Changed memory 128 MiB -> 32 MiB
T Changed tmp 64 MiB -> 16 MiB
T Registered hello, revision 3";
    assert_eq!((run.code, without_times(&run.stderr).as_str()), (0, changed));
    let run = deploy(&["--tmp", "20MiB"]).await;
    assert!(run.stderr.contains("Kept as it was: memory 32 MiB (--reset"), "{run:?}");
    let run = deploy(&["--memory", "128MiB"]).await;
    assert!(run.stderr.contains("Kept as it was: tmp 20 MiB (--reset"), "{run:?}");
}

#[tokio::test]
async fn a_settings_file_is_the_whole_truth_and_what_it_undoes_is_said() {
    let double = Double::start().await;
    let dir = hello("x");
    fs::write(dir.path().join("fanfare.toml"), "name = \"app\"\nconcurrency = 4\n").unwrap();
    let deploy = ["deploy", ".", "--no-wait"];
    assert_eq!(fanfare_in(dir.path(), &double.api, &deploy).await.code, 0);
    let update = ["update", "app", "--no-wait", "--timeout", "5s", "-e", "A=1"];
    assert_eq!(fanfare(&double.api, &update).await.code, 0);
    let run = fanfare_in(dir.path(), &double.api, &deploy).await;
    let changed = "\
T Code is there already
T Changed env A removed
T Changed timeout 5.0 s -> 60.0 s (default)
T Registered app, revision 3";
    assert!(run.code == 0 && without_times(&run.stderr).ends_with(changed), "{run:?}");
    let run = fanfare_in(dir.path(), &double.api, &deploy).await;
    assert!(run.code == 0 && run.stderr.ends_with("app is unchanged\n"), "{run:?}");
}

/// The README's example names every setting, and works.
#[tokio::test]
async fn the_settings_file_in_the_readme_names_every_setting_and_is_valid() {
    let readme = include_str!("../../../../docs/functions.md");
    let example = readme.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let double = Double::start().await;
    let dir = hello("x");
    fs::write(dir.path().join("fanfare.toml"), example).unwrap();
    let run = fanfare_in(dir.path(), &double.api, &["deploy", ".", "--no-wait"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    // Lines that are commented out are settings of other policies: each is known, too.
    let every = example.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line)).collect::<Vec<_>>();
    let every: toml::Table = every.join("\n").parse().unwrap();
    for path in [&[][..], &["limits"], &["timeouts"], &["scaling"]] {
        let given = path.iter().fold(&every, |table, name| table[*name].as_table().unwrap());
        let known = fanfare_api::settings_fields(path).unwrap();
        let code = |name: &&String| name.as_str() != "code";
        let missing: Vec<_> = known.iter().filter(code).filter(|name| !given.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{path:?} lacks {missing:?}");
        assert!(given.keys().all(|name| known.contains(name)), "{path:?}: {given:?}");
    }
}

#[tokio::test]
async fn what_does_not_start_says_why_each_time() {
    let double = Double::start().await;
    let dir = hello("x");
    let log = "Traceback (most recent call last):\nNameError: x";
    let broken =
        Problem::new(Reason::StartFailed, "hello.py raised an error when imported").with_log_tail(log);
    double.held().broken.insert("hello".into(), broken.with_request_id("r-5"));
    for _ in 0..2 {
        let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py", "--quiet"]).await;
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
        let expected = "\
error: hello is registered but does not start: hello.py raised an error when imported
  reason: start-failed
  request: r-5
  log:
    | Traceback (most recent call last):
    | NameError: x
hint: mend it, then `fanfare deploy hello.py --quiet` again; `fanfare logs hello` has all that it wrote; it stays registered: `fanfare delete hello` removes it
";
        assert_eq!(run.stderr, expected);
    }
}

#[tokio::test]
async fn a_program_that_was_taken_for_a_handler_is_told_apart() {
    let double = Double::start().await;
    let dir = hello("x");
    let broken = Problem::new(Reason::StartFailed, "hello.py raised an error when imported")
        .with_log_tail("  File \"hello.py\", line 3\nKeyError: 'PORT'");
    double.held().broken.insert("hello".into(), broken);
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py"]).await;
    let hint = "says `handler = { kind = \"http\", command = [\"python3\", \"hello.py\"] }`";
    assert!(run.code == 1 && run.stderr.contains(hint), "{run:?}");
}

#[tokio::test]
async fn settings_come_from_the_file_and_then_the_command_line() {
    let double = Double::start().await;
    let dir = hello("x");
    let toml =
        "name = \"api\"\nconcurrency = 4\nqueue_limit = 7\n[env]\nA = \"1\"\n[timeouts]\nrequest = \"5s\"\n";
    fs::write(dir.path().join("fanfare.toml"), toml).unwrap();
    let args = ["deploy", ".", "--concurrency", "9", "-e", "B=2", "--handler", "hello.py:main", "--max", "3"];
    let run = fanfare_in(dir.path(), &double.api, &args).await;
    assert_eq!(run.code, 0, "{run:?}");
    let held = double.held();
    let json = serde_json::to_value(&held.functions["api"].1).unwrap();
    assert_eq!((json["concurrency"].as_u64(), json["queue_limit"].as_u64()), (Some(9), Some(7)));
    assert_eq!(json["env"], serde_json::json!({"A": "1", "B": "2"}));
    assert_eq!(json["timeouts"]["request"], 5);
    assert_eq!(json["scaling"]["max"], 3);
    assert_eq!(json["handler"], serde_json::json!({"kind": "python", "file": "hello.py", "handler": "main"}));
}

#[tokio::test]
async fn a_wrong_setting_names_it() {
    let double = Double::start().await;
    let dir = hello("x");
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py", "--concurrency", "5000"]).await;
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("for '--concurrency <N>': give a whole number from 1 to 1000"), "{run:?}");
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py", "--memory", "1KiB"]).await;
    assert!(run.stderr.contains("error: --memory is 1 KiB; allowed: 8 MiB to 1 TiB"), "{run:?}");
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py", "--timeout", "soon"]).await;
    assert!(run.stderr.contains("error: --timeout is \"soon\"; allowed: 1 ms to 24 h"), "{run:?}");
    // None of that was packed or sent, and neither is what the platform gives a sandbox itself.
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py", "--env", "PORT=canary"]).await;
    let told = "\
error: env.PORT is set by the platform; allowed: names other than PORT, LISTEN_FDS, LISTEN_PID, FANFARE_*
  reason: invalid-field
hint: leave out --env PORT, or give it another name
";
    assert_eq!((run.code, run.stderr.as_str()), (2, told));
    assert!(double.held().blobs.is_empty() && double.held().puts.is_empty());
    // What the file says is told of the file.
    fs::write(dir.path().join("fanfare.toml"), "[limits]\nmemory_limit = 1\n").unwrap();
    let run = fanfare_in(dir.path(), &double.api, &["deploy", ".", "--timeout", "1s"]).await;
    assert!(
        run.stderr.contains("error: ./fanfare.toml:2: limits.memory_limit is 1 B; allowed: 8 MiB"),
        "{run:?}"
    );
    fs::write(dir.path().join("fanfare.toml"), "name = hello\n").unwrap();
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "."]).await;
    assert!(
        run.code == 2
            && run.stderr.contains("TOML parse error")
            && run.stderr.contains("hint: mend that line"),
        "{run:?}"
    );
    fs::write(dir.path().join("fanfare.toml"), "\nconcurency = 1\n").unwrap();
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "."]).await;
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("error: ./fanfare.toml:2: there is no setting concurency\n"), "{run:?}");
    assert!(run.stderr.contains("hint: did you mean concurrency?"), "{run:?}");
}

#[tokio::test]
async fn what_python_does_not_run_at_once_is_said_when_it_is_asked_for() {
    let double = Double::start().await;
    let dir = hello("x");
    let deploy = async |args: &[&str]| {
        fanfare_in(dir.path(), &double.api, &[&["deploy", "hello.py", "--no-wait"], args].concat())
            .await
            .stderr
    };
    let note = "note: a sandbox of hello is given 10 requests, and Python runs one request at a time while the others \
                wait: `fanfare update hello --handler-processes 10` runs them at once";
    let told = deploy(&["--concurrency", "10"]).await;
    assert!(told.contains(note), "{told}");
    let told = deploy(&["--max", "3"]).await;
    assert!(!told.contains("note:"), "said again though nobody asked: {told}");
    let told = deploy(&["--handler-processes", "10"]).await;
    assert!(
        told.contains("Changed handler_processes 1 -> 10")
            || told.contains("Changed handler-processes 1 -> 10"),
        "{told}"
    );
    assert!(!told.contains("note:"), "{told}");
    let told =
        fanfare(&double.api, &["update", "hello", "--no-wait", "--handler-processes", "5"]).await.stderr;
    assert!(told.contains("runs 5 requests at a time"), "{told}");
}

#[tokio::test]
async fn what_cannot_be_packed_says_what_to_do() {
    let double = Double::start().await;
    let dir = hello("x");
    std::os::unix::fs::symlink("/etc/hostname", dir.path().join("link")).unwrap();
    let cases: [(&[&str], &str, &str); 5] = [
        (
            &["deploy", "."],
            "./link is a link to /etc/hostname, which is outside the code",
            "hint: put what it leads to",
        ),
        (
            &["deploy", ".", "--handler", "helo.py"],
            "helo.py is not in .",
            "hint: did you mean --handler hello.py?",
        ),
        (&["deploy", ".", "--handler", "zz"], "zz is not in .", "such as hello.py"),
        (&["deploy", "nothere.py"], "cannot read nothere.py", "hint: give a file or a directory"),
        (&["dev", "./nothere.py"], "cannot read ./nothere.py", "hint: give a file or a directory"),
    ];
    for (args, what, hint) in cases {
        let run = fanfare_in(dir.path(), &double.api, args).await;
        assert_eq!(run.code, 2, "{run:?}");
        assert!(
            run.stderr.contains(what.trim_start_matches("./")) && run.stderr.contains(hint),
            "{args:?}: {run:?}"
        );
    }
}

#[tokio::test]
async fn a_broken_update_says_who_answers_and_how_to_go_back() {
    let double = Double::start().await;
    let dir = hello("x");
    assert_eq!(fanfare_in(dir.path(), &double.api, &["deploy", "hello.py"]).await.code, 0);
    let broken = Problem::new(Reason::StartFailed, "hello.py raised an error when imported");
    double.held().broken.insert("hello".into(), broken);
    double.held().serving = Some(1);
    let args = ["deploy", "hello.py", "--memory", "64MiB", "-e", "TOKEN=canary", "--quiet"];
    let run = fanfare_in(dir.path(), &double.api, &args).await;
    assert_eq!(run.code, 1, "{run:?}");
    let expected = "\
error: revision 2 of hello is registered but does not start: hello.py raised an error when imported
  reason: start-failed
note: revision 1 goes on serving
hint: mend it, then `fanfare deploy hello.py --memory 64MiB -e TOKEN=… --quiet` again; `fanfare logs hello` has all that it wrote; `fanfare rollback hello` goes back
";
    assert_eq!(run.stderr, expected);
    double.held().serving = None;
    let run = fanfare_in(dir.path(), &double.api, &args).await;
    assert!(run.code == 1 && run.stderr.contains("note: nothing answers until it starts"), "{run:?}");
    // The one before does not start either: a rollback would be refused.
    assert!(!run.stderr.contains("rollback"), "{run:?}");
    double.held().old_ready = 2;
    let run = fanfare(&double.api, &["update", "hello", "--memory", "66MiB"]).await;
    assert!(
        run.stderr.contains("note: the revision before still answers in 2 sandboxes until it goes idle"),
        "{run:?}"
    );
    double.held().old_ready = 0;
    let run = fanfare(&double.api, &["update", "hello", "--memory", "65MiB"]).await;
    assert!(run.stderr.contains("note: nothing answers until it starts"), "{run:?}");
    assert!(run.stderr.contains("`fanfare rollback hello` goes back"), "{run:?}");
    let run = fanfare(&double.api, &["rollback", "hello"]).await;
    assert_eq!((run.code, run.stdout), (0, format!("{}/function/hello\n", double.api)), "{}", run.stderr);
    assert!(run.stderr.contains("Registered hello, revision 5"), "{}", run.stderr);
    let run = fanfare(&double.api, &["rollback", "hello@2"]).await;
    assert_eq!((run.code, double.held().rolled_back_to.as_slice()), (0, &[None, Some(2)][..]), "{run:?}");
    let run = fanfare(&double.api, &["rollback", "hello@9"]).await;
    assert!(run.code == 4 && run.stderr.contains("reason: revision-not-found"), "{run:?}");
    let run = fanfare(&double.api, &["rollback", "hello@zero"]).await;
    assert!(run.code == 2 && run.stderr.contains("as in hello@3"), "{run:?}");
    let run = fanfare(&double.api, &["rollback", "helo"]).await;
    assert!(run.code == 4 && run.stderr.contains("did you mean hello?"), "{run:?}");
    let double = double.with_function("once");
    let run = fanfare(&double.api, &["rollback", "once"]).await;
    assert!(run.code == 2 && run.stderr.contains("reason: no-earlier-revision"), "{run:?}");
}

#[tokio::test]
async fn nothing_is_proved_when_told_not_to_wait() {
    let double = Double::start().await;
    let dir = hello("x");
    double.held().broken.insert("hello".into(), Problem::new(Reason::StartFailed, "it is broken"));
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py", "--no-wait", "-o", "wide"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.stdout, format!("hello  revision 1  created  {}/function/hello\n", double.api));
    assert_eq!(double.held().prepared, Vec::<String>::new());
}

#[tokio::test]
async fn an_update_without_settings_names_some() {
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["update", "hello"]).await;
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("nothing of hello is to be changed"), "{run:?}");
    assert!(run.stderr.contains("fanfare update hello --memory 256MiB"), "{run:?}");
    assert_eq!(double.held().puts, Vec::<String>::new());
}

#[tokio::test]
async fn what_is_packed_is_counted_beside_the_settings() {
    let double = Double::start().await;
    let dir = hello("x");
    fs::write(dir.path().join("fanfare.toml"), "name = \"a\"\n").unwrap();
    let run = fanfare_in(dir.path(), &double.api, &["deploy", "."]).await;
    assert!(run.stderr.contains("Packed . (1 file beside fanfare.toml, 2 KiB)"), "{run:?}");
}

#[tokio::test]
async fn what_is_left_out_of_a_package_is_said() {
    let double = Double::start().await;
    let dir = hello("x");
    fs::write(dir.path().join(".env"), "TOKEN=canary").unwrap();
    let run = fanfare_in(dir.path(), &double.api, &["deploy", ".", "--name", "a"]).await;
    assert!(run.code == 0 && run.stderr.contains("note: .env stays here, as it may hold secrets"), "{run:?}");
    let code = double.held().blobs.values().next().unwrap().clone();
    assert!(!code.windows(6).any(|window| window == b"canary"));
}

#[tokio::test]
async fn an_interrupted_deployment_says_what_stays() {
    let double = Double::start().await;
    double.held().slow = true;
    let dir = hello("x");
    let mut child = command(&double.api, &["deploy", "hello.py"]).current_dir(dir.path()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    until(&mut lines, "Registered hello").await;
    double.proving().await;
    let pid = child.id().unwrap().to_string();
    assert!(tokio::process::Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    assert!(until(&mut lines, "error:").await.contains("interrupted: hello stays registered, revision 1"));
    assert!(until(&mut lines, "hint:").await.contains("`fanfare delete hello` removes it"));
    assert_eq!(child.wait().await.unwrap().code(), Some(130));
}

#[tokio::test]
async fn what_is_missing_is_what_the_hint_asks_for() {
    let double = Double::start().await;
    let dir = hello("x");
    let cases = [
        (
            Reason::NotListening,
            "hint: have it listen on $PORT, then `fanfare deploy hello.py` again, with a longer --start-timeout",
        ),
        (
            Reason::HandlerNotFound,
            "hint: call the function that is to be run handler, or say what it is called with --handler :NAME",
        ),
        (Reason::StartFailed, "hint: mend it, then `fanfare deploy hello.py` again"),
    ];
    for (reason, hint) in cases {
        double.held().broken.insert("hello".into(), Problem::new(reason, "as told"));
        let run = fanfare_in(dir.path(), &double.api, &["deploy", "hello.py"]).await;
        assert!(run.code == 1 && run.stderr.contains(hint), "{run:?}");
    }
}

#[tokio::test]
async fn a_wait_that_is_over_is_no_failed_start() {
    let double = Double::start().await;
    double.held().slow = true;
    let dir = hello("x");
    let deploy = async |more: &[&str]| {
        let args = [&["deploy", "hello.py", "--quiet", "--wait-timeout", "100ms"], more].concat();
        fanfare_in(dir.path(), &double.api, &args).await
    };
    let cases = [(&[][..], "hello is"), (&["--memory", "64MiB"][..], "revision 2 of hello is")];
    for (more, which) in cases {
        let run = deploy(more).await;
        let expected = format!(
            "error: {which} registered, and it is not known yet whether it starts: the wait of 100 ms is over\n\
             hint: `fanfare describe hello` says whether it does; --wait-timeout DURATION waits longer\n"
        );
        assert_eq!((run.code, run.stderr), (5, expected), "{more:?}");
    }
}

/// The next line that holds `part`.
async fn until(lines: &mut Lines<BufReader<ChildStderr>>, part: &str) -> String {
    loop {
        let line = lines.next_line().await.unwrap().expect(part);
        if line.contains(part) {
            return line;
        }
    }
}

#[tokio::test]
async fn debug_masks_variables() {
    let double = Double::start().await;
    let dir = hello("x");
    let run =
        fanfare_in(dir.path(), &double.api, &["deploy", "hello.py", "-e", "TOKEN=canary", "--debug"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("\"TOKEN\":\"***\""), "{run:?}");
    assert!(!run.stderr.contains("canary"), "{run:?}");
}

#[tokio::test]
async fn updates_keep_what_is_not_named() {
    let double = Double::start().await.with_function("hello");
    let run =
        fanfare(&double.api, &["update", "hello", "--timeout", "9s", "--min", "1", "--env", "A=1"]).await;
    assert_eq!((run.code, run.stdout), (0, format!("{}/function/hello\n", double.api)), "{}", run.stderr);
    let json = serde_json::to_value(&double.held().functions["hello"].1).unwrap();
    assert_eq!(
        (json["timeouts"]["request"].as_u64(), json["timeouts"]["start"].as_u64()),
        (Some(9), Some(30))
    );
    assert_eq!((json["scaling"]["min"].as_u64(), json["env"]["A"].as_str()), (Some(1), Some("1")));
    let run = fanfare(&double.api, &["update", "hullo", "--min", "1"]).await;
    assert_eq!(run.code, 4);
    assert!(run.stderr.contains("did you mean hello?"), "{run:?}");
}

/// `fanfare dev`, with its standard error line by line.
struct Dev {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Dev {
    fn start(double: &Double, path: &Path) -> Self {
        let mut child = command(&double.api, &["dev", path.to_str().unwrap()]).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Dev { child, lines }
    }

    async fn until(&mut self, part: &str) -> String {
        let mut seen = String::new();
        while let Some(line) = self.lines.next_line().await.unwrap() {
            seen.push_str(&line);
            seen.push('\n');
            if line.contains(part) {
                return seen;
            }
        }
        panic!("no {part:?} in\n{seen}");
    }
}

fn code(double: &Double) -> Option<String> {
    double.held().functions["hello"].1.code.clone()
}

#[tokio::test]
async fn dev_redeploys_on_save_and_keeps_the_old_one_when_the_new_one_fails() {
    let double = Double::start().await;
    double.held().broken_code = Some(b"BROKEN");
    let dir = hello("one");
    let file = dir.path().join("hello.py");
    let mut dev = Dev::start(&double, &file);
    dev.until("watching").await;
    let first = code(&double);

    // An editor's atomic save.
    fs::write(dir.path().join(".tmp"), "two").unwrap();
    fs::rename(dir.path().join(".tmp"), &file).unwrap();
    dev.until("reloaded in").await;
    let second = code(&double);
    assert_ne!(first, second);

    fs::write(&file, "BROKEN").unwrap();
    let seen = dev.until("goes on serving").await;
    assert!(seen.contains("the module raised an error") && seen.contains("| SyntaxError"), "{seen}");
    assert_eq!(code(&double), second);

    fs::write(&file, "three").unwrap();
    dev.until("reloaded in").await;
    assert_ne!(code(&double), second);
    assert_eq!(double.held().functions.keys().collect::<Vec<_>>(), ["hello"]);

    let pid = dev.child.id().unwrap().to_string();
    assert!(tokio::process::Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    dev.until("hello stays deployed; `fanfare delete hello` removes it").await;
    let output = dev.child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(0));
    // The log is followed from now on: what was written before is not shown.
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}/function/hello\n", double.api));
}
