//! A runtime on the bench, functions for it, and a client.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fanfare_sandbox::{CodeStore, LogLine, Outlets, Runtime, SandboxExit, Started};
use fanfare_sandbox_process::{LauncherCommand, ProcessOptions, ProcessRuntime};
use fanfare_types::{
    CodeDigest, Contract, Epoch, FunctionId, FunctionName, RevisionId, RevisionSpec, SandboxId, Sizing,
    StartFailure, StartFailureKind, StopMode, Timeouts,
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

/// Longest wait for an event that must come: 30 s, times what is set for machines that are slow.
pub(crate) static EVENT_TIMEOUT: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(30) * patience());

/// How many times longer than usual everything may take here: a processor may be emulated.
pub(crate) fn patience() -> u32 {
    std::env::var("FANFARE_TEST_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Runs a test in an async runtime of its own.
pub(crate) fn block_on<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
}

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
}

/// Code directories by digest.
#[derive(Default)]
pub(crate) struct Codes(Mutex<BTreeMap<CodeDigest, PathBuf>>);

impl Codes {
    /// Keeps a directory with these files, world-readable, and gives its digest.
    pub(crate) fn add(&self, base: &Path, files: &[(&str, &str)]) -> CodeDigest {
        use std::os::unix::fs::PermissionsExt;
        let mut codes = self.0.lock();
        let mut digest = CodeDigest::default();
        digest.0[..8].copy_from_slice(&(codes.len() as u64 + 1).to_le_bytes());
        let dir = base.join(format!("code-{}", codes.len()));
        std::fs::create_dir_all(&dir).unwrap();
        for (name, text) in files {
            std::fs::write(dir.join(name), text).unwrap();
            let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
            std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        codes.insert(digest, dir);
        digest
    }
}

impl CodeStore for Codes {
    fn directory(&self, code: CodeDigest) -> BoxFuture<'static, Result<PathBuf, StartFailure>> {
        let found = self.0.lock().get(&code).cloned().ok_or_else(|| StartFailure {
            kind: StartFailureKind::Code,
            detail: "no such code".into(),
            log_tail: String::new(),
        });
        Box::pin(async move { found })
    }
}

/// A runtime with a directory of its own.
pub(crate) struct Lab {
    pub(crate) runtime: Arc<ProcessRuntime>,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) codes: Arc<Codes>,
    pub(crate) exits: watch::Receiver<Vec<SandboxExit>>,
    pub(crate) logs: watch::Receiver<Vec<LogLine>>,
}

/// The launcher is this program.
pub(crate) fn options(dir: &Path) -> ProcessOptions {
    let mut options = ProcessOptions::new(dir.join("run"), dir.join("data"));
    options.launcher =
        LauncherCommand { program: std::env::current_exe().unwrap(), args: vec!["__launcher".into()] };
    options.netns_pool = 2;
    options
}

/// A directory with a short path.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("ff").tempdir_in("/tmp").unwrap()
}

impl Lab {
    pub(crate) async fn new() -> Lab {
        Lab::with(directory(), |_| {}).await
    }

    /// A runtime in this directory, with other options.
    pub(crate) async fn with(dir: tempfile::TempDir, change: impl FnOnce(&mut ProcessOptions)) -> Lab {
        let mut options = options(dir.path());
        change(&mut options);
        let codes = Arc::<Codes>::default();
        let (exit_sender, exits) = watch::channel(Vec::new());
        let (log_sender, logs) = watch::channel(Vec::new());
        let outlets = Outlets {
            exits: Arc::new(move |exit| exit_sender.send_modify(|exits| exits.push(exit))),
            logs: Arc::new(move |line| log_sender.send_modify(|lines| lines.push(line))),
            code: codes.clone(),
        };
        let runtime = ProcessRuntime::start(options, outlets).await.unwrap();
        assert_eq!(runtime.recover().await, []);
        Lab { runtime, dir, codes, exits, logs }
    }

