//! What user code may try against the daemon, the launcher and its neighbours.

use std::time::Duration;

use fanfare_sandbox::Runtime;
use fanfare_types::{Contract, ExitCause, RevisionSpec, StartFailureKind, StopMode};

use crate::cases;
use crate::support::{Lab, PROBE, ask, block_on, revision};

cases![
    siblings_share_no_directory_and_no_segment,
    what_the_import_wrote_is_each_sandboxs_own,
    siblings_cannot_reach_each_other,
    a_sandbox_that_is_not_separated_does_not_start,
    siblings_cannot_connect_by_name,
    what_a_sandbox_sets_of_itself_goes_on_working,
    a_template_that_cannot_fork_is_replaced_and_its_sandboxes_live_on,
    where_siblings_cannot_be_apart_each_starts_by_itself,
    a_process_that_left_the_import_is_seen,
    temporary_directories_survive_other_starts,
    descriptors_cannot_be_sent_to_the_daemon,
    a_template_that_speaks_out_of_place_is_ended,
    what_an_import_says_in_its_shims_place_is_its_functions_fault,
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

/// Does what is checked of a sandbox's separation, and nothing else.
const HALF_SEPARATED: &str = "import __main__ as main
main.separate = lambda *_: (main.libc_call('unshare', main.CLONE_NEWNS | main.CLONE_NEWIPC), main.drop_capabilities())";

/// An import may replace whatever the shim does to separate a sandbox from its siblings.
fn a_sandbox_that_is_not_separated_does_not_start() {
    let handler = "\nimport sys\nmain = sys.modules['__main__']\ndef handler(event, context): return 'up'\n";
    block_on(async {
        let lab = Lab::new().await;
        for (n, (attack, what)) in (1..).zip([
            ("main.separate = lambda places, mounts: None", "has kept the sandbox in its template's namespaces"),
            ("main.separate = lambda places, mounts: main.drop_capabilities()", "has kept the sandbox in its template's namespaces"),
            ("main.drop_capabilities = lambda: None", "has kept its template's capabilities"),
            (
                "import threading, time\ndrop = main.drop_capabilities\ndef late():\n  threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n  drop()\nmain.drop_capabilities = late",
                "has kept its template's capabilities",
            ),
        ]) {
            let spec = python(&lab, n, &format!("{handler}{attack}\n"));
            let failure = lab.create(u64::from(n), &spec).await.map(|_| attack).unwrap_err();
            assert_eq!(failure.kind, StartFailureKind::ImportFailed, "{attack}: {failure:?}");
            assert!(failure.detail.contains(what), "{attack}: {failure:?}");
        }
        let sound = python(&lab, 9, handler);
        let started = lab.create(9, &sound).await.unwrap();
        assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "up".to_owned()));
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

/// It is told what it said, with its last lines, at once, and costs the node nothing.
fn what_an_import_says_in_its_shims_place_is_its_functions_fault() {
    let say = "import os, socket, threading, time\nprint('last words', flush=True)\ntheirs = socket.socket(fileno=os.dup(4))\n";
    let handler = "\ndef handler(event, context): return 'up'\n";
    block_on(async {
        let lab = Lab::new().await;
        let attacks = [
            ("garbage", "theirs.send(b'garbage \\x00\\xff' * 9)", "has written \"garbage \\0"),
            ("a flood", "while True: theirs.send(b'y' * 4096)", "has written \"yyy"),
            (
                "more than a message",
                "theirs.send(b'z' * 200_000)",
                "has written a packet of 200000 bytes, where at most 131072",
            ),
            (
                "a child",
                "theirs.send(b'{\"type\":\"forked\",\"id\":7}')",
                "has spoken of sandboxes that there are not",
            ),
            ("no number", "theirs.send(b'{\"type\":\"forked\",\"id\":1e20}')", "has written"),
            ("another's word", "theirs.send(b'{\"type\":\"ready\"}')", "has written"),
            (
                "the end of its import, and more",
                "theirs.send(b'{\"type\":\"imported\"}')\nwhile True: theirs.send(b'garbage')",
                "has written \"garbage",
            ),
        ];
        for (n, (attack, code, says)) in (1..).zip(attacks) {
            let spec = python(&lab, n, &format!("{say}{code}{handler}"));
            let before = std::time::Instant::now();
            let failure = lab.create(u64::from(n), &spec).await.map(|_| attack).unwrap_err();
            // Ten times what it should take.
            assert!(before.elapsed() < Duration::from_secs(10), "{attack}: {:?}", before.elapsed());
            assert_eq!(failure.kind, StartFailureKind::ImportFailed, "{attack}: {failure:?}");
            assert!(failure.detail.contains(says), "{attack}: {failure:?}");
            assert!(failure.detail.contains("is not its to say"), "{attack}: {failure:?}");
            assert!(failure.log_tail.contains("last words"), "{attack}: {failure:?}");
        }
        let sound = python(&lab, 99, handler);
        let started = lab.create(99, &sound).await.unwrap();
        assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "up".to_owned()));
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

/// What a sandbox leaves is neither seen by its siblings nor counted against them, and goes when it ends.
fn siblings_share_no_directory_and_no_segment() {
    let leave = r#"
import ctypes, os
for place in ("/dev/shm", "/tmp"):
    with open(place + "/left", "wb", buffering=0) as file:
        for _ in range(8): file.write(b"x" * (1 << 20))
segment = ctypes.CDLL(None).shmget(77, 4096, 0o1600)
out = (os.environ["TMPDIR"], segment >= 0)
"#;
    let look = r#"
import ctypes, os
room = [os.statvfs(place) for place in ("/dev/shm", "/tmp")]
out = (os.listdir("/dev/shm"), os.listdir("/tmp"), [r.f_bavail * r.f_frsize >> 20 for r in room], ctypes.CDLL(None).shmget(77, 4096, 0))
"#;
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = python(&lab, 1, EVAL);
        spec.sizing.tmp_limit_bytes = 32 << 20;
        let first = lab.create(1, &spec).await.unwrap().endpoint;
        let second = lab.create(2, &spec).await.unwrap().endpoint;
        let before = used(&lab);
        assert_eq!(eval(&first, leave).await, "('/tmp', True)");
        assert!(used(&lab) > before + (15 << 20), "what is written counts");
        assert_eq!(eval(&second, look).await, "([], [], [16, 32], -1)");
        lab.stop(1, StopMode::Kill).await;
        assert!(used(&lab) < before + (4 << 20), "{} MiB are left", used(&lab) >> 20);
        let third = lab.create(3, &spec).await.unwrap().endpoint;
        assert_eq!(eval(&third, look).await, "([], [], [16, 32], -1)");
        lab.close().await;
    });
}

/// What the import leaves in `/tmp` is there in each sandbox, as a copy of its own.
fn what_the_import_wrote_is_each_sandboxs_own() {
    let text = format!(
        "import os\nos.makedirs('/tmp/cache/deep')\nopen('/tmp/cache/deep/model', 'w').write('weights')\nos.symlink('cache', '/tmp/link')\n{EVAL}"
    );
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, &text);
        let change =
            "path = '/tmp/link/deep/model'; out = open(path).read(); open(path, 'w').write('changed')";
        for n in 1..=2 {
            let endpoint = lab.create(n, &spec).await.unwrap().endpoint;
            assert_eq!(eval(&endpoint, change).await, "weights");
        }
        let large = text.replace("'weights'", "'x' * (20 << 20)");
        let mut spec = python(&lab, 2, &large);
        spec.sizing.limit.memory_bytes = 256 << 20;
        let endpoint = lab.create(3, &spec).await.unwrap().endpoint;
        assert_eq!(
            eval(&endpoint, "import os; out = os.stat('/tmp/link/deep/model').st_size >> 20").await,
            "20"
        );
        lab.line("no template: the import left files").await;
        lab.close().await;
    });
}

