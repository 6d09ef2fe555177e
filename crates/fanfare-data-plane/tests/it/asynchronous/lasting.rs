//! What a restart leaves.

use std::sync::atomic::Ordering;

use fanfare_data_plane::{DataPlane, LogError, Options, StartError};
use fanfare_store::{Op, RedbStore, Scan, Store, Txn};

use super::{Keeping, call, ended, ids, list, options, result, status};
use crate::rig::{hello, start_at_with};
use crate::sandbox::{HeldSandbox, Sandbox};

#[tokio::test]
async fn calls_and_results_outlive_the_data_plane() {
    let keeping = Keeping::new().await;
    let mut sandbox = HeldSandbox::new(keeping.rig.dir(), 1);
    keeping.control.grant(1, sandbox.endpoint(), 1, None);
    let done = call(keeping.address(), "hello/done", &[("idempotency-key", "k")], "").await;
    sandbox.next().await.answer("the result");
    ended(keeping.address(), &done).await;
    let running = call(keeping.address(), "hello/running", &[], "").await;
    let held = sandbox.next().await;
    let waiting = call(keeping.address(), "hello/waiting", &[], vec![7; 2 << 20]).await;
    let queued = call(keeping.address(), "hello/queued", &[], "").await;
    let cancelled = call(keeping.address(), "hello/cancelled", &[], "").await;
    super::send(keeping.address(), "DELETE", &format!("/async/{cancelled}"), &[], "").await;
    let rest = call(keeping.address(), "hello/rest", &[], "").await;
    keeping.rig.shutdown.cancel();
    held.answer("in time");
    let log = keeping.stop().await;

    let keeping = Keeping::at(log, vec![hello()], |_| {}).await;
    let address = keeping.address();
    assert_eq!(result(address, &done).await.text(), "the result");
    assert_eq!(result(address, &running).await.text(), "in time", "what ran when it shut down could end");
    assert_eq!(status(address, &cancelled).await["state"], "cancelled");
    assert_eq!(call(address, "hello/done", &[("idempotency-key", "k")], "").await, done);
    let sandbox = Sandbox::named(keeping.rig.dir(), 1);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    for id in [&waiting, &queued, &rest] {
        let document = ended(address, id).await;
        assert_eq!((document["state"].as_str(), document["attempts"].as_u64()), (Some("succeeded"), Some(1)));
    }
    assert_eq!(sandbox.seen.requests.load(Ordering::SeqCst), 3);
    let all = [&done, &running, &waiting, &queued, &cancelled, &rest];
    assert_eq!(ids(&list(address, "").await), all);
    let new = call(address, "hello", &[], "").await;
    assert!(new.starts_with("d1-7-"), "the numbers go on: {new}");
}

#[tokio::test]
async fn what_is_cut_short_is_repeated_with_a_higher_number_or_lost() {
    let log = tempfile::tempdir().unwrap();
    let kept = options(log.path());
    let (rig, control) = crate::rig::Rig::synced_with(vec![hello()], |options| {
        options.asynchronous = Some(kept);
        options.drain_timeout = std::time::Duration::from_millis(50);
    })
    .await;
    let mut sandbox = HeldSandbox::new(rig.dir(), 1);
    control.grant(1, sandbox.endpoint(), 1, None);
    let mut other = HeldSandbox::new(rig.dir(), 2);
    control.grant(2, other.endpoint(), 1, None);
    let once = call(rig.address(), "hello", &[("x-fanfare-delivery", "at-most-once")], "").await;
    let again = call(rig.address(), "hello", &[], "").await;
    let _held = futures_util::future::join(sandbox.next(), other.next()).await;
    rig.shutdown.cancel();
    crate::rig::within("the end", rig.data_plane.stopped()).await;

    let keeping = Keeping::at(log, vec![hello()], |_| {}).await;
    let document = ended(keeping.address(), &once).await;
    assert_eq!((document["state"].as_str(), document["cause"].as_str()), (Some("dead"), Some("lost")));
    let sandbox = Sandbox::named(keeping.rig.dir(), 1);
    keeping.control.grant(1, &sandbox.endpoint, 1, None);
    let document = ended(keeping.address(), &again).await;
    assert_eq!((document["state"].as_str(), document["attempts"].as_u64()), (Some("succeeded"), Some(2)));
    assert_eq!(document["interrupted_attempts"], 1);
}

#[tokio::test]
async fn a_log_that_is_not_ours_damaged_or_newer_is_refused_and_left_as_it_is() {
    let log = Keeping::new().await.stop().await;
    let file = log.path().join("store.fanfare");
    let good = std::fs::read(&file).unwrap();
    let refused = |what: &str| match start_at_with(options(log.path())) {
        Err(StartError::Log(error)) => error,
        other => panic!("{what}: {other:?}"),
    };
    // Not a log.
    std::fs::write(&file, b"something else entirely").unwrap();
    assert!(refused("a stranger").to_string().contains("damaged"));
    assert_eq!(std::fs::read(&file).unwrap(), b"something else entirely");
    // Damaged.
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[4096..middle].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(&file, &bad).unwrap();
    assert!(refused("damaged").to_string().contains("left as it is") || bad.len() < 8_192);
    assert!(std::fs::read(&file).unwrap() == bad);
    // Of a later version, and not a log of calls.
    for (value, newer) in [("fanfare-async 2", true), ("fanfare-other 1", false)] {
        std::fs::write(&file, &good).unwrap();
        // An older state is put back on purpose: what was noted of the newer one goes with it.
        std::fs::remove_file(log.path().join("store.fanfare.acknowledged")).unwrap();
        let store = RedbStore::open(log.path()).unwrap();
        let ops = vec![Op::Put("format".into(), value.into())];
        store.commit(Txn { ops, ..Txn::default() }).await.unwrap();
        store.close().await;
        drop(store);
        let error = refused(value);
        assert_eq!(matches!(error, LogError::Newer { found: 2 }), newer, "{error}");
        assert!(error.to_string().contains("left as it is"), "{error}");
        // The store's own bookkeeping may differ, not what is in it.
        let store = RedbStore::open(log.path()).unwrap();
        let entries = store.scan(Scan { limit: 9, ..Scan::default() }).await.unwrap().entries;
        let entries: Vec<_> = entries.iter().map(|(key, entry)| (key.as_str(), &entry.value[..])).collect();
        assert_eq!(entries, [("chain/0000000000000000", &b"0 1"[..]), ("format", value.as_bytes())]);
        store.close().await;
    }
    // In use.
    std::fs::write(&file, &good).unwrap();
    std::fs::remove_file(log.path().join("store.fanfare.acknowledged")).unwrap();
    let keeping = Keeping::at(log, vec![hello()], |_| {}).await;
    let in_use = DataPlane::start(
        Options { asynchronous: Some(options(keeping.log.path())), ..Options::default() },
        crate::rig::nowhere(),
        tokio_util::sync::CancellationToken::new(),
    );
    let Err(StartError::Log(error)) = in_use else { panic!("two on one log") };
    assert!(error.to_string().contains("in use by process"), "{error}");
}
