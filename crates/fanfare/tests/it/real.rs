//! The binary as its users run it: roles, sandboxes and clients, nothing doubled.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use crate::run::{Run, command, fanfare, fanfare_in};

const HELLO: &str =
    "def handler(event, context):\n    print('called')\n    return {'hello': event.get('name', 'world')}\n";
/// Ten times what it should take.
const READY: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(60);

/// A role or all of them, with its standard output line by line.
struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut child = command("http://127.0.0.1:1", args).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Server { child, lines }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(READY, self.lines.next_line()).await.expect("ready in time").unwrap();
        match line {
            Some(line) => line,
            None => panic!("ended: {}", self.stderr().await),
        }
    }

    async fn stderr(&mut self) -> String {
        let mut lines = BufReader::new(self.child.stderr.take().unwrap()).lines();
        let mut text = String::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    async fn signal(&self, name: &str) {
        kill(name, &self.child).await;
    }

    async fn code(&mut self) -> Option<i32> {
        tokio::time::timeout(END, self.child.wait()).await.expect("its end in time").unwrap().code()
    }
}

async fn kill(signal: &str, child: &Child) {
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
}

/// Everything in one process.
pub(crate) struct Up {
    server: Server,
    api: String,
    pub(crate) functions: String,
    dir: tempfile::TempDir,
}

impl Up {
    pub(crate) async fn start() -> Self {
        Up::on(tempfile::tempdir().unwrap()).await
    }

