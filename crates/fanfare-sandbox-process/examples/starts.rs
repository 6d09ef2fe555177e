//! What a start costs, of each kind, one at a time and many at once, beside a bare clone where one is given.
//!
//! ```text
//! cargo run --release -p fanfare-sandbox-process --example starts -- [ROUNDS] [--surge N] [--only KIND] [--dir DIR] [--pool N] [--rest MS] [--bare fanfare-bench]
//! ```
//!
//! Each round starts one sandbox of each kind in turn and times it from its order until it is ready and until it has
//! answered a request; its end is not timed. `--pool` is how many network namespaces are kept ready, and `--rest` how long they are
//! refilled before each surge. `--bare` names the benches' program, which makes sandboxes by hand. Needs
//! root. The run directory is below `--dir` (`/dev/shm`): on a disk the kernel takes several times as long for its files.

#![allow(
    clippy::print_stdout,
    clippy::exit,
    clippy::unwrap_used,
    reason = "a program for people to run and read"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfare_sandbox::{CodeStore, Outlets, Runtime, Started};
use fanfare_sandbox_process::{LAUNCHER_ARGUMENT, ProcessOptions, ProcessRuntime, launcher_main};
use fanfare_types::{
    CodeDigest, Contract, Epoch, FunctionId, FunctionName, RevisionId, RevisionSpec, SandboxId, Sizing,
    StartFailure, StopMode, Timeouts,
};
use futures_util::future::{BoxFuture, join_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
const HANDLER: &str = "def handler(event, context):\n    return {\"hello\": \"world\"}\n";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(LAUNCHER_ARGUMENT) => launcher_main(),
        // The function under test is this program, too.
        None if ["LISTEN_FDS", "PORT"].iter().any(|name| std::env::var_os(name).is_some()) => serve(),
        _ => {}
    }
    let option = |name: &str| args.iter().position(|a| a == name).and_then(|at| args.get(at + 1)).cloned();
    let rounds = args.first().and_then(|a| a.parse().ok()).unwrap_or(100);
    let surge = option("--surge").map_or(200, |n| n.parse().unwrap());
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let only = option("--only").unwrap_or_default();
    let base = option("--dir").unwrap_or_else(|| "/dev/shm".to_owned());
    let pool = option("--pool").map(|n| n.parse().unwrap());
    let rest = Duration::from_millis(option("--rest").map_or(0, |ms| ms.parse().unwrap()));
    tokio.block_on(run(rounds, surge, option("--bare").map(PathBuf::from), &only, &base, (pool, rest)));
}

/// Answers on the inherited listener, or on `$PORT`.
fn serve() -> ! {
    use std::os::fd::FromRawFd;
    let answer = |mut stream: Box<dyn ReadWrite>| {
        let mut buffer = [0; 4096];
        while stream.read(&mut buffer).is_ok_and(|n| n > 0) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    };
    match std::env::var("LISTEN_FDS") {
        Ok(_) => {
            #[allow(unsafe_code)]
            // SAFETY: descriptor 3 is the inherited listener, which nothing else here uses.
            let listener = unsafe { std::os::unix::net::UnixListener::from_raw_fd(3) };
            listener.incoming().for_each(|stream| answer(Box::new(stream.unwrap())));
        }
        Err(_) => {
            let port: u16 = std::env::var("PORT").unwrap().parse().unwrap();
            let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
            println!("listening");
            listener.incoming().for_each(|stream| answer(Box::new(stream.unwrap())));
        }
    }
    std::process::exit(0)
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

struct Code(PathBuf);

impl CodeStore for Code {
    fn directory(&self, _: CodeDigest) -> BoxFuture<'static, Result<PathBuf, StartFailure>> {
        let path = self.0.clone();
        Box::pin(async { Ok(path) })
    }
}

fn revision(function: u32, contract: Contract) -> Arc<RevisionSpec> {
    Arc::new(RevisionSpec {
        id: RevisionId { function: FunctionId(function), number: 1 },
        name: FunctionName::new(&format!("fn{function}")).unwrap(),
        runtime: "process".into(),
        contract,
        code: Some(CodeDigest::default()),
        env: Vec::new(),
        given: fanfare_types::Given::default(),
        sizing: Sizing::default(),
        timeouts: Timeouts::default(),
    })
}

