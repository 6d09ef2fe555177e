//! Whatever is killed, nothing is left.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fanfare_sandbox::Runtime;
use fanfare_sandbox_process::audit;
use fanfare_types::StartFailureKind;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::cases;
use crate::support::{Lab, block_on, descendants, directory, traces};

cases![
    a_killed_daemon_leaves_nothing,
    a_killed_launcher_takes_its_sandboxes_along_and_is_replaced,
    what_two_kills_leave_is_found_and_removed,
    a_launcher_short_of_descriptors_refuses_and_lives,
    a_daemon_killed_at_work_leaves_nothing,
    a_removed_run_directory_is_made_anew,
    a_launcher_that_cannot_be_started_does_not_keep_the_runtime_from_its_end,
];

/// A daemon with three sandboxes, and its launcher's pid.
fn daemon(dir: &Path, more: &[&str]) -> (Child, i32) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([crate::daemon::ARGUMENT, dir.to_str().unwrap()])
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let launcher = line.strip_prefix("ready ").unwrap_or_else(|| panic!("daemon said {line:?}")).trim();
    (child, launcher.parse().unwrap())
}

/// Waits until a process has ended.
fn wait_for_end(pid: i32) {
    let Some(number) = Pid::from_raw(pid) else { return };
    let Ok(pidfd) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else { return };
    let mut poll = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut poll, Some(&limit)).unwrap(), 1, "{pid} does not end");
}

fn kill(pid: i32) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

fn a_killed_daemon_leaves_nothing() {
    let dir = directory();
    let (mut child, launcher) = daemon(dir.path(), &[]);
    let sandboxes = descendants(launcher);
    assert_eq!(sandboxes.len(), 7, "three first processes, three programs, one child of a program");
    let run_dir = dir.path().join("run");
    assert!(traces(&run_dir).len() > 3, "{:?}", traces(&run_dir));
    assert_eq!(audit(&run_dir).unwrap(), [], "all of it is owned");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for_end(launcher);
    for pid in sandboxes {
        wait_for_end(pid);
    }
    assert_eq!(traces(&run_dir), Vec::<String>::new());
    assert_eq!(audit(&run_dir).unwrap(), []);
}

fn a_killed_launcher_takes_its_sandboxes_along_and_is_replaced() {
    block_on(async {
        let lab = Lab::new().await;
        lab.create(1, &lab.probe(1)).await.unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        let run_dir = lab.dir.path().join("run");
        let ours = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
                .is_ok_and(|m| m.contains(run_dir.to_str().unwrap()))
        };
        let launcher: Vec<i32> = descendants(me).into_iter().filter(ours).collect();
        assert_eq!(launcher.len(), 1, "the launcher alone sees the run directory's mounts");
        kill(launcher[0]);
        let exit = lab.exit(1).await;
        assert_eq!(exit.cause, fanfare_types::ExitCause::Signal(9));
        // Until another is there, creations fail and say why.
        let mut n = 2;
        while let Err(failure) = lab.create(n, &lab.probe(1)).await {
            assert_eq!(failure.kind, StartFailureKind::Node, "{failure:?}");
            n += 1;
            assert!(n < 10_000, "no new launcher");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        lab.close().await;
    });
}

fn what_two_kills_leave_is_found_and_removed() {
    let dir = directory();
    let (mut child, launcher) = daemon(dir.path(), &[]);
    let run_dir = dir.path().join("run");
    let sandboxes = descendants(launcher);
    // The launcher first, stopped, so that it cannot clean up.
    rustix::process::kill_process(Pid::from_raw(launcher).unwrap(), Signal::STOP).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    kill(launcher);
    wait_for_end(launcher);
    for pid in sandboxes {
        wait_for_end(pid);
    }
    let orphans = audit(&run_dir).unwrap();
    let kinds: std::collections::BTreeSet<_> = orphans.iter().map(|o| o.kind).collect();
    assert!(kinds.contains("cgroup") && kinds.contains("socket"), "{orphans:?}");
    block_on(async {
        let lab = Lab::with(dir, |_| {}).await;
        assert_eq!(lab.runtime.audit().await, []);
        lab.create(1, &lab.probe(1)).await.unwrap();
        lab.close().await;
    });
}