    /// With what an earlier one has left there.
    pub(crate) async fn on(dir: tempfile::TempDir) -> Self {
        let (data, run) = (path(&dir, "data"), path(&dir, "run"));
        let free = "127.0.0.1:0";
        let mut server = Server::start(&[
            "up",
            "--data-dir",
            &data,
            "--run-dir",
            &run,
            "--listen",
            free,
            "--api-listen",
            free,
            "--grpc-listen",
            free,
        ]);
        let mut urls = Vec::new();
        for (what, example) in
            [("functions", "curl "), ("control API", "fanfare deploy "), ("streams", "fanfare node ")]
        {
            let line = server.line().await;
            assert!(line.starts_with(what) && line.contains(example), "{line}");
            urls.push(line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned());
        }
        Up { server, api: urls[1].clone(), functions: urls[0].clone(), dir }
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Run {
        fanfare_in(self.dir.path(), &self.api, args).await
    }

    pub(crate) fn api(&self) -> &str {
        &self.api
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// Ends it at once, with nothing said: `kill -9`.
    pub(crate) async fn crash(mut self) -> tempfile::TempDir {
        self.server.signal("-KILL").await;
        assert_eq!(self.server.code().await, None, "it ended by itself");
        self.dir
    }

    /// Ends it; nothing must be left.
    pub(crate) async fn end(mut self) {
        self.server.signal("-TERM").await;
        assert_eq!(self.server.code().await, Some(0), "{}", self.server.stderr().await);
        let doctor = fanfare("", &["doctor", "--run-dir", &path(&self.dir, "run"), "-o", "json"]).await;
        let report: Value = serde_json::from_str(&doctor.stdout).unwrap();
        assert_eq!(report["orphans"], serde_json::json!([]), "{doctor:?}");
    }
}

fn path(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// Says loudly why sandboxes cannot be made on this machine, where they cannot.
pub(crate) async fn sandboxes_work(test: &str) -> bool {
    let doctor = fanfare("", &["doctor", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&doctor.stdout).unwrap();
    let lacking = report["checks"].as_array().unwrap().iter().find(|check| {
        let name = check["name"].as_str().unwrap();
        matches!(name, "sandboxes" | "python3" | "user") && check["verdict"] != "ok"
    });
    if let Some(check) = lacking {
        eprintln!("SKIPPED {test}: this machine lacks {}: {}", check["name"], check["detail"]);
    }
    lacking.is_none()
}

#[tokio::test]
async fn from_nothing_to_an_answer() {
    if !sandboxes_work("from_nothing_to_an_answer").await {
        return;
    }
    let begin = Instant::now();
    let up = Up::start().await;
    assert!(begin.elapsed() < READY);
    up.write("hello.py", HELLO);
    let run = up.run(&["deploy", "./hello.py"]).await;
    assert_eq!((run.code, run.stdout), (0, format!("{}/function/hello\n", up.functions)), "{}", run.stderr);
    let run = up.run(&["deploy", "./hello.py"]).await;
    assert!(run.code == 0 && run.stderr.contains("hello is unchanged"), "{run:?}");

    let run = up.run(&["invoke", "hello", "-d", "{\"name\": \"Ada\"}", "-v"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "{\"hello\":\"Ada\"}"), "{run:?}");
    assert!(run.stderr.contains("  create") && run.stderr.contains("  execute"), "{run:?}");
    let run = up.run(&["logs", "hello"]).await;
    assert!(run.code == 0 && run.stdout.contains("called\n"), "{run:?}");
    let run = up.run(&["describe", "hello"]).await;
    assert!(run.stdout.contains("0 -> 1  ") && run.stdout.contains("python hello.py:handler"), "{run:?}");
    let run = up.run(&["status", "-o", "json"]).await;
    let status: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&status["functions"], &status["nodes"][0]["sandboxes"]), (&1.into(), &1.into()), "{run:?}");
    let run = up.run(&["invoke", "helo"]).await;
    assert!(run.code == 4 && run.stderr.contains("did you mean hello?"), "{run:?}");
    let run = up.run(&["delete", "hello"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(up.run(&["invoke", "hello"]).await.code, 4);
    up.end().await;
}

#[tokio::test]
async fn failures_say_what_and_why() {
    if !sandboxes_work("failures_say_what_and_why").await {
        return;
    }
    let up = Up::start().await;
    up.write("bad.py", "def handler(event, context)\n    return 1\n");
    let run = up.run(&["deploy", "bad.py"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
    assert!(
        run.stderr.contains("SyntaxError") && run.stderr.contains("File \"/function/bad.py\", line 1"),
        "{run:?}"
    );
    up.write("raises.py", "def handler(event, context):\n    return 1 / 0\n");
    assert_eq!(up.run(&["deploy", "raises.py"]).await.code, 0);
    let run = up.run(&["invoke", "raises"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
    assert!(run.stderr.contains("error: ZeroDivisionError: division by zero"), "{run:?}");
    assert!(run.stderr.contains("raises.py\", line 2, in handler"), "{run:?}");
    up.write("slow.py", "import time\n\ndef handler(event, context):\n    time.sleep(60)\n");
    assert_eq!(up.run(&["deploy", "slow.py", "--timeout", "200ms"]).await.code, 0);
    let run = up.run(&["invoke", "slow"]).await;
    assert!(run.code == 5 && run.stderr.contains("reason: request-timeout"), "{run:?}");
    assert!(run.stderr.contains("`fanfare update slow --timeout DURATION`"), "{run:?}");
    described(&up, "slow", &["request-timeout  1 request ", "did not answer within its 0.2 s"]).await;
    described(
        &up,
        "raises",
        &["handler-error    1 request ", "ZeroDivisionError: division by zero", "in handler"],
    )
    .await;
    up.write("eats.py", "def handler(event, context):\n    return len(bytearray(1 << 30))\n");
    assert_eq!(up.run(&["deploy", "eats.py", "--memory", "64MiB"]).await.code, 0);
    let run = up.run(&["invoke", "eats"]).await;
    assert!(run.code == 1 && run.stderr.contains("fanfare update eats --memory SIZE"), "{run:?}");
    described(&up, "eats", &["out-of-memory    1 request ", "out-of-memory    1 sandbox "]).await;
    up.end().await;
}

/// Whose fault it is is the data plane's to say, which saw both ends.
#[tokio::test]
async fn an_answer_that_breaks_off_is_the_functions_failure() {
    if !sandboxes_work("an_answer_that_breaks_off_is_the_functions_failure").await {
        return;
    }
    let up = Up::start().await;
    fs::create_dir(up.dir.path().join("raw")).unwrap();
    // One that closes at once is answered for before a byte of its answer is passed on.
    up.write(
        "raw/main.py",
        "import os, socket, time\ns = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))\nwhile True:\n    \
         c, _ = s.accept()\n    c.recv(65536)\n    c.sendall(b'HTTP/1.1 200 OK\\r\\ncontent-length: 100\\r\\n\\r\\nhi')\n    time.sleep(0.5)\n    c.close()\n",
    );
    up.write("raw/fanfare.toml", "[handler]\nkind = \"http\"\ncommand = [\"python3\", \"main.py\"]\n");
    assert_eq!(up.run(&["deploy", "raw"]).await.code, 0);
    let run = up.run(&["invoke", "raw"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (1, "hi"), "{run:?}");
    for part in ["the answer broke off after 2 bytes", "reason: connection-closed", "fanfare explain "] {
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    }
    up.end().await;
}

/// Until `describe` says all of it: failures are told a moment after their callers were.
async fn described(up: &Up, name: &str, parts: &[&str]) {
    let begin = Instant::now();
    loop {
        let run = up.run(&["describe", name]).await;
        if parts.iter().all(|part| run.stdout.contains(part)) {
            return;
        }
        assert!(begin.elapsed() < READY, "{parts:?} in\n{}", run.stdout);
    }
}

/// A call that is in its handler: the handler has said so in the log.
async fn in_flight(up: &Up, work: &str) -> Child {
    up.write("slow.py", "import time\n\ndef handler(event, context):\n    print('begun')\n    time.sleep(event)\n    return 'done'\n");
    assert_eq!(up.run(&["deploy", "slow.py"]).await.code, 0);
    let mut logs = command(&up.api, &["logs", "-f", "slow"]).spawn().unwrap();
    let mut lines = BufReader::new(logs.stdout.take().unwrap()).lines();
    let call = command(&up.api, &["invoke", "slow", "-d", work]).spawn().unwrap();
    while lines.next_line().await.unwrap().expect("the log goes on") != "begun" {}
    call
}

#[tokio::test]
async fn the_first_signal_lets_requests_finish() {
    if !sandboxes_work("the_first_signal_lets_requests_finish").await {
        return;
    }
    let up = Up::start().await;
    let call = in_flight(&up, "1").await;
    up.end().await;
    let output = call.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"done"[..]), "{output:?}");
}

/// As where its terminal is closed, of which a shell and the kernel may each say so.
#[tokio::test]
async fn a_hangup_drains_and_a_second_one_does_not_insist() {
    if !sandboxes_work("a_hangup_drains_and_a_second_one_does_not_insist").await {
        return;
    }
    let mut up = Up::start().await;
    let call = in_flight(&up, "1").await;
    up.server.signal("-HUP").await;
    let mut said = BufReader::new(up.server.child.stderr.take().unwrap()).lines();
    until(&mut said, "stopping: requests under way may finish").await;
    up.server.signal("-HUP").await;
    until(&mut said, "stopped").await;
    assert_eq!(up.server.code().await, Some(0));
    let output = call.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"done"[..]), "{output:?}");
    let doctor = fanfare("", &["doctor", "--run-dir", &path(&up.dir, "run"), "-o", "json"]).await;
    let report: Value = serde_json::from_str(&doctor.stdout).unwrap();
    assert_eq!(report["orphans"], serde_json::json!([]), "{doctor:?}");
}

#[tokio::test]
async fn a_hangup_ends_every_role_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (data, run) = (path(&dir, "data"), path(&dir, "run"));
    let free = "127.0.0.1:0";
    let nobody = ["--control-plane", "http://127.0.0.1:1", "--data-dir", &data, "--run-dir", &run];
    let roles = [
        vec!["control-plane", "--data-dir", &data, "--api-listen", free, "--grpc-listen", free],
        [&["data-plane", "--listen", free][..], &nobody].concat(),
        [&["node", "--emulate", "2"][..], &nobody].concat(),
    ];
    for args in &roles {
        let mut server = Server::start(args);
        server.line().await;
        server.signal("-HUP").await;
        assert_eq!(server.code().await, Some(0), "{args:?}: {}", server.stderr().await);
    }
}

/// `nohup` has a process ignore that its terminal is closed.
#[tokio::test]
async fn what_nohup_starts_outlives_its_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(&dir, "data");
    let free = "127.0.0.1:0";
    let program = env!("CARGO_BIN_EXE_fanfare");
    let args = ["control-plane", "--data-dir", &data, "--api-listen", free, "--grpc-listen", free];
    let mut child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", program])
        .args(args)
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let api = lines.next_line().await.unwrap().unwrap();
    kill("-HUP", &child).await;
    let status = fanfare(&api, &["status"]).await;
    assert_eq!(status.code, 0, "{status:?}");
    kill("-TERM", &child).await;
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn the_second_signal_ends_at_once() {
    if !sandboxes_work("the_second_signal_ends_at_once").await {
        return;
    }
    let mut up = Up::start().await;
    let call = in_flight(&up, "50").await;
    up.server.signal("-INT").await;
    up.server.signal("-TERM").await;
    let code = tokio::time::timeout(READY, up.server.code()).await.expect("ends before the request does");
    assert_eq!(code, Some(3));
    assert_eq!(call.wait_with_output().await.unwrap().status.code(), Some(3));
}

#[tokio::test]
async fn a_taken_port_names_its_owner() {
    let up = Up::start().await;
    let address = up.api.strip_prefix("http://").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (data, run_dir) = (path(&dir, "data"), path(&dir, "run"));
    let free = "127.0.0.1:0";
    let flags = ["--data-dir", &data, "--run-dir", &run_dir, "--grpc-listen", free, "--listen", free];
    let run = fanfare("", &[&["up", "--api-listen", address][..], &flags[..]].concat()).await;
    let owner = format!("held by fanfare (process {})", up.server.child.id().unwrap());
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains(&owner), "{run:?}");
    // All that is needed beside it, and not only for the port that was tried first.
    for flag in ["--data-dir DIR", "--run-dir DIR", "--listen ", "--api-listen ", "--grpc-listen "] {
        assert!(run.stderr.contains(flag), "{flag}: {run:?}");
    }
    let run = fanfare(
        "",
        &["up", "--data-dir", &path(&up.dir, "data"), "--run-dir", &run_dir, "--api-listen", free],
    )
    .await;
    assert!(run.code == 3 && run.stderr.contains("in use by process"), "{run:?}");
    up.end().await;
}

#[tokio::test]
async fn a_run_directory_that_cannot_be_used_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let (data, long) = (path(&dir, "data"), path(&dir, &"long".repeat(20)));
    let free = "127.0.0.1:0";
    let flags = ["--data-dir", &data, "--grpc-listen", free, "--listen", free, "--api-listen", free];
    let run = fanfare("", &[&["up", "--run-dir", &long][..], &flags[..]].concat()).await;
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("at most 60 bytes") && run.stderr.contains("with --run-dir"), "{run:?}");
    assert!(!Path::new(&long).exists());
}

#[tokio::test]
async fn three_processes_answer_like_one() {
    if !sandboxes_work("three_processes_answer_like_one").await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("hello.py"), HELLO).unwrap();
    // The control plane prints where its API is; where its streams are must be known, so a free port is taken first.
    let streams = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let data = path(&dir, "control");
    let mut control = Server::start(&[
        "control-plane",
        "--data-dir",
        &data,
        "--api-listen",
        "127.0.0.1:0",
        "--grpc-listen",
        &streams,
    ]);
    let api = control.line().await;
    let streams = format!("http://{streams}");
    let data = path(&dir, "data-plane");
    let mut data_plane = Server::start(&[
        "data-plane",
        "--control-plane",
        &streams,
        "--listen",
        "127.0.0.1:0",
        "--name",
        "d",
        "--data-dir",
        &data,
    ]);
    let (data, run) = (path(&dir, "node"), path(&dir, "run"));
    let mut node = Server::start(&[
        "node",
        "--control-plane",
        &streams,
        "--data-dir",
        &data,
        "--run-dir",
        &run,
        "--name",
        "n",
        "--cpus",
        "1",
    ]);
    let functions = data_plane.line().await;
    assert_eq!(node.line().await, "node n");
    connected(&api).await;

