//! Secrets over the API: what is told of them, what is kept of them, and with which key.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fanfare_control_plane::{ControlPlane, ControlPlaneError};
use fanfare_store::{MemoryStore, RedbStore, Scan, Store};
use fanfare_types::limits::{SECRET_BYTES_MAX, SECRETS_MAX};
use fanfare_types::{FunctionId, RevisionId, SandboxId, SandboxRecord, ToDataPlane, ToNode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::peers::{data_plane, demand, node, node_hello};
use crate::world::{Answer, World, options, soon};

const CANARY: &str = "canary-5f1e9b7c";

fn problem(answer: &Answer, status: u16, reason: &str) {
    assert_eq!(
        (answer.status.as_u16(), answer.header("x-fanfare-reason")),
        (status, reason),
        "{:?}",
        answer.body
    );
    let text = String::from_utf8_lossy(&answer.body);
    assert!(!text.contains(CANARY) && !text.contains(&STANDARD.encode(CANARY)), "{text}");
}

async fn set(world: &World, name: &str, value: &str) -> Answer {
    let body = json!({ "value": value }).to_string();
    world.api.call_json("PUT", &format!("/v1/secrets/{name}"), body).await
}

async fn start(directory: &Path, store: Arc<dyn Store>) -> Result<(), ControlPlaneError> {
    let shutdown = CancellationToken::new();
    let handle = ControlPlane::start(options(directory), store, shutdown.clone()).await?;
    shutdown.cancel();
    soon(handle.wait()).await
}

#[tokio::test]
async fn a_secret_is_set_listed_described_and_deleted_without_its_value() {
    let world = World::new().await;
    assert_eq!(world.api.call("GET", "/v1/secrets").await.json(), json!({ "secrets": [] }));
    let created = set(&world, "db", CANARY).await;
    assert_eq!((created.status.as_u16(), created.header("location")), (201, "/v1/secrets/db"));
    let updated = set(&world, "db", CANARY).await;
    assert_eq!(updated.status.as_u16(), 200);
    assert_eq!(updated.json()["version"], 2, "whether it is the same value is not told");
    let bytes = json!({ "value_base64": STANDARD.encode([0, 1, 255]) }).to_string();
    assert_eq!(world.api.call_json("PUT", "/v1/secrets/a", bytes).await.status.as_u16(), 201);

    let listed = world.api.call("GET", "/v1/secrets").await;
    let names: Vec<_> =
        listed.json()["secrets"].as_array().unwrap().iter().map(|s| s["name"].clone()).collect();
    assert_eq!(names, ["a", "db"]);
    let described = world.api.call("GET", "/v1/secrets/db").await;
    let fields: Vec<_> = described.json().as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["created_unix_ms", "name", "updated_unix_ms", "used_by", "version"]);
    for answer in [&created, &updated, &listed, &described] {
        assert!(!String::from_utf8_lossy(&answer.body).contains(CANARY));
    }
    assert_eq!(world.api.call("DELETE", "/v1/secrets/db").await.status.as_u16(), 204);
    for method in ["GET", "DELETE"] {
        problem(&world.api.call(method, "/v1/secrets/db").await, 404, "secret-not-found");
    }
    world.stop().await;
}

#[tokio::test]
async fn what_is_no_secret_is_refused_without_being_repeated() {
    let world = World::new().await;
    problem(&set(&world, "Not-A-Name", CANARY).await, 422, "invalid-field");
    problem(&set(&world, "a", "").await, 422, "invalid-field");
    problem(
        &set(&world, "a", &CANARY.repeat(SECRET_BYTES_MAX / CANARY.len() + 1)).await,
        422,
        "invalid-field",
    );
    for body in [
        json!({ "value": [CANARY] }),
        json!({ "value": CANARY, "value_base64": CANARY }),
        json!({ CANARY: CANARY }),
        json!({ "value_base64": CANARY }),
    ] {
        let refused = world.api.call_json("PUT", "/v1/secrets/a", body.to_string()).await;
        problem(&refused, 422, "invalid-field");
    }
    for body in [json!([CANARY]).to_string(), format!("\"{CANARY}\""), CANARY.to_owned()] {
        problem(&world.api.call_json("PUT", "/v1/secrets/a", body).await, 400, "bad-request");
    }
    assert_eq!(world.api.call("GET", "/v1/secrets").await.json(), json!({ "secrets": [] }));
    world.stop().await;
}

