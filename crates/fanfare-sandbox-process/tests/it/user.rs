//! What an ordinary user's daemon enforces: everything but users of their own and cgroups that it may not write.

use std::os::unix::process::CommandExt;
use std::process::Command;

use fanfare_sandbox::Runtime;
use fanfare_types::{Contract, StopMode};

use crate::cases;
use crate::support::{Lab, PROBE, ask, block_on, revision};

cases![an_ordinary_user_is_isolated_by_namespaces];

/// First argument of a process that is to run the test itself.
pub(crate) const ARGUMENT: &str = "__user";

/// The host's `nobody`.
const NOBODY: u32 = 65_534;

fn an_ordinary_user_is_isolated_by_namespaces() {
    if !rustix::process::geteuid().is_root() {
        return isolated();
    }
    let program = std::env::current_exe().unwrap();
    let as_nobody = || {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY).env("TMPDIR", "/tmp");
        command
    };
    if let Err(error) = as_nobody().arg("--list").output() {
        eprintln!("SKIPPED: an ordinary user cannot execute {}: {error}", program.display());
        return;
    }
    let output = as_nobody().arg(ARGUMENT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the test in this process.
pub(crate) fn main() -> ! {
    isolated();
    std::process::exit(0)
}

fn isolated() {
    block_on(async {
        let lab = Lab::new().await;
        let report = lab.runtime.isolation();
        assert!(!report.root);
        let enforced = |name| report.mechanisms.iter().find(|m| m.name == name).unwrap().enforced;
        assert!(!enforced("user"), "{report}");
        for name in ["namespaces", "root directory", "network", "capabilities", "system calls"] {
            assert!(enforced(name), "{report}");
        }
        let probe = lab.create(1, &lab.probe(1)).await.unwrap();
        let code = "import os\nstatus = open('/proc/self/status').read()\nprint([l.split()[1] for l in status.splitlines() if l.startswith(('CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp:'))], sorted(p for p in os.listdir('/proc') if p.isdigit()))";
        let none = "'0000000000000000'";
        assert_eq!(lab.run(1, &probe, code).await, format!("[{none}, {none}, '1', '2'] ['2']"));
        let writes = "import errno\nfor path in ['/x', '/usr/x', '/function/x', '/etc/passwd']:\n  try: open(path, 'w'); print(path)\n  except OSError as e: pass\nopen('/tmp/x', 'w').write('x'); open('/dev/null', 'w').write('x')\nprint('done')";
        assert_eq!(lab.run(1, &probe, writes).await, "done");
        let network = "import socket; print([n for _, n in socket.if_nameindex()])";
        assert_eq!(lab.run(1, &probe, network).await, "['lo']");

        let port = lab.http(2, &[("probe.py", PROBE)], &["python3", "probe.py", "port"], false);
        let started = lab.create(2, &port).await.unwrap();
        assert_eq!(lab.run(2, &started, "print('through the broker')").await, "through the broker");

        let text = "def handler(event, context): return 'forked'";
        let code = Some(lab.codes.add(lab.dir.path(), &[("f.py", text)]));
        let python = Contract::Python { file: "f.py".into(), handler: "handler".into() };
        let started = lab.create(3, &revision(3, code, python)).await.unwrap();
        assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "forked".to_owned()));
        let text = "exports.handler = () => 'javascript'";
        let code = Some(lab.codes.add(lab.dir.path(), &[("f.js", text)]));
        let node = Contract::Node { file: "f.js".into(), handler: "handler".into() };
        let started = lab.create(4, &revision(4, code, node)).await.unwrap();
        assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "javascript".to_owned()));
        // Without cgroups a process may ask for so much, and no more.
        let bomb = "try: x = bytearray(1 << 30); print('has it')\nexcept MemoryError: print('refused')";
        assert_eq!(lab.run(1, &probe, bomb).await, "refused");
        lab.runtime.prepare(std::sync::Arc::new(lab.probe(1))).await.unwrap();
        lab.line("not enforced on this node: the limits on memory").await;
        for n in 1..=4 {
            lab.stop(n, StopMode::Graceful).await;
        }
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}
