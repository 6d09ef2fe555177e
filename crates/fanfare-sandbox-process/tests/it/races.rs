//! Ends that come at any moment of a start. In a process of its own, whose descriptors and threads can be counted.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fanfare_sandbox::Runtime;
use fanfare_types::{Contract, RevisionSpec, StartFailureKind, StopMode};
use rustix::process::{Pid, Signal};

use crate::cases;
use crate::support::{EVENT_TIMEOUT, Lab, PROBE, block_on, descendants, id, revision};

cases![ends_at_any_moment_of_a_start_leave_nothing];

/// First argument of the process that does it.
pub(crate) const ARGUMENT: &str = "__races";
/// Moments of a start, and the time between two of them: together longer than a start takes.
const MOMENTS: u32 = 48;
const STEP: Duration = Duration::from_micros(250);
/// Descriptors that a runtime may have opened for good (its clock, a file of the kernel's).
const DESCRIPTORS_SLACK: usize = 4;

fn ends_at_any_moment_of_a_start_leave_nothing() {
    let output = Command::new(std::env::current_exe().unwrap()).arg(ARGUMENT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs the test in this process.
pub(crate) fn main() -> ! {
    block_on(async {
        let lab = Arc::new(Lab::new().await);
        let handler = "def handler(event, context): return 'ok'";
        let code = Some(lab.codes.add(lab.dir.path(), &[("f.py", handler)]));
        let python = Contract::Python { file: "f.py".into(), handler: "handler".into() };
        let specs = [
            lab.http(1, &[], &["/bin/sleep", "600"], true),
            lab.http(2, &[("probe.py", PROBE)], &["python3", "probe.py", "port"], false),
            revision(3, code, python),
        ];
        for spec in &specs[1..] {
            lab.runtime.prepare(Arc::new(spec.clone())).await.unwrap();
        }
        let before = descriptors();
        let mut n = 0;
        for spec in &specs {
            for moment in 0..MOMENTS {
                n += 1;
                stop_after(&lab, n, spec, STEP * moment).await;
            }
        }
        assert!(descriptors() <= before + DESCRIPTORS_SLACK, "{before} became {}", descriptors());
        for round in 0..6 {
            n += 100;
            kill_after(&lab, n, &specs, Duration::from_millis(4 * round)).await;
        }
        assert_eq!(lab.runtime.audit().await, []);
        assert!(descriptors() <= before + DESCRIPTORS_SLACK, "{before} became {}", descriptors());
        Arc::into_inner(lab).unwrap().close().await;
    });
    std::process::exit(0)
}

/// Starts a sandbox and stops it some time later, whatever it has come to.
async fn stop_after(lab: &Arc<Lab>, n: u64, spec: &RevisionSpec, time: Duration) {
    let create = tokio::spawn(lab.runtime.create(id(n), Arc::new(spec.clone())));
    // When the stop comes is what is varied here.
    tokio::time::sleep(time).await;
    tokio::time::timeout(*EVENT_TIMEOUT, lab.stop(n, StopMode::Kill)).await.expect("an end");
    let created = tokio::time::timeout(*EVENT_TIMEOUT, create).await.expect("an answer").unwrap();
    match created {
        Ok(_) => lab.stop(n, StopMode::Kill).await,
        Err(failure) => assert!(matches!(failure.kind, StartFailureKind::Exited(_)), "{failure:?}"),
    }
}

/// Starts several sandboxes and kills the launcher, or a zygote, some time later.
async fn kill_after(lab: &Arc<Lab>, from: u64, specs: &[RevisionSpec], time: Duration) {
    let creates: Vec<_> = (from..from + 12)
        .zip(specs.iter().cycle())
        .map(|(n, spec)| tokio::spawn(lab.runtime.create(id(n), Arc::new(spec.clone()))))
        .collect();
    tokio::time::sleep(time).await;
    let me = i32::try_from(std::process::id()).unwrap();
    // The launcher is the first that was started.
    if let Some(pid) = descendants(me).first().and_then(|pid| Pid::from_raw(*pid)) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    for create in creates {
        // Started before or after, or failed: but answered.
        let _ = tokio::time::timeout(*EVENT_TIMEOUT, create).await.expect("an answer").unwrap();
    }
    for n in from..from + 12 {
        tokio::time::timeout(*EVENT_TIMEOUT, lab.stop(n, StopMode::Kill)).await.expect("an end");
    }
    // Until another launcher is there.
    for n in from + 12.. {
        assert!(n < from + 100, "no new launcher");
        match lab.create(n, &specs[0]).await {
            Ok(_) => return lab.stop(n, StopMode::Kill).await,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
