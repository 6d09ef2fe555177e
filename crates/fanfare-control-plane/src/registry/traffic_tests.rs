//! Traffic and tags: what is refused, what runs what, and what the engine is told.

use fanfare_store::MemoryStore;
use fanfare_types::StartFailureKind;

use super::tests::{Fault, Flaky, World, settled, spec, world};
use super::*;
use crate::limits::REVISIONS_KEPT;

fn share(shares: &[(Target, u32)], tags: &[(&str, Target)]) -> Change {
    let tags = tags.iter().map(|(tag, target)| (Tag::new(tag).unwrap(), *target)).collect();
    let change = TrafficChange { shares: Some(shares.to_vec()), tags: Some(tags) };
    Change::Traffic(spec("a", 1).name.clone(), change)
}

const LATEST: Target = Target::Latest;
const fn revision(number: u32) -> Target {
    Target::Revision(number)
}

async fn told(world: &mut World) -> Vec<Visible> {
    let mut told = Vec::new();
    while let Ok(Input::Function(visible)) = world.visible.try_recv() {
        told.push(visible);
    }
    told
}

async fn with_revisions(store: Arc<dyn Store>, last: u32) -> World {
    let mut world = world(store).await;
    for number in 1..=last {
        world.registry.change(Change::Put(spec("a", number))).await.unwrap();
    }
    told(&mut world).await;
    world
}

#[tokio::test]
async fn a_named_revision_is_run_by_an_id_of_its_own_until_it_is_no_longer_named() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut world = with_revisions(store.clone(), 3).await;
    let function = world.registry.function("a").unwrap().id.function;
    let shared = share(&[(revision(1), 10), (LATEST, 90)], &[("next", revision(3))]);
    assert_eq!(world.registry.change(shared).await, Ok(Done::Routed));
    let news = told(&mut world).await;
    let [Visible::Unit { id: one, spec: first }, Visible::Unit { id: three, .. }, traffic] = &news[..] else {
        panic!("{news:?}")
    };
    assert_eq!((one.number, three.number, first.queue_limit), (1, 3, 1));
    assert!(one.function != function && three.function != function && one.function != three.function);
    let Visible::Traffic { function: of, traffic: Some(traffic) } = traffic else { panic!("{traffic:?}") };
    let unit = |unit, percent| fanfare_types::Share { unit, percent };
    assert_eq!((*of, &traffic.shares[..]), (function, &[unit(one.function, 10), unit(function, 90)][..]));
    assert_eq!(traffic.tags, [(Tag::new("next").unwrap(), three.function)]);

    // An update changes neither, and a later term knows them: number 3 is no longer the latest.
    world.registry.change(Change::Put(spec("a", 4))).await.unwrap();
    assert!(matches!(&told(&mut world).await[..], [Visible::Set { id, .. }] if id.number == 4));
    let later = super::tests::world(store.clone()).await;
    assert_eq!(later.registry.traffic(), [(function, traffic.clone())]);
    let units = later.registry.units();
    let limits: Vec<u32> = units.iter().map(|(_, spec)| spec.queue_limit).collect();
    assert_eq!(
        (units.iter().map(|(id, _)| *id).collect::<Vec<_>>(), limits),
        (vec![*one, *three], vec![1, 3])
    );

    // First requests go elsewhere, then it is removed.
    let mut world = later;
    let less = share(&[(LATEST, 100)], &[("next", revision(3))]);
    assert_eq!(world.registry.change(less).await, Ok(Done::Routed));
    let news = told(&mut world).await;
    let expected =
        matches!(&news[..], [Visible::Traffic { .. }, Visible::Removed(gone)] if *gone == one.function);
    assert!(expected, "{news:?}");
    let again = share(&[(LATEST, 100)], &[("next", revision(3))]);
    assert!(matches!(world.registry.change(again).await, Ok(Done::Unchanged(_))));
    world.registry.change(share(&[(LATEST, 100)], &[])).await.unwrap();
    let news = told(&mut world).await;
    assert!(matches!(&news[..], [Visible::Traffic { traffic: None, .. }, Visible::Removed(_)]), "{news:?}");
    assert!(world.registry.function("a").unwrap().routing.is_none());
}