fn a_launcher_short_of_descriptors_refuses_and_lives() {
    block_on(async {
        let lab = Lab::with(directory(), |options| {
            let limited = "ulimit -n 256 && exec \"$0\" \"$1\"".into();
            let own = std::mem::replace(&mut options.launcher.program, "/bin/sh".into());
            options.launcher.args =
                ["-c".into(), limited, own.into()].into_iter().chain(options.launcher.args.clone()).collect();
            options.netns_pool = 512;
        })
        .await;
        let sleeper = lab.http(1, &[], &["/bin/sleep", "600"], true);
        let mut living = Vec::new();
        let mut refused = 0;
        for n in 1..=300 {
            match lab.create(n, &sleeper).await {
                Ok(_) => living.push(n),
                Err(failure) => {
                    assert_eq!(failure.kind, StartFailureKind::Node, "{failure:?}");
                    assert!(failure.detail.contains("oo many open files"), "{failure:?}");
                    refused += 1;
                }
            }
        }
        assert!(living.len() > 64 && refused > 10, "{} live, {refused} were refused", living.len());
        assert!(lab.exits.borrow().is_empty(), "{:?}", lab.exits.borrow());
        for n in living {
            lab.stop(n, fanfare_types::StopMode::Kill).await;
        }
        let probe = lab.create(1_000, &lab.probe(2)).await.unwrap();
        assert_eq!(lab.run(1_000, &probe, "print('lives')").await, "lives");
        lab.close().await;
    });
}

/// The launcher's last answer may be unread, or not even sent.
fn a_daemon_killed_at_work_leaves_nothing() {
    for round in 0..8 {
        let dir = directory();
        let (mut child, launcher) = daemon(dir.path(), &["busy"]);
        // When the end comes is what is varied here.
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: round * 3_700_000 };
        rustix::event::poll(&mut [], Some(&pause)).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        wait_for_end(launcher);
        assert_eq!(traces(&dir.path().join("run")), Vec::<String>::new(), "round {round}");
    }
}

/// Cleaners of temporary directories do such things.
fn a_removed_run_directory_is_made_anew() {
    for part in ["", "s", "journal", "root", "lock"] {
        block_on(a_removed_part_is_made_anew(part));
    }
}

/// All of the run directory, or one part.
async fn a_removed_part_is_made_anew(part: &str) {
    let lab = Lab::new().await;
    lab.create(1, &lab.probe(1)).await.unwrap();
    let run_dir = lab.dir.path().join("run");
    if part == "lock" {
        std::fs::remove_file(run_dir.join(part)).unwrap();
        // Whoever holds the lock owns all: without its file that is looked for when something else is missing.
        std::fs::remove_dir_all(run_dir.join("s")).unwrap();
    } else {
        std::fs::remove_dir_all(run_dir.join(part)).unwrap();
    }
    let failure = lab.create(2, &lab.probe(1)).await.unwrap_err();
    assert_eq!(failure.kind, StartFailureKind::Node, "{part}: {failure:?}");
    assert!(failure.detail.contains("was removed while the node ran"), "{part}: {failure:?}");
    lab.exit(1).await;
    let port = lab.http(2, &[("probe.py", crate::support::PROBE)], &["python3", "probe.py", "port"], false);
    let mut n = 3;
    let started = loop {
        match lab.create(n, &port).await {
            Ok(started) => break started,
            Err(failure) => assert_eq!(failure.kind, StartFailureKind::Node, "{failure:?}"),
        }
        n += 1;
        assert!(n < 1_000, "{part}: no new launcher");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!(lab.run(n, &started, "print('through the broker')").await, "through the broker");
    // It has been replaced once: what runs goes on running while more is started.
    let probe = lab.create(n + 1, &lab.probe(1)).await.unwrap();
    lab.create(n + 2, &lab.probe(1)).await.unwrap();
    assert_eq!(lab.run(n + 1, &probe, "print('lives')").await, "lives");
    let lock = std::fs::File::open(run_dir.join("lock")).unwrap();
    assert!(lock.try_lock().is_err(), "{part}: it is held again");
    lab.close().await;
}

/// The launcher is a program that a test can take away.
fn a_launcher_that_cannot_be_started_does_not_keep_the_runtime_from_its_end() {
    block_on(async {
        let dir = directory();
        let program = dir.path().join("launcher");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let gone = program.clone();
        let lab = Lab::with(dir, |options| options.launcher.program = program).await;
        lab.create(1, &lab.probe(1)).await.unwrap();
        std::fs::remove_file(gone).unwrap();
        std::fs::remove_dir_all(lab.dir.path().join("run/journal")).unwrap();
        lab.create(2, &lab.probe(1)).await.unwrap_err();
        lab.exit(1).await;
        let closing = tokio::time::timeout(*crate::support::EVENT_TIMEOUT, lab.runtime.shutdown());
        closing.await.expect("it ends, though it has no launcher");
    });
}
