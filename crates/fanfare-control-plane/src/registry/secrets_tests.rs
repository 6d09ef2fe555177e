//! Secrets among other changes, over terms, and against a store that fails.

use fanfare_store::MemoryStore;
use futures_util::future::join_all;

use super::tests::world;
use super::*;

fn name(text: &str) -> SecretName {
    SecretName::new(text).unwrap()
}

fn value(text: &str) -> SecretValue {
    SecretValue::new(text.as_bytes().to_vec())
}

#[tokio::test]
async fn values_of_one_secret_follow_each_other_and_the_last_one_stays() {
    let world = world(Arc::new(MemoryStore::new())).await;
    let sets = (1..=20).map(|i| world.registry.set_secret(name("db"), value(&format!("v{i}"))));
    let mut versions: Vec<_> = join_all(sets)
        .await
        .into_iter()
        .map(|done| match done {
            Ok(Done::SecretSet { version }) => version,
            other => panic!("{other:?}"),
        })
        .collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=20).collect::<Vec<_>>());
    world.registry.set_secret(name("db"), value("last")).await.unwrap();
    assert_eq!(world.registry.secret_value(&name("db")), Some(value("last")));
    assert_eq!(world.registry.secret_value(&name("other")), None);
    let shown = format!("{:?}", world.registry);
    assert!(!shown.contains("last"), "{shown}");
    assert_eq!(world.registry.change(Change::DeleteSecret(name("db"))).await, Ok(Done::Deleted));
    assert_eq!(world.registry.change(Change::DeleteSecret(name("db"))).await, Err(RegistryError::NotFound));
    assert_eq!(world.registry.secret_value(&name("db")), None);
}
