//! What an ordinary user's daemon enforces: everything but users of their own, and limits where no cgroup is delegated to
//! it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use fanfare_sandbox::{Outlets, Runtime};
use fanfare_sandbox_process::{CgroupVersion, ProcessRuntime};
use fanfare_types::{Contract, ExitCause, StopMode};

use crate::cases;
use crate::support::{Codes, EVENT_TIMEOUT, Lab, PROBE, ask, block_on, directory, options, revision};

cases![
    an_ordinary_user_is_isolated_by_namespaces,
    an_ordinary_user_with_a_delegated_cgroup_has_limits,
    of_a_cgroup_that_lacks_controllers_or_has_others_processes_it_is_said,
    where_user_namespaces_are_forbidden_the_setting_is_named,
];

/// First argument of a process that is to run a test itself; the second says which one.
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

/// A cgroup as systemd delegates one: its directory and three of its files belong to the user.
struct Delegated(PathBuf);

impl Delegated {
    /// `None`, and a word on it, where the unified hierarchy does not hold the controllers.
    fn new(name: &str, controllers: &[&str]) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let there = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if !["memory", "pids", "cpu"].iter().all(|c| there.split_whitespace().any(|name| name == *c)) {
            eprintln!("SKIPPED: the controllers are not cgroup v2's here; `cargo xtask cgroup2` has them so");
            return None;
        }
        let outer = root.join(format!("test-{name}-{}", std::process::id()));
        let own = Delegated(outer.join("delegated"));
        fs::create_dir_all(&own.0).unwrap();
        for controller in ["memory", "pids", "cpu"] {
            fs::write(root.join("cgroup.subtree_control"), format!("+{controller}")).unwrap();
        }
        for controller in controllers {
            fs::write(outer.join("cgroup.subtree_control"), format!("+{controller}")).unwrap();
        }
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            std::os::unix::fs::chown(own.0.join(file), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Some(own)
    }

    /// Runs this program in it as the user, beside `others`.
    fn run(&self, others: &str, expected: &str) -> Output {
        // The shell moves itself, as root, and becomes the user when it is replaced.
        let script = format!(
            "echo $$ > \"$0/cgroup.procs\" || exit; {others} exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups -- \"$@\""
        );
        let mut child = Command::new("/bin/sh")
            .args(["-c", &script])
            .arg(&self.0)
            .arg(std::env::current_exe().unwrap())
            .args([ARGUMENT, expected])
            .env("TMPDIR", "/tmp")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The others end with it.
        let input = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(input);
        let begun = std::time::Instant::now();
        while !fs::read_to_string(self.0.join("cgroup.procs")).unwrap().is_empty() {
            assert!(begun.elapsed() < *EVENT_TIMEOUT, "the others do not end");
            std::thread::yield_now();
        }
        output
    }

    /// Cgroups in it.
    fn children(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for dir in [Some(self.0.as_path()), self.0.parent()].into_iter().flatten() {
            let _ = fs::remove_dir(dir);
        }
    }
}

fn an_ordinary_user_with_a_delegated_cgroup_has_limits() {
    let Some(own) = Delegated::new("limits", &["memory", "pids", "cpu"]) else { return };
    let output = own.run("", "limits");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(own.children(), Vec::<PathBuf>::new(), "nothing is left in it");
}

fn of_a_cgroup_that_lacks_controllers_or_has_others_processes_it_is_said() {
    let Some(own) = Delegated::new("some", &["pids"]) else { return };
    let output = own.run("", "pids");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(own.children(), Vec::<PathBuf>::new());
    let Some(crowded) = Delegated::new("crowded", &["memory", "pids", "cpu"]) else { return };
    let output = crowded.run("exec 3<&0; cat <&3 > /dev/null 2> /dev/null &", "crowded");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(crowded.children(), Vec::<PathBuf>::new());
}

/// In a user namespace that may have none in it, which is as good as a machine that forbids them.
fn where_user_namespaces_are_forbidden_the_setting_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: forbidding user namespaces needs root");
        return;
    }
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all -- \"$0\" \"$@\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-user=65534", "--map-group=65534", "--keep-caps", "/bin/sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .args([ARGUMENT, "forbidden"])
        .env("TMPDIR", "/tmp")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a test in this process: that of a delegated cgroup which is named, or the one without any.
