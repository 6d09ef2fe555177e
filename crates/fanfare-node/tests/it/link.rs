//! What holds while links come and go.

use std::sync::Arc;

use fanfare_node::StartError;
use fanfare_sandbox::SandboxExit;
use fanfare_types::{Epoch, ExitCause, FromNode, Resources, SandboxId, SandboxRecord, StopMode, ToNode};

use crate::rig::{Call, Rig, Setup, ready, rev, spec, started};

fn record(id: u64, endpoint: Option<&str>) -> SandboxRecord {
    SandboxRecord { sandbox: SandboxId(id), revision: rev(1), endpoint: endpoint.map(Into::into) }
}

fn sorted(mut records: Vec<SandboxRecord>) -> Vec<SandboxRecord> {
    records.sort_by_key(|record| record.sandbox);
    records
}

#[tokio::test]
async fn the_hello_says_who_and_what() {
    let mut rig =
        Rig::start(Setup { recovered: vec![record(9, Some("unix:/old"))], ..Setup::default() }).await;
    let (_leader, hello) = rig.link().await;
    assert_eq!((&*hello.name, hello.capacity), ("node-1", Resources::new(2_000, 1 << 30)));
    assert_eq!(hello.runtimes, ["scripted".into()]);
    assert_eq!(hello.epoch_seen, Epoch(0));
    assert_eq!(hello.sandboxes, [record(9, Some("unix:/old"))]);
}

#[tokio::test]
async fn sandboxes_live_on_while_the_link_is_down_and_are_stated_anew() {
    let mut rig = Rig::start(Setup { creations_max: 2, ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    rig.ready_sandbox(&mut leader, 1).await;
    rig.ready_sandbox(&mut leader, 2).await;
    for id in 3..=5 {
        leader.create(id, 1);
    }
    let (_, answer_three) = rig.create_call().await;
    let (_, answer_four) = rig.create_call().await;
    drop(leader);
    // Meanwhile one ends.
    (rig.outlets.exits)(SandboxExit {
        sandbox: SandboxId(1),
        cause: ExitCause::Status(0),
        log_tail: String::new(),
    });
    let (mut leader, hello) = rig.link().await;
    let stated = sorted(hello.sandboxes);
    let without_one: Vec<_> =
        stated.iter().filter(|record| record.sandbox != SandboxId(1)).cloned().collect();
    assert_eq!(
        without_one,
        [record(2, Some("unix:/sock/2")), record(3, None), record(4, None), record(5, None)]
    );
    assert_eq!(hello.epoch_seen, Epoch(1));
    if stated.len() == without_one.len() + 1 {
        // Stated before its end was known: then its end is told.
        assert!(matches!(leader.next().await, FromNode::Exited { sandbox: SandboxId(1), .. }));
    }
    leader.welcome(2);
    answer_three.send(Ok(started(3))).unwrap();
    answer_four.send(Ok(started(4))).unwrap();
    assert_eq!(leader.next().await, ready(3));
    assert_eq!(leader.next().await, ready(4));
    let (five, answer) = rig.create_call().await;
    assert_eq!(five, SandboxId(5));
    answer.send(Ok(started(5))).unwrap();
    assert_eq!(leader.next().await, ready(5));
    // Revisions are remembered per stream: this one has not told of any.
    leader.create(6, 1);
    assert!(matches!(leader.next().await, FromNode::Failed { sandbox: SandboxId(6), .. }));
}

#[tokio::test]
async fn an_incarnation_is_one_process() {
    let mut rig = Rig::start(Setup::default()).await;
    let (leader, first) = rig.link().await;
    drop(leader);
    let (_leader, second) = rig.link().await;
    assert_eq!(first.incarnation, second.incarnation);
    let mut other = Rig::start(Setup::default()).await;
    assert_ne!(other.link().await.1.incarnation, first.incarnation);
}

#[tokio::test]
async fn a_deposed_leader_is_refused() {
    let mut rig = Rig::start(Setup::default()).await;
    let (mut leader, _) = rig.link().await;
    leader.welcome(5);
    leader.stop(1, StopMode::Kill);
    leader.next().await;
    drop(leader);
    let (mut old, hello) = rig.link().await;
    assert_eq!(hello.epoch_seen, Epoch(5));
    old.welcome(4);
    old.closed().await;
    // And the node goes on looking for a leader it may obey.
    let (mut new, _) = rig.link().await;
    new.welcome(6);
    new.stop(1, StopMode::Kill);
    assert!(matches!(new.next().await, FromNode::Exited { .. }));
}

#[tokio::test]
async fn commands_before_the_welcome_are_refused() {
    let mut rig = Rig::start(Setup::default()).await;
    let (mut leader, _) = rig.link().await;
    leader.tell(ToNode::Revision(spec(1, None)));
    leader.create(1, 1);
    leader.closed().await;
    let mut leader = rig.ready_link().await;
    rig.ready_sandbox(&mut leader, 1).await;
}

#[tokio::test]
async fn recovered_sandboxes_are_stopped_like_others() {
    let mut rig =
        Rig::start(Setup { recovered: vec![record(9, Some("unix:/old"))], ..Setup::default() }).await;
    let mut leader = rig.ready_link().await;
    leader.stop(9, StopMode::Graceful);
    let Call::Stop(id, _, done) = rig.call().await else { panic!("no stop") };
    assert_eq!(id, SandboxId(9));
    done.send(()).unwrap();
    assert!(matches!(leader.next().await, FromNode::Exited { sandbox: SandboxId(9), .. }));
}

#[tokio::test]
async fn two_daemons_never_share_a_place() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let _rig = Rig::start_in(dir.clone(), Setup::default()).await.unwrap();
    let second = Rig::start_in(dir, Setup::default()).await;
    assert!(matches!(second.map(|_| ()), Err(StartError::Held(_))));
}