    /// A revision of `function` that runs this command on these files.
    pub(crate) fn http(
        &self,
        function: u32,
        files: &[(&str, &str)],
        command: &[&str],
        inherits: bool,
    ) -> RevisionSpec {
        let command = command.iter().map(|s| (*s).to_owned()).collect();
        let code = Some(self.codes.add(self.dir.path(), files));
        revision(
            function,
            code,
            Contract::Http { command, inherits_listener: inherits, protocol: Default::default() },
        )
    }

    /// A revision that runs the Python code it is sent.
    pub(crate) fn probe(&self, function: u32) -> RevisionSpec {
        self.http(function, &[("probe.py", PROBE)], &["/usr/bin/python3", "probe.py"], true)
    }

    pub(crate) async fn create(&self, n: u64, spec: &RevisionSpec) -> Result<Started, StartFailure> {
        self.runtime.create(id(n), Arc::new(spec.clone())).await
    }

    /// Has a sandbox run Python code; gives what it prints.
    pub(crate) async fn run(&self, n: u64, started: &Started, code: &str) -> String {
        match ask(&started.endpoint, code).await {
            Ok((200, body)) => body.trim_end().to_owned(),
            other => panic!("sandbox {n}: {other:?}"),
        }
    }

    /// The exit of a sandbox, once it has come.
    pub(crate) async fn exit(&self, n: u64) -> SandboxExit {
        let mut exits = self.exits.clone();
        let wanted = |exits: &Vec<SandboxExit>| exits.iter().any(|e| e.sandbox == id(n));
        let all =
            tokio::time::timeout(*EVENT_TIMEOUT, exits.wait_for(wanted)).await.expect("an exit").unwrap();
        all.iter().find(|e| e.sandbox == id(n)).unwrap().clone()
    }

    /// Waits for a line that contains `text`.
    pub(crate) async fn line(&self, text: &str) -> LogLine {
        let mut logs = self.logs.clone();
        let wanted = |l: &LogLine| l.text.contains(text);
        let lines = tokio::time::timeout(*EVENT_TIMEOUT, logs.wait_for(|lines| lines.iter().any(wanted)));
        let lines = lines.await.unwrap_or_else(|_| panic!("no line {text:?}")).unwrap();
        lines.iter().find(|l| wanted(l)).unwrap().clone()
    }

    pub(crate) async fn stop(&self, n: u64, mode: StopMode) {
        self.runtime.stop(id(n), mode).await;
    }

    /// Ends everything; nothing may be left.
    pub(crate) async fn close(self) {
        assert_eq!(self.runtime.audit().await, []);
        self.runtime.shutdown().await;
        assert_eq!(self.runtime.audit().await, []);
        assert_eq!(traces(&self.dir.path().join("run")), Vec::<String>::new());
    }
}

/// The `n`-th sandbox.
pub(crate) fn id(n: u64) -> SandboxId {
    SandboxId::new(Epoch(1), n)
}

/// A revision with the defaults.
pub(crate) fn revision(function: u32, code: Option<CodeDigest>, contract: Contract) -> RevisionSpec {
    RevisionSpec {
        id: RevisionId { function: FunctionId(function), number: 1 },
        name: FunctionName::new(&format!("fn{function}")).unwrap(),
        runtime: "process".into(),
        contract,
        code,
        env: vec![("COLOR".into(), "blue".into())],
        given: fanfare_types::Given::default(),
        sizing: Sizing::default(),
        timeouts: Timeouts { start: Timeouts::default().start * patience(), ..Timeouts::default() },
    }
}