#[tokio::test]
async fn there_is_a_most_of_secrets() {
    let world = World::new().await;
    for number in 0..SECRETS_MAX {
        assert_eq!(set(&world, &format!("s{number}"), "x").await.status.as_u16(), 201);
    }
    problem(&set(&world, "more", CANARY).await, 507, "registry-full");
    assert_eq!(set(&world, "s7", "y").await.status.as_u16(), 200);
    world.api.call("DELETE", "/v1/secrets/s7").await;
    assert_eq!(set(&world, "more", "x").await.status.as_u16(), 201);
    world.stop().await;
}

#[tokio::test]
async fn the_disk_holds_no_value_in_the_clear_and_a_restart_keeps_it() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    assert!(!directory.path().join("secrets.key").exists(), "no key before it is needed");
    set(&world, "db", CANARY).await;
    let key = directory.path().join("secrets.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o7777, 0o600);
    let before = world.api.call("GET", "/v1/secrets/db").await.json();
    world.stop().await;
    let forms =
        [CANARY.to_owned(), STANDARD.encode(CANARY), CANARY.bytes().map(|b| format!("{b:02x}")).collect()];
    let mut files = vec![directory.path().to_owned()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        for form in &forms {
            assert!(!bytes.windows(form.len()).any(|w| w == form.as_bytes()), "{form} in {}", path.display());
        }
    }
    let world = World::on_disk(directory.path()).await;
    assert_eq!(world.api.call("GET", "/v1/secrets/db").await.json(), before);
    assert_eq!(set(&world, "db", CANARY).await.json()["version"], 2);
    world.stop().await;
}

/// Every entry of a store.
async fn entries(store: &dyn Store) -> Value {
    let scan = Scan { limit: 1_000, ..Scan::default() };
    let page = store.scan(scan).await.unwrap();
    page.entries
        .into_iter()
        .map(|(key, entry)| json!([key, entry.value.to_vec(), entry.revision.0]))
        .collect()
}

