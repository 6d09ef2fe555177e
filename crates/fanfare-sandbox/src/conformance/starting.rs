//! Rules of `prepare` and `create`.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{ExitCause, StartFailure, StartFailureKind, StopMode};
use futures_util::future::join_all;

use super::lab::{Lab, id};
use super::{Ask, Behaviour, FAILING_LINE, FAILING_STATUS, Subject, WAITING_LINE};

/// Sandboxes in the cases that start many.
const MANY: u64 = 50;
/// A time to start that is over soon.
const SOON: Duration = Duration::from_millis(400);
/// A time to start that no case waits for.
const LONG: Duration = Duration::from_secs(600);

pub(super) async fn ready_means_a_request_is_answered(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    for n in 1..=5 {
        let started = lab.ready(n, Behaviour::Serves).await;
        assert_eq!(lab.ask(n, &started, Ask::Answer).await, Ok(200), "the first request of sandbox {n}");
        assert_eq!(lab.ask(n, &started, Ask::Answer).await, Ok(200), "the second request of sandbox {n}");
        assert!(started.stages.on_node() < LONG, "stages: {:?}", started.stages);
    }
    for n in 1..=5 {
        lab.stop(n, StopMode::Graceful).await;
        assert_eq!(lab.exit(n).await.cause, ExitCause::Stopped);
    }
    lab.close().await;
}

pub(super) async fn failure_tells_why_and_leaves_nothing(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    for n in 1..=3 {
        let failure = lab.create(n, Behaviour::FailsToStart).await.expect_err("it ends before it is ready");
        check_failure(&failure);
        lab.clean().await;
    }
    lab.close().await;
}

fn check_failure(failure: &StartFailure) {
    assert_eq!(failure.kind, StartFailureKind::Exited(ExitCause::Status(FAILING_STATUS)), "{failure:?}");
    assert!(failure.log_tail.contains(FAILING_LINE), "its last words are missing: {failure:?}");
    assert!(!failure.detail.is_empty() && failure.detail.chars().count() <= 300, "{failure:?}");
}

pub(super) async fn not_ready_in_time_is_a_failure_that_leaves_nothing(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let never = Behaviour::NeverReady { start_timeout: SOON };
    let begun = tokio::time::Instant::now();
    let failure = lab.create(1, never).await.expect_err("it never becomes ready");
    // Where it is seen what is lacking, that is said.
    let kinds = [StartFailureKind::Timeout, StartFailureKind::NotListening];
    assert!(kinds.contains(&failure.kind), "{failure:?}");
    assert!(begun.elapsed() >= SOON, "gave up after {:?} of {SOON:?}", begun.elapsed());
    assert!(begun.elapsed() < SOON * 10, "gave up only after {:?} of {SOON:?}", begun.elapsed());
    lab.clean().await;
    lab.close().await;
}

pub(super) async fn an_id_in_use_is_refused(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let started = lab.ready(1, Behaviour::Serves).await;
    let failure = lab.create(1, Behaviour::Serves).await.expect_err("the id is in use");
    assert_eq!(failure.kind, StartFailureKind::Node, "{failure:?}");
    assert_eq!(lab.ask(1, &started, Ask::Answer).await, Ok(200), "the first owner of the id is unharmed");
    lab.stop(1, StopMode::Graceful).await;
    assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
    lab.close().await;
}

pub(super) async fn prepare_proves_a_start_and_leaves_no_sandbox(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let revision = lab.subject.revision(Behaviour::Serves);
    lab.runtime.prepare(revision.clone()).await.expect("it starts");
    lab.runtime.prepare(revision).await.expect("it starts again");
    let failure =
        lab.runtime.prepare(lab.subject.revision(Behaviour::FailsToStart)).await.expect_err("it does not");
    check_failure(&failure);
    lab.clean().await;
    assert!(lab.runtime.usage().is_empty(), "a trial start is not a sandbox");
    lab.close().await;
}

pub(super) async fn a_dropped_create_leaves_nothing_once_stopped(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let never = Behaviour::NeverReady { start_timeout: LONG };
    let create = tokio::spawn(lab.runtime.create(id(1), lab.subject.revision(never)));
    lab.line(never, WAITING_LINE).await;
    create.abort();
    assert!(create.await.is_err_and(|e| e.is_cancelled()));
    lab.stop(1, StopMode::Kill).await;
    lab.clean().await;
    lab.close().await;
}

pub(super) async fn fifty_at_once(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let all = join_all((1..=MANY).map(|n| lab.ready(n, Behaviour::Serves))).await;
    let answers = join_all((1..=MANY).zip(&all).map(|(n, started)| lab.ask(n, started, Ask::Answer))).await;
    for (n, answer) in (1..=MANY).zip(answers) {
        assert_eq!(answer, Ok(200), "sandbox {n}");
    }
    join_all((1..=MANY).map(|n| lab.stop(n, StopMode::Kill))).await;
    for n in 1..=MANY {
        assert_eq!(lab.exit(n).await.cause, ExitCause::Stopped, "sandbox {n}");
    }
    lab.clean().await;
    lab.close().await;
}

pub(super) async fn failures_do_not_disturb_their_neighbours(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let behaviour = |n: u64| if n.is_multiple_of(2) { Behaviour::Serves } else { Behaviour::FailsToStart };
    let all = join_all((1..=20).map(|n| lab.create(n, behaviour(n)))).await;
    for (n, outcome) in (1..=20).zip(all) {
        match (behaviour(n), outcome) {
            (Behaviour::FailsToStart, Err(failure)) => check_failure(&failure),
            (Behaviour::Serves, Ok(started)) => {
                assert_eq!(lab.ask(n, &started, Ask::Answer).await, Ok(200));
                lab.stop(n, StopMode::Kill).await;
                assert_eq!(lab.exit(n).await.cause, ExitCause::Stopped);
            }
            (behaviour, outcome) => panic!("sandbox {n} ({behaviour:?}): {outcome:?}"),
        }
    }
    lab.clean().await;
    lab.close().await;
}
