//! A daemon to be killed: starts sandboxes as told and then waits.

use std::io::Write;
use std::path::Path;

use fanfare_sandbox_process::ProcessRuntime;
use fanfare_types::StopMode;
use futures_util::future::join_all;

use crate::support::{Lab, PROBE, descendants};

/// First argument of a process that shall be such a daemon; the second is its directory, and a third has it start and
/// stop sandboxes all the while.
pub(crate) const ARGUMENT: &str = "__daemon";

/// Starts one sandbox of each kind, prints the launcher's pid and `ready`, and waits to be killed.
pub(crate) fn main(args: &[String]) -> ! {
    let dir = Path::new(&args[0]);
    let kept = tempfile::TempDir::with_prefix_in("d", dir).unwrap();
    crate::support::block_on(async {
        let mut lab = Lab::with(kept, |options| {
            options.run_dir = dir.join("run");
            options.data_dir = dir.join("data");
        })
        .await;
        let _: &ProcessRuntime = &lab.runtime;
        lab.dir.disable_cleanup(true);
        lab.create(1, &lab.probe(1)).await.unwrap();
        let port = lab.http(2, &[("probe.py", PROBE)], &["python3", "probe.py", "port"], false);
        lab.create(2, &port).await.unwrap();
        let started = lab.create(3, &lab.probe(1)).await.unwrap();
        lab.run(3, &started, "import os, signal\nif os.fork() == 0: signal.pause()").await;
        let me = i32::try_from(std::process::id()).unwrap();
        println!("ready {}", descendants(me)[0]);
        std::io::stdout().flush().unwrap();
        if args.len() > 1 {
            keep_busy(&lab).await;
        }
        std::future::pending::<()>().await;
    });
    unreachable!("it waits for ever")
}

async fn keep_busy(lab: &Lab) {
    let sleeper = lab.http(9, &[], &["/bin/sleep", "600"], true);
    for n in 1.. {
        let ids = (10 * n..10 * n + 8).collect::<Vec<u64>>();
        join_all(ids.iter().map(|id| lab.create(*id, &sleeper))).await;
        join_all(ids.iter().map(|id| lab.stop(*id, StopMode::Kill))).await;
    }
}
