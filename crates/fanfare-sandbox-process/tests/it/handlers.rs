//! Handlers in Python and JavaScript.

use std::sync::Arc;
use std::time::Duration;

use fanfare_sandbox::{LogStream, Runtime};
use fanfare_types::{CodeDigest, Contract, ExitCause, RevisionSpec, StartFailureKind, StopMode};

use crate::cases;
use crate::support::{EVENT_TIMEOUT, Lab, ask, block_on, id, revision};

cases![
    python_imports_once_for_many_sandboxes,
    python_children_have_limits_and_a_directory_of_their_own,
    python_failures_name_their_cause,
    python_with_threads_starts_afresh,
    a_broken_import_is_tried_once_for_all_who_wait,
    a_killed_zygote_is_made_again,
    a_zygote_that_stands_still_is_made_again,
    several_handler_processes_serve_one_sandbox,
    javascript_serves,
    a_missing_interpreter_is_named,
    requirements_are_installed_once,
    dependencies_never_come_from_another_function,
    javascript_dependencies_are_installed_once,
    a_missing_npm_is_named,
];

fn python(lab: &Lab, function: u32, files: &[(&str, &str)]) -> RevisionSpec {
    let code = Some(lab.codes.add(lab.dir.path(), files));
    revision(function, code, Contract::Python { file: "f.py".into(), handler: "handler".into() })
}

const HELLO: &str = r#"
print("imported", flush=True)
def handler(event, context):
    return {"got": event, "sandbox": context.sandbox_id, "function": context.function_name}
"#;

/// Executes what it is sent.
const EVAL: &str = r#"
def handler(event, context):
    scope = {}
    exec(event, scope)
    return str(scope["out"])
"#;

fn python_imports_once_for_many_sandboxes() {
    block_on(async {
        let lab = Lab::new().await;
        let spec = python(&lab, 1, &[("f.py", HELLO)]);
        lab.runtime.prepare(Arc::new(spec.clone())).await.unwrap();
        for n in 1..=3 {
            let started = lab.create(n, &spec).await.unwrap();
            let (status, body) = ask(&started.endpoint, "[1, 2]").await.unwrap();
            assert_eq!(status, 200, "{body}");
            assert!(
                body.contains("[1,2]") && body.contains(&id(n).to_string()) && body.contains("fn1"),
                "{body}"
            );
        }
        let imported = lab.logs.borrow().iter().filter(|l| l.text == "imported").count();
        assert_eq!(imported, 1, "{:?}", lab.logs.borrow());
        lab.stop(1, StopMode::Graceful).await;
        assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
        // The others live on, and go with their revision.
        let second = lab.create(4, &spec).await.unwrap();
        assert_eq!(ask(&second.endpoint, "1").await.unwrap().0, 200);
        for n in [2, 3, 4] {
            lab.stop(n, StopMode::Kill).await;
        }
        lab.runtime.forget(spec.id).await;
        assert_eq!(
            crate::support::traces(&lab.dir.path().join("run")).iter().filter(|t| t.contains("f1r1")).count(),
            0
        );
        lab.close().await;
    });
}