#[tokio::test]
async fn a_wrong_or_missing_key_is_refused_and_the_store_is_left_as_it_is() {
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = MemoryStore::new();
    let open = || Arc::new(store.reopen()) as Arc<dyn Store>;
    let world = World::with_in(directory.path(), Arc::new(store.clone())).await;
    set(&world, "db", CANARY).await;
    world.stop().await;
    let before = entries(&*open()).await;

    let key = directory.path().join("secrets.key");
    let right = fs::read(&key).unwrap();
    let cases: [(&dyn Fn(), &str); 4] = [
        (
            &|| fs::rename(&key, other.path().join("kept")).unwrap(),
            "is not there, and the store holds secrets (1)",
        ),
        (
            &|| {
                fs::write(&key, "ab".repeat(32)).unwrap();
                fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
            },
            "does not open the secret db",
        ),
        (&|| fs::write(&key, "no key").unwrap(), "it is no key"),
        (
            &|| {
                fs::write(&key, &right).unwrap();
                fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
            },
            "its mode is 0644",
        ),
    ];
    for (spoil, said) in cases {
        spoil();
        let reopened = open();
        let error = start(directory.path(), reopened.clone()).await.unwrap_err();
        assert!(matches!(error, ControlPlaneError::SecretsKey { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(said) && text.contains("secrets.key"), "{text}");
        assert_eq!(entries(&*reopened).await, before, "{said}");
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    start(directory.path(), open()).await.unwrap();
    // Without secrets any key will do.
    let empty = RedbStore::open(&other.path().join("store")).unwrap();
    start(other.path(), Arc::new(empty)).await.unwrap();
}

/// A revision, and values by names.
type Told = (RevisionId, Vec<(String, Vec<u8>)>);

fn values(message: &ToNode) -> Option<Told> {
    let ToNode::Secrets { revision, values } = message else { return None };
    let shown = values.iter().map(|(name, value)| (name.to_string(), value.expose().to_vec()));
    Some((*revision, shown.collect()))
}

#[tokio::test]
async fn nodes_are_told_what_their_revisions_use_and_nothing_else() {
    let world = World::new().await;
    let dialer = world.dialer();
    for name in ["a", "b", "c"] {
        set(&world, name, "1").await;
    }
    let register = async |name: &str, secrets: Value| {
        let body = json!({ "name": name, "handler": { "kind": "fake" }, "secrets": secrets });
        let created = world.api.call_json("POST", "/v1/functions", body.to_string()).await;
        let id = created.json()["id"].as_str().unwrap().trim_start_matches('f').parse().unwrap();
        RevisionId { function: FunctionId(id), number: 1 }
    };
    let uses =
        register("uses", json!({ "A": { "secret": "a", "as": "env" }, "b.txt": { "secret": "b" } })).await;
    let plain = register("plain", json!({})).await;
    let listed = world.api.call("GET", "/v1/secrets/a").await.json();
    assert_eq!(listed["used_by"], json!(["uses"]));
    problem(&world.api.call("DELETE", "/v1/secrets/a").await, 409, "secret-in-use");
    let unknown =
        json!({ "name": "x", "handler": { "kind": "fake" }, "secrets": { "X": { "secret": "none" } } });
    let refused = world.api.call_json("POST", "/v1/functions", unknown.to_string()).await;
    problem(&refused, 422, "secret-unknown");
    assert!(
        refused.json()["hint"].as_str().unwrap().contains("fanfare secret set none"),
        "{:?}",
        refused.body
    );

    let mut first = node(&dialer, node_hello("n1", 1, vec![])).await;
    let mut data_plane = data_plane(&dialer, "d", 1).await;
    data_plane.until(|message| (*message == ToDataPlane::Synced).then_some(())).await;
    // The values come between the revision and what is to be done with it.
    let pair = |a: &str| vec![("a".to_owned(), a.into()), ("b".to_owned(), b"1".to_vec())];
    data_plane.tx.send(demand(uses.function, 1)).unwrap();
    let mut told = Vec::new();
    let sandbox = loop {
        match first.next().await.unwrap() {
            ToNode::Revision(spec) => told.push(("revision", spec.id, Vec::new())),
            ToNode::Create { sandbox, revision, .. } => {
                told.push(("create", revision, Vec::new()));
                break sandbox;
            }
            message => told.extend(values(&message).map(|(id, values)| ("secrets", id, values))),
        }
    };
    let expected =
        [("revision", uses, Vec::new()), ("secrets", uses, pair("1")), ("create", uses, Vec::new())];
    assert_eq!(told, expected);
    data_plane.tx.send(demand(plain.function, 1)).unwrap();
    let next = |message: &ToNode| match message {
        ToNode::Create { revision, .. } => Some(Ok(*revision)),
        ToNode::Secrets { revision, .. } => Some(Err(*revision)),
        _ => None,
    };
    assert_eq!(first.until(next).await, Ok(plain), "nothing of it is told");

    // A node that has such a sandbox is told at the beginning of its stream; one that has none is never told.
    let record = |revision| SandboxRecord { sandbox, revision, endpoint: Some("unix:/run/s".into()) };
    let mut again = node(&dialer, node_hello("n1", 1, vec![record(uses)])).await;
    assert_eq!(again.until(values).await, (uses, pair("1")));
    // Nor is one that only states that it has some: another node's, and one that nobody has ordered.
    let never =
        SandboxRecord { sandbox: SandboxId::new(sandbox.epoch(), u64::from(u32::MAX)), ..record(uses) };
    let mut other = node(&dialer, node_hello("n2", 1, vec![record(uses), never])).await;
    // Whatever changes goes to those who use it.
    set(&world, "c", "2").await;
    set(&world, "a", "2").await;
    // What it was told may be said again meanwhile: the engine may have told it of the revision anew.
    while again.until(values).await != (uses, pair("2")) {}
    world.stop().await;
    let mut stopped = 0;
    while let Some(message) = other.next().await {
        assert_eq!(values(&message), None);
        stopped += usize::from(matches!(message, ToNode::Stop { .. }));
    }
    assert_eq!(stopped, 2, "neither is its own");
}
