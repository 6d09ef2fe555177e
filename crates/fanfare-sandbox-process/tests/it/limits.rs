//! What a sandbox may use, and that exceeding it is its own affair.

use fanfare_sandbox::Runtime;
use fanfare_sandbox_process::CgroupVersion;
use fanfare_types::{Contract, ExitCause, StopMode};

use crate::cases;
use crate::support::{Lab, ask, block_on, id, revision};

cases![
    a_full_tmp_stays_inside,
    a_full_tmp_of_the_default_size_is_no_want_of_memory,
    a_fork_bomb_stays_inside,
    an_allocation_bomb_is_out_of_memory,
    what_sockets_hold_is_limited,
    cpu_is_limited_and_counted,
    output_comes_as_lines,
    causes_of_ends_are_told_apart,
    all_of_many_are_limited,
];

fn a_full_tmp_stays_inside() {
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = lab.probe(1);
        spec.sizing.tmp_limit_bytes = 4 << 20;
        let (one, two) = (lab.create(1, &spec).await.unwrap(), lab.create(2, &spec).await.unwrap());
        let fill = "import errno\nf = open('/tmp/x', 'wb', buffering=0)\nn = 0\ntry:\n  while True: n += f.write(b'x' * 65536)\nexcept OSError as e: print(errno.errorcode[e.errno], n)";
        assert_eq!(lab.run(1, &one, fill).await, format!("ENOSPC {}", 4 << 20));
        assert_eq!(lab.run(2, &two, "import os; print(os.listdir('/tmp'))").await, "[]");
        let files = "import errno\nn = 0\ntry:\n  while True: open(f'/tmp/{n}', 'w'); n += 1\nexcept OSError as e: print(errno.errorcode[e.errno])";
        assert_eq!(lab.run(2, &two, files).await, "ENOSPC");
        lab.close().await;
    });
}

/// The default of `/tmp`, whose files are memory, is below that of memory, with room for an interpreter.
fn a_full_tmp_of_the_default_size_is_no_want_of_memory() {
    let python = "import errno
def handler(event, context):
    try:
        with open('/tmp/x', 'wb', buffering=0) as f:
            for _ in range(1024): f.write(b'x' * (1 << 20))
    except OSError as e: return errno.errorcode[e.errno]
";
    let node = "const fs = require('fs');
exports.handler = () => {
    const f = fs.openSync('/tmp/x', 'w'), piece = Buffer.alloc(1 << 20);
    try { for (let n = 0; n < 1024; n++) fs.writeSync(f, piece); } catch (e) { return e.code; }
};
";
    block_on(async {
        let lab = Lab::new().await;
        let contracts = [
            ("f.py", python, Contract::Python { file: "f.py".into(), handler: "handler".into() }),
            ("f.js", node, Contract::Node { file: "f.js".into(), handler: "handler".into() }),
        ];
        for (n, (file, text, contract)) in (1..).zip(contracts) {
            let code = Some(lab.codes.add(lab.dir.path(), &[(file, text)]));
            let started = lab.create(u64::from(n), &revision(n, code, contract)).await.unwrap();
            assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "ENOSPC".to_owned()), "{file}");
        }
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn a_fork_bomb_stays_inside() {
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = lab.probe(1);
        spec.sizing.pids_limit = 20;
        let (bomb, neighbour) = (lab.create(1, &spec).await.unwrap(), lab.create(2, &spec).await.unwrap());
        let code = r"
import errno, os, signal
children = 0
try:
    while True:
        if os.fork() == 0:
            signal.pause()
        children += 1
except OSError as e:
    print(errno.errorcode[e.errno], children)
";
        assert_eq!(lab.run(1, &bomb, code).await, "EAGAIN 18", "20 less the program and its first process");
        let works =
            "import subprocess; print(subprocess.run(['/bin/echo', 'ok'], capture_output=True).stdout)";
        assert_eq!(lab.run(2, &neighbour, works).await, "b'ok\\n'");
        lab.stop(1, StopMode::Graceful).await;
        assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
        // One that multiplies for as long as it lives is ended all the same.
        let third = lab.create(3, &spec).await.unwrap();
        let endless = "import os\nprint('go', flush=True)\nif os.fork() == 0:\n  while True:\n    try: os.fork()\n    except OSError: pass";
        lab.run(3, &third, endless).await;
        lab.stop(3, StopMode::Kill).await;
        assert_eq!(lab.exit(3).await.cause, ExitCause::Stopped);
        lab.close().await;
    });
}

/// Without a limit of theirs, two thousand sockets take ten times as much, and only the machine's limit ends it.
fn what_sockets_hold_is_limited() {
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = lab.probe(1);
        spec.sizing.limit.memory_bytes = 64 << 20;
        let fills = lab.create(1, &spec).await.unwrap();
        let code = r"
import socket
sockets, held = [], 0
for n in range(1500):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('127.0.0.1', 0)); s.setblocking(False)
    sockets.append(s)
    for _ in range(100):
        try: s.sendto(b'x' * 1400, s.getsockname())
        except OSError: break
for s in sockets:
    try:
        while True: held += len(s.recv(2000))
    except OSError: pass
print(held >> 20)
";
        match ask(&fills.endpoint, code).await {
            Ok((_, body)) => {
                let held_mib: u64 = body.trim().parse().unwrap();
                assert!(held_mib < 32, "{held_mib} MiB");
            }
            // Part of its memory, for want of which it is killed as for any other.
            Err(_) => {
                assert_eq!(lab.runtime.isolation().cgroups, CgroupVersion::V2);
                assert_eq!(lab.exit(1).await.cause, ExitCause::OutOfMemory);
            }
        }
        lab.close().await;
    });
}

