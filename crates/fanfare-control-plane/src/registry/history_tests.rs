//! Earlier revisions over updates, restarts and writes that fail.

use fanfare_store::MemoryStore;
use fanfare_types::StartFailureKind;

use super::tests::{Fault, Flaky, number, settled, spec, world};
use super::*;
use crate::limits::REVISIONS_KEPT;

fn numbers(function: &Function) -> Vec<u32> {
    function.past.iter().map(|past| past.number).collect()
}

async fn keys(store: &dyn Store) -> usize {
    let scan = fanfare_store::Scan { prefix: "revisions/".to_owned(), after: None, limit: 1_000 };
    store.scan(scan).await.unwrap().entries.len()
}

fn broken(detail: &str) -> StartFailure {
    StartFailure {
        kind: StartFailureKind::ImportFailed,
        detail: detail.to_owned(),
        log_tail: "Traceback".to_owned(),
    }
}

#[tokio::test]
async fn twenty_revisions_are_kept_over_restarts_and_none_of_a_deleted_function() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let first = world(store.clone()).await.registry;
    for queue_limit in 1..=25 {
        first.change(Change::Put(spec("a", queue_limit))).await.unwrap();
        first.change(Change::Put(spec("b", queue_limit % 2 + 1))).await.unwrap();
    }
    let kept: Vec<u32> = (6..25).collect();
    assert_eq!(kept.len() + 1, REVISIONS_KEPT);
    let later = world(store.clone()).await.registry;
    for registry in [&first, &later] {
        let function = registry.function("a").unwrap();
        assert_eq!((function.id.number, numbers(&function)), (25, kept.clone()));
        assert!(function.past.iter().all(|past| past.created_unix_ms > 0));
    }
    let (one, other) = (first.function("a").unwrap().past, later.function("a").unwrap().past);
    assert_eq!(one, other, "what was read is what was written");
    let digests: BTreeSet<_> = one.iter().map(|past| past.digest.to_string()).collect();
    assert_eq!(digests.len(), one.len(), "each is another");
    let same: BTreeSet<_> =
        later.function("b").unwrap().past.iter().map(|past| past.digest.to_string()).collect();
    assert_eq!(same.len(), 2, "what is the same has the same digest");

    assert_eq!(keys(&*store).await, 2 * kept.len());
    for name in ["a", "b"] {
        later.change(Change::Delete(spec(name, 1).name.clone())).await.unwrap();
    }
    assert_eq!(keys(&*store).await, 0);
    later.change(Change::Create(spec("a", 1))).await.unwrap();
    assert_eq!(numbers(&world(store).await.registry.function("a").unwrap()), [0; 0]);
}

#[tokio::test]
async fn any_revision_that_is_kept_comes_back() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let registry = world(store.clone()).await.registry;
    let name = spec("a", 1).name.clone();
    for queue_limit in 1..=24 {
        registry.change(Change::Put(spec("a", queue_limit))).await.unwrap();
    }
    let later = world(store).await.registry;
    let back = |to| later.change(Change::Rollback(name.clone(), Some(to)));
    for (to, becomes) in [(10, 25), (24, 26)] {
        assert_eq!(number(&back(to).await), becomes);
        assert_eq!(later.function("a").unwrap().spec.queue_limit, to);
    }
    let id = later.function("a").unwrap().id;
    for same in [24, 26] {
        assert_eq!(back(same).await, Ok(Done::Unchanged(id)), "it is that already");
    }
    for gone in [1, 27] {
        let refused = back(gone).await;
        let Err(RegistryError::NoSuchRevision { number, kept }) = refused else { panic!("{refused:?}") };
        assert_eq!((number, kept), (gone, (7..=26).collect()));
    }
}

