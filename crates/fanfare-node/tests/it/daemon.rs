//! Orders and what becomes of them.

use std::sync::Arc;

use fanfare_sandbox::{LogLine, LogStream, SandboxExit};
use fanfare_types::{
    Contract, ExitCause, FromNode, FunctionId, GoneCause, Protocol, RevisionId, RevisionSpec, SandboxId,
    SandboxUsage, SecretName, SecretValue, StartFailure, StartFailureKind, StopMode, ToNode,
};

use crate::rig::{Call, Leader, Rig, Setup, exists, ready, rev, spec, started, within};

fn exited(id: u64, exit: ExitCause, log_tail: &str) -> FromNode {
    FromNode::Exited { sandbox: SandboxId(id), cause: GoneCause { exit, log_tail: log_tail.into() } }
}

fn exit(id: u64, cause: ExitCause, log_tail: &str) -> SandboxExit {
    SandboxExit { sandbox: SandboxId(id), cause, log_tail: log_tail.into() }
}

fn start_failure(kind: StartFailureKind) -> StartFailure {
    StartFailure { kind, detail: "why".into(), log_tail: "tail".into() }
}

async fn failed(leader: &mut Leader) -> (SandboxId, StartFailure) {
    match leader.next().await {
        FromNode::Failed { sandbox, failure } => (sandbox, failure),
        other => panic!("{other:?} instead of a failure"),
    }
}

#[tokio::test]
async fn a_sandbox_is_created_serves_and_ends() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    rig.ready_sandbox(&mut leader, 7).await;
    (rig.outlets.exits)(exit(7, ExitCause::OutOfMemory, "last words"));
    assert_eq!(leader.next().await, exited(7, ExitCause::OutOfMemory, "last words"));
    // Its end is told once.
    (rig.outlets.exits)(exit(7, ExitCause::OutOfMemory, "again"));
    rig.ready_sandbox(&mut leader, 8).await;
}

#[tokio::test]
async fn an_endpoint_says_what_is_spoken_there() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    let (command, protocol) = (vec!["server".to_owned()], Protocol::H2c);
    let contract = Contract::Http { command, inherits_listener: true, protocol };
    leader.tell(ToNode::Revision(RevisionSpec { contract, ..(*spec(2, None)).clone() }.into()));
    leader.create(1, 2);
    let (_, answer) = rig.create_call().await;
    answer.send(Ok(started(1))).unwrap();
    match leader.next().await {
        FromNode::Ready { endpoint, .. } => assert_eq!(&*endpoint, "h2c+unix:/sock/1"),
        other => panic!("{other:?} instead of ready"),
    }
}

#[tokio::test]
async fn what_cannot_be_created_fails_with_a_reason() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    leader.create(1, 99);
    let (id, why) = failed(&mut leader).await;
    assert_eq!((id, why.kind), (SandboxId(1), StartFailureKind::Node));
    assert!(why.detail.contains("f5r99"), "{}", why.detail);

    let elsewhere = RevisionSpec { runtime: "other".into(), ..(*spec(2, None)).clone() };
    leader.tell(ToNode::Revision(elsewhere.into()));
    leader.create(2, 2);
    let (_, why) = failed(&mut leader).await;
    assert!(why.detail.contains("other"), "{}", why.detail);

    leader.create(3, 1);
    let (_, answer) = rig.create_call().await;
    answer.send(Err(start_failure(StartFailureKind::ImportFailed))).unwrap();
    assert_eq!(failed(&mut leader).await, (SandboxId(3), start_failure(StartFailureKind::ImportFailed)));
}

#[tokio::test]
async fn a_runtime_that_panics_fails_one_creation_and_leaves_nothing() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    leader.create(1, 1);
    drop(rig.create_call().await);
    match rig.call().await {
        Call::Stop(id, StopMode::Kill, done) => {
            assert_eq!(id, SandboxId(1));
            done.send(()).unwrap();
        }
        other => panic!("{other:?} instead of a stop"),
    }
    assert_eq!(failed(&mut leader).await.1.kind, StartFailureKind::Node);
    rig.ready_sandbox(&mut leader, 2).await;
}

