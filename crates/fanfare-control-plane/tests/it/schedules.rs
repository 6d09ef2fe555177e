//! Schedules: kept, fired once, and handed to a data plane whatever ends meanwhile.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fanfare_control_plane::{ControlPlane, ControlPlaneError};
use fanfare_link::Dialer;
use fanfare_store::{MemoryStore, Op, RedbStore, Store, Txn};
use fanfare_types::{EntrustRefusal, EntrustedCall, FromDataPlane, Reason, ToDataPlane};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::peers::{DataPlane, data_plane, data_plane_replying};
use crate::world::{Api, World, options, soon};

/// A data plane that accepts every call, under its key.
async fn accepting(world: &World, name: &str, incarnation: u64) -> DataPlane {
    data_plane_replying(&world.dialer(), name, incarnation, |message| match message {
        ToDataPlane::Mark(number) => Some(FromDataPlane::Reached(*number)),
        ToDataPlane::Entrust { number, call } => {
            Some(FromDataPlane::Entrusted { number: *number, outcome: Ok(call.key.clone()) })
        }
        _ => None,
    })
    .await
}

fn entrusted(message: &ToDataPlane) -> Option<(u64, Arc<EntrustedCall>)> {
    match message {
        ToDataPlane::Entrust { number, call } => Some((*number, call.clone())),
        _ => None,
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// An instant that far from now, as a schedule has it.
fn from_now(ms: u64) -> String {
    fanfare_schedule::Wall(unix_ms() + ms).to_string()
}

async fn set(api: &Api, name: &str, fields: Value) -> crate::world::Answer {
    let mut document = json!({"name": name, "function": "f"});
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    api.call_json("PUT", &format!("/v1/schedules/{name}"), document.to_string()).await
}

async fn describe(api: &Api, name: &str) -> Value {
    api.call("GET", &format!("/v1/schedules/{name}")).await.json()
}

/// The schedule once `wanted` holds of it.
async fn until(api: &Api, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    soon(async {
        loop {
            let schedule = describe(api, name).await;
            if wanted(&schedule) {
                return schedule;
            }
        }
    })
    .await
}

fn has_fired(schedule: &Value) -> bool {
    schedule["fired"].as_array().is_some_and(|fired| !fired.is_empty())
}

#[tokio::test]
async fn a_schedule_is_set_shown_paused_resumed_and_deleted() {
    let world = World::new().await;
    let api = &world.api;
    api.create("f").await;
    let fields = json!({"cron": "30 2 * * *", "zone": "Europe/Zurich", "headers": {"a": "b"}, "body": "{}"});
    let created = set(api, "nightly", fields.clone()).await;
    assert_eq!(created.status.as_u16(), 201, "{}", created.json());
    assert_eq!(created.header("location"), "/v1/schedules/nightly");
    let created = created.json();
    assert_eq!((&created["outcome"], &created["name"]), (&json!("created"), &json!("nightly")));
    assert!(created["next"]["local"].as_str().unwrap().contains("T02:30:00+0"), "{created}");
    assert_eq!(set(api, "nightly", fields).await.json()["outcome"], "unchanged");
    let shown = describe(api, "nightly").await;
    assert_eq!((&shown["state"], &shown["id"]), (&json!("active"), &created["id"]));
    assert_eq!(shown["next"].as_array().unwrap().len(), 5);
    assert_eq!(shown["next"][0], created["next"]);
    assert_eq!(shown["schedule"]["method"], "POST");
    assert_eq!(shown["schedule"]["headers"], json!({"a": "b"}));
    let paused = api.call("POST", "/v1/schedules/nightly/pause").await.json();
    assert_eq!((&paused["outcome"], &paused["next"]), (&json!("updated"), &Value::Null));
    assert_eq!(api.call("POST", "/v1/schedules/nightly/pause").await.json()["outcome"], "unchanged");
    let updated = set(api, "nightly", json!({"cron": "@daily"})).await.json();
    assert_eq!((&updated["outcome"], &updated["id"]), (&json!("updated"), &created["id"]));
    assert_eq!(describe(api, "nightly").await["state"], "paused", "setting it does not resume it");
    assert!(api.call("POST", "/v1/schedules/nightly/resume").await.json()["next"].is_object());
    set(api, "another", json!({"at": "2100-01-01T00:00:00+01:00"})).await;
    let page = api.call("GET", "/v1/schedules?limit=1").await.json();
    assert_eq!((&page["schedules"][0]["name"], &page["next"]), (&json!("another"), &json!("another")));
    assert_eq!(page["schedules"][0]["next"]["utc"], "2099-12-31T23:00:00Z");
    let rest = api.call("GET", "/v1/schedules?after=another").await.json();
    assert_eq!((rest["schedules"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    assert_eq!(api.call("DELETE", "/v1/schedules/nightly").await.status.as_u16(), 204);
    for (method, path) in
        [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")]
    {
        let answer = api.call(method, &format!("/v1/schedules/nightly{path}")).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-fanfare-reason")), (404, "schedule-not-found"));
    }
    let again = set(api, "nightly", json!({"cron": "@daily"})).await.json();
    assert_ne!(again["id"], created["id"], "a new one is another");
    world.stop().await;
}

#[tokio::test]
async fn what_cannot_be_a_schedule_is_refused_with_its_field() {
    let world = World::new().await;
    let api = &world.api;
    api.create("f").await;
    let cases = [
        (json!({"cron": "* * * *"}), 422, "invalid-field", "cron"),
        (json!({"cron": "* * * * *", "zone": "Mars/Base"}), 422, "invalid-field", "zone"),
        (json!({"at": "2020-01-01T00:00:00Z"}), 422, "invalid-field", "at"),
        (json!({}), 422, "fields-disagree", "cron"),
        (json!({"cron": "@daily", "function": "none"}), 404, "function-not-found", "function"),
        (json!({"cron": "@daily", "name": "other"}), 422, "invalid-field", "name"),
    ];
    for (fields, status, reason, field) in cases {
        let answer = set(api, "s", fields.clone()).await;
        let problem = answer.json();
        assert_eq!(
            (answer.status.as_u16(), answer.header("x-fanfare-reason")),
            (status, reason),
            "{problem}"
        );
        assert_eq!(problem["field"], field, "{fields}: {problem}");
    }
    assert_eq!(describe(api, "s").await["reason"], "schedule-not-found");
    world.stop().await;
}

#[tokio::test]
async fn once_at_a_time_a_data_plane_is_asked_once_with_what_was_said() {
    let world = World::new().await;
    world.api.create("f").await;
    let mut plane = accepting(&world, "d", 1).await;
    let at = from_now(1_000);
    let fields = json!({"at": at, "method": "PUT", "path": "/a?b=c", "headers": {"X-A": "b"}, "body": "x",
                        "delivery": "at-most-once", "max_age": "90s"});
    let id = set(&world.api, "once", fields).await.json()["id"].clone();
    let (_, call) = plane.until(entrusted).await;
    assert!(unix_ms() >= instant(&at), "not before its time");
    assert_eq!(
        (call.function.as_str(), &*call.method, &*call.target, &*call.body),
        ("f", "PUT", "/a?b=c", &b"x"[..])
    );
    let headers: Vec<_> = call.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(headers, [("X-A", "b"), ("x-fanfare-schedule", "once"), ("x-fanfare-scheduled", at.as_str())]);
    assert!(call.at_most_once && call.age_max == Some(Duration::from_secs(90)));
    assert_eq!(*call.key, *format!("schedule {} {}", id.as_str().unwrap(), instant(&at)));
    let schedule = until(&world.api, "once", has_fired).await;
    assert_eq!((&schedule["state"], &schedule["next"]), (&json!("ended"), &json!([])));
    let fired = &schedule["fired"][0];
    assert_eq!((&fired["outcome"], &fired["scheduled"]), (&json!("accepted"), &json!(at)));
    assert_eq!(fired["invocation"], *call.key);
    world.stop().await;
}

fn instant(at: &str) -> u64 {
    match fanfare_schedule::Calendar::at(at).unwrap() {
        fanfare_schedule::Calendar::At(wall) => wall.0,
        fanfare_schedule::Calendar::Cron { .. } => unreachable!("`at` makes an instant"),
    }
}

#[tokio::test]
async fn a_restart_between_being_asked_and_answering_asks_the_same_data_plane_for_the_same_call() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    world.api.create("f").await;
    let mut silent = data_plane(&world.dialer(), "d", 1).await;
    set(&world.api, "once", json!({"at": from_now(500)})).await;
    let (_, call) = silent.until(entrusted).await;
    let schedule = describe(&world.api, "once").await;
    assert_eq!((schedule["firing"]["data_plane"].is_string(), &schedule["state"]), (true, &json!("active")));
    drop(silent);
    world.stop().await;

    let world = World::on_disk(directory.path()).await;
    // Another one that is there first is not asked: the first may have the call.
    let mut other = accepting(&world, "other", 1).await;
    let mut again = accepting(&world, "d", 2).await;
    assert_eq!(again.until(entrusted).await.1.key, call.key);
    let schedule = until(&world.api, "once", has_fired).await;
    assert_eq!((&schedule["fired"][0]["invocation"], &schedule["firing"]), (&json!(*call.key), &Value::Null));
    world.stop().await;
    while let Some(message) = other.next().await {
        assert!(entrusted(&message).is_none(), "{message:?}");
    }

    let world = World::on_disk(directory.path()).await;
    let mut third = accepting(&world, "d", 3).await;
    assert_eq!(describe(&world.api, "once").await["state"], "ended");
    // Something else that is asked for comes, and it does not come before that.
    set(&world.api, "next", json!({"at": from_now(300)})).await;
    assert!(third.until(entrusted).await.1.key.starts_with("schedule s3-1 "));
    world.stop().await;
}

#[tokio::test]
async fn another_leader_takes_over_what_the_first_one_began_and_the_first_fires_no_more() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let directory = tempfile::tempdir().unwrap();
    let start = || ControlPlane::start(options(directory.path()), store.clone(), CancellationToken::new());
    let first = start().await.unwrap();
    let api = Api::new(first.api_address().to_string());
    api.create("f").await;
    let mut silent = data_plane(&Dialer::in_process(first.hub()), "d", 1).await;
    set(&api, "every", json!({"cron": "* * * * * *"})).await;
    let (_, call) = silent.until(entrusted).await;
    let second = start().await.unwrap();
    let world_api = Api::new(second.api_address().to_string());
    let mut accepting =
        data_plane_replying(&Dialer::in_process(second.hub()), "d", 2, |message| match message {
            ToDataPlane::Entrust { number, call } => {
                Some(FromDataPlane::Entrusted { number: *number, outcome: Ok(call.key.clone()) })
            }
            _ => None,
        })
        .await;
    assert_eq!(accepting.until(entrusted).await.1.key, call.key, "the call that is under way");
    assert_ne!(accepting.until(entrusted).await.1.key, call.key, "and then the next one");
    until(&world_api, "every", has_fired).await;
    // The first learns of it when it writes, which it does when its data plane answers.
    let (number, outcome) = (1, Ok("late".into()));
    silent.tx.send(FromDataPlane::Entrusted { number, outcome }).unwrap();
    assert!(matches!(soon(first.wait()).await, Err(ControlPlaneError::Deposed)));
    let fired = describe(&world_api, "every").await["fired"].clone();
    assert!(fired.as_array().unwrap().iter().all(|fired| fired["invocation"] != "late"), "{fired}");
}

#[tokio::test]
async fn an_occurrence_whose_time_was_over_before_a_restart_is_asked_about_and_not_begun() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    world.api.create("f").await;
    let mut silent = data_plane(&world.dialer(), "d", 1).await;
    set(&world.api, "s", json!({"at": from_now(50)})).await;
    let (_, call) = silent.until(entrusted).await;
    assert!(!call.only_if_known);
    world.stop().await;
    // As if it had not run for five hours since.
    let store = RedbStore::open(&directory.path().join("store")).unwrap();
    let entry = store.get("schedules/s".to_owned()).await.unwrap().unwrap();
    let mut value: Value = serde_json::from_slice(&entry.value).unwrap();
    for field in ["instant_ms", "begun_ms"] {
        value["firing"][field] = json!(value["firing"][field].as_u64().unwrap() - 5 * 3_600_000);
    }
    let ops = vec![Op::Put("schedules/s".to_owned(), Bytes::from(value.to_string()))];
    store.commit(Txn { ops, ..Txn::default() }).await.unwrap();
    store.close().await;
    drop(store);
    let world = World::on_disk(directory.path()).await;
    let mut plane = data_plane_replying(&world.dialer(), "d", 2, |message| match message {
        ToDataPlane::Entrust { number, .. } => {
            let refusal =
                EntrustRefusal { reason: Reason::InvocationNotFound, detail: "it is not kept".into() };
            Some(FromDataPlane::Entrusted { number: *number, outcome: Err(refusal) })
        }
        _ => None,
    })
    .await;
    assert!(plane.until(entrusted).await.1.only_if_known);
    let fired = until(&world.api, "s", has_fired).await["fired"][0].clone();
    assert_eq!(fired["outcome"], "unknown", "{fired}");
    assert!(fired["detail"].as_str().unwrap().ends_with("it is not kept"), "{fired}");
    world.stop().await;
}

#[tokio::test]
async fn without_a_function_no_call_is_made_and_the_schedule_says_so() {
    let world = World::new().await;
    let api = &world.api;
    api.create("f").await;
    let _plane = accepting(&world, "d", 1).await;
    set(api, "s", json!({"cron": "@yearly"})).await;
    api.call("DELETE", "/v1/functions/f").await;
    assert_eq!(describe(api, "s").await["state"], "no-function");
    let run = api.call("POST", "/v1/schedules/s/run").await;
    assert_eq!((run.status.as_u16(), run.header("x-fanfare-reason")), (404, "function-not-found"));
    let fired = describe(api, "s").await["fired"][0].clone();
    assert_eq!((&fired["outcome"], &fired["reason"]), (&json!("given-up"), &json!("function-not-found")));
    api.create("f").await;
    assert_eq!(describe(api, "s").await["state"], "active", "it goes on with the one that has the name then");
    let run = api.call("POST", "/v1/schedules/s/run").await;
    assert_eq!(run.status.as_u16(), 202, "{}", run.json());
    assert!(run.json()["invocation"].as_str().unwrap().ends_with("by hand"));
    world.stop().await;
}

#[tokio::test]
async fn what_no_data_plane_takes_waits_says_why_and_is_taken_by_the_one_that_comes() {
    let world = World::new().await;
    let api = &world.api;
    api.create("f").await;
    set(api, "s", json!({"at": from_now(200)})).await;
    let waits = until(api, "s", |s| s["firing"]["reason"].is_string()).await;
    assert_eq!(waits["firing"]["reason"], "unavailable");
    assert_eq!(waits["firing"]["detail"], "no data plane is connected");
    let run = api.call("POST", "/v1/schedules/s/run").await;
    assert_eq!((run.status.as_u16(), run.header("x-fanfare-reason")), (409, "schedule-busy"));
    let other = set(api, "s", json!({"at": from_now(9_000), "function": "g"})).await;
    assert_eq!(other.status.as_u16(), 404, "there is no such function");
    api.create("g").await;
    let other = set(api, "s", json!({"at": from_now(9_000), "function": "g"})).await;
    assert_eq!((other.status.as_u16(), other.header("x-fanfare-reason")), (409, "schedule-busy"));
    // One that refuses, and then one that does not.
    let mut refusing = data_plane_replying(&world.dialer(), "refusing", 1, |message| match message {
        ToDataPlane::Entrust { number, .. } => {
            let refusal = EntrustRefusal { reason: Reason::ShuttingDown, detail: "it ends".into() };
            Some(FromDataPlane::Entrusted { number: *number, outcome: Err(refusal) })
        }
        _ => None,
    })
    .await;
    refusing.until(entrusted).await;
    until(api, "s", |s| s["firing"]["reason"] == "shutting-down" && s["firing"]["detail"] == "it ends").await;
    let _taking = accepting(&world, "taking", 1).await;
    assert_eq!(until(api, "s", has_fired).await["fired"][0]["outcome"], "accepted");
    world.stop().await;
}

#[tokio::test]
async fn missed_occurrences_are_left_out_or_the_last_one_happens_late() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    world.api.create("f").await;
    for (name, missed) in [("skips", "skip"), ("catches-up", "once"), ("paused", "once")] {
        // Every hour, at a minute that is not near.
        let minute = (unix_ms() / 60_000 + 30) % 60;
        set(&world.api, name, json!({"cron": format!("{minute} * * * *"), "missed": missed})).await;
    }
    world.api.call("POST", "/v1/schedules/paused/pause").await;
    world.stop().await;
    // As if it had not run for ten hours.
    let store = RedbStore::open(&directory.path().join("store")).unwrap();
    for name in ["skips", "catches-up", "paused"] {
        let key = format!("schedules/{name}");
        let entry = store.get(key.clone()).await.unwrap().unwrap();
        let mut value: Value = serde_json::from_slice(&entry.value).unwrap();
        value["after_ms"] = json!(value["after_ms"].as_u64().unwrap() - 10 * 3_600_000);
        let ops = vec![Op::Put(key, Bytes::from(value.to_string()))];
        store.commit(Txn { ops, ..Txn::default() }).await.unwrap();
    }
    store.close().await;
    drop(store);
    let world = World::on_disk(directory.path()).await;
    let mut plane = accepting(&world, "d", 1).await;
    let skipped = until(&world.api, "skips", has_fired).await;
    assert_eq!(
        (&skipped["fired"][0]["outcome"], &skipped["fired"][0]["left_out"]),
        (&json!("skipped"), &json!(9))
    );
    let (_, call) = plane.until(entrusted).await;
    assert!(call.headers.contains(&("x-fanfare-schedule".into(), "catches-up".into())));
    let late = until(&world.api, "catches-up", has_fired).await;
    assert_eq!(
        (&late["fired"][0]["outcome"], &late["fired"][0]["left_out"]),
        (&json!("accepted"), &json!(9))
    );
    assert_eq!(late["fired"][0]["scheduled"], skipped["fired"][0]["scheduled"]);
    assert_eq!(describe(&world.api, "paused").await["fired"], json!([]));
    world.api.call("POST", "/v1/schedules/paused/resume").await;
    assert_eq!(
        describe(&world.api, "paused").await["fired"],
        json!([]),
        "what came while it was paused is not missed"
    );
    world.stop().await;
}

#[tokio::test]
async fn hundreds_fire_at_once_each_once() {
    const COUNT: usize = 300;
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    world.api.create("f").await;
    let mut plane = accepting(&world, "d", 1).await;
    let runs = stream::iter(0..COUNT).map(|n| {
        let api = world.api.clone();
        async move {
            let name = format!("s{n}");
            set(&api, &name, json!({"cron": "@yearly"})).await;
            api.call("POST", &format!("/v1/schedules/{name}/run")).await
        }
    });
    let runs: Vec<_> = runs.buffer_unordered(COUNT).collect().await;
    assert!(runs.iter().all(|run| run.status.as_u16() == 202 && run.json()["invocation"].is_string()));
    world.stop().await;
    let mut keys = std::collections::BTreeSet::new();
    while let Some(message) = plane.next().await {
        if let Some((_, call)) = entrusted(&message) {
            assert!(keys.insert(call.key.clone()), "{} twice", call.key);
        }
    }
    assert_eq!(keys.len(), COUNT);
}
