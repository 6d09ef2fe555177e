//! `fanfare secret` against a real control plane.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::run::{Run, command, fanfare, fanfare_in, fanfare_with_input, run, without_times};

const CANARY: &str = "canary-5f1e9b7c";
const CANARY_BASE64: &str = "Y2FuYXJ5LTVmMWU5Yjdj";

struct ControlPlane {
    api: String,
    dir: tempfile::TempDir,
    _child: Child,
}

impl ControlPlane {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let args = [
            "control-plane",
            "--data-dir",
            data.to_str().unwrap(),
            "--api-listen",
            "127.0.0.1:0",
            "--grpc-listen",
            "127.0.0.1:0",
        ];
        let mut child = command("http://127.0.0.1:1", &args).spawn().unwrap();
        let api = BufReader::new(child.stdout.take().unwrap()).lines().next_line().await.unwrap().unwrap();
        ControlPlane { api, dir, _child: child }
    }
}

fn shows_nothing(run: &Run) {
    for secret in [CANARY, CANARY_BASE64] {
        assert!(!run.stdout.contains(secret) && !run.stderr.contains(secret), "{run:?}");
    }
}

#[tokio::test]
async fn secrets_are_set_from_input_or_a_file_and_never_shown() {
    let plane = ControlPlane::start().await;
    let api = &plane.api;
    let empty = fanfare(api, &["secret", "list"]).await;
    assert_eq!((empty.code, empty.stdout.as_str()), (0, ""));
    assert!(empty.stderr.contains("fanfare secret set NAME"), "{empty:?}");

    let set =
        fanfare_with_input(api, &["secret", "set", "db", "--debug"], format!("{CANARY}\n").as_bytes()).await;
    assert_eq!(set.code, 0, "{set:?}");
    assert!(set.stderr.contains("***"), "{set:?}");
    shows_nothing(&set);
    std::fs::write(plane.dir.path().join("key.pem"), [0, 255, b'\n']).unwrap();
    let file = fanfare_in(plane.dir.path(), api, &["secret", "set", "tls", "--from-file", "key.pem"]).await;
    assert_eq!((file.code, without_times(&file.stderr).as_str()), (0, "T Set tls, version 1"));
    let again = fanfare_with_input(api, &["secret", "set", "db", "-o", "json"], CANARY.as_bytes()).await;
    let document: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!((document["name"].as_str(), document["version"].as_u64()), (Some("db"), Some(2)));
    shows_nothing(&again);

    let listed = fanfare(api, &["secret", "ls"]).await;
    assert_eq!(listed.stdout.lines().count(), 3, "{listed:?}");
    assert_eq!(fanfare(api, &["secret", "list", "-o", "name"]).await.stdout, "db\ntls\n");
    for output in ["text", "json", "yaml", "wide"] {
        let described = fanfare(api, &["secret", "describe", "db", "-o", output]).await;
        assert!(described.code == 0 && described.stdout.contains("version"), "{described:?}");
        shows_nothing(&described);
    }
    assert_eq!(fanfare(api, &["secret", "rm", "db", "-o", "name"]).await.stdout, "db\n");
    let gone = fanfare(api, &["secret", "describe", "tl"]).await;
    assert_eq!(gone.code, 4, "{gone:?}");
    assert!(
        gone.stderr.contains("secret-not-found") && gone.stderr.contains("did you mean tls?"),
        "{gone:?}"
    );
}

#[tokio::test]
async fn what_is_no_value_is_refused_with_what_to_do() {
    let api = "http://127.0.0.1:1";
    let cases: [(&[&str], &[u8], &str); 6] = [
        (&["secret", "set", "db"], b"\n", "the value is empty"),
        (&["secret", "set", "db"], &[b'x'; 70_000], "over 65536 bytes"),
        (&["secret", "set", "db"], &[b'x'; 70_000], "set its key as the secret"),
        (&["secret", "set", "db", CANARY], b"x", "standard input, as in `fanfare secret set db < FILE`"),
        (&["secret", "set", "db", "--from-file", "/nope"], b"", "name a file that is there"),
        (&["secret", "set", "Db"], b"x", "the name holds 'D'"),
    ];
    for (args, input, said) in cases {
        let mut child = command(api, args).stdin(Stdio::piped()).spawn().unwrap();
        // It may end before it has read all.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut child.stdin.take().unwrap(), input).await;
        let refused = run(child.wait_with_output().await.unwrap());
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(said), "{refused:?}");
        assert!(!refused.stderr.contains(CANARY), "{refused:?}");
    }
}

/// Runs the binary on a terminal, types the value when it is asked for, and prints what the terminal showed.
const TYPIST: &str = r"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
shown, typed = b'', False
while True:
    try:
        got = os.read(terminal, 4096)
    except OSError:
        break
    if not got:
        break
    shown += got
    if b'not shown' in shown and not typed:
        typed = True
        os.write(terminal, os.environb[b'TYPED'] + b'\n')
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[tokio::test]
async fn on_a_terminal_the_value_is_asked_for_and_not_shown() {
    let plane = ControlPlane::start().await;
    for (typed, code, secrets) in [(CANARY, 0, "db\n"), ("\u{3}", 2, "db\n")] {
        let mut python = Command::new("python3");
        python.args(["-c", TYPIST, env!("CARGO_BIN_EXE_fanfare"), "secret", "set", "db"]);
        python.env("FANFARE_API", &plane.api).env("TYPED", typed).stdin(Stdio::null()).kill_on_drop(true);
        let run = run(python.output().await.unwrap());
        assert_eq!(run.code, code, "{run:?}");
        assert!(run.stdout.contains("Value of db (not shown): "), "{run:?}");
        shows_nothing(&run);
        assert_eq!(fanfare(&plane.api, &["secret", "list", "-o", "name"]).await.stdout, secrets);
    }
}
