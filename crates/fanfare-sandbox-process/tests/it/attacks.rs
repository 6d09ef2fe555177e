//! What user code may try against the daemon, the launcher and its neighbours.

use std::time::Duration;

use fanfare_sandbox::Runtime;
use fanfare_types::{Contract, ExitCause, RevisionSpec, StopMode};

use crate::cases;
use crate::support::{Lab, PROBE, ask, block_on, id, revision};

cases![
    links_in_a_templates_directory_lead_nowhere,
    temporary_directories_survive_other_starts,
    descriptors_cannot_be_sent_to_the_daemon,
    a_template_that_speaks_out_of_place_is_ended,
    a_flood_of_output_or_calls_is_slowed,
    memory_of_ended_sandboxes_is_not_kept,
];

/// Executes what it is sent.
const EVAL: &str = r#"
def handler(event, context):
    scope = {}
    exec(event, scope)
    return str(scope["out"])
"#;

fn python(lab: &Lab, function: u32, text: &str) -> RevisionSpec {
    let code = Some(lab.codes.add(lab.dir.path(), &[("f.py", text)]));
    revision(function, code, Contract::Python { file: "f.py".into(), handler: "handler".into() })
}

async fn eval(endpoint: &str, code: &str) -> String {
    let (status, body) = ask(endpoint, code).await.unwrap();
    assert_eq!(status, 200, "{body}");
    body
}

/// The launcher mounts a directory for each child below one that user code may write.
fn links_in_a_templates_directory_lead_nowhere() {
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, EVAL);
        let first = lab.create(1, &spec).await.unwrap().endpoint;
        // From the template's directory into the root that every later sandbox starts from: nothing is mounted there,
        // nor, when the start has failed, unmounted.
        for (n, target) in [(2, "etc"), (3, "usr")] {
            let link = format!("import os; os.symlink('../../root/{target}', '/tmp/{}'); out = 1", id(n));
            eval(&first, &link).await;
            assert!(lab.create(n, &spec).await.is_err(), "its directory is taken");
        }
        let other = lab.create(4, &lab.probe(2)).await.unwrap();
        let etc = lab.run(4, &other, "import os; print(os.path.exists('/etc/passwd'))").await;
        assert_eq!(etc, "True");
        lab.close().await;
    });
}

/// A sandbox that starts lets go of all it does not need, and of nothing that others have.
fn temporary_directories_survive_other_starts() {
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, EVAL);
        let first = lab.create(1, &spec).await.unwrap().endpoint;
        let write = "import os; open(os.environ['TMPDIR'] + '/mine', 'w').write('x'); out = os.listdir(os.environ['TMPDIR'])";
        assert_eq!(eval(&first, write).await, "['mine']");
        lab.create(2, &lab.probe(2)).await.unwrap();
        lab.create(3, &python(&lab, 3, EVAL)).await.unwrap();
        let list = "import os; out = os.listdir(os.environ['TMPDIR'])";
        assert_eq!(eval(&first, list).await, "['mine']");
        lab.close().await;
    });
}

/// Closing a descriptor can take as long as its maker likes.
fn descriptors_cannot_be_sent_to_the_daemon() {
    let text = r#"
import socket, struct
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
try:
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
except PermissionError:
    pass
near.setblocking(False)
try:
    while True: near.send(b"x" * 65536)
except BlockingIOError: pass
control = socket.socket(fileno=4)
try:
    socket.send_fds(control, [b'{"type":"imported","import_us":1}'], [near.fileno(), far.fileno()])
except PermissionError:
    pass
control.detach()
for s in (near, far, listener): s.close()
def handler(event, context): return "ok"
"#;
    block_on(async {
        let lab = Lab::new().await;
        // More than there are threads to block.
        for n in 1..=4 {
            // Whether it starts is its own affair; that the daemon goes on is not.
            let mut spec = python(&lab, n, text);
            spec.timeouts.start = Duration::from_secs(1);
            let create = tokio::time::timeout(Duration::from_secs(20), lab.create(u64::from(n), &spec));
            assert!(create.await.is_ok(), "the daemon hangs");
        }
        lab.close().await;
    });
}

