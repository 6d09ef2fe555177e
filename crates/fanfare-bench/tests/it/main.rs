//! The programs that benches start, as processes.

#![allow(clippy::unwrap_used, reason = "a test speaks by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const BENCH: &str = env!("CARGO_BIN_EXE_fanfare-bench");
const FUNCTION: &str = env!("CARGO_BIN_EXE_fanfare-bench-function");

/// Ends with the test, however that ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Tries until the program listens or has ended.
fn connected<S>(child: &mut Ended, connect: impl Fn() -> std::io::Result<S>) -> S {
    loop {
        if let Ok(stream) = connect() {
            return stream;
        }
        assert!(child.0.try_wait().unwrap().is_none(), "the program has ended");
        std::thread::yield_now();
    }
}

/// Two requests over one connection.
fn twice(mut stream: impl Read + Write, path: &str) -> Vec<String> {
    let ask = |_| {
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
        let head = String::from_utf8(seen).unwrap();
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap().parse().unwrap();
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        String::from_utf8(body).unwrap()
    };
    (0..2).map(ask).collect()
}

#[test]
fn the_upstream_answers_on_both_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let port = free_port();
    let child = Command::new(BENCH)
        .args(["__upstream", &format!("unix:{}", socket.display()), &format!("tcp:127.0.0.1:{port}")])
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    let tcp = connected(&mut child, || TcpStream::connect(("127.0.0.1", port)));
    assert_eq!(twice(tcp, "/any"), ["hello world\n"; 2]);
    assert_eq!(twice(UnixStream::connect(&socket).unwrap(), "/"), ["hello world\n"; 2]);
}

#[test]
fn the_upstream_needs_somewhere_to_listen() {
    for args in [&["__upstream"][..], &["__upstream", "udp:1"]] {
        let output = Command::new(BENCH).args(args).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn the_function_binds_its_port_and_works_as_long_as_asked() {
    let port = free_port();
    let child = Command::new(FUNCTION)
        .env("PORT", port.to_string())
        .env_remove("LISTEN_FDS")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ended(child);
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listening\n");
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let begun = std::time::Instant::now();
    let names = twice(connect(), "/work/30");
    assert!(begun.elapsed() >= std::time::Duration::from_millis(60), "two times 30 ms of work");
    // A second connection while the first is open.
    let (first, second) = (connect(), connect());
    assert_eq!((twice(second, "/"), twice(first, "/")), (names.clone(), names));
}

#[test]
fn bare_sandboxes_answer_and_leave_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: making sandboxes by hand needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, sockets) = (dir.path().join("code"), dir.path().join("sockets"));
    std::fs::create_dir(&code).unwrap();
    std::fs::create_dir(&sockets).unwrap();
    std::fs::copy(FUNCTION, code.join("f")).unwrap();
    let child = Command::new(BENCH)
        .args([Path::new("__bare"), &code, Path::new("f"), &sockets])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut child = Ended(child);
    let mut orders = child.0.stdin.take().unwrap();
    let mut answers = BufReader::new(child.0.stdout.take().unwrap()).lines();
    for kind in ["unfiltered", "inherited", "port", "inherited"] {
        writeln!(orders, "{kind}").unwrap();
        let answer = answers.next().unwrap().unwrap();
        let nanos: u64 =
            answer.strip_prefix("ns ").unwrap_or_else(|| panic!("{kind}: {answer}")).parse().unwrap();
        assert!((10_000..10_000_000_000).contains(&nanos), "{kind}: {nanos} ns");
    }
    writeln!(orders, "nonsense").unwrap();
    assert!(answers.next().unwrap().unwrap().starts_with("error "));
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert_eq!(children, "", "each was ended and reaped");
    assert_eq!(
        std::fs::read_dir(&sockets).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>(),
        ["root"]
    );
    // What it makes must not outlive it.
    drop(orders);
    assert!(child.0.wait().unwrap().success());
    let left = cgroups_of(pid);
    assert_eq!(left, Vec::<String>::new());
}

fn cgroups_of(pid: u32) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let cgroups = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let dirs = cgroups.map(|line| format!("{}/fanfare-bench-{pid}", line.split(' ').nth(4).unwrap()));
    dirs.filter(|dir| Path::new(dir).exists()).collect()
}