    let run = fanfare_in(dir.path(), &api, &["deploy", "hello.py"]).await;
    assert_eq!((run.code, run.stdout), (0, format!("{functions}/function/hello\n")), "{}", run.stderr);
    let run = fanfare(&api, &["invoke", "hello", "-d", "{\"name\": \"Ada\"}"]).await;
    assert_eq!((run.code, run.stdout.as_str()), (0, "{\"hello\":\"Ada\"}"), "{run:?}");
    for server in [&mut data_plane, &mut node, &mut control] {
        server.signal("-INT").await;
        assert_eq!(server.code().await, Some(0), "{}", server.stderr().await);
    }
}

/// Until both streams are up; the command itself takes the time between two looks.
async fn connected(api: &str) {
    let begin = Instant::now();
    loop {
        let run = fanfare(api, &["status", "-o", "json"]).await;
        let status: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
        if status["nodes"][0]["connected"] == true && status["data_planes"][0]["connected"] == true {
            return;
        }
        assert!(begin.elapsed() < READY, "{run:?}");
    }
}

#[tokio::test]
async fn dev_serves_each_save_and_survives_a_broken_one() {
    if !sandboxes_work("dev_serves_each_save_and_survives_a_broken_one").await {
        return;
    }
    let up = Up::start().await;
    let answer = |n: u32| format!("def handler(event, context):\n    print('log {n}')\n    return {n}\n");
    up.write("hello.py", &answer(1));
    let mut dev = command(&up.api, &["dev", "hello.py"]).current_dir(up.dir.path()).spawn().unwrap();
    let mut notes = BufReader::new(dev.stderr.take().unwrap()).lines();
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    until(&mut notes, "watching").await;
    assert_eq!(lines.next_line().await.unwrap().unwrap(), format!("{}/function/hello", up.functions));
    assert_eq!(up.run(&["invoke", "hello"]).await.stdout, "1");

    up.write("hello.py", &answer(2));
    until(&mut notes, "reloaded in").await;
    // The old sandbox serves until the first new one is ready, which may be a moment after it was proved.
    let begin = Instant::now();
    while up.run(&["invoke", "hello"]).await.stdout != "2" {
        assert!(begin.elapsed() < READY);
    }
    up.write("hello.py", "def handler(event, context)\n");
    let seen = until(&mut notes, "goes on serving").await;
    assert!(seen.contains("SyntaxError"), "{seen}");
    assert_eq!(up.run(&["invoke", "hello"]).await.stdout, "2");
    while lines.next_line().await.unwrap().expect("the log goes on") != "log 2" {}

    kill("-INT", &dev).await;
    assert_eq!(dev.wait().await.unwrap().code(), Some(0));
    assert_eq!(up.run(&["list", "-o", "name"]).await.stdout, "hello\n");
    up.end().await;
}

