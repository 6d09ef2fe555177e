//! Hosts that a function and a tag would share.

use fanfare_store::MemoryStore;

use super::tests::{spec, world};
use super::*;

fn tag(name: &str, tags: &[&str]) -> Change {
    let tags = tags.iter().map(|tag| (Tag::new(tag).unwrap(), Target::Latest)).collect();
    let change = TrafficChange { shares: None, tags: Some(tags) };
    Change::Traffic(FunctionName::new(name).unwrap(), change)
}

fn is_taken(result: &Result<Done, RegistryError>, by: &str) -> bool {
    matches!(result, Err(RegistryError::HostTaken { host, holder }) if host == "canary--a" && holder.contains(by))
}

#[tokio::test]
async fn a_function_does_not_take_over_the_host_of_a_tag_nor_the_reverse() {
    let registry = world(Arc::new(MemoryStore::new())).await.registry;
    registry.change(Change::Create(spec("a", 1))).await.unwrap();
    registry.change(tag("a", &["canary"])).await.unwrap();
    for change in [Change::Create(spec("canary--a", 1)), Change::Put(spec("canary--a", 1))] {
        let refused = registry.change(change).await;
        assert!(is_taken(&refused, "the tag canary of the function a"), "{refused:?}");
    }
    // Others that look like it are free.
    for free in ["canary--b", "other--a", "canary-a", "x--canary--a"] {
        registry.change(Change::Create(spec(free, 1))).await.unwrap();
    }
    registry.change(tag("a", &[])).await.unwrap();
    registry.change(Change::Create(spec("canary--a", 1))).await.unwrap();
    let refused = registry.change(tag("a", &["free", "canary"])).await;
    assert!(is_taken(&refused, "the function canary--a"), "{refused:?}");
    assert_eq!(registry.function("a").unwrap().tags(), []);
    // It is there, and goes on as it was.
    registry.change(Change::Put(spec("canary--a", 2))).await.unwrap();
    registry.change(Change::Delete(FunctionName::new("canary--a").unwrap())).await.unwrap();
    registry.change(tag("a", &["canary"])).await.unwrap();
}

#[tokio::test]
async fn of_two_at_once_that_want_one_host_one_gets_it() {
    for function_first in [true, false] {
        let registry = world(Arc::new(MemoryStore::new())).await.registry;
        registry.change(Change::Create(spec("a", 1))).await.unwrap();
        for _ in 0..100 {
            let function = registry.change(Change::Create(spec("canary--a", 1)));
            let tagged = registry.change(tag("a", &["canary"]));
            let (function, tagged) = match function_first {
                true => tokio::join!(function, tagged),
                false => {
                    let (tagged, function) = tokio::join!(tagged, function);
                    (function, tagged)
                }
            };
            assert!(function.is_ok() != tagged.is_ok(), "{function:?} {tagged:?}");
            assert!(is_taken(&function, "the tag") || is_taken(&tagged, "the function"));
            match function.is_ok() {
                true => {
                    registry.change(Change::Delete(FunctionName::new("canary--a").unwrap())).await.unwrap()
                }
                false => registry.change(tag("a", &[])).await.unwrap(),
            };
        }
    }
}
