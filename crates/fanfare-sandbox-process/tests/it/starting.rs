//! Ways to start, and to fail to.

use std::sync::Arc;
use std::time::Duration;

use fanfare_sandbox::Runtime;
use fanfare_types::{ExitCause, RevisionSpec, StartFailure, StartFailureKind, StopMode};

use crate::cases;
use crate::support::{Lab, PROBE, ask, block_on, through_broker};

cases![
    a_program_on_a_port_is_ready_when_it_listens,
    a_program_on_another_port_is_told_which,
    failures_name_their_cause,
    prepare_proves_that_an_inherited_listener_is_reached,
    a_run_directory_has_one_owner,
    a_run_directory_of_another_user_is_refused,
    a_launcher_that_cannot_start_leaves_nothing,
];

fn a_program_on_another_port_is_told_which() {
    let listen =
        "import socket, time\nl = socket.socket()\nl.bind(('127.0.0.1', 3000))\nl.listen(1)\ntime.sleep(600)";
    block_on(async {
        let lab = Lab::new().await;
        for (n, text, said) in [
            (1, listen, "listens on port 3000, where $PORT, which is 8080, is expected"),
            (2, "import time; time.sleep(600)", "listens on no TCP port, where $PORT"),
        ] {
            let mut spec = lab.http(n, &[("f.py", text)], &["python3", "f.py"], false);
            spec.timeouts.start = std::time::Duration::from_secs(2) * crate::support::patience();
            let failure = lab.create(u64::from(n), &spec).await.unwrap_err();
            assert_eq!(failure.kind, StartFailureKind::NotListening, "{failure:?}");
            assert!(failure.detail.contains(said), "{failure:?}");
            assert!(failure.kind.reason().hint().contains("listen on $PORT"), "{failure:?}");
        }
        lab.close().await;
    });
}

fn a_program_on_a_port_is_ready_when_it_listens() {
    block_on(async {
        let lab = Lab::new().await;
        let spec = lab.http(1, &[("probe.py", PROBE)], &["python3", "probe.py", "port"], false);
        for n in 1..=3 {
            let started = lab.create(n, &spec).await.unwrap();
            assert!(started.endpoint.starts_with("broker:"), "{}", started.endpoint);
            for round in 0..5 {
                assert_eq!(
                    lab.run(n, &started, &format!("print({n}, {round})")).await,
                    format!("{n} {round}")
                );
            }
        }
        let started = lab.create(4, &spec).await.unwrap();
        // Other sockets, and other ports, listen as ever.
        let more = "import socket\na = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname())\nc = socket.socket(socket.AF_UNIX); c.bind('/tmp/u'); c.listen(1); print('ok')";
        assert_eq!(lab.run(4, &started, more).await, "ok");
        let (path, _) = started.endpoint.strip_prefix("broker:").unwrap().split_once('#').unwrap();
        for bad in ["sffff", "nonsense", ""] {
            assert!(through_broker(path, bad).await.is_err(), "{bad:?}");
        }
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        lab.stop(4, StopMode::Kill).await;
        assert!(ask(&started.endpoint, "print(1)").await.is_err());
        lab.close().await;
    });
}

async fn fails(lab: &Lab, n: u64, spec: &RevisionSpec) -> StartFailure {
    let failure = lab.create(n, spec).await.expect_err("must not start");
    assert_eq!(lab.runtime.audit().await, [], "{failure:?}");
    assert!(!failure.detail.is_empty() && failure.detail.chars().count() <= 300, "{failure:?}");
    failure
}

fn failures_name_their_cause() {
    block_on(async {
        let lab = Lab::new().await;
        let port =
            |function, script: &str, command: &[&str]| lab.http(function, &[("run", script)], command, false);
        let exits = port(1, "#!/bin/sh\necho last words >&2\nexit 3\n", &["run"]);
        let failure = fails(&lab, 1, &exits).await;
        assert_eq!(failure.kind, StartFailureKind::Exited(ExitCause::Status(3)));
        assert_eq!(failure.log_tail, "last words");

        let mut waits = port(2, "", &["/bin/sleep", "600"]);
        waits.timeouts.start = Duration::from_millis(300);
        assert_eq!(fails(&lab, 2, &waits).await.kind, StartFailureKind::NotListening);

        let mut eats = lab.http(3, &[("m.py", "x = bytearray(100 << 20)")], &["python3", "m.py"], false);
        eats.sizing.limit.memory_bytes = 32 << 20;
        assert_eq!(fails(&lab, 3, &eats).await.kind, StartFailureKind::Exited(ExitCause::OutOfMemory));

        for (n, (script, command, kind)) in (4..).zip([
            ("", vec!["no-such-program"], StartFailureKind::HandlerNotFound),
            ("", vec!["/usr/bin/no-such-program"], StartFailureKind::HandlerNotFound),
            ("not executable", vec!["run"], StartFailureKind::HandlerNotFound),
            ("#!/no/such/interpreter\n", vec!["run"], StartFailureKind::InterpreterMissing),
        ]) {
            let failure = fails(&lab, n, &port(n as u32, script, &command)).await;
            assert_eq!(failure.kind, kind, "{command:?}: {failure:?}");
            let named = kind != StartFailureKind::InterpreterMissing
                || failure
                    .detail
                    .contains("the first line of /function/run names the interpreter /no/such/interpreter");
            assert!(named, "{failure:?}");
        }
        let garbage = lab.http(8, &[("run", "#!\u{1}garbage")], &["run"], false);
        assert_eq!(fails(&lab, 8, &garbage).await.kind, StartFailureKind::InterpreterMissing);
        let mut huge = lab.probe(9);
        huge.env = vec![("BIG".into(), "x".repeat(200 << 10))];
        assert_eq!(fails(&lab, 9, &huge).await.kind, StartFailureKind::Node);
        lab.close().await;
    });
}

