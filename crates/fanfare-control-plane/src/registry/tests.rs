//! Changes of one name, of many names, over restarts, and against a store that fails.

use std::collections::BTreeSet;
use std::time::Duration;

use fanfare_api::FunctionDocument;
use fanfare_store::{Committed, Entry, MemoryStore, Page, Scan, StoreError, Txn};
use fanfare_types::{ExitCause, StartFailureKind};
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;

use super::*;
use crate::leader;

const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct World {
    pub(super) registry: Registry,
    pub(super) visible: mpsc::Receiver<Input>,
    deposed: oneshot::Receiver<ControlPlaneError>,
    _keys: tempfile::TempDir,
}

pub(super) async fn world(store: Arc<dyn Store>) -> World {
    let term = leader::take(&*store, "test").await.unwrap();
    let (engine, visible) = mpsc::channel(10_000);
    let (deposed_tx, deposed) = oneshot::channel();
    let keys = tempfile::tempdir().unwrap();
    let vault = Vault::open(keys.path().join("secrets.key"), &*store).await.unwrap();
    let registry = Registry::start(store, term, vault, engine, deposed_tx).await.unwrap();
    World { registry, visible, deposed, _keys: keys }
}

pub(super) fn spec(name: &str, queue_limit: u32) -> Arc<FunctionSpec> {
    let json = format!(r#"{{"name":"{name}","handler":{{"kind":"fake"}},"queue_limit":{queue_limit}}}"#);
    Arc::new(FunctionSpec::try_from(FunctionDocument::from_json(json.as_bytes()).unwrap()).unwrap())
}

pub(super) fn number(done: &Result<Done, RegistryError>) -> u32 {
    match done {
        Ok(Done::Created(id) | Done::Updated(id) | Done::Unchanged(id)) => id.number,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn next_visible(world: &mut World) -> Visible {
    match tokio::time::timeout(PATIENCE, world.visible.recv()).await.unwrap().unwrap() {
        Input::Function(visible) => visible,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_of_many_creators_wins() {
    let world = world(Arc::new(MemoryStore::new())).await;
    let creates = (1..=50).map(|i| world.registry.change(Change::Create(spec("a", i))));
    let results = join_all(creates).await;
    assert_eq!(results.iter().filter(|r| matches!(r, Ok(Done::Created(_)))).count(), 1);
    assert_eq!(results.iter().filter(|r| **r == Err(RegistryError::Exists)).count(), 49);
}

#[tokio::test]
async fn what_was_registered_before_comes_back_as_a_new_revision() {
    let store = Arc::new(MemoryStore::new());
    let first = world(store.clone()).await;
    let name = FunctionName::new("a").unwrap();
    let back = || Change::Rollback(name.clone(), None);
    assert_eq!(first.registry.change(back()).await, Err(RegistryError::NotFound));
    first.registry.change(Change::Create(spec("a", 1))).await.unwrap();
    let nothing = Err(RegistryError::NothingBefore { current: 1 });
    assert_eq!(first.registry.change(back()).await, nothing);
    assert_eq!(number(&first.registry.change(Change::Put(spec("a", 2))).await), 2);
    drop(first);
    // A later term knows it, too; and a second one undoes the first.
    let second = world(store).await;
    for (revision, queue_limit) in [(3, 1), (4, 2)] {
        assert_eq!(number(&second.registry.change(back()).await), revision);
        assert_eq!(second.registry.function("a").unwrap().spec.queue_limit, queue_limit);
    }
}

#[tokio::test]
async fn what_cannot_start_is_known_to_later_terms_until_it_can_or_is_replaced() {
    let store = Arc::new(MemoryStore::new());
    let name = FunctionName::new("a").unwrap();
    let failure = |kind| StartFailure { kind, detail: "why".to_owned(), log_tail: "tail".to_owned() };
    let proved = |id, found| Change::Proved(name.clone(), id, found);
    let fails = |kind| Found::Fails { failure: failure(kind), has_started: false };
    let first = world(store.clone()).await;
    let Ok(Done::Created(id)) = first.registry.change(Change::Create(spec("a", 1))).await else { panic!() };
    let kinds = [
        (StartFailureKind::Timeout, true),
        (StartFailureKind::Node, false),
        // It has been proved to start by now: one timeout does not condemn it.
        (StartFailureKind::Timeout, false),
        (StartFailureKind::ImportFailed, true),
        (StartFailureKind::Exited(ExitCause::Status(3)), true),
        (StartFailureKind::Exited(ExitCause::OutOfMemory), true),
    ];
    drop(first);
    for (kind, kept) in kinds {
        let term = world(store.clone()).await;
        assert_eq!(term.registry.change(proved(id, fails(kind))).await, Ok(Done::Noted));
        let later = world(store.clone()).await.registry;
        assert_eq!(later.failed(), Vec::from_iter(kept.then(|| (id, failure(kind)))), "{kind:?}");
        assert_eq!(later.change(proved(id, Found::Starts)).await, Ok(Done::Noted));
        assert_eq!(later.failed(), [], "it starts");
    }
    let last = world(store.clone()).await.registry;
    last.change(proved(id, fails(StartFailureKind::ImportFailed))).await.unwrap();
    assert_eq!(number(&last.change(Change::Put(spec("a", 2))).await), 2);
    assert_eq!(last.failed(), [], "another revision");
    last.change(proved(id, fails(StartFailureKind::ImportFailed))).await.unwrap();
    assert_eq!(last.failed(), [], "what comes late is about the revision before");
}

#[tokio::test]
async fn changes_of_one_name_become_visible_in_the_order_in_which_they_became_durable() {
    let mut world = world(Arc::new(MemoryStore::new())).await;
    let others = (0..100).map(|i| world.registry.change(Change::Create(spec(&format!("other-{i}"), 1))));
    let puts = (1..=100).map(|i| world.registry.change(Change::Put(spec("a", i))));
    let (puts, others) = futures_util::future::join(join_all(puts), join_all(others)).await;
    assert_eq!(puts.iter().map(number).collect::<BTreeSet<_>>(), (1..=100).collect());
    assert!(others.iter().all(|other| number(other) == 1));
    let mut seen = Vec::new();
    for _ in 0..200 {
        if let Visible::Set { id, spec } = next_visible(&mut world).await
            && spec.name.as_str() == "a"
        {
            seen.push(id.number);
        }
    }
    assert_eq!(seen, (1..=100).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_same_again_changes_nothing_and_a_deleted_name_gets_a_new_id() {
    let world = world(Arc::new(MemoryStore::new())).await;
    let registry = &world.registry;
    let first = registry.change(Change::Put(spec("a", 1))).await.unwrap();
    let Done::Created(id) = first else { panic!("{first:?}") };
    assert_eq!(registry.change(Change::Put(spec("a", 1))).await, Ok(Done::Unchanged(id)));
    let second = RevisionId { number: 2, ..id };
    assert_eq!(registry.change(Change::Put(spec("a", 2))).await, Ok(Done::Updated(second)));
    let name = spec("a", 1).name.clone();
    assert_eq!(registry.change(Change::Delete(name.clone())).await, Ok(Done::Deleted));
    assert_eq!(registry.change(Change::Delete(name)).await, Err(RegistryError::NotFound));
    assert!(registry.function("a").is_none());
    let again = registry.change(Change::Create(spec("a", 1))).await.unwrap();
    let Done::Created(next) = again else { panic!("{again:?}") };
    assert!(next.function > id.function && next.number == 1);
}

#[tokio::test]
async fn a_restart_keeps_functions_and_numbers_and_gives_no_id_twice() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut ids = BTreeSet::new();
    let mut kept = Vec::new();
    for round in 0..3 {
        let world = world(store.clone()).await;
        let registry = &world.registry;
        assert_eq!(
            registry.page(None, 1_000).0.iter().map(|f| f.id).collect::<Vec<_>>(),
            kept,
            "round {round}"
        );
        let node = registry.peer(PeerKind::Node, &Arc::from("node")).await.unwrap();
        assert_eq!(registry.peer(PeerKind::Node, &Arc::from("node")).await, Ok(node));
        let data_plane = registry.peer(PeerKind::DataPlane, &Arc::from("node")).await.unwrap();
        assert_eq!(registry.data_planes(), [DataPlaneId(data_plane)]);
        if round > 0 {
            assert!(ids.contains(&node) && ids.contains(&data_plane));
        } else {
            assert!(ids.insert(node) && ids.insert(data_plane));
        }
        for i in 0..3 {
            let done = registry.change(Change::Create(spec(&format!("f{round}-{i}"), 1))).await.unwrap();
            let Done::Created(id) = done else { panic!("{done:?}") };
            assert!(ids.insert(id.function.0), "{id} was given before");
        }
        registry.change(Change::Delete(spec(&format!("f{round}-2"), 1).name.clone())).await.unwrap();
        kept = registry.page(None, 1_000).0.iter().map(|f| f.id).collect();
    }
}

#[tokio::test]
async fn pages_follow_each_other() {
    let world = world(Arc::new(MemoryStore::new())).await;
    for name in ["c", "a", "b"] {
        world.registry.change(Change::Create(spec(name, 1))).await.unwrap();
    }
    let names = |page: &[Function]| page.iter().map(|f| f.spec.name.to_string()).collect::<Vec<_>>();
    let (first, more) = world.registry.page(None, 2);
    assert_eq!((names(&first), more), (vec!["a".to_owned(), "b".to_owned()], true));
    let (second, more) = world.registry.page(Some("b"), 2);
    assert_eq!((names(&second), more), (vec!["c".to_owned()], false));
    assert_eq!(names(&world.registry.page(Some("aa"), 1).0), ["b"]);
}

#[tokio::test]
async fn a_deposed_leader_changes_nothing_and_says_so() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let world = world(store.clone()).await;
    world.registry.change(Change::Create(spec("a", 1))).await.unwrap();
    leader::take(&*store, "other").await.unwrap();
    let late = world.registry.change(Change::Create(spec("b", 1))).await;
    assert!(matches!(late, Err(RegistryError::Unavailable(_))), "{late:?}");
    assert!(matches!(world.deposed.await, Ok(ControlPlaneError::Deposed)));
    assert!(store.get("functions/b".to_owned()).await.unwrap().is_none());
    let later = world.registry.change(Change::Create(spec("c", 1))).await;
    assert!(matches!(later, Err(RegistryError::Unavailable(_))), "{later:?}");
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_stops_the_start() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    world(store.clone()).await.registry.change(Change::Create(spec("a", 1))).await.unwrap();
    let entry = store.get("functions/a".to_owned()).await.unwrap().unwrap();
    for (bad, why) in
        [(&b"{}"[..], "missing field"), (&entry.value[1..], "expected"), (&entry.value, "it is about a")]
    {
        let ops = vec![fanfare_store::Op::Put("functions/b".to_owned(), bytes::Bytes::copy_from_slice(bad))];
        store.commit(Txn { ops, ..Txn::default() }).await.unwrap();
        let error = load::known(&*store).await.unwrap_err().to_string();
        assert!(error.contains("functions/b") && error.contains(why), "{error}");
    }
}

/// Fails writes of functions' keys, before or after they are made.
#[derive(Debug)]
pub(super) struct Flaky {
    inner: MemoryStore,
    next: Mutex<Vec<Fault>>,
    unreadable: Mutex<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    BeforeWrite,
    AfterWrite,
}

impl Flaky {
    pub(super) fn new(next: Vec<Fault>, unreadable: u32) -> Self {
        Flaky { inner: MemoryStore::new(), next: Mutex::new(next), unreadable: Mutex::new(unreadable) }
    }

    pub(super) fn fail_next(&self, fault: Fault) {
        self.next.lock().push(fault);
    }

    fn error() -> StoreError {
        let source = Arc::new(std::io::ErrorKind::StorageFull.into());
        StoreError::Io { path: "flaky".into(), operation: "write it", source }
    }
}

impl Store for Flaky {
    fn commit(&self, txn: Txn) -> BoxFuture<'static, Result<Committed, StoreError>> {
        let about_function = txn.require.iter().any(|p| p.key().starts_with("functions/"));
        let fault = if about_function { self.next.lock().pop() } else { None };
        match fault {
            None => self.inner.commit(txn),
            Some(Fault::BeforeWrite) => Box::pin(async { Err(Flaky::error()) }),
            Some(Fault::AfterWrite) => {
                let commit = self.inner.commit(txn);
                Box::pin(async move {
                    commit.await?;
                    Err(Flaky::error())
                })
            }
        }
    }

    fn get(&self, key: String) -> BoxFuture<'static, Result<Option<Entry>, StoreError>> {
        let mut unreadable = self.unreadable.lock();
        if *unreadable > 0 && key.starts_with("functions/") {
            *unreadable -= 1;
            return Box::pin(async { Err(Flaky::error()) });
        }
        self.inner.get(key)
    }

    fn scan(&self, scan: Scan) -> BoxFuture<'static, Result<Page, StoreError>> {
        self.inner.scan(scan)
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.inner.close()
    }
}

/// Tries until the registry knows again what is kept.
pub(super) async fn settled(registry: &Registry, change: impl Fn() -> Change) -> Result<Done, RegistryError> {
    let attempts = async {
        loop {
            match registry.change(change()).await {
                // In virtual time: the pause lets the registry read again.
                Err(RegistryError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                settled => return settled,
            }
        }
    };
    tokio::time::timeout(PATIENCE, attempts).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_looked_up_before_anything_else() {
    for (fault, made) in [(Fault::BeforeWrite, false), (Fault::AfterWrite, true)] {
        let store = Arc::new(Flaky::new(vec![fault], 3));
        let mut world = world(store.clone()).await;
        let (first, second) = futures_util::future::join(
            world.registry.change(Change::Create(spec("a", 1))),
            world.registry.change(Change::Put(spec("a", 2))),
        )
        .await;
        for unknown in [first, second] {
            assert!(
                matches!(&unknown, Err(RegistryError::Unavailable(why)) if why.contains("not known")),
                "{unknown:?}"
            );
        }
        let created = settled(&world.registry, || Change::Create(spec("a", 3))).await;
        if made {
            assert_eq!(created, Err(RegistryError::Exists));
            assert_eq!(world.registry.function("a").unwrap().spec, spec("a", 1));
        } else {
            assert!(matches!(created, Ok(Done::Created(_))), "{created:?}");
        }
        assert!(matches!(next_visible(&mut world).await, Visible::Set { id, .. } if id.number == 1));
        let updated = world.registry.change(Change::Put(spec("a", 4))).await;
        assert_eq!(number(&updated), 2, "{fault:?}");
        assert!(matches!(next_visible(&mut world).await, Visible::Set { id, .. } if id.number == 2));

        // A deletion that was made though its answer got lost.
        store.fail_next(Fault::AfterWrite);
        let deleted = world.registry.change(Change::Delete(spec("a", 1).name.clone())).await;
        assert!(matches!(deleted, Err(RegistryError::Unavailable(_))), "{deleted:?}");
        assert!(matches!(next_visible(&mut world).await, Visible::Removed(_)));
        let again = settled(&world.registry, || Change::Delete(spec("a", 1).name.clone())).await;
        assert_eq!(again, Err(RegistryError::NotFound));
    }
}