#[tokio::test]
async fn a_sandbox_that_ends_before_its_start_is_told_was_never_ready() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    leader.create(1, 1);
    let (_, answer) = rig.create_call().await;
    (rig.outlets.exits)(exit(1, ExitCause::Status(3), "oops"));
    answer.send(Ok(started(1))).unwrap();
    let (id, why) = failed(&mut leader).await;
    assert_eq!((id, why.kind), (SandboxId(1), StartFailureKind::Exited(ExitCause::Status(3))));
    assert_eq!(why.log_tail, "oops");
}

#[tokio::test]
async fn creations_begin_in_order_within_their_limit_and_can_be_cancelled_before() {
    let mut rig = Rig::start(Setup { creations_max: 2, ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    for id in 1..=6 {
        leader.create(id, 1);
    }
    let (one, answer_one) = rig.create_call().await;
    let (two, answer_two) = rig.create_call().await;
    assert_eq!((one, two), (SandboxId(1), SandboxId(2)));
    // 3 and 5 have not begun; 2 has.
    leader.stop(3, StopMode::Graceful);
    leader.stop(5, StopMode::IfNotBegun);
    leader.stop(2, StopMode::IfNotBegun);
    assert_eq!(leader.next().await, exited(3, ExitCause::Stopped, ""));
    assert_eq!(leader.next().await, exited(5, ExitCause::Stopped, ""));
    assert!(rig.calls.try_recv().is_err(), "a third creation began");
    answer_two.send(Ok(started(2))).unwrap();
    assert_eq!(leader.next().await, ready(2));
    let (four, answer_four) = rig.create_call().await;
    assert_eq!(four, SandboxId(4));
    answer_one.send(Ok(started(1))).unwrap();
    assert_eq!(leader.next().await, ready(1));
    let (six, _answer_six) = rig.create_call().await;
    assert_eq!(six, SandboxId(6));
    answer_four.send(Ok(started(4))).unwrap();
    assert_eq!(leader.next().await, ready(4));
}

#[tokio::test]
async fn a_minimum_that_is_being_filled_does_not_hold_up_anothers_cold_start() {
    let mut rig = Rig::start(Setup { creations_max: 2, ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    let other = RevisionId { function: FunctionId(6), number: 1 };
    let unwaited = |id, revision| ToNode::Create { sandbox: SandboxId(id), revision, waited: false };
    leader.tell(ToNode::Revision(Arc::new(RevisionSpec { id: other, ..(*spec(1, None)).clone() })));
    (1..=200).for_each(|id| leader.tell(unwaited(id, rev(1))));
    let (first, answer) = rig.create_call().await;
    let (second, _second) = rig.create_call().await;
    assert_eq!((first, second), (SandboxId(1), SandboxId(2)));
    // Neither ends; the other function begins one nevertheless.
    for id in [201, 202] {
        leader.tell(ToNode::Create { sandbox: SandboxId(id), revision: other, waited: true });
    }
    let (cold, cold_answer) = rig.create_call().await;
    assert_eq!(cold, SandboxId(201));
    leader.tell(unwaited(203, other));
    leader.tell(ToNode::Hasten(SandboxId(150)));
    cold_answer.send(Ok(started(201))).unwrap();
    assert_eq!(leader.next().await, ready(201));
    answer.send(Ok(started(1))).unwrap();
    assert_eq!(leader.next().await, ready(1));
    // What requests wait for comes before the minimum, which then goes on in turns.
    let mut order = Vec::new();
    for _ in 0..4 {
        let (id, answer) = rig.create_call().await;
        order.push(id.0);
        answer.send(Ok(started(id.0))).unwrap();
        assert_eq!(leader.next().await, ready(id.0));
    }
    assert_eq!(order, [202, 150, 203, 3]);
}

#[tokio::test]
async fn a_stop_that_comes_before_the_runtime_knows_of_the_sandbox_is_not_lost() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    leader.create(1, 1);
    let (_, answer) = rig.create_call().await;
    leader.stop(1, StopMode::Graceful);
    let Call::Stop(_, _, done) = rig.call().await else { panic!("no stop") };
    done.send(()).unwrap();
    answer.send(Ok(started(1))).unwrap();
    let Call::Stop(id, mode, done) = rig.call().await else { panic!("no stop of what came up") };
    assert_eq!((id, mode), (SandboxId(1), StopMode::Graceful));
    (rig.outlets.exits)(exit(1, ExitCause::Stopped, "bye"));
    done.send(()).unwrap();
    assert_eq!(leader.next().await, exited(1, ExitCause::Stopped, "bye"), "and never that it is ready");
}

#[tokio::test]
async fn every_stop_is_answered() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    // Unknown.
    for mode in [StopMode::Graceful, StopMode::Kill, StopMode::IfNotBegun] {
        leader.stop(99, mode);
        assert_eq!(leader.next().await, exited(99, ExitCause::Stopped, ""));
    }
    // Ready: its exit comes from the runtime.
    rig.ready_sandbox(&mut leader, 1).await;
    leader.stop(1, StopMode::IfNotBegun);
    leader.stop(1, StopMode::Graceful);
    let Call::Stop(id, mode, done) = rig.call().await else { panic!("no stop") };
    assert_eq!((id, mode), (SandboxId(1), StopMode::Graceful));
    (rig.outlets.exits)(exit(1, ExitCause::Stopped, "bye"));
    done.send(()).unwrap();
    assert_eq!(leader.next().await, exited(1, ExitCause::Stopped, "bye"));
    // Again and again: told to the runtime once, and once more when it gets urgent.
    rig.ready_sandbox(&mut leader, 4).await;
    for mode in [StopMode::Graceful, StopMode::Graceful, StopMode::Kill, StopMode::Graceful, StopMode::Kill] {
        leader.stop(4, mode);
    }
    let Call::Stop(_, StopMode::Graceful, graceful) = rig.call().await else { panic!("no stop") };
    let Call::Stop(_, StopMode::Kill, kill) = rig.call().await else { panic!("no kill") };
    (rig.outlets.exits)(exit(4, ExitCause::Stopped, ""));
    assert_eq!(leader.next().await, exited(4, ExitCause::Stopped, ""));
    graceful.send(()).unwrap();
    kill.send(()).unwrap();
    // Starting: its creation fails, which is not the function's fault.
    leader.create(2, 1);
    let (_, answer) = rig.create_call().await;
    leader.stop(2, StopMode::Kill);
    let Call::Stop(_, _, done) = rig.call().await else { panic!("no stop") };
    answer.send(Err(start_failure(StartFailureKind::Exited(ExitCause::Stopped)))).unwrap();
    done.send(()).unwrap();
    assert_eq!(leader.next().await, exited(2, ExitCause::Stopped, "tail"));
    // Ready for the daemon, unknown to the runtime.
    rig.ready_sandbox(&mut leader, 3).await;
    leader.stop(3, StopMode::Graceful);
    let Call::Stop(_, _, done) = rig.call().await else { panic!("no stop") };
    done.send(()).unwrap();
    assert_eq!(leader.next().await, exited(3, ExitCause::Stopped, ""));
}

#[tokio::test]
async fn revisions_are_prepared_once_however_often_they_are_asked_for() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    leader.tell(ToNode::Prepare(rev(1)));
    leader.tell(ToNode::Prepare(rev(1)));
    let Call::Prepare(revision, answer) = rig.call().await else { panic!("no preparation") };
    assert_eq!(revision, rev(1));
    answer.send(Ok(())).unwrap();
    assert_eq!(leader.next().await, FromNode::Prepared { revision: rev(1), failure: None });
    assert!(rig.calls.try_recv().is_err(), "prepared twice at once");

    leader.tell(ToNode::Prepare(rev(1)));
    let Call::Prepare(_, answer) = rig.call().await else { panic!("no preparation") };
    answer.send(Err(start_failure(StartFailureKind::DependenciesFailed))).unwrap();
    let failure = Some(start_failure(StartFailureKind::DependenciesFailed));
    assert_eq!(leader.next().await, FromNode::Prepared { revision: rev(1), failure });

    leader.tell(ToNode::Prepare(rev(99)));
    let FromNode::Prepared { failure: Some(failure), .. } = leader.next().await else { panic!("no refusal") };
    assert_eq!(failure.kind, StartFailureKind::Node);
}

#[tokio::test]
async fn a_removed_revision_is_forgotten_after_its_last_sandbox() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    rig.ready_sandbox(&mut leader, 1).await;
    rig.ready_sandbox(&mut leader, 2).await;
    leader.tell(ToNode::RevisionRemoved(rev(1)));
    for id in [1, 2] {
        assert!(rig.calls.try_recv().is_err(), "forgotten too early");
        (rig.outlets.exits)(exit(id, ExitCause::Stopped, ""));
        assert_eq!(leader.next().await, exited(id, ExitCause::Stopped, ""));
    }
    let Call::Forget(revision, done) = rig.call().await else { panic!("not forgotten") };
    assert_eq!(revision, rev(1));
    // Told anew while the runtime is at it: the creation waits for its end.
    leader.tell(ToNode::Revision(spec(1, None)));
    leader.create(3, 1);
    leader.stop(99, StopMode::Kill);
    assert_eq!(leader.next().await, exited(99, ExitCause::Stopped, ""));
    assert!(rig.calls.try_recv().is_err(), "created amid forgetting");
    done.send(()).unwrap();
    let (id, answer) = rig.create_call().await;
    assert_eq!(id, SandboxId(3));
    answer.send(Ok(started(3))).unwrap();
    assert_eq!(leader.next().await, ready(3));
}