/// They have the same user, and a template's process namespace.
fn siblings_cannot_reach_each_other() {
    let wait = "import os, time; open('/tmp/secret', 'w').write('x'); secret = 'canary'; out = os.getpid()";
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, EVAL);
        let victim = lab.create(1, &spec).await.unwrap().endpoint;
        let attacker = lab.create(2, &spec).await.unwrap().endpoint;
        let pid = eval(&victim, wait).await;
        for (what, attack) in [
            ("signal", "import os; os.kill(PID, SIGNAL)"),
            ("signal its template", "import os; os.kill(os.getppid(), SIGNAL)"),
            ("read memory", "open('/proc/PID/mem', 'rb')"),
            ("read its template's memory", "import os; open(f'/proc/{os.getppid()}/mem', 'rb')"),
            ("read environment", "open('/proc/PID/environ', 'rb').read()"),
            ("see its files", "open('/proc/PID/root/tmp/secret')"),
            ("list descriptors", "import os; os.listdir('/proc/PID/fd')"),
            ("open descriptors", "open('/proc/PID/fd/1', 'wb')"),
            ("enter its directory", "import os; os.chdir('/proc/PID/cwd')"),
            ("trace", "import ctypes\nif ctypes.CDLL(None).ptrace(16, PID, 0, 0) == -1: raise OSError()"),
            ("list", "import os\nif 'PID' not in os.listdir('/proc'): raise OSError()"),
            ("limit", "import resource; resource.prlimit(PID, resource.RLIMIT_CPU, (0, 0))"),
            ("limit its template", "import resource; resource.prlimit(2, resource.RLIMIT_NOFILE, (5, 5))"),
            ("limit the first process", "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))"),
            ("slow", "import os; os.setpriority(os.PRIO_PROCESS, PID, 19)"),
            ("slow by group", "import os; os.setpriority(os.PRIO_PGRP, PID, 19)"),
            ("slow all of its user", "import os; os.setpriority(os.PRIO_USER, 0, 19)"),
            ("pin", "import os; os.sched_setaffinity(PID, {min(os.sched_getaffinity(0))})"),
            ("pin its template", "import os; os.sched_setaffinity(2, {min(os.sched_getaffinity(0))})"),
            ("make a batch job", "import os; os.sched_setscheduler(PID, os.SCHED_IDLE, os.sched_param(0))"),
            ("set its priority", "import os; os.sched_setparam(PID, os.sched_param(0))"),
            (
                "make it idle",
                "import ctypes, os\nif ctypes.CDLL(None).syscall(251, 1, PID, 3 << 13) == -1: raise OSError()",
            ),
            ("make it the victim", "open('/proc/PID/oom_score_adj', 'w').write('1000')"),
            ("make its template the victim", "open('/proc/2/oom_score_adj', 'w').write('1000')"),
            (
                "get back its rights",
                "import ctypes\nif ctypes.CDLL(None).unshare(0x08020000) == -1: raise OSError()",
            ),
        ] {
            let expected = if what.starts_with("signal") { confined(&lab) } else { "refused" };
            // Where it arrives only whether it would is asked.
            let signal = if expected == "refused" { "9" } else { "0" };
            let attack = attack.replace("SIGNAL", signal).replace("PID", &pid).replace('\n', "\n  ");
            let code = format!("try:\n  {attack}\n  out = 'done'\nexcept OSError: out = 'refused'");
            assert_eq!(eval(&attacker, &code).await, expected, "{what}");
        }
        let none = "out = [l.split()[1].strip('0') for l in open('/proc/self/status') if l.startswith(('CapInh', 'CapPrm', 'CapEff', 'CapAmb'))]";
        assert_eq!(eval(&attacker, none).await, "['', '', '', '']");
        assert_eq!(eval(&victim, "out = 'lives'").await, "lives");
        lab.close().await;
    });
}

