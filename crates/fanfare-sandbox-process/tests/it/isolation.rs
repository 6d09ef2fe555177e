//! Each promise of isolation, checked from inside.

use std::sync::Arc;

use fanfare_sandbox::Runtime;
use fanfare_sandbox_process::CgroupVersion;
use fanfare_types::StopMode;

use crate::cases;
use crate::support::{Lab, block_on, id};

cases![
    sees_only_its_own_processes_and_files,
    cannot_write_its_root,
    has_no_privileges,
    is_denied_dangerous_calls,
    has_only_a_loopback_interface,
    holds_only_its_descriptors_and_environment,
    revisions_have_different_users,
    the_report_says_what_is_enforced,
];

/// Runs Python code in one sandbox.
fn inside(test: impl AsyncFnOnce(&Lab, &dyn Fn(&str) -> futures_util::future::BoxFuture<'static, String>)) {
    block_on(async {
        let lab = Arc::new(Lab::new().await);
        let started = lab.create(1, &lab.probe(1)).await.unwrap();
        let (for_run, endpoint) = (lab.clone(), started.clone());
        let run = move |code: &str| -> futures_util::future::BoxFuture<'static, String> {
            let (lab, started, code) = (for_run.clone(), endpoint.clone(), code.to_owned());
            Box::pin(async move { lab.run(1, &started, &code).await })
        };
        test(&lab, &run).await;
        drop(run);
        lab.stop(1, StopMode::Kill).await;
        Arc::into_inner(lab).unwrap().close().await;
    });
}

fn sees_only_its_own_processes_and_files() {
    inside(async |lab, run| {
        let pids = run("import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))").await;
        assert_eq!(pids, "[2]", "only itself: process 1 is hidden");
        let root = run("import os; print(sorted(os.listdir('/')))").await;
        for name in ["home", "root", "boot", "sys", "mnt", "work"] {
            assert!(!root.contains(&format!("'{name}'")), "{name} in {root}");
        }
        let etc = run("import os; print(os.path.exists('/etc/shadow'), os.path.exists('/etc/fstab'))").await;
        assert_eq!(etc, "False False");
        assert_eq!(run("print(open('/etc/pip.conf').read())").await, "", "may hold passwords of indexes");
        let passwd = run("print(open('/etc/passwd').read())").await;
        assert_eq!(passwd.lines().count(), 2, "{passwd}");
        let dev = run("import os; print(sorted(os.listdir('/dev')))").await;
        assert_eq!(
            dev,
            "['fd', 'full', 'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'urandom', 'zero']"
        );
        let mounts = run("print(open('/proc/self/mountinfo').read())").await;
        assert!(!mounts.contains(lab.dir.path().join("run").to_str().unwrap()), "{mounts}");
        let code = run("import os; print(os.getcwd(), os.listdir('.'), os.environ['HOME'])").await;
        assert_eq!(code, "/function ['probe.py'] /tmp");
    });
}

fn cannot_write_its_root() {
    inside(async |_, run| {
        let code = r"
import errno
for path in ['/x', '/etc/passwd', '/usr/x', '/function/probe.py', '/function/x', '/dev/x', '/run/x', '/out/x', '/proc/sys/kernel/hostname']:
    try:
        open(path, 'w'); print(path, 'written')
    except OSError as e:
        print(path, errno.errorcode[e.errno])
";
        let out = run(code).await;
        for line in out.lines() {
            assert!(line.ends_with("EROFS") || line.ends_with("EACCES"), "{out}");
        }
        assert_eq!(run("open('/tmp/x', 'w').write('y'); print(open('/tmp/x').read())").await, "y");
        assert_eq!(run("open('/dev/shm/x', 'w').write('y'); print(open('/dev/null').read())").await, "");
    });
}

fn has_no_privileges() {
    inside(async |_, run| {
        let status = run("print(open('/proc/self/status').read())").await;
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_else(|| panic!("{name}"));
            line.trim_start_matches(':').trim().to_owned()
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".to_owned(), "2".to_owned()));
        assert_eq!(field("Groups"), "");
        let uids: Vec<_> = field("Uid").split_whitespace().map(str::to_owned).collect();
        assert!(uids.iter().all(|uid| *uid == uids[0] && uid != "0"), "{uids:?}");
        let limits =
            run("import resource as r; print(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NOFILE)[1])");
        assert_eq!(limits.await, "(1, 1) 16384");
        let core =
            "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0)); print(r.getrlimit(r.RLIMIT_CORE))";
        assert_eq!(run(core).await, "(1, 1)", "0 would let dumps go to a program of the host's");
        assert_eq!(run("print(open('/proc/self/oom_score_adj').read())").await, "500");
        let init =
            run("import os\ntry:\n  os.kill(1, 9); print('sent')\nexcept OSError as e: print(e)").await;
        assert_eq!(init, "sent", "and without effect: process 1 takes no signals from inside");
        assert_eq!(run("import os; print(os.getpid(), os.getpgid(0), os.getsid(0))").await, "2 2 2");
    });
}