/// What can be seen of a runtime at `run_dir` from outside: processes, cgroups, mounts, sockets, journal.
pub(crate) fn traces(run_dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let needle = run_dir.to_str().unwrap();
    for name in ["s", "t", "journal"] {
        let dir = run_dir.join(name);
        found
            .extend(std::fs::read_dir(dir).into_iter().flatten().map(|e| format!("{:?}", e.unwrap().path())));
    }
    for process in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Ok(mounts) = std::fs::read_to_string(process.path().join("mountinfo")) else { continue };
        if mounts.contains(needle) || mounts.contains(" / / ro,nosuid") && mounts.contains("fanfare ro") {
            let name = std::fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            if name.contains("__launcher") || mounts.contains(needle) {
                found.push(format!("mounts of {:?} {name:?}", process.file_name()));
            }
        }
    }
    for base in ["memory", "pids", "cpu", "cpuacct", "unified", ""] {
        let instances = Path::new("/sys/fs/cgroup").join(base).join("fanfare");
        for instance in std::fs::read_dir(instances).into_iter().flatten().filter_map(Result::ok) {
            if instance.file_name().to_str() == Some(&instance_of(run_dir)) {
                found.push(format!("{:?}", instance.path()));
            }
        }
    }
    found
}

/// Processes that descend from this one.
pub(crate) fn descendants(pid: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok);
    let children = threads.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let children: Vec<i32> =
        children.flat_map(|c| c.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<_>>()).collect();
    children.iter().flat_map(|c| std::iter::once(*c).chain(descendants(*c))).collect()
}

/// The runtime's name for its cgroups: FNV-1a of the run directory.
pub(crate) fn instance_of(run_dir: &Path) -> String {
    let hash = run_dir.to_str().unwrap().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Sends one request with this body to an endpoint; gives status and body of the answer.
pub(crate) async fn ask(endpoint: &str, body: &str) -> io::Result<(u16, String)> {
    if let Some(path) = endpoint.strip_prefix("unix:") {
        return exchange(UnixStream::connect(path).await?, body).await;
    }
    let (path, sandbox) = endpoint.strip_prefix("broker:").unwrap().split_once('#').unwrap();
    exchange(through_broker(path, sandbox).await?, body).await
}

/// Gets a connection into a sandbox.
pub(crate) async fn through_broker(path: &str, sandbox: &str) -> io::Result<TcpStream> {
    let (path, request) = (path.to_owned(), format!("{sandbox}\n"));
    tokio::task::spawn_blocking(move || {
        use std::io::Write;
        let mut stream = std::os::unix::net::UnixStream::connect(path)?;
        stream.write_all(request.as_bytes())?;
        let mut byte = [0];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let mut iov = [io::IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(&stream, &mut iov, &mut control, rustix::net::RecvFlags::empty())?;
        let fd = control.drain().find_map(|m| match m {
            rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let fd = fd.ok_or_else(|| io::Error::new(io::ErrorKind::ConnectionRefused, format!("{byte:?}")))?;
        assert_eq!(&byte, b"0");
        let socket = std::net::TcpStream::from(fd);
        socket.set_nonblocking(true)?;
        Ok(socket)
    })
    .await
    .unwrap()
    .and_then(TcpStream::from_std)
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, body: &str) -> io::Result<(u16, String)> {
    let head =
        format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).await?;
    tokio::time::timeout(*EVENT_TIMEOUT, answer(stream)).await?
}

/// Reads an answer to the length that it states: a child of the handler may hold the connection open.
async fn answer<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(u16, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lower = head.to_ascii_lowercase();
            let length =
                lower.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            if body.len() >= length.unwrap_or(0) {
                let status = head.get(9..12).and_then(|s| s.parse().ok());
                return Ok((status.ok_or_else(|| io::Error::other(head.to_owned()))?, body.to_owned()));
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{text:?}")));
        }
    }
}

/// A server on descriptor 3 (or on `$PORT` when called with `port`) that executes what it is sent.
pub(crate) const PROBE: &str = r#"
import contextlib, io, os, socket, sys, traceback
if sys.argv[1:] == ["port"]:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(os.environ["PORT"])))
    listener.listen(64)
else:
    listener = socket.socket(fileno=3)
while True:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as reader:
        length = 0
        while (line := reader.readline().strip()):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        out, status = io.StringIO(), "200 OK"
        with contextlib.redirect_stdout(out):
            try:
                exec(reader.read(length), {"__name__": "probe"})
            except Exception:
                status = "500 Error"
                traceback.print_exc(file=out)
        body = out.getvalue().encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_RDWR)
"#;