fn python_children_have_limits_and_a_directory_of_their_own() {
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = python(&lab, 1, &[("f.py", EVAL)]);
        spec.sizing.tmp_limit_bytes = 1 << 20;
        spec.sizing.limit.memory_bytes = 48 << 20;
        spec.sizing.pids_limit = 16;
        let mut endpoints = Vec::new();
        for n in 1..=4 {
            endpoints.push(lab.create(n, &spec).await.unwrap().endpoint);
        }
        let eval = async |n: usize, code: &str| {
            let (status, body) = ask(&endpoints[n - 1], code).await.unwrap();
            assert_eq!(status, 200, "{body}");
            body
        };
        let tmp = "import tempfile, os; out = (tempfile.gettempdir(), os.path.expanduser('~'), os.getpgrp() == os.getpid())";
        assert_eq!(eval(1, tmp).await, "('/tmp', '/tmp', True)");
        let fill = "import errno, os\nn = 0\ntry:\n  f = open(os.environ['TMPDIR'] + '/x', 'wb', buffering=0)\n  while True: n += f.write(b'x' * 65536)\nexcept OSError as e: out = (errno.errorcode[e.errno], n)";
        assert_eq!(eval(1, fill).await, format!("('ENOSPC', {})", 1 << 20));
        assert_eq!(eval(2, "import os; out = os.listdir(os.environ['TMPDIR'])").await, "[]");
        let forks = "import os, signal\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: signal.pause()\n    n += 1\nexcept OSError as e: out = n";
        assert_eq!(eval(2, forks).await, "15", "16 less itself");
        assert!(ask(&endpoints[2], "x = bytearray(200 << 20); out = len(x)").await.is_err());
        assert_eq!(lab.exit(3).await.cause, ExitCause::OutOfMemory);
        assert!(ask(&endpoints[3], "import os; os._exit(5)").await.is_err());
        assert_eq!(lab.exit(4).await.cause, ExitCause::Status(5));
        assert_eq!(eval(1, "out = 'neighbour'").await, "neighbour");
        lab.stop(2, StopMode::Kill).await;
        assert_eq!(
            eval(1, "import os; out = len([p for p in os.listdir('/proc') if p.isdigit()])").await,
            "1",
            "itself"
        );
        lab.close().await;
    });
}

fn python_failures_name_their_cause() {
    block_on(async {
        let lab = Lab::new().await;
        for (n, (text, kind)) in (1..).zip([
            ("raise ValueError('no good')", StartFailureKind::ImportFailed),
            ("def handle(event, context): pass", StartFailureKind::HandlerNotFound),
            ("import os; os._exit(4)", StartFailureKind::Exited(ExitCause::Status(4))),
            ("x = bytearray(500 << 20)", StartFailureKind::Exited(ExitCause::OutOfMemory)),
        ]) {
            let failure = lab.create(n, &python(&lab, n as u32, &[("f.py", text)])).await.unwrap_err();
            assert_eq!(failure.kind, kind, "{failure:?}");
            if kind == StartFailureKind::ImportFailed {
                assert!(failure.log_tail.contains("no good"), "{failure:?}");
            }
            assert_eq!(lab.runtime.audit().await, []);
        }
        let missing = python(&lab, 9, &[("other.py", "")]);
        assert_eq!(lab.create(9, &missing).await.unwrap_err().kind, StartFailureKind::HandlerNotFound);
        let text = "import time; print('connecting to nowhere', flush=True); time.sleep(600)";
        let mut slow = python(&lab, 10, &[("f.py", text)]);
        slow.timeouts.start = Duration::from_secs(2) * crate::support::patience();
        let failure = lab.create(10, &slow).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::Timeout);
        assert!(failure.detail.contains("import has not ended"), "{failure:?}");
        assert!(failure.log_tail.contains("connecting to nowhere"), "{failure:?}");
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn python_with_threads_starts_afresh() {
    block_on(async {
        let lab = Lab::new().await;
        let text = "import threading, time\nprint('imported', flush=True)\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\ndef handler(event, context): return 'ok'";
        let spec = python(&lab, 1, &[("f.py", text)]);
        for n in 1..=2 {
            let started = lab.create(n, &spec).await.unwrap();
            assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "ok".to_owned()));
        }
        let line = lab.line("no template").await;
        assert_eq!(line.stream, LogStream::Platform);
        assert_eq!(
            lab.logs.borrow().iter().filter(|l| l.text == "imported").count(),
            3,
            "once to try, once each"
        );
        lab.close().await;
    });
}

