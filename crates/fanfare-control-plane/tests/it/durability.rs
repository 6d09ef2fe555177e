//! What is kept, how fast, and for how long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfare_control_plane::{ControlPlane, ControlPlaneError};
use fanfare_store::{MemoryStore, Store};
use futures_util::StreamExt;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use crate::world::{World, fake, options, soon};

#[tokio::test]
async fn a_restart_keeps_functions_and_ids_and_begins_a_new_term() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    let mut kept = Vec::new();
    for name in ["a", "b", "c"] {
        kept.push(world.api.create(name).await.json());
    }
    let changed = fake("b").replace("}}", "},\"queue_limit\":5}");
    kept[1] = world.api.call_json("PUT", "/v1/functions/b", changed).await.json();
    world.api.call("DELETE", "/v1/functions/c").await;
    let gone = kept.pop().unwrap();
    assert_eq!(world.handle().epoch().0, 1);
    world.stop().await;

    let world = World::on_disk(directory.path()).await;
    assert_eq!(world.handle().epoch().0, 2);
    for before in &kept {
        let path = format!("/v1/functions/{}", before["name"].as_str().unwrap());
        let after = world.api.call("GET", &path).await.json();
        assert_eq!((&after["id"], &after["revision"]), (&before["id"], &before["revision"]));
    }
    assert_eq!(world.api.call("GET", "/v1/functions/b").await.json()["function"]["queue_limit"], 5);
    assert_eq!(world.api.call("GET", "/v1/functions/c").await.status.as_u16(), 404);
    let again = world.api.create("c").await.json();
    assert!(again["id"] != gone["id"] && kept.iter().all(|before| before["id"] != again["id"]), "{again}");
    world.stop().await;
}

#[tokio::test]
async fn a_second_control_plane_ends_the_first() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let directory = tempfile::tempdir().unwrap();
    let start = || ControlPlane::start(options(directory.path()), store.clone(), CancellationToken::new());
    let first = start().await.unwrap();
    let api = crate::world::Api::new(first.api_address().to_string());
    assert_eq!(api.create("a").await.status.as_u16(), 201);
    let second = start().await.unwrap();
    assert!(second.epoch() > first.epoch());
    let late = api.create("b").await;
    assert_eq!((late.status.as_u16(), late.header("x-fanfare-reason")), (503, "unavailable"));
    assert!(matches!(soon(first.wait()).await, Err(ControlPlaneError::Deposed)));
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.api_address = taken.local_addr().unwrap();
    let store = Arc::new(MemoryStore::new());
    let error = ControlPlane::start(options, store, CancellationToken::new()).await.unwrap_err().to_string();
    assert!(error.contains(&taken.local_addr().unwrap().to_string()), "{error}");
}

/// Ten times the budget, for a build without optimisation on a busy machine: 10,000 in 2 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_functions_are_registered_in_seconds() {
    const FUNCTIONS: usize = 1_000;
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    let began = Instant::now();
    let statuses: Vec<u16> = stream::iter(0..FUNCTIONS)
        .map(|i| {
            let api = world.api.clone();
            async move { api.create(&format!("f{i}")).await.status.as_u16() }
        })
        .buffer_unordered(64)
        .collect()
        .await;
    let elapsed = began.elapsed();
    assert!(statuses.iter().all(|status| *status == 201));
    println!("{FUNCTIONS} functions in {elapsed:?}");
    assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
    world.stop().await;
}
