//! Secrets among other changes, over terms, and against a store that fails.

use fanfare_store::MemoryStore;
use fanfare_types::limits;
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::tests::{next_visible, world};
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
    assert_eq!(world.registry.secret_reader().value(&name("db")), Some(value("last")));
    assert_eq!(world.registry.secret_reader().value(&name("other")), None);
    let shown = format!("{:?}", world.registry);
    assert!(!shown.contains("last"), "{shown}");
    assert_eq!(world.registry.change(Change::DeleteSecret(name("db"))).await, Ok(Done::Deleted));
    assert_eq!(world.registry.change(Change::DeleteSecret(name("db"))).await, Err(RegistryError::NotFound));
    assert_eq!(world.registry.secret_reader().value(&name("db")), None);
}

#[tokio::test]
async fn what_is_made_of_a_secret_is_told_also_where_nobody_waits_for_it() {
    let mut world = world(Arc::new(MemoryStore::new())).await;
    world.registry.set_secret(name("key"), value("one")).await.unwrap();
    assert!(matches!(next_visible(&mut world).await, Visible::Secret(told) if told == name("key")));
    // Asked, and gone.
    let set = Change::SetSecret(name("key"), value("two"));
    assert_eq!(world.registry.change(set).now_or_never(), None);
    assert!(matches!(next_visible(&mut world).await, Visible::Secret(told) if told == name("key")));
    assert_eq!(world.registry.secret_reader().value(&name("key")), Some(value("two")));
    assert_eq!(world.registry.change(Change::DeleteSecret(name("key"))).now_or_never(), None);
    assert!(matches!(next_visible(&mut world).await, Visible::SecretRemoved(told) if told == name("key")));
    assert_eq!(world.registry.secret_reader().value(&name("key")), None);
}

/// A function of the fake runtime with these secrets: `{"A": {"secret": "db", "as": "env"}}`.
fn using(name: &str, secrets: &str) -> Arc<FunctionSpec> {
    let json = format!(r#"{{"name":"{name}","handler":{{"kind":"fake"}},"secrets":{secrets}}}"#);
    let document = fanfare_api::FunctionDocument::from_json(json.as_bytes()).unwrap();
    Arc::new(FunctionSpec::try_from(document).unwrap())
}

const DB_FILE: &str = r#"{"db.txt":{"secret":"db"}}"#;
const DB_ENV: &str = r#"{"DB":{"secret":"db","as":"env"}}"#;

#[tokio::test]
async fn a_secret_in_use_stays_and_one_that_is_not_there_is_not_used() {
    let world = world(Arc::new(MemoryStore::new())).await;
    let registry = &world.registry;
    let unknown = registry.change(Change::Create(using("a", DB_FILE))).await;
    let field = "secrets.db.txt".to_owned();
    assert_eq!(unknown, Err(RegistryError::NoSuchSecret { name: "db".to_owned(), field }));
    assert!(registry.function("a").is_none());
    registry.set_secret(name("db"), value("1")).await.unwrap();
    registry.change(Change::Create(using("a", DB_FILE))).await.unwrap();
    registry.change(Change::Create(using("b", DB_ENV))).await.unwrap();
    let delete = || registry.change(Change::DeleteSecret(name("db")));
    assert_eq!(delete().await, Err(RegistryError::InUse { by: vec!["a".to_owned(), "b".to_owned()] }));
    registry.change(Change::Put(using("a", "{}"))).await.unwrap();
    assert_eq!(registry.users_of(&name("db")), ["b"]);
    registry.change(Change::Delete(FunctionName::new("b").unwrap())).await.unwrap();
    // What an earlier revision used does not keep it, but that revision cannot come back without it.
    assert_eq!(delete().await, Ok(Done::Deleted));
    let back = || registry.change(Change::Rollback(FunctionName::new("a").unwrap(), Some(1)));
    assert!(matches!(back().await, Err(RegistryError::NoSuchSecret { .. })));
    registry.set_secret(name("db"), value("2")).await.unwrap();
    assert!(matches!(back().await, Ok(Done::Updated(_))));
    // One that gets requests beside the latest does keep it.
    registry.change(Change::Put(using("a", "{}"))).await.unwrap();
    let share = TrafficChange { shares: Some(vec![(Target::Revision(1), 100)]), tags: None };
    registry.change(Change::Traffic(FunctionName::new("a").unwrap(), share)).await.unwrap();
    assert_eq!(delete().await, Err(RegistryError::InUse { by: vec!["a".to_owned()] }));
}

#[tokio::test]
async fn deletions_and_registrations_that_cross_leave_no_function_without_its_secret() {
    let world = world(Arc::new(MemoryStore::new())).await;
    let registry = &world.registry;
    let (mut deleted, mut created) = (0, 0);
    for round in 0..100 {
        registry.set_secret(name("db"), value("1")).await.unwrap();
        let create = registry.change(Change::Create(using("a", DB_FILE)));
        let delete = registry.change(Change::DeleteSecret(name("db")));
        // Whichever is asked first.
        let (create, delete) = match round % 2 {
            0 => tokio::join!(create, delete),
            _ => {
                let (delete, create) = tokio::join!(delete, create);
                (create, delete)
            }
        };
        assert_ne!(create.is_ok(), delete.is_ok(), "{create:?} {delete:?}");
        created += usize::from(create.is_ok());
        deleted += usize::from(delete.is_ok());
        if create.is_ok() {
            registry.change(Change::Delete(FunctionName::new("a").unwrap())).await.unwrap();
        }
    }
    assert!(created > 0 && deleted > 0, "{created} created, {deleted} deleted");
}

#[tokio::test]
async fn what_is_no_variable_is_refused_where_it_would_be_one() {
    let world = world(Arc::new(MemoryStore::new())).await;
    let registry = &world.registry;
    let set = |bytes: Vec<u8>| registry.set_secret(name("db"), SecretValue::new(bytes));
    let field = |result: Result<Done, RegistryError>| match result {
        Err(RegistryError::Field(why)) => why.field,
        other => panic!("{other:?}"),
    };
    for bad in [vec![0xff], vec![b'a', 0, b'b'], vec![b'x'; limits::SECRET_ENV_BYTES_MAX]] {
        set(bad.clone()).await.unwrap();
        assert!(field(registry.change(Change::Create(using("a", DB_ENV))).await).starts_with("secrets"));
        registry.change(Change::Create(using("file", DB_FILE))).await.unwrap();
        registry.change(Change::Delete(FunctionName::new("file").unwrap())).await.unwrap();
        set(b"text".to_vec()).await.unwrap();
        registry.change(Change::Create(using("a", DB_ENV))).await.unwrap();
        assert_eq!(field(set(bad).await), "value");
        assert_eq!(registry.secret_reader().value(&name("db")), Some(value("text")));
        registry.change(Change::Delete(FunctionName::new("a").unwrap())).await.unwrap();
    }
}