fn a_broken_import_is_tried_once_for_all_who_wait() {
    block_on(async {
        let lab = Lab::new().await;
        let text =
            "import time\nprint('importing', flush=True)\ntime.sleep(0.5)\nraise ValueError('no good')";
        let spec = python(&lab, 1, &[("f.py", text)]);
        let all = futures_util::future::join_all((1..=20).map(|n| lab.create(n, &spec))).await;
        for result in all {
            assert_eq!(result.unwrap_err().kind, StartFailureKind::ImportFailed);
        }
        let imports = lab.logs.borrow().iter().filter(|l| l.text == "importing").count();
        assert_eq!(imports, 1, "imports for 20 starts at once");
        lab.create(21, &spec).await.unwrap_err();
        let again = lab.logs.borrow().iter().filter(|l| l.text == "importing").count();
        assert_eq!(again, imports + 1, "a later start tries anew");
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

/// The template of a revision whose environment has this mark, which no other has: its sandboxes are its children.
fn template(mark: &str) -> rustix::process::Pid {
    let marked: std::collections::BTreeMap<i32, i32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let env = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            env.split(|byte| *byte == 0).any(|var| var == format!("MARK={mark}").as_bytes())
        })
        .filter_map(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            Some((pid, status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?))
        })
        .collect();
    let roots: Vec<i32> =
        marked.iter().filter(|(_, parent)| !marked.contains_key(parent)).map(|(pid, _)| *pid).collect();
    assert_eq!(roots.len(), 1, "{marked:?}");
    rustix::process::Pid::from_raw(roots[0]).unwrap()
}

fn a_killed_zygote_is_made_again() {
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = python(&lab, 1, &[("f.py", EVAL)]);
        spec.env.push(("MARK".into(), "killed".into()));
        lab.create(1, &spec).await.unwrap();
        rustix::process::kill_process(template("killed"), rustix::process::Signal::KILL).unwrap();
        assert_eq!(lab.exit(1).await.cause, ExitCause::Signal(9));
        let mut tries = 2;
        let again = loop {
            match lab.create(tries, &spec).await {
                Ok(started) => break started,
                Err(failure) => assert_eq!(failure.kind, StartFailureKind::Node, "{failure:?}"),
            }
            tries += 1;
            assert!(tries < 100, "no new template");
        };
        assert_eq!(ask(&again.endpoint, "out = 'again'").await.unwrap().1, "again");
        lab.close().await;
    });
}

fn a_zygote_that_stands_still_is_made_again() {
    block_on(async {
        let lab = Lab::new().await;
        let mut spec = python(&lab, 1, &[("f.py", EVAL)]);
        spec.env.push(("MARK".into(), "frozen".into()));
        lab.create(1, &spec).await.unwrap();
        rustix::process::kill_process(template("frozen"), rustix::process::Signal::STOP).unwrap();
        // Its status is never told.
        tokio::time::timeout(*EVENT_TIMEOUT, lab.stop(1, StopMode::Graceful)).await.expect("an end");
        assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
        let waiting = tokio::time::timeout(*EVENT_TIMEOUT, lab.create(2, &spec)).await.expect("an answer");
        assert_eq!(waiting.unwrap_err().kind, StartFailureKind::Node);
        let again = lab.create(3, &spec).await.unwrap();
        assert_eq!(ask(&again.endpoint, "out = 'again'").await.unwrap().1, "again");
        lab.close().await;
    });
}

fn several_handler_processes_serve_one_sandbox() {
    block_on(async {
        let lab = Lab::new().await;
        let text =
            "import os, time\ndef handler(event, context):\n  time.sleep(0.5)\n  return str(os.getpid())";
        let mut spec = python(&lab, 1, &[("f.py", text)]);
        (spec.sizing.concurrency, spec.sizing.handler_processes) = (3, 3);
        let started = lab.create(1, &spec).await.unwrap();
        let (a, b, c) = tokio::join!(
            ask(&started.endpoint, "1"),
            ask(&started.endpoint, "1"),
            ask(&started.endpoint, "1")
        );
        let pids: std::collections::BTreeSet<_> =
            [a, b, c].map(|answer| answer.unwrap().1).into_iter().collect();
        assert_eq!(pids.len(), 3, "{pids:?}");
        lab.stop(1, StopMode::Graceful).await;
        assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
        lab.close().await;
    });
}

