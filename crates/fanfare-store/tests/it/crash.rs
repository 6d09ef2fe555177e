//! `kill -9` of a process that writes as fast as it can.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use bytes::Bytes;
use fanfare_store::{Op, RedbStore, Scan, Store, Txn};

const DIRECTORY: &str = "FANFARE_STORE_CRASH_DIRECTORY";

/// Not a test of its own: the process that is killed. It prints each key once its write is acknowledged.
#[test]
fn writer() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = RedbStore::open(directory.as_ref()).unwrap();
        let mut out = std::io::stdout();
        for i in 0_u64.. {
            let keys: Vec<_> = (0..8).map(|lane| format!("{lane}/{i:08}")).collect();
            let commits = keys.iter().map(|key| {
                let ops = vec![Op::Put(key.clone(), Bytes::from(key.repeat(20)))];
                store.commit(Txn { ops, ..Txn::default() })
            });
            futures_util::future::try_join_all(commits).await.unwrap();
            writeln!(out, "acknowledged {}", keys.join(" ")).unwrap();
        }
    });
}

#[tokio::test]
async fn acknowledged_writes_outlive_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for rounds in [1, 20, 70] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::writer", "--nocapture"])
            .env(DIRECTORY, directory.path().join(rounds.to_string()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        while seen < rounds {
            let line = lines.next().expect("the writer ended early").unwrap();
            // The harness prints on the same pipe.
            if let Some((_, keys)) = line.split_once("acknowledged ") {
                acknowledged.extend(keys.split(' ').map(str::to_owned));
                seen += 1;
            }
        }
        // SIGKILL, while the next writes are under way.
        child.kill().unwrap();
        child.wait().unwrap();

        let store = RedbStore::open(&directory.path().join(rounds.to_string())).unwrap();
        for key in acknowledged.drain(..) {
            let entry = store.get(key.clone()).await.unwrap().expect("an acknowledged write");
            assert_eq!(entry.value, key.repeat(20));
        }
        let all = store.scan(Scan { limit: 10_000, ..Scan::default() }).await.unwrap();
        assert!(
            all.entries.iter().all(|(key, entry)| entry.value == key.repeat(20)),
            "nothing is half written"
        );
        store.close().await;
    }
}
