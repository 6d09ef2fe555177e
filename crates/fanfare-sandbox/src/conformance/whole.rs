//! Rules of the runtime as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{ExitCause, StartFailureKind, StopMode};
use futures_util::future::{join, join3};

use super::lab::{Lab, id};
use super::{Ask, Behaviour, Subject, WAITING_LINE};
use crate::Started;

/// A time to start that no case waits for.
const LONG: Duration = Duration::from_secs(600);

pub(super) async fn usage_names_only_what_lives(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let first = lab.ready(1, Behaviour::Serves).await;
    lab.ready(2, Behaviour::Serves).await;
    assert_eq!(lab.ask(1, &first, Ask::Answer).await, Ok(200));
    let living = BTreeSet::from([id(1), id(2)]);
    for usage in lab.runtime.usage() {
        assert!(living.contains(&usage.sandbox), "{usage:?} of a sandbox that does not live");
        assert!(usage.cpu_milli.is_finite() && usage.cpu_milli >= 0.0, "{usage:?}");
    }
    lab.stop(1, StopMode::Kill).await;
    lab.exit(1).await;
    assert!(lab.runtime.usage().iter().all(|usage| usage.sandbox == id(2)));
    lab.stop(2, StopMode::Kill).await;
    lab.exit(2).await;
    lab.close().await;
}

pub(super) async fn forget_spares_the_living_and_can_be_undone(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let revision = lab.subject.revision(Behaviour::Serves).id;
    let started = lab.ready(1, Behaviour::Serves).await;
    let use_and_stop = async {
        assert_eq!(
            lab.ask(1, &started, Ask::Answer).await,
            Ok(200),
            "a forgotten revision's sandbox lives on"
        );
        lab.stop(1, StopMode::Graceful).await;
    };
    join(lab.runtime.forget(revision), use_and_stop).await;
    assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
    lab.runtime.forget(revision).await;
    let again = lab.ready(2, Behaviour::Serves).await;
    assert_eq!(lab.ask(2, &again, Ask::Answer).await, Ok(200));
    lab.stop(2, StopMode::Kill).await;
    lab.exit(2).await;
    lab.close().await;
}

pub(super) async fn what_an_earlier_incarnation_left_is_adopted_or_removed(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let mut earlier = Vec::new();
    for n in 1..=3 {
        earlier.push(lab.ready(n, Behaviour::Serves).await);
    }
    let Lab { subject, runtime, .. } = lab;
    if !subject.abandon(runtime).await {
        eprintln!("conformance: SKIPPED recovery: this subject cannot end a runtime as kill -9 would");
        return;
    }
    let (lab, found) = Lab::over(subject).await;
    for (n, old) in (1..=3).zip(earlier) {
        let Some(record) = found.iter().find(|record| record.sandbox == id(n)) else {
            assert!(lab.ask(n, &old, Ask::Answer).await.is_err(), "sandbox {n} was removed, yet it answers");
            continue;
        };
        let endpoint = record.endpoint.clone().expect("an adopted sandbox that was ready has an endpoint");
        let started = Started { endpoint, ..old };
        assert_eq!(lab.ask(n, &started, Ask::Answer).await, Ok(200), "adopted sandbox {n}");
        lab.stop(n, StopMode::Kill).await;
        assert_eq!(lab.exit(n).await.cause, ExitCause::Stopped);
    }
    lab.clean().await;
    let new = lab.ready(4, Behaviour::Serves).await;
    assert_eq!(lab.ask(4, &new, Ask::Answer).await, Ok(200));
    lab.stop(4, StopMode::Kill).await;
    lab.exit(4).await;
    lab.close().await;
}

pub(super) async fn shutdown_ends_everything_once(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let mut all = Vec::new();
    for n in 1..=5 {
        all.push(lab.ready(n, Behaviour::Serves).await);
    }
    join3(lab.runtime.shutdown(), lab.runtime.shutdown(), lab.stop(1, StopMode::Graceful)).await;
    lab.runtime.shutdown().await;
    for (n, started) in (1..=5).zip(&all) {
        assert_eq!(lab.exit(n).await.cause, ExitCause::Stopped, "sandbox {n}");
        assert!(lab.ask(n, started, Ask::Answer).await.is_err(), "sandbox {n} still answers");
    }
    lab.close().await;
}

pub(super) async fn shutdown_ends_what_is_starting(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let never = Behaviour::NeverReady { start_timeout: LONG };
    let create = tokio::spawn(lab.runtime.create(id(1), lab.subject.revision(never)));
    lab.line(never, WAITING_LINE).await;
    lab.runtime.shutdown().await;
    assert!(create.await.unwrap().is_err(), "a sandbox came up in a runtime that was shut down");
    lab.close().await;
}

pub(super) async fn nothing_is_created_after_shutdown(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    lab.runtime.shutdown().await;
    let failure = lab.create(1, Behaviour::Serves).await.expect_err("the runtime is shut down");
    assert_eq!(failure.kind, StartFailureKind::Node, "{failure:?}");
    let failure = lab.runtime.prepare(lab.subject.revision(Behaviour::Serves)).await.expect_err("shut down");
    assert_eq!(failure.kind, StartFailureKind::Node, "{failure:?}");
    lab.close().await;
}