/// As libraries do: by 0, which is the caller. What names a thread is refused in a forked sandbox, and not in others.
fn what_a_sandbox_sets_of_itself_goes_on_working() {
    let own = r#"
import os, resource
some = {min(os.sched_getaffinity(0))}
os.sched_setaffinity(0, some)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.nice(1)
os.setpriority(os.PRIO_PROCESS, 0, 5)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
out = (os.sched_getaffinity(os.getpid()) == some, resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)[0], os.getpriority(os.PRIO_PROCESS, 0))
"#;
    let threads = r#"
import ctypes, os
libc = ctypes.CDLL(None)
libc.pthread_self.restype = ctypes.c_ulong
cpus = (1 << min(os.sched_getaffinity(0))).to_bytes(128, "little")
out = libc.pthread_setaffinity_np(ctypes.c_ulong(libc.pthread_self()), ctypes.c_size_t(128), cpus)
"#;
    let alone = format!(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n{EVAL}"
    );
    block_on(async {
        let lab = Lab::new().await;
        let forked = lab.create(1, &python(&lab, 1, EVAL)).await.unwrap().endpoint;
        assert_eq!(eval(&forked, own).await, "(True, 64, 5)");
        assert_eq!(eval(&forked, threads).await, libc::EPERM.to_string());
        let alone = lab.create(2, &python(&lab, 2, &alone)).await.unwrap().endpoint;
        assert_eq!(eval(&alone, own).await, "(True, 64, 5)");
        assert_eq!(eval(&alone, threads).await, "0");
        lab.close().await;
    });
}

/// Here an import that works against the shim lets a sandbox tell its template to limit itself.
fn a_template_that_cannot_fork_is_replaced_and_its_sandboxes_live_on() {
    let text = format!(
        "import os, resource, signal
def limit(*_):
    resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))
    os.write(1, b'limited\\n')
signal.signal(signal.SIGUSR1, limit)
print('imported', flush=True)
{HALF_SEPARATED}
{EVAL}"
    );
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, &text);
        let first = lab.create(1, &spec).await.unwrap().endpoint;
        assert_eq!(
            eval(&first, "import os, signal; out = os.kill(os.getppid(), signal.SIGUSR1)").await,
            "None"
        );
        lab.line("limited").await;
        let mut n = 1;
        let second = loop {
            n += 1;
            match lab.create(n, &spec).await {
                Ok(started) => break started.endpoint,
                Err(failure) => {
                    assert!(failure.detail.contains("4 are needed") && n < 10, "{n}: {failure:?}");
                }
            }
        };
        lab.line("could not fork 8 times in a row").await;
        assert_eq!(n, 10, "after eight failures");
        for endpoint in [&first, &second] {
            assert_eq!(eval(endpoint, "out = 'lives'").await, "lives");
        }
        let imports = lab.logs.borrow().iter().filter(|line| line.text == "imported").count();
        assert_eq!(imports, 2);
        lab.stop(1, StopMode::Kill).await;
        assert_eq!(eval(&second, "out = 'lives'").await, "lives");
        lab.close().await;
    });
}