#[tokio::test]
async fn what_is_not_kept_or_broken_gets_no_requests_and_what_gets_them_is_kept() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let registry = with_revisions(store.clone(), 3).await.registry;
    let id = registry.function("a").unwrap().id;
    let failure = StartFailure {
        kind: StartFailureKind::ImportFailed,
        detail: "no".to_owned(),
        log_tail: String::new(),
    };
    let broken = |number| {
        let found = Found::Fails { failure: failure.clone(), has_started: true };
        Change::Proved(spec("a", 1).name.clone(), RevisionId { number, ..id }, found)
    };
    registry.change(broken(2)).await.unwrap();
    for tags in [&[][..], &[("b", revision(2))]] {
        let shares: &[_] = if tags.is_empty() { &[(revision(2), 100)] } else { &[(LATEST, 100)] };
        let refused = registry.change(share(shares, tags)).await;
        assert!(matches!(refused, Err(RegistryError::Broken { number: 2, .. })), "{refused:?}");
    }
    let refused = registry.change(share(&[(revision(7), 100)], &[])).await;
    assert_eq!(refused, Err(RegistryError::NoSuchRevision { number: 7, kept: vec![1, 2, 3] }));
    let nobody = Change::Traffic(spec("none", 1).name.clone(), TrafficChange::default());
    assert_eq!(registry.change(nobody).await, Err(RegistryError::NotFound));

    registry.change(share(&[(revision(1), 100)], &[("three", revision(3))])).await.unwrap();
    // What gets requests already is left alone when it breaks.
    registry.change(broken(1)).await.unwrap();
    registry.change(share(&[(revision(1), 50), (LATEST, 50)], &[("three", revision(3))])).await.unwrap();
    for number in 4..=40 {
        registry.change(Change::Put(spec("a", number))).await.unwrap();
    }
    let kept: Vec<u32> = registry.function("a").unwrap().past.iter().map(|past| past.number).collect();
    assert_eq!(kept.len(), REVISIONS_KEPT - 1 + 2);
    assert_eq!(kept[..3], [1, 3, 21]);
    let later = world(store.clone()).await.registry;
    assert_eq!(later.units().iter().map(|(id, _)| id.number).collect::<Vec<_>>(), [1, 3]);

    // Its revisions are gone, though something says that they get requests.
    let ops = vec![fanfare_store::Op::Delete("revisions/a/3".to_owned())];
    store.commit(fanfare_store::Txn { ops, ..Default::default() }).await.unwrap();
    let error = load::known(&*store).await.unwrap_err().to_string();
    assert!(error.contains("functions/a") && error.contains("revision 3"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn traffic_whose_write_failed_is_as_the_store_has_it() {
    for (fault, made) in [(Fault::BeforeWrite, false), (Fault::AfterWrite, true)] {
        let store = Arc::new(Flaky::new(vec![], 0));
        let mut world = with_revisions(store.clone(), 2).await;
        store.fail_next(fault);
        let change = || share(&[(revision(1), 100)], &[]);
        let unknown = world.registry.change(change()).await;
        assert!(matches!(unknown, Err(RegistryError::Unavailable(_))), "{unknown:?}");
        let settled = settled(&world.registry, change).await;
        let expected =
            if made { matches!(settled, Ok(Done::Unchanged(_))) } else { settled == Ok(Done::Routed) };
        assert!(expected, "{fault:?}: {settled:?}");
        let news = told(&mut world).await;
        assert!(matches!(&news[..], [Visible::Unit { .. }, Visible::Traffic { .. }]), "{news:?}");
    }
}

#[tokio::test]
async fn a_deleted_function_takes_its_units_with_it() {
    let mut world = with_revisions(Arc::new(MemoryStore::new()), 2).await;
    world.registry.change(share(&[(revision(1), 100)], &[])).await.unwrap();
    let parts = world.registry.function("a").unwrap().parts();
    told(&mut world).await;
    world.registry.change(Change::Delete(spec("a", 1).name.clone())).await.unwrap();
    let news = told(&mut world).await;
    let gone =
        |visible: &Visible| if let Visible::Removed(id) = visible { *id } else { panic!("{visible:?}") };
    assert_eq!(
        news.iter().map(gone).collect::<Vec<_>>(),
        parts,
        "the function first: nobody is sent to it any more"
    );
}