async fn run(
    rounds: usize,
    surge: u64,
    bare: Option<PathBuf>,
    only: &str,
    base: &str,
    (pool, rest): (Option<usize>, Duration),
) {
    let dir = tempfile::Builder::new().prefix("ffx").tempdir_in(base).unwrap();
    let code = dir.path().join("code");
    std::fs::create_dir(&code).unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), code.join("program")).unwrap();
    std::fs::write(code.join("f.py"), HANDLER).unwrap();
    let outlets =
        Outlets { exits: Arc::new(|_| {}), logs: Arc::new(|_| {}), code: Arc::new(Code(code.clone())) };
    let mut options = ProcessOptions::new(dir.path().join("r"), dir.path().join("d"));
    options.netns_pool = pool.unwrap_or(options.netns_pool);
    let runtime = ProcessRuntime::start(options, outlets).await.unwrap();
    let http = |function, inherits_listener| {
        revision(
            function,
            Contract::Http {
                command: vec!["program".to_owned()],
                inherits_listener,
                protocol: Default::default(),
            },
        )
    };
    let mut kinds = vec![
        ("inherited", http(1, true)),
        ("port", http(2, false)),
        ("python", revision(3, Contract::Python { file: "f.py".into(), handler: "handler".into() })),
    ];
    kinds.retain(|(kind, _)| kind.contains(only));
    let mut times = BTreeMap::<String, Vec<Duration>>::new();
    let mut note = |name: String, time| times.entry(name).or_default().push(time);
    let mut by_hand = bare.map(|program| Bare::start(&program, &code, dir.path()));
    let mut next = 0;
    for (_, spec) in &kinds {
        runtime.prepare(spec.clone()).await.unwrap();
    }
    for _ in 0..rounds {
        for (kind, spec) in &kinds {
            next += 1;
            let id = SandboxId::new(Epoch(1), next);
            let begun = Instant::now();
            let started = runtime.create(id, spec.clone()).await.unwrap();
            note(format!("{kind}: ready"), begun.elapsed());
            ask(&started).await;
            note(format!("{kind}: answered"), begun.elapsed());
            note(format!("{kind}: stage 1 create"), started.stages.create);
            note(format!("{kind}: stage 2 start"), started.stages.start);
            note(format!("{kind}: stage 3 ready"), started.stages.ready);
            runtime.stop(id, StopMode::Kill).await;
        }
        if let Some(bare) = &mut by_hand {
            for kind in ["inherited", "port"] {
                let time = bare.sandbox(kind);
                note(format!("{kind}: bare, answered"), time);
            }
        }
    }
    for round in 0..9 {
        for (kind, spec) in &kinds {
            let ids: Vec<_> = (0..surge).map(|n| SandboxId::new(Epoch(2 + round), next + n)).collect();
            next += surge;
            tokio::time::sleep(rest).await;
            let (begun, used) = (Instant::now(), cpu());
            let all = join_all(ids.iter().map(|id| runtime.create(*id, spec.clone()))).await;
            all.into_iter().for_each(|started| drop(started.unwrap()));
            note(format!("{kind}: {surge} at once, all ready"), begun.elapsed());
            for ((whose, now), (_, before)) in cpu().into_iter().zip(used) {
                note(format!("{kind}: {surge} at once, CPU of {whose}"), now.saturating_sub(before));
            }
            let begun = Instant::now();
            join_all(ids.into_iter().map(|id| runtime.stop(id, StopMode::Kill))).await;
            note(format!("{kind}: {surge} at once, all gone"), begun.elapsed());
        }
    }
    runtime.shutdown().await;
    println!("{:<40} {:>9} {:>9} {:>9} {:>9} ms", "", "min", "p50", "p90", "max");
    for (name, mut times) in times {
        times.sort();
        let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e3;
        println!("{name:<40} {:9.3} {:9.3} {:9.3} {:9.3}", at(0.0), at(0.5), at(0.9), at(1.0));
    }
}

/// CPU time used so far. What a sandbox uses before it is in its cgroup is its maker's or nobody's.
fn cpu() -> [(&'static str, Duration); 3] {
    let ticks = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap_or("").split(' ').filter_map(|f| f.parse().ok()).collect();
        // After the name and the state: user and system time are the 11th and 12th number, in hundredths.
        Duration::from_millis(10 * (fields.get(10).unwrap_or(&0) + fields.get(11).unwrap_or(&0)))
    };
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let children = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .fold(children, |all, more| all + &more);
    let launcher = children.split_whitespace().map(ticks).max().unwrap_or_default();
    let base = ["cpuacct", "cpu,cpuacct"].map(|name| format!("/sys/fs/cgroup/{name}/fanfare"));
    let instances =
        base.iter().filter_map(|base| std::fs::read_dir(base).ok()).flatten().filter_map(Result::ok);
    let used = instances
        .filter_map(|dir| std::fs::read_to_string(dir.path().join("cpuacct.usage")).ok())
        .filter_map(|text| text.trim().parse().ok())
        .map(Duration::from_nanos)
        .sum();
    [("daemon", ticks("self")), ("launcher", launcher), ("sandboxes", used)]
}

async fn ask(started: &Started) {
    let mut buffer = [0; 4096];
    let endpoint: &str = &started.endpoint;
    if let Some(path) = endpoint.strip_prefix("unix:") {
        let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
    } else {
        let (path, sandbox) = endpoint.strip_prefix("broker:").unwrap().split_once('#').unwrap();
        let mut stream = through_broker(path, sandbox);
        stream.write_all(REQUEST).unwrap();
        assert!(stream.read(&mut buffer).unwrap() > 0);
    }
}

fn through_broker(path: &str, sandbox: &str) -> std::net::TcpStream {
    let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    stream.write_all(format!("{sandbox}\n").as_bytes()).unwrap();
    let mut byte = [0];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut iov = [std::io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(&stream, &mut iov, &mut control, rustix::net::RecvFlags::empty()).unwrap();
    let fd = control.drain().find_map(|message| match message {
        rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let socket = std::net::TcpStream::from(fd.unwrap());
    socket.set_nonblocking(false).unwrap();
    socket
}

/// The benches' maker of sandboxes by hand.
struct Bare(Child, BufReader<std::process::ChildStdout>);

impl Bare {
    fn start(program: &Path, code: &Path, dir: &Path) -> Self {
        let sockets = dir.join("bare");
        std::fs::create_dir(&sockets).unwrap();
        let mut child = Command::new(program)
            .args(["__bare".as_ref(), code.as_os_str(), "program".as_ref(), sockets.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Bare(child, out)
    }

    fn sandbox(&mut self, kind: &str) -> Duration {
        self.0.stdin.as_mut().unwrap().write_all(format!("{kind}\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        let nanos = line.strip_prefix("ns ").unwrap_or_else(|| panic!("{line}")).trim();
        Duration::from_nanos(nanos.parse().unwrap())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