/// The network namespace is their template's, and abstract names of sockets with it.
fn siblings_cannot_connect_by_name() {
    let listen = "import builtins, socket\nbuiltins.kept = s = socket.socket(socket.AF_UNIX); s.bind('\\0here'); s.listen(); out = 1";
    let connect = "import socket\nwith socket.socket(socket.AF_UNIX) as s:\n  try: s.connect('\\0here'); out = 'done'\n  except OSError: out = 'refused'";
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, EVAL);
        let one = lab.create(1, &spec).await.unwrap().endpoint;
        let other = lab.create(2, &spec).await.unwrap().endpoint;
        assert_eq!(eval(&one, listen).await, "1");
        assert_eq!(eval(&one, connect).await, "done");
        assert_eq!(eval(&other, connect).await, confined(&lab));
        lab.close().await;
    });
}

/// What becomes of an attack that needs Linux 6.12 to be refused: where the report says that siblings are not kept from
/// it, they are not.
fn confined(lab: &Lab) -> &'static str {
    let siblings = lab.runtime.isolation().mechanisms.iter().find(|m| m.name == "siblings").unwrap();
    if siblings.enforced {
        return "refused";
    }
    assert!(
        siblings.detail.contains("can signal each other and their template, and connect"),
        "{siblings:?}"
    );
    eprintln!("SKIPPED: {}", siblings.detail);
    "done"
}

/// A security module of the host's may refuse what keeps them apart.
fn where_siblings_cannot_be_apart_each_starts_by_itself() {
    let text = format!(
        "import __main__\ndef refuse(*_): raise PermissionError()\n__main__.libc_call = refuse\nprint('imported', flush=True)\n{EVAL}"
    );
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, &text);
        for n in 1..=2 {
            let endpoint = lab.create(n, &spec).await.unwrap().endpoint;
            assert_eq!(eval(&endpoint, "import os; out = os.getppid()").await, "1", "its own first process");
        }
        lab.line("no template: there are no namespaces").await;
        let imports = lab.logs.borrow().iter().filter(|line| line.text == "imported").count();
        assert_eq!(imports, 3, "once to try, once each");
        lab.close().await;
    });
}

/// Copies of the template would share it. It is nobody's child, and hides from those who list processes.
fn a_process_that_left_the_import_is_seen() {
    let text = format!(
        "import ctypes, os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(4, 0)
        while True: signal.pause()
    os._exit(0)
os.wait()
{EVAL}"
    );
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, &text);
        for n in 1..=2 {
            let endpoint = lab.create(n, &spec).await.unwrap().endpoint;
            assert_eq!(eval(&endpoint, "import os; out = os.getppid()").await, "1", "its own first process");
        }
        lab.line("no template: the import left processes (1, running on without their parent)").await;
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
signal.setitimer(signal.ITIMER_REAL, SECONDS)
def handler(event, context): return "ok"
"#;
    block_on(async {
        let lab = Lab::new().await;
        // Time enough for the first sandbox.
        let seconds = 0.5 * f64::from(crate::support::patience());
        let spec = python(&lab, 1, &text.replace("SECONDS", &seconds.to_string()));
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
        lab.line("lines were dropped here").await;
        let (begun, before) = (std::time::Instant::now(), lab.logs.borrow().len());
        let mut logs = lab.logs.clone();
        // 5,000 in a second, by a reading (16,384 of these) at a time.
        logs.wait_for(|lines| lines.len() > before + 40_000).await.unwrap();
        assert!(begun.elapsed() > Duration::from_secs(1), "40000 lines in {:?}", begun.elapsed());
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
        let (mut n, mut kept) = (0, 0);
        // Each once with a template that keeps its children from getting directories of their own.
        let hostile = format!("{HALF_SEPARATED}\n{EVAL}");
        let attacks = [segment, file, descriptor];
        let all = attacks.iter().flat_map(|code| [(code, EVAL), (code, &hostile)]);
        for (function, (code, text)) in (1..).zip(all) {
            let mut spec = python(&lab, function, text);
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
                    kept = n;
                }
            }
            lab.stop(kept, StopMode::Kill).await;
            lab.runtime.forget(spec.id).await;
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