pub(crate) fn main(args: &[String]) -> ! {
    match args.first().map(String::as_str) {
        None => isolated(),
        Some("limits") => limited(),
        Some("pids") => some_are_missing(),
        Some("crowded") => others_are_in_it(),
        Some("forbidden") => no_user_namespaces(),
        Some(other) => panic!("{other}"),
    }
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
        lab.runtime.prepare(Arc::new(lab.probe(1))).await.unwrap();
        lab.line("not enforced on this node: the limits on memory").await;
        for n in 1..=4 {
            lab.stop(n, StopMode::Graceful).await;
        }
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn limited() {
    block_on(async {
        let lab = Lab::new().await;
        let report = lab.runtime.isolation();
        assert!(!report.root && report.cgroups == CgroupVersion::V2, "{report}");
        for name in ["memory limit", "process limit", "CPU limit"] {
            assert!(report.mechanisms.iter().any(|m| m.name == name && m.enforced), "{report}");
        }
        let mut spec = lab.probe(1);
        (spec.sizing.limit.memory_bytes, spec.sizing.pids_limit) = (32 << 20, 20);
        let started = lab.create(1, &spec).await.unwrap();
        let bomb = "import errno, os, signal\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: signal.pause()\n    n += 1\nexcept OSError as e: print(errno.errorcode[e.errno], n)";
        assert_eq!(lab.run(1, &started, bomb).await, "EAGAIN 18");
        lab.stop(1, StopMode::Kill).await;
        let started = lab.create(2, &spec).await.unwrap();
        assert!(ask(&started.endpoint, "x = bytearray(200 << 20)").await.is_err());
        assert_eq!(lab.exit(2).await.cause, ExitCause::OutOfMemory);
        let started = lab.create(3, &spec).await.unwrap();
        assert!(ask(&started.endpoint, "import os; os.kill(os.getpid(), 9)").await.is_err());
        assert_eq!(lab.exit(3).await.cause, ExitCause::Signal(9));

        // One that joins by itself, out of its template's.
        let text = "def handler(event, context):\n  return open('/proc/self/cgroup').read() if event else len(bytearray(200 << 20))";
        let code = Some(lab.codes.add(lab.dir.path(), &[("f.py", text)]));
        let python = Contract::Python { file: "f.py".into(), handler: "handler".into() };
        let mut spec = revision(3, code, python);
        spec.sizing.limit.memory_bytes = 64 << 20;
        let started = lab.create(4, &spec).await.unwrap();
        let (status, cgroup) = ask(&started.endpoint, "1").await.unwrap();
        assert!(status == 200 && cgroup.trim().ends_with(&crate::support::id(4).to_string()), "{cgroup}");
        assert!(lab.runtime.usage().iter().all(|usage| usage.cpu_milli >= 0.0));
        let _ = ask(&started.endpoint, "0").await;
        assert_eq!(lab.exit(4).await.cause, ExitCause::OutOfMemory);
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn some_are_missing() {
    block_on(async {
        let lab = Lab::new().await;
        let report = lab.runtime.isolation();
        let of = |name| report.mechanisms.iter().find(|m| m.name == name).unwrap();
        assert!(of("process limit").enforced, "{report}");
        for name in ["memory limit", "CPU limit"] {
            assert!(
                !of(name).enforced && of(name).detail.contains("does not have it, only: pids"),
                "{report}"
            );
        }
        let mut spec = lab.probe(1);
        spec.sizing.pids_limit = 20;
        let started = lab.create(1, &spec).await.unwrap();
        let limits = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)";
        assert_eq!(lab.run(1, &started, limits).await, "512", "twice the limit and 256 MiB");
        lab.runtime.prepare(Arc::new(spec)).await.unwrap();
        lab.line("not enforced on this node: the limits on memory (").await;
        lab.stop(1, StopMode::Kill).await;
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn others_are_in_it() {
    block_on(async {
        let lab = Lab::new().await;
        let report = lab.runtime.isolation();
        assert_eq!(report.cgroups, CgroupVersion::None, "{report}");
        let memory = report.mechanisms.iter().find(|m| m.name == "memory limit").unwrap();
        assert!(memory.detail.contains("other processes are in /sys/fs/cgroup/test-crowded"), "{report}");
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn no_user_namespaces() {
    block_on(async {
        let dir = directory();
        let outlets =
            Outlets { exits: Arc::new(|_| {}), logs: Arc::new(|_| {}), code: Arc::<Codes>::default() };
        let error = ProcessRuntime::start(options(dir.path()), outlets).await.unwrap_err();
        assert!(error.to_string().contains("user.max_user_namespaces"), "{error}");
    });
}