fn javascript_serves() {
    block_on(async {
        let lab = Lab::new().await;
        let text =
            "exports.handler = async (event, context) => ({ got: event, sandbox: context.sandboxId });";
        let node = |function, text: &str| {
            let code = Some(lab.codes.add(lab.dir.path(), &[("f.js", text)]));
            revision(function, code, Contract::Node { file: "f.js".into(), handler: "handler".into() })
        };
        let started = lab.create(1, &node(1, text)).await.unwrap_or_else(|f| panic!("{f:?}"));
        let (status, body) = ask(&started.endpoint, r#"{"a": 1}"#).await.unwrap();
        assert!(status == 200 && body.contains(r#""a":1"#) && body.contains(&id(1).to_string()), "{body}");
        let failure = lab.create(2, &node(2, "throw new Error('no good')")).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::ImportFailed, "{failure:?}");
        lab.stop(1, StopMode::Graceful).await;
        assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
        lab.close().await;
    });
}

fn a_missing_interpreter_is_named() {
    block_on(async {
        let lab =
            Lab::with(crate::support::directory(), |o| o.python = "/usr/bin/no-such-python".into()).await;
        let failure = lab.create(1, &python(&lab, 1, &[("f.py", HELLO)])).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::InterpreterMissing);
        assert!(failure.detail.contains("/usr/bin/no-such-python"), "{failure:?}");
        lab.close().await;
    });
}

/// Writes a wheel of the module `greet` with this word; run in the code's directory.
const WHEEL: &str = r#"
import sys, zipfile
with zipfile.ZipFile("greet-1-py3-none-any.whl", "w") as z:
    z.writestr("greet.py", "WORD = %r" % sys.argv[1])
    z.writestr("greet-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: greet\nVersion: 1\n")
    z.writestr("greet-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("greet-1.dist-info/RECORD", "greet.py,,\ngreet-1.dist-info/METADATA,,\ngreet-1.dist-info/WHEEL,,\ngreet-1.dist-info/RECORD,,\n")
"#;
const GREETING: &str = "import greet\ndef handler(event, context): return greet.WORD";

/// Code that requires a wheel of its own, made here so that no index is needed; `n` counts the lab's codes.
fn with_wheel(lab: &Lab, n: usize, word: &str) -> CodeDigest {
    let files = [("f.py", GREETING), ("requirements.txt", "./greet-1-py3-none-any.whl\n")];
    let code = lab.codes.add(lab.dir.path(), &files);
    let dir = lab.dir.path().join(format!("code-{n}"));
    let made = std::process::Command::new("python3").args(["-c", WHEEL, word]).current_dir(dir).status();
    assert!(made.unwrap().success());
    code
}

fn requirements_are_installed_once() {
    block_on(async {
        let lab = Lab::new().await;
        let code = with_wheel(&lab, 0, "hello");
        let spec = |function| {
            let contract = Contract::Python { file: "f.py".into(), handler: "handler".into() };
            revision(function, Some(code), contract)
        };
        lab.runtime.prepare(Arc::new(spec(1))).await.unwrap_or_else(|f| panic!("{f:?}"));
        for (n, function) in [(1, 1), (2, 2)] {
            let started = lab.create(n, &spec(function)).await.unwrap();
            assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "hello".to_owned()));
        }
        let installed = std::fs::read_dir(lab.dir.path().join("data/deps")).unwrap().count();
        assert_eq!(installed, 1, "two revisions, one list");

        let broken = python(&lab, 3, &[("f.py", GREETING), ("requirements.txt", "./no-such-directory\n")]);
        let failure = lab.create(3, &broken).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::DependenciesFailed);
        assert!(failure.log_tail.contains("no-such-directory"), "{failure:?}");
        assert_eq!(std::fs::read_dir(lab.dir.path().join("data/deps")).unwrap().count(), 1);
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn dependencies_never_come_from_another_function() {
    block_on(async {
        let lab = Lab::new().await;
        for (n, word) in [(1, "one"), (2, "two")] {
            let code = Some(with_wheel(&lab, n - 1, word));
            let contract = Contract::Python { file: "f.py".into(), handler: "handler".into() };
            let function = u32::try_from(n).unwrap();
            let started = lab.create(n as u64, &revision(function, code, contract)).await.unwrap();
            assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, word.to_owned()), "the same list");
        }
        // Code in the place of pip would be believed by every function with the same list.
        let own = "open('/out/greet.py', 'w').write('WORD = \"forged\"')";
        let files =
            [("f.py", GREETING), ("requirements.txt", "--no-index\nno-such-package\n"), ("pip.py", own)];
        let failure = lab.create(3, &python(&lab, 3, &files)).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::DependenciesFailed, "{failure:?}");
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn javascript(lab: &Lab, function: u32, files: &[(&str, &str)]) -> RevisionSpec {
    let code = Some(lab.codes.add(lab.dir.path(), files));
    revision(function, code, Contract::Node { file: files[0].0.into(), handler: "handler".into() })
}

/// From the registry that this machine's npm is set to.
fn javascript_dependencies_are_installed_once() {
    block_on(async {
        let lab = Lab::new().await;
        let manifest =
            ("package.json", r#"{"scripts": {"install": "exit 1"}, "dependencies": {"ms": "2.1.3"}}"#);
        let common = "const ms = require('ms'); exports.handler = () => ms(60000);";
        let module = "import ms from 'ms'; export const handler = () => ms('2 days');";
        for (n, (file, text, want)) in (1..).zip([("f.js", common, "1m"), ("f.mjs", module, "172800000")]) {
            let spec = javascript(&lab, n, &[(file, text), manifest]);
            let started = lab.create(u64::from(n), &spec).await.unwrap_or_else(|f| panic!("{f:?}"));
            assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, want.to_owned()));
        }
        let installed = || std::fs::read_dir(lab.dir.path().join("data/deps")).unwrap().count();
        assert_eq!(installed(), 1, "two functions, one list");
        let lock = r#"{"lockfileVersion": 3, "packages": {"": {"dependencies": {"ms": "2.1.3"}},
            "node_modules/ms": {"version": "2.1.2", "integrity": "sha512-6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/XXP6tz7R9xAOtHnSO/tXtF3WRTlA=="}}}"#;
        let spec = javascript(&lab, 3, &[("f.js", common), manifest, ("package-lock.json", lock)]);
        let failure = lab.create(3, &spec).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::DependenciesFailed, "{failure:?}");
        lab.line("ms@2.1.2").await;
        assert_eq!(installed(), 1);
        // What the code brings along is used as it is.
        let own = javascript(&lab, 4, &[("f.js", common), manifest]);
        let dir = lab.dir.path().join("code-3/node_modules/ms");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("index.js"), "module.exports = () => 'own';").unwrap();
        let started = lab.create(4, &own).await.unwrap_or_else(|f| panic!("{f:?}"));
        assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "own".to_owned()));
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn a_missing_npm_is_named() {
    block_on(async {
        // An interpreter that sandboxes see, in a directory without npm.
        let dir = tempfile::Builder::new().prefix("fanfare-node").tempdir_in("/usr/local/lib").unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let node = dir.path().join("node");
        std::os::unix::fs::symlink(std::fs::canonicalize("/usr/bin/node").unwrap(), &node).unwrap();
        let lab = Lab::with(crate::support::directory(), |o| o.node = node).await;
        let manifest = ("package.json", r#"{"dependencies": {"ms": "2.1.3"}}"#);
        let spec = javascript(&lab, 1, &[("f.js", "exports.handler = () => 1"), manifest]);
        let failure = lab.create(1, &spec).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::InterpreterMissing, "{failure:?}");
        assert!(failure.detail.contains("npm") && failure.detail.contains("package.json"), "{failure:?}");
        lab.close().await;
    });
}