fn an_allocation_bomb_is_out_of_memory() {
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = lab.probe(1);
        spec.sizing.limit.memory_bytes = 32 << 20;
        let (bomb, neighbour) = (lab.create(1, &spec).await.unwrap(), lab.create(2, &spec).await.unwrap());
        let eat = "print('eating', flush=True)\nx = bytearray(200 << 20)\nprint(len(x))";
        let answer = crate::support::ask(&bomb.endpoint, eat).await;
        assert!(answer.is_err(), "{answer:?}");
        let exit = lab.exit(1).await;
        assert_eq!(exit.cause, ExitCause::OutOfMemory);
        assert!(exit.log_tail.contains("out of memory (limit 32 MiB)"), "{exit:?}");
        assert_eq!(lab.run(2, &neighbour, "print(len(bytearray(8 << 20)))").await, (8 << 20).to_string());
        lab.close().await;
    });
}

fn cpu_is_limited_and_counted() {
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = lab.probe(1);
        spec.sizing.limit.cpu_milli = 200;
        let started = lab.create(1, &spec).await.unwrap();
        let idle = lab.create(2, &spec).await.unwrap();
        // Its interpreter has started by then.
        lab.run(2, &idle, "pass").await;
        lab.runtime.usage();
        let spin = "import time\nt, c = time.monotonic(), time.process_time()\nwhile time.monotonic() < t + 1: pass\nprint(time.process_time() - c)";
        let used: f64 = lab.run(1, &started, spin).await.parse().unwrap();
        assert!(used < 0.4, "{used} s of CPU in one second, with a limit of 0.2");
        let usage = lab.runtime.usage();
        let of = |n| usage.iter().find(|u| u.sandbox == id(n)).unwrap().cpu_milli;
        assert!(of(1) > 50.0 && of(1) < 400.0, "{usage:?}");
        assert!(of(2) < of(1) / 2.0, "{usage:?}");
        lab.close().await;
    });
}

fn output_comes_as_lines() {
    block_on(async {
        let lab = Lab::new().await;
        let started = lab.create(1, &lab.probe(1)).await.unwrap();
        let code = r"
import os
os.write(1, b'first\nsec'); os.write(1, b'ond\n'); os.write(2, b'bad \xff byte\n'); os.write(1, b'x' * 70000 + b'\n')
open('/dev/stderr', 'w').write('opened\n')
os.write(1, b'no newline'); os._exit(7)
";
        assert!(crate::support::ask(&started.endpoint, code).await.is_err());
        let exit = lab.exit(1).await;
        assert_eq!(exit.cause, ExitCause::Status(7));
        assert!(exit.log_tail.contains("no newline"), "{exit:?}");
        let lines = lab.logs.borrow().clone();
        let out: Vec<_> = lines.iter().filter(|l| l.stream == fanfare_sandbox::LogStream::Stdout).collect();
        assert_eq!(
            out.iter().map(|l| l.text.len()).collect::<Vec<_>>(),
            [5, 6, 16_384 + 17, 16_384 + 17, 16_384 + 17, 16_384 + 17, 4_464, 10]
        );
        assert!(out[2].text.ends_with("[line continues]"));
        assert!(lines.iter().any(|l| l.text == "opened" && l.stream == fanfare_sandbox::LogStream::Stderr));
        assert!(lines.iter().any(|l| l.text == "bad \u{fffd} byte"), "{lines:?}");
        assert!(lines.iter().all(|l| l.sandbox == Some(id(1)) && l.function == fanfare_types::FunctionId(1)));
        lab.close().await;
    });
}

fn causes_of_ends_are_told_apart() {
    block_on(async {
        let lab = Lab::new().await;
        let cases = [
            ("import os; os._exit(0)", ExitCause::Status(0)),
            ("import os; os._exit(255)", ExitCause::Status(255)),
            ("import os; os.kill(os.getpid(), 9)", ExitCause::Signal(9)),
            ("import os; os.kill(os.getpid(), 15)", ExitCause::Signal(15)),
            ("import os; os.abort()", ExitCause::Signal(6)),
            ("import ctypes; ctypes.string_at(0)", ExitCause::Signal(11)),
        ];
        let spec = lab.probe(1);
        for (n, (code, cause)) in (1..).zip(cases) {
            let started = lab.create(n, &spec).await.unwrap();
            assert!(crate::support::ask(&started.endpoint, code).await.is_err());
            assert_eq!(lab.exit(n).await.cause, cause, "{code}");
        }
        lab.close().await;
    });
}

/// Whatever numbers descriptors have in a launcher that has many.
fn all_of_many_are_limited() {
    block_on(async {
        let lab = Lab::new().await;
        let sleeper = lab.http(1, &[], &["/bin/sleep", "600"], true);
        for n in 1..=120 {
            lab.create(n, &sleeper).await.unwrap();
        }
        let me = i32::try_from(std::process::id()).unwrap();
        let mut hierarchies = std::collections::BTreeMap::<usize, usize>::new();
        let instance = crate::support::instance_of(&lab.dir.path().join("run"));
        for pid in crate::support::descendants(me) {
            let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            match cgroups.lines().filter(|line| line.contains(&instance)).count() {
                // The launcher, or another test's.
                0 => {}
                joined => *hierarchies.entry(joined).or_default() += 1,
            }
        }
        assert_eq!(hierarchies.into_values().collect::<Vec<_>>(), [240], "each is in all of them");
        lab.close().await;
    });
}
