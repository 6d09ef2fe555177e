//! Many daemons in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use fanfare_link::Dialer;
use fanfare_node::{GroupOptions, Handle, Node, StartError};
use fanfare_sandbox::Runtime;
use fanfare_sandbox::fake::{FakeListener, FakeOptions, FakeRuntime};
use fanfare_types::limits::LIVENESS_TIMEOUT;
use fanfare_types::{ExitCause, FromNode, Resources, RevisionSpec, SandboxId, StopMode, ToNode};
use futures_util::future::{join, join_all};
use futures_util::{FutureExt, StreamExt};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::rig::{Arrivals, Leader, TestHub, rev, spec, within};

struct Group {
    dir: TempDir,
    node: Handle,
    stop: oneshot::Sender<()>,
    arrivals: Arrivals,
}

async fn start(
    dir: &Path,
    hub: Arc<TestHub>,
    count: usize,
) -> Result<(Handle, oneshot::Sender<()>), StartError> {
    let listener = FakeListener::tcp().unwrap();
    let runtimes = Box::new(move |outlets| {
        let runtime = FakeRuntime::new(FakeOptions::default(), listener.clone(), outlets);
        std::future::ready(Ok(vec![Arc::new(runtime) as Arc<dyn Runtime>])).boxed()
    });
    let (data, run) = (dir.join("data"), dir.join("run"));
    let options = GroupOptions::new("e".into(), count, Resources::new(2_000, 1 << 30), runtimes, data, run);
    let (stop, stopped) = oneshot::channel::<()>();
    let node = Node::start_group(options, Dialer::in_process(hub), stopped.map(|_| ())).await?;
    Ok((node, stop))
}

impl Group {
    async fn start(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (hub, arrivals) = TestHub::new();
        let (node, stop) = start(dir.path(), hub, count).await.unwrap();
        Group { dir, node, stop, arrivals }
    }

    /// Every daemon's link, welcomed, by its name.
    async fn leaders(&mut self, count: usize) -> BTreeMap<String, Leader> {
        let mut leaders = BTreeMap::new();
        for _ in 0..count {
            let (leader, hello) = Leader::accept(&mut self.arrivals.0).await;
            leader.welcome(1);
            assert_eq!(hello.capacity, Resources::new(2_000, 1 << 30));
            assert_eq!(hello.runtimes, ["fake".into()]);
            assert!(leaders.insert(hello.name.to_string(), leader).is_none(), "{} twice", hello.name);
        }
        leaders
    }
}

fn fake_spec(env: &[(&str, &str)]) -> ToNode {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ToNode::Revision(Arc::new(RevisionSpec { runtime: "fake".into(), env, ..(*spec(1, None)).clone() }))
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[tokio::test]
async fn each_has_a_name_a_link_and_sandboxes_of_its_own() {
    let mut group = Group::start(20).await;
    let mut leaders = group.leaders(20).await;
    let names: BTreeSet<String> = (0..20).map(|n| format!("e-{n}")).collect();
    assert_eq!(leaders.keys().cloned().collect::<BTreeSet<_>>(), names);
    within("all welcomes", group.node.welcomed()).await;
    let mut endpoints = BTreeSet::new();
    for (id, leader) in (1..).zip(leaders.values_mut()) {
        leader.tell(fake_spec(&[]));
        leader.create(id, 1);
        let FromNode::Ready { sandbox, endpoint, .. } = leader.next().await else { panic!("not ready") };
        assert_eq!(sandbox, SandboxId(id));
        endpoints.insert(endpoint);
    }
    assert_eq!(endpoints.len(), 20, "{endpoints:?}");
    // A sandbox is known where it was created, and nowhere else.
    let second = leaders.get_mut("e-1").unwrap();
    second.stop(2, StopMode::Graceful);
    let FromNode::Exited { sandbox, cause } = second.next().await else { panic!("no exit") };
    assert_eq!((sandbox, cause.exit), (SandboxId(2), ExitCause::Stopped));
    group.stop.send(()).unwrap();
    let closed = leaders.into_values().map(|mut leader| async move { leader.closed().await });
    within("the end", join(group.node.join(), join_all(closed))).await;
}

#[tokio::test]
async fn one_thread_and_one_lock_serve_them_all() {
    let mut group = Group::start(1).await;
    let _leaders = group.leaders(1).await;
    let with_one = threads();
    let mut larger = Group::start(300).await;
    let _leaders = larger.leaders(300).await;
    // Other tests run beside this one: a few threads may come and go, but not one for each of 300.
    assert!(threads() < with_one + 100, "{} threads, and {with_one} before", threads());
    let (hub, _arrivals) = TestHub::new();
    let second = start(larger.dir.path(), hub, 1).await;
    assert!(matches!(second.map(|_| ()), Err(StartError::Held(_))));
}

#[tokio::test]
async fn each_says_in_time_that_it_lives() {
    let mut group = Group::start(10).await;
    for leader in group.leaders(10).await.values_mut() {
        for _ in 0..3 {
            let said = tokio::time::timeout(LIVENESS_TIMEOUT, leader.any()).await;
            assert_eq!(said.unwrap(), Some(FromNode::Heartbeat));
        }
    }
}

#[tokio::test]
async fn the_first_tells_what_all_wrote_and_the_others_that_there_is_no_more() {
    let mut group = Group::start(3).await;
    let mut leaders = group.leaders(3).await;
    for (id, leader) in (1..).zip(leaders.values_mut()) {
        leader.tell(fake_spec(&[("FAKE_SAY", &format!("from {id}"))]));
        leader.create(id, 1);
        assert!(matches!(leader.next().await, FromNode::Ready { .. }));
    }
    group.node.logs().flush().await;
    let ask = |leader: &Leader, transfer, follow| {
        leader.tell(ToNode::Logs {
            transfer,
            function: rev(1).function,
            tail_lines: 10,
            follow,
            select: Default::default(),
        });
    };
    for (transfer, leader) in leaders.values().enumerate() {
        // What follows is the first one's to tell: the others keep quiet, and answer only who waits for an end.
        if transfer > 0 {
            ask(leader, 100 + transfer as u64, true);
        }
        ask(leader, transfer as u64, false);
    }
    let mut told = BTreeMap::new();
    for _ in 0..3 {
        let (transfer, lines, end) = within("a transfer", group.arrivals.1.recv()).await.unwrap();
        let lines: Vec<String> = within("its lines", lines.map(|line| line.text).collect()).await;
        told.insert(transfer, lines.into_iter().collect::<BTreeSet<_>>());
        end.send(()).unwrap();
    }
    let all = BTreeSet::from(["from 1".to_owned(), "from 2".to_owned(), "from 3".to_owned()]);
    assert_eq!(told, BTreeMap::from([(0, all), (1, BTreeSet::new()), (2, BTreeSet::new())]));
    assert!(group.arrivals.1.try_recv().is_err());
}