fn is_denied_dangerous_calls() {
    inside(async |_, run| {
        let code = r"
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
calls = {'unshare': (272, 0x10000000), 'setns': (308, 3, 0), 'mount': (165, 0, 0, 0, 0, 0), 'ptrace': (101, 16, 1, 0, 0),
    'keyctl': (250, 0, 0), 'bpf': (321, 0, 0, 0), 'perf_event_open': (298, 0, 0, -1, -1, 0), 'io_uring_setup': (425, 1, 0), 'io_setup': (206, 1, 0),
    'userfaultfd': (323, 0), 'kexec_load': (246, 0, 0, 0, 0), 'clone NEWUSER': (56, 0x10000000 | 17, 0, 0, 0, 0),
    'pivot_root': (155, 0, 0), 'chroot': (161, 0), 'socket AF_VSOCK': (41, 40, 1, 0), 'socket AF_PACKET': (41, 17, 3, 0), 'socket SCTP': (41, 2, 1, 132),
    'process_vm_readv': (310, 1, 0, 0, 0, 0, 0), 'swapon': (167, 0, 0), 'reboot': (169, 0, 0, 0, 0)}
for name, args in calls.items():
    got = libc.syscall(*args)
    print(name, errno.errorcode.get(ctypes.get_errno(), 'none') if got < 0 else 'allowed')
print('clone3', errno.errorcode[(libc.syscall(435, 0, 0), ctypes.get_errno())[1]])
";
        let out = run(code).await;
        let (last, denied): (Vec<_>, Vec<_>) = out.lines().partition(|l| l.starts_with("clone3"));
        assert_eq!(denied.len(), 20, "{out}");
        assert!(denied.iter().all(|line| line.ends_with(" EPERM")), "{out}");
        assert_eq!(last, ["clone3 ENOSYS"]);
        let threads =
            "import threading; t = threading.Thread(target=print, args=('ran',)); t.start(); t.join()";
        assert_eq!(run(threads).await, "ran");
    });
}

fn has_only_a_loopback_interface() {
    inside(async |_, run| {
        assert_eq!(run("import socket; print([n for _, n in socket.if_nameindex()])").await, "['lo']");
        let code = "import socket\ns = socket.socket(); s.settimeout(5)\ntry: s.connect(('192.0.2.1', 80))\nexcept OSError as e: print(e.strerror)";
        assert_eq!(run(code).await, "Network is unreachable");
        let own = "import socket\na = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname()); print('ok')";
        assert_eq!(run(own).await, "ok");
        assert_eq!(run("import socket; print(socket.gethostname())").await, id(1).to_string());
    });
}

fn holds_only_its_descriptors_and_environment() {
    inside(async |_, run| {
        // 0 to 2, the listener, the connection, and the directory being read.
        assert_eq!(
            run("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))").await,
            "[0, 1, 2, 3, 4, 5]"
        );
        let env = run("import os; print({k: v for k, v in os.environ.items() if k.startswith(('FANFARE', 'LISTEN', 'PORT', 'COLOR'))})").await;
        for want in [
            "'COLOR': 'blue'",
            "'PORT': '8080'",
            "'LISTEN_FDS': '1'",
            "'LISTEN_PID': '2'",
            "'FANFARE_LISTENER': '3'",
            "'FANFARE_FUNCTION_NAME': 'fn1'",
            &format!("'FANFARE_SANDBOX_ID': '{}'", id(1)),
        ] {
            assert!(env.contains(want), "{want} is not in {env}");
        }
        let signals =
            run("print([l for l in open('/proc/self/status') if l.startswith(('SigBlk', 'SigIgn'))])").await;
        // Python itself ignores SIGPIPE (13) and SIGXFSZ (25), and nothing else.
        assert!(
            signals.contains("0000000001001000") && signals.contains("SigBlk:\\t0000000000000000"),
            "{signals}"
        );
    });
}

fn revisions_have_different_users() {
    block_on(async {
        let lab = Lab::new().await;
        let mut uids = Vec::new();
        for (n, function) in [(1, 1), (2, 1), (3, 2)] {
            let started = lab.create(n, &lab.probe(function)).await.unwrap();
            uids.push(lab.run(n, &started, "import os; print(os.getuid(), os.getgid())").await);
        }
        assert_eq!(uids[0], uids[1]);
        assert_ne!(uids[0], uids[2]);
        lab.close().await;
    });
}

fn the_report_says_what_is_enforced() {
    block_on(async {
        let lab = Lab::new().await;
        let report = lab.runtime.isolation();
        assert!(report.root);
        let controllers = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let v1 = controllers.lines().any(|l| l.contains(" - cgroup cgroup ") && l.contains("memory"));
        match report.cgroups {
            CgroupVersion::V1 | CgroupVersion::Hybrid => assert!(v1),
            CgroupVersion::V2 => assert!(!v1),
            CgroupVersion::None => panic!("root, and no cgroups: {report}"),
        }
        for name in ["user", "memory limit", "process limit", "system calls"] {
            assert!(report.mechanisms.iter().any(|m| m.name == name && m.enforced), "{report}");
        }
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}