fn prepare_proves_that_an_inherited_listener_is_reached() {
    block_on(async {
        let lab = Lab::new().await;
        let poll = "import select, socket\ns = socket.socket(fileno=3)\np = select.poll(); p.register(s, select.POLLIN); p.poll()";
        let epoll = "import select, socket\ns = socket.socket(fileno=3).dup()\np = select.epoll(); p.register(s, select.EPOLLIN); p.poll()";
        let select = "import select, socket\ns = socket.socket(fileno=3)\nselect.select([s], [], [])";
        for (function, script) in (1..).zip([PROBE, poll, epoll, select]) {
            let spec = lab.http(function, &[("m.py", script)], &["python3", "m.py"], true);
            lab.runtime.prepare(Arc::new(spec)).await.unwrap_or_else(|f| panic!("{script}: {f:?}"));
        }
        let broken = lab.http(9, &[("m.py", "raise SystemExit('broken')")], &["python3", "m.py"], true);
        let failure = lab.runtime.prepare(Arc::new(broken)).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::Exited(ExitCause::Status(1)));
        assert_eq!(failure.log_tail, "broken");
        assert!(lab.exits.borrow().is_empty(), "a proof is no sandbox");
        lab.close().await;
    });
}

fn a_run_directory_has_one_owner() {
    block_on(async {
        let lab = Lab::new().await;
        let started = lab.create(1, &lab.probe(1)).await.unwrap();
        let second = crate::support::options(lab.dir.path());
        let outlets = fanfare_sandbox::Outlets {
            exits: Arc::new(|_| {}),
            logs: Arc::new(|_| {}),
            code: lab.codes.clone(),
        };
        let start = fanfare_sandbox_process::ProcessRuntime::start(second, outlets);
        let waited = tokio::time::timeout(Duration::from_millis(200), start).await;
        assert!(waited.is_err(), "it waits for the lock");
        assert_eq!(lab.run(1, &started, "print('unharmed')").await, "unharmed");
        assert_eq!(fanfare_sandbox_process::audit(&lab.dir.path().join("run")).unwrap(), []);
        lab.close().await;
    });
}

/// Starting a runtime in this directory fails, for this reason.
async fn refused(dir: &std::path::Path, program: Option<&str>) -> std::io::Error {
    let outlets = fanfare_sandbox::Outlets {
        exits: Arc::new(|_| {}),
        logs: Arc::new(|_| {}),
        code: Arc::<crate::support::Codes>::default(),
    };
    let mut options = crate::support::options(dir);
    if let Some(program) = program {
        options.launcher.program = program.into();
    }
    fanfare_sandbox_process::ProcessRuntime::start(options, outlets).await.expect_err("must not start")
}

fn a_run_directory_of_another_user_is_refused() {
    block_on(async {
        let dir = crate::support::directory();
        let run = dir.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::os::unix::fs::chown(&run, Some(12_345), None).unwrap();
        assert_eq!(refused(dir.path(), None).await.kind(), std::io::ErrorKind::PermissionDenied);
        std::fs::rename(&run, dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::chown(dir.path().join("elsewhere"), Some(0), None).unwrap();
        std::os::unix::fs::symlink("elsewhere", &run).unwrap();
        assert_eq!(refused(dir.path(), None).await.kind(), std::io::ErrorKind::PermissionDenied, "a link");
    });
}

fn a_launcher_that_cannot_start_leaves_nothing() {
    block_on(async {
        let dir = crate::support::directory();
        for program in ["/bin/false", "/no/such/program"] {
            let error = refused(dir.path(), Some(program)).await;
            assert!(!error.to_string().is_empty());
            assert_eq!(crate::support::traces(&dir.path().join("run")), Vec::<String>::new(), "{error}");
        }
    });
}