#[tokio::test]
async fn a_broken_revision_is_kept_with_its_reason_and_passed_over_by_a_rollback() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let registry = world(store.clone()).await.registry;
    let name = spec("a", 1).name.clone();
    let proved = |id, found| Change::Proved(name.clone(), id, found);
    let fails = |detail| Found::Fails { failure: broken(detail), has_started: false };
    let Ok(Done::Created(id)) = registry.change(Change::Create(spec("a", 1))).await else { panic!() };
    let revision = |number| RevisionId { number, ..id };
    for number in 2..=4 {
        registry.change(Change::Put(spec("a", number))).await.unwrap();
    }
    // The word about revision 3 comes when it has been replaced.
    for (number, detail) in [(4, "four"), (3, "three"), (2, "two")] {
        registry.change(proved(revision(number), fails(detail))).await.unwrap();
    }
    // Another proof of it has passed.
    registry.change(proved(revision(2), Found::Starts)).await.unwrap();
    // And of what never was, or is another function's, nothing is kept.
    registry.change(proved(revision(9), fails("nine"))).await.unwrap();
    let other = RevisionId { function: FunctionId(id.function.0 + 100), number: 2 };
    registry.change(proved(other, fails("other"))).await.unwrap();

    let later = world(store).await.registry;
    let function = later.function("a").unwrap();
    let why = |failed: &Option<Arc<Unstartable>>| {
        failed.as_ref().map(|f| {
            assert!(f.at_unix_ms > 0);
            f.failure.clone()
        })
    };
    assert_eq!(why(&function.failed), Some(broken("four")));
    let past: Vec<_> = function.past.iter().map(|past| (past.number, why(&past.failed))).collect();
    assert_eq!(past, [(1, None), (2, None), (3, Some(broken("three")))]);
    assert_eq!(number(&later.change(Change::Rollback(name.clone(), None)).await), 5);
    assert_eq!(later.function("a").unwrap().spec.queue_limit, 2, "3 is broken");
}

#[tokio::test(start_paused = true)]
async fn an_update_and_its_history_are_written_together_or_not_at_all() {
    for (fault, made) in [(Fault::BeforeWrite, false), (Fault::AfterWrite, true)] {
        let store = Arc::new(Flaky::new(vec![], 0));
        let registry = world(store.clone()).await.registry;
        registry.change(Change::Create(spec("a", 1))).await.unwrap();
        store.fail_next(fault);
        let unknown = registry.change(Change::Put(spec("a", 2))).await;
        assert!(matches!(unknown, Err(RegistryError::Unavailable(_))), "{unknown:?}");
        let back = settled(&registry, || Change::Rollback(spec("a", 1).name.clone(), None)).await;
        if made {
            assert_eq!(number(&back), 3);
            assert_eq!(registry.function("a").unwrap().spec, spec("a", 1));
        } else {
            assert_eq!(back, Err(RegistryError::NothingBefore { current: 1 }));
        }
        let later = world(store).await.registry;
        let (here, there) = (registry.function("a").unwrap(), later.function("a").unwrap());
        assert_eq!((here.id, &here.past), (there.id, &there.past), "{fault:?}");
    }
}

#[tokio::test]
async fn a_revision_that_never_started_in_time_is_stood_in_for_and_one_that_had_is_not() {
    let timeout = StartFailure {
        kind: StartFailureKind::Timeout,
        detail: "not ready after 4 s".to_owned(),
        log_tail: String::new(),
    };
    let fails = |has_started| Found::Fails { failure: timeout.clone(), has_started };
    // What was found of the second revision, in this order; and which one serves then, also after a restart.
    let cases: [(&[Found], u32); 6] = [
        (&[fails(false)], 1),
        (&[fails(true)], 2),
        (&[Found::Starts, fails(false)], 2),
        (&[fails(false), fails(true)], 1),
        (&[fails(false), Found::Starts], 2),
        (&[fails(false), Found::Starts, fails(false)], 2),
    ];
    for (found, serves) in cases {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let registry = world(store.clone()).await.registry;
        let Ok(Done::Created(id)) = registry.change(Change::Create(spec("a", 1))).await else { panic!() };
        registry.change(Change::Put(spec("a", 2))).await.unwrap();
        let second = RevisionId { number: 2, ..id };
        for one in found {
            let change = Change::Proved(spec("a", 1).name.clone(), second, one.clone());
            // Each in a term of its own.
            let term = world(store.clone()).await.registry;
            assert_eq!(term.change(change).await, Ok(Done::Noted));
            assert_eq!(
                term.function("a").unwrap().serving().0,
                world(store.clone()).await.registry.function("a").unwrap().serving().0
            );
        }
        let function = world(store).await.registry.function("a").unwrap();
        assert_eq!((function.serving().0.number, function.id.number), (serves, 2), "{found:?}");
    }
}

#[tokio::test]
async fn code_of_every_revision_that_is_kept_is_in_use() {
    let registry = world(Arc::new(MemoryStore::new())).await.registry;
    let with_code = |byte: u8| {
        let mut spec = (*spec("a", 1)).clone();
        spec.code = Some(CodeDigest([byte; 32]));
        Arc::new(spec)
    };
    for byte in 1..=25 {
        registry.change(Change::Put(with_code(byte))).await.unwrap();
    }
    let expected: HashSet<_> = (6..=25).map(|byte| CodeDigest([byte; 32])).collect();
    assert_eq!(registry.code_in_use(), expected);
}