#[tokio::test]
async fn the_log_of_a_deleted_function_goes_when_nothing_of_it_is_left() {
    let logs = fanfare_node::LogLimits { deleted_max: 0, ..Default::default() };
    let mut rig = Rig::start(Setup { logs, ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    let place = rig.path("logs/5");
    let line = || LogLine {
        function: rev(1).function,
        sandbox: None,
        stream: LogStream::Stdout,
        text: "said".into(),
    };
    // Answered after all that was told before.
    let told = async |rig: &Rig, leader: &mut Leader| {
        leader.stop(99, StopMode::Kill);
        assert_eq!(leader.next().await, exited(99, ExitCause::Stopped, ""));
        rig.node.logs().flush().await;
    };
    rig.ready_sandbox(&mut leader, 1).await;
    (rig.outlets.logs)(line());
    leader.tell(ToNode::RevisionRemoved(rev(1)));
    told(&rig, &mut leader).await;
    assert!(exists(&place), "removed while a sandbox may write");
    (rig.outlets.exits)(exit(1, ExitCause::Stopped, ""));
    assert_eq!(leader.next().await, exited(1, ExitCause::Stopped, ""));
    let Call::Forget(_, done) = rig.call().await else { panic!("not forgotten") };
    done.send(()).unwrap();
    within("the log's end", async {
        while exists(&place) {
            told(&rig, &mut leader).await;
        }
    })
    .await;
    // Of another revision it is not the last.
    leader.tell(ToNode::Revision(spec(1, None)));
    leader.tell(ToNode::Revision(spec(2, None)));
    (rig.outlets.logs)(line());
    leader.tell(ToNode::RevisionRemoved(rev(1)));
    told(&rig, &mut leader).await;
    assert!(exists(&place));
    leader.tell(ToNode::RevisionRemoved(rev(2)));
    told(&rig, &mut leader).await;
    assert!(!exists(&place));
}

#[tokio::test]
async fn a_node_that_has_nothing_to_say_says_that_it_lives() {
    let mut rig = Rig::start(Setup::default()).await;
    let (mut leader, _) = rig.link().await;
    for _ in 0..3 {
        assert_eq!(leader.any().await, Some(FromNode::Heartbeat));
    }
}

#[tokio::test]
async fn cpu_use_is_reported() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    let usage = vec![SandboxUsage { sandbox: SandboxId(1), cpu_milli: 250.0 }];
    rig.usage.lock().unwrap().clone_from(&usage);
    assert_eq!(leader.next().await, FromNode::Usage(usage));
}

#[tokio::test]
async fn shutting_down_ends_everything_and_says_so() {
    let mut rig = Rig::start(Setup { creations_max: 1, ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    rig.ready_sandbox(&mut leader, 1).await;
    leader.create(2, 1);
    let (_, answer) = rig.create_call().await;
    leader.create(3, 1);
    rig.stop.send(()).unwrap();
    let Some(Call::Shutdown(done)) = within("the shutdown", rig.calls.recv()).await else {
        panic!("no shutdown")
    };
    (rig.outlets.exits)(exit(1, ExitCause::Stopped, "bye"));
    drop(answer.send(Err(start_failure(StartFailureKind::Exited(ExitCause::Stopped)))));
    done.send(()).unwrap();
    assert_eq!(leader.next().await, exited(1, ExitCause::Stopped, "bye"));
    let mut last = leader.next().await;
    while let Some(message) = leader.any().await {
        last = message;
    }
    assert_eq!(last, FromNode::Left);
    within("the daemon's end", rig.node.join()).await;
    while let Ok(call) = rig.calls.try_recv() {
        assert!(!matches!(call, Call::Create(..)), "{call:?} after the shutdown");
    }
}

#[tokio::test]
async fn the_audit_asks_every_runtime() {
    let rig = Rig::start(Setup::default()).await;
    assert_eq!(rig.node.audit().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(
    clippy::await_holding_lock,
    reason = "held so that whoever reads it waits, which must not be the daemon"
)]
async fn use_that_takes_long_to_read_holds_up_nothing() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    let (usage, asked) = (rig.usage.clone(), rig.usage_asked.clone());
    let held = usage.lock().unwrap();
    asked.notified().await;
    rig.ready_sandbox(&mut leader, 1).await;
    drop(held);
}

#[tokio::test]
async fn a_node_hands_secrets_to_the_runtime_before_anything_is_started() {
    let mut rig = Rig::start(Setup::default()).await;
    let mut leader = rig.ready_link().await;
    let value =
        |text: &str| vec![(SecretName::new("db").unwrap(), SecretValue::new(text.as_bytes().to_vec()))];
    let tell = |leader: &Leader, revision, text| {
        leader.tell(ToNode::Secrets { revision: rev(revision), values: value(text) });
    };
    tell(&leader, 1, "first");
    // Of a revision that nothing was said of.
    tell(&leader, 9, "other");
    leader.create(7, 1);
    let (_, answer) = rig.create_call().await;
    assert_eq!(*rig.secrets.lock().unwrap(), [(rev(1), value("first"))]);
    answer.send(Ok(started(7))).unwrap();
    assert_eq!(leader.next().await, ready(7));
    // A new stream, which says nothing of the revision but its new values: for the sandbox that runs.
    drop(leader);
    let (mut leader, _) = rig.link().await;
    leader.welcome(1);
    tell(&leader, 1, "second");
    // One that is told and never used is forgotten when it is removed.
    leader.tell(ToNode::Revision(spec(2, None)));
    tell(&leader, 2, "never");
    leader.tell(ToNode::RevisionRemoved(rev(2)));
    leader.tell(ToNode::Revision(spec(1, None)));
    leader.create(8, 1);
    let (_, answer) = rig.create_call().await;
    answer.send(Ok(started(8))).unwrap();
    assert_eq!(leader.next().await, ready(8));
    let told = rig.secrets.lock().unwrap().clone();
    assert_eq!(told[1..], [(rev(1), value("second")), (rev(2), value("never")), (rev(2), Vec::new())]);
}
