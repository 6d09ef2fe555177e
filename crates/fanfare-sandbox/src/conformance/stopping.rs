//! Rules of `stop` and of ends.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{ExitCause, StartFailureKind, StopMode, limits};
use futures_util::future::join;
use futures_util::poll;
use tokio::time::Instant;

use super::lab::{Lab, id};
use super::{Ask, Behaviour, SLOW_LINE, Subject, WAITING_LINE};

/// A time that no case waits for.
const LONG: Duration = Duration::from_secs(600);
/// What an end may take beyond its grace on a machine that is busy.
const MARGIN: Duration = Duration::from_secs(10);

pub(super) async fn an_exit_by_itself_is_reported_once(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    for (n, status) in [(1, 0), (2, 7), (3, 255)] {
        let started = lab.ready(n, Behaviour::Serves).await;
        let answer = lab.ask(n, &started, Ask::Exit(status)).await;
        assert!(answer.is_err(), "an answer from a sandbox that ended: {answer:?}");
        assert_eq!(lab.exit(n).await.cause, ExitCause::Status(status));
        lab.clean().await;
        assert!(lab.ask(n, &started, Ask::Answer).await.is_err(), "its endpoint still answers");
        lab.stop(n, StopMode::Kill).await;
    }
    lab.close().await;
}

pub(super) async fn stop_before_ready_fails_the_create(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let never = Behaviour::NeverReady { start_timeout: LONG };
    for (n, mode) in [(1, StopMode::Graceful), (2, StopMode::Kill)] {
        let create = tokio::spawn(lab.runtime.create(id(n), lab.subject.revision(never)));
        lab.line(never, WAITING_LINE).await;
        lab.stop(n, mode).await;
        let failure = create.await.unwrap().expect_err("it was stopped");
        assert_eq!(failure.kind, StartFailureKind::Exited(ExitCause::Stopped), "{failure:?}");
        lab.clean().await;
    }
    lab.close().await;
}

pub(super) async fn stop_at_first_sight_fails_the_create(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let never = Behaviour::NeverReady { start_timeout: LONG };
    let mut create = lab.runtime.create(id(1), lab.subject.revision(never));
    assert!(poll!(&mut create).is_pending(), "it never becomes ready");
    let (failure, ()) = join(create, lab.stop(1, StopMode::Kill)).await;
    assert_eq!(failure.expect_err("it was stopped").kind, StartFailureKind::Exited(ExitCause::Stopped));
    lab.clean().await;
    lab.close().await;
}

pub(super) async fn stop_of_an_unknown_sandbox_resolves_at_once(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let begun = Instant::now();
    join(lab.stop(404, StopMode::Graceful), lab.stop(405, StopMode::Kill)).await;
    assert!(begun.elapsed() < limits::STOP_GRACE, "took {:?}", begun.elapsed());
    lab.clean().await;
    lab.close().await;
}

pub(super) async fn if_not_begun_spares_what_has_begun(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let started = lab.ready(1, Behaviour::Serves).await;
    lab.stop(1, StopMode::IfNotBegun).await;
    assert_eq!(lab.ask(1, &started, Ask::Answer).await, Ok(200), "a ready sandbox lives on");
    let never = Behaviour::NeverReady { start_timeout: LONG };
    let create = tokio::spawn(lab.runtime.create(id(2), lab.subject.revision(never)));
    lab.line(never, WAITING_LINE).await;
    lab.stop(2, StopMode::IfNotBegun).await;
    assert!(!create.is_finished(), "a creation under way goes on");
    join(lab.stop(1, StopMode::Kill), lab.stop(2, StopMode::Kill)).await;
    assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
    assert!(create.await.unwrap().is_err());
    lab.close().await;
}

pub(super) async fn stopping_twice_ends_once(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let modes = [
        (StopMode::Graceful, StopMode::Graceful),
        (StopMode::Graceful, StopMode::Kill),
        (StopMode::Kill, StopMode::Graceful),
    ];
    for (n, (first, second)) in (1..).zip(modes) {
        lab.ready(n, Behaviour::Serves).await;
        join(lab.stop(n, first), lab.stop(n, second)).await;
        lab.stop(n, StopMode::Kill).await;
        assert_eq!(lab.exit(n).await.cause, ExitCause::Stopped);
        lab.clean().await;
    }
    lab.close().await;
}

pub(super) async fn graceful_lets_the_request_finish(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let started = lab.ready(1, Behaviour::Serves).await;
    let stop_when_begun = async {
        lab.line(Behaviour::Serves, SLOW_LINE).await;
        lab.stop(1, StopMode::Graceful).await;
    };
    let (answer, ()) = join(lab.ask(1, &started, Ask::Slow(limits::STOP_GRACE / 5)), stop_when_begun).await;
    assert_eq!(answer, Ok(200), "the request in hand is finished");
    assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
    assert!(lab.ask(1, &started, Ask::Answer).await.is_err(), "its endpoint still answers");
    lab.close().await;
}

pub(super) async fn kill_does_not_wait(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let started = lab.ready(1, Behaviour::Serves).await;
    let kill_when_begun = async {
        lab.line(Behaviour::Serves, SLOW_LINE).await;
        lab.stop(1, StopMode::Kill).await;
    };
    let begun = Instant::now();
    let (answer, ()) = join(lab.ask(1, &started, Ask::Slow(LONG)), kill_when_begun).await;
    assert!(answer.is_err(), "an answer from a killed sandbox: {answer:?}");
    assert!(begun.elapsed() < MARGIN, "took {:?}", begun.elapsed());
    assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
    lab.close().await;
}

pub(super) async fn grace_ends(subject: Arc<dyn Subject>) {
    let lab = Lab::new(subject).await;
    let started = lab.ready(1, Behaviour::Stubborn).await;
    assert_eq!(lab.ask(1, &started, Ask::Answer).await, Ok(200));
    let begun = Instant::now();
    lab.stop(1, StopMode::Graceful).await;
    let took = begun.elapsed();
    assert!(took >= limits::STOP_GRACE, "killed after {took:?}, before its grace was over");
    assert!(took < limits::STOP_GRACE + MARGIN, "took {took:?}");
    assert_eq!(lab.exit(1).await.cause, ExitCause::Stopped);
    lab.close().await;
}