fn a_template_that_speaks_out_of_place_is_ended() {
    let text = r#"
import os, signal
signal.signal(signal.SIGALRM, lambda *_: os.write(4, b'{"type":"exited","id":77,"code":0}'))
signal.setitimer(signal.ITIMER_REAL, 0.5)
def handler(event, context): return "ok"
"#;
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, text);
        lab.create(1, &spec).await.unwrap();
        assert_eq!(lab.exit(1).await.cause, ExitCause::Signal(9), "its children go with it");
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn a_flood_of_output_or_calls_is_slowed() {
    block_on(async {
        let lab = Lab::new().await;
        let started = lab.create(1, &lab.probe(1)).await.unwrap();
        let flood = "import os\nif os.fork() == 0:\n  while True: os.write(1, b'\\n' * 65536)";
        lab.run(1, &started, flood).await;
        lab.line("it waits").await;
        let (begun, before) = (std::time::Instant::now(), lab.logs.borrow().len());
        let mut logs = lab.logs.clone();
        logs.wait_for(|lines| lines.len() > before + 1_000).await.unwrap();
        assert!(begun.elapsed() > Duration::from_secs(1), "1000 lines in {:?}", begun.elapsed());
        lab.stop(1, StopMode::Kill).await;

        let port = lab.http(2, &[("probe.py", PROBE)], &["python3", "probe.py", "port"], false);
        let started = lab.create(2, &port).await.unwrap();
        let calls = "import socket, time\ns = socket.socket(socket.AF_UNIX); s.bind('/tmp/x')\nt = time.monotonic()\nfor _ in range(2000): s.listen(1)\nprint(time.monotonic() - t)";
        let took: f64 = lab.run(2, &started, calls).await.parse().unwrap();
        assert!(took > 0.8, "2000 calls in {took} s");
        lab.close().await;
    });
}

/// Memory that outlives the process which asked for it: by a sibling that keeps its descriptor, by files, by a segment
/// that nobody removes. Each is charged to the cgroup of its maker, which has gone.
fn memory_of_ended_sandboxes_is_not_kept() {
    let segment = r#"
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
size = 48 << 20
at = libc.shmat(libc.shmget(0, ctypes.c_size_t(size), 0o1600), None, 0)
ctypes.memset(at, 1, size)
out = 1
"#;
    let file = r#"
import os
n = 0
for place in ("/dev/shm", os.environ["TMPDIR"], "/tmp"):
    with open(f"{place}/{os.getpid()}", "wb", buffering=0) as file:
        try:
            for _ in range(48): n += file.write(b"x" * (1 << 20))
        except OSError: pass
out = 1
"#;
    let descriptor = r#"
import array, os, socket
fd = os.memfd_create("x")
for _ in range(48): os.write(fd, b"x" * (1 << 20))
try:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))], 0, "\0keeper")
except OSError: pass
out = 1
"#;
    let keeper = r#"
import socket, threading
kept = []
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.bind("\0keeper")
def keep():
    while True: kept.extend(socket.recv_fds(listener, 1, 8)[1])
threading.Thread(target=keep, daemon=True).start()
out = 1
"#;
    block_on(async {
        let lab = Lab::new().await;
        let mut n = 0;
        for (function, code) in (1..).zip([segment, file, descriptor]) {
            let mut spec = python(&lab, function, EVAL);
            spec.sizing.limit.memory_bytes = 96 << 20;
            spec.sizing.tmp_limit_bytes = 16 << 20;
            for round in 0..8 {
                let endpoint = create_anew(&lab, &mut n, &spec).await;
                assert_eq!(eval(&endpoint, code).await, "1");
                lab.stop(n, StopMode::Kill).await;
                assert!(used(&lab) < 300 << 20, "{} MiB are kept", used(&lab) >> 20);
                if round == 0 {
                    let keeping = create_anew(&lab, &mut n, &spec).await;
                    assert_eq!(eval(&keeping, keeper).await, "1");
                }
            }
        }
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

/// Bytes that are charged to the runtime's cgroups, present and past.
fn used(lab: &Lab) -> u64 {
    let instance = crate::support::instance_of(&lab.dir.path().join("run"));
    let files = ["memory/fanfare/INSTANCE/memory.usage_in_bytes", "fanfare/INSTANCE/memory.current"];
    let read = |file: &str| {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{}", file.replace("INSTANCE", &instance)))
    };
    files.iter().find_map(|file| read(file).ok()).map_or(0, |text| text.trim().parse().unwrap())
}

/// Makes a sandbox, though its template may just be ending.
async fn create_anew(lab: &Lab, n: &mut u64, spec: &RevisionSpec) -> String {
    loop {
        *n += 1;
        match lab.create(*n, spec).await {
            Ok(started) => return started.endpoint.to_string(),
            Err(failure) => assert!(*n < 200, "{failure:?}"),
        }
    }
}