async fn until(lines: &mut Lines<BufReader<ChildStderr>>, part: &str) -> String {
    let mut seen = String::new();
    let said = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            seen.push_str(&line);
            seen.push('\n');
            if line.contains(part) {
                return true;
            }
        }
        false
    };
    let said = tokio::time::timeout(END, said).await.unwrap_or(false);
    assert!(said, "no {part:?} in\n{seen}");
    seen
}

#[tokio::test]
async fn a_demo_that_is_interrupted_says_that_nothing_is_left() {
    if !sandboxes_work("a_demo_that_is_interrupted_says_that_nothing_is_left").await {
        return;
    }
    // While a function is proved to start, which Ctrl-C ends by itself elsewhere; and between calls.
    for when in ["Started control plane", "Called server"] {
        let temporary = tempfile::tempdir().unwrap();
        let mut demo = command("", &["demo", "--surge", "20"]);
        let mut demo = demo.env("TMPDIR", temporary.path()).spawn().unwrap();
        let mut said = BufReader::new(demo.stderr.take().unwrap()).lines();
        until(&mut said, when).await;
        kill("-INT", &demo).await;
        let seen = until(&mut said, "interrupted").await;
        assert!(
            seen.ends_with("error: interrupted; nothing of the demonstration is left\n"),
            "{when}: {seen}"
        );
        assert_eq!((demo.wait().await.unwrap().code(), said.next_line().await.unwrap()), (Some(130), None));
        assert!(is_empty(temporary.path()), "something is left in {}", temporary.path().display());
    }
}

#[tokio::test]
async fn the_demo_measures_and_leaves_nothing() {
    if !sandboxes_work("the_demo_measures_and_leaves_nothing").await {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = command("", &["demo", "--surge", "20", "-o", "json"]);
    let output = demo.env("TMPDIR", temporary.path()).output().await.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["surge"]["failed"], &report["orphans"]), (&0.into(), &0.into()), "{report}");
    assert!(report["surge"]["sandboxes"].as_u64().unwrap() > 1, "{report}");
    let cold = &report["functions"][0]["cold_stages_ms"];
    assert!(cold.as_array().unwrap().iter().any(|stage| stage[0] == "create"), "{report}");
    assert!(is_empty(temporary.path()), "something is left in {}", temporary.path().display());
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}
