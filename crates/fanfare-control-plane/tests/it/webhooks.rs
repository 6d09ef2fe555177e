//! Webhooks: kept, and told to data planes with the secret that is current.

use std::sync::Arc;

use fanfare_types::{ToDataPlane, WebhookRoute};
use serde_json::{Value, json};

use crate::peers::{DataPlane, data_plane};
use crate::world::{Answer, Api, World};

async fn set(api: &Api, name: &str, fields: Value) -> Answer {
    let mut document = json!({"name": name, "function": "f", "verify": "github", "secret": "key"});
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    api.call_json("PUT", &format!("/v1/webhooks/{name}"), document.to_string()).await
}

async fn set_secret(api: &Api, name: &str, value: &str) {
    let body = json!({"value": value}).to_string();
    let answer = api.call_json("PUT", &format!("/v1/secrets/{name}"), body).await;
    assert!(answer.status.is_success(), "{}", answer.json());
}

/// The next webhook that the data plane is told of.
async fn told(plane: &mut DataPlane) -> Arc<WebhookRoute> {
    let webhook = |message: &ToDataPlane| match message {
        ToDataPlane::Webhook(route) => Some(route.clone()),
        _ => None,
    };
    plane.until(webhook).await
}

fn key(route: &WebhookRoute) -> Option<&[u8]> {
    route.key.as_ref().map(fanfare_types::SecretValue::expose)
}

#[tokio::test]
async fn a_webhook_is_set_shown_changed_and_deleted() {
    let world = World::new().await;
    let api = &world.api;
    api.create("f").await;
    set_secret(api, "key", "canary").await;
    let created = set(api, "gh", json!({"tolerance": "2m"})).await;
    assert_eq!((created.status.as_u16(), created.header("location")), (201, "/v1/webhooks/gh"));
    assert_eq!(created.json(), json!({"name": "gh", "path": "/webhook/gh", "outcome": "created"}));
    assert_eq!(set(api, "gh", json!({"tolerance": 120})).await.json()["outcome"], "unchanged");
    assert_eq!(set(api, "gh", json!({"wait": true})).await.json()["outcome"], "updated");
    let shown = api.call("GET", "/v1/webhooks/gh").await;
    assert!(!String::from_utf8_lossy(&shown.body).contains("canary"));
    let shown = shown.json();
    assert_eq!((&shown["webhook"]["wait"], &shown["webhook"]["tolerance"]), (&json!(true), &json!(300)));
    assert_eq!((&shown["function_exists"], &shown["secret_exists"]), (&json!(true), &json!(true)));
    set(api, "other", json!({"verify": "token"})).await;
    let page = api.call("GET", "/v1/webhooks?limit=1").await.json();
    assert_eq!((&page["webhooks"][0]["webhook"]["name"], &page["next"]), (&json!("gh"), &json!("gh")));
    let cases = [
        (json!({"function": "none"}), 404, "function-not-found", "function"),
        (json!({"secret": "none"}), 404, "secret-not-found", "secret"),
        (json!({"verify": "md5"}), 422, "invalid-field", "verify"),
        (json!({"name": "else"}), 422, "invalid-field", "name"),
        (json!({"tolerance": "2d"}), 422, "invalid-field", "tolerance"),
    ];
    for (fields, status, reason, field) in cases {
        let answer = set(api, "x", fields).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-fanfare-reason")), (status, reason));
        assert_eq!(answer.json()["field"], field);
    }
    assert_eq!(api.call("DELETE", "/v1/webhooks/gh").await.status.as_u16(), 204);
    for method in ["GET", "DELETE"] {
        let answer = api.call(method, "/v1/webhooks/gh").await;
        assert_eq!((answer.status.as_u16(), answer.header("x-fanfare-reason")), (404, "webhook-not-found"));
    }
    world.stop().await;
}

#[tokio::test]
async fn a_secret_that_a_webhook_uses_stays() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    world.api.create("f").await;
    set_secret(&world.api, "key", "one").await;
    set_secret(&world.api, "other", "two").await;
    set(&world.api, "gh", json!({})).await;
    world.stop().await;

    let world = World::on_disk(directory.path()).await;
    let api = &world.api;
    let delete = async |secret: &str| api.call("DELETE", &format!("/v1/secrets/{secret}")).await;
    let refused = delete("key").await;
    assert_eq!((refused.status.as_u16(), refused.header("x-fanfare-reason")), (409, "secret-in-use"));
    let problem = refused.json();
    let told = format!("{} {}", problem["detail"].as_str().unwrap(), problem["hint"].as_str().unwrap());
    assert!(told.contains("webhook gh") && told.contains("`fanfare webhook delete gh`"), "{told}");
    set(api, "gh", json!({"secret": "other"})).await;
    assert_eq!(delete("key").await.status.as_u16(), 204, "it uses another");
    assert_eq!(delete("other").await.status.as_u16(), 409);
    api.call("DELETE", "/v1/webhooks/gh").await;
    assert_eq!(delete("other").await.status.as_u16(), 204, "nothing uses it");
    // At once: whichever comes first, no webhook is left without its secret.
    for round in 0..20 {
        set_secret(api, "key", "again").await;
        let name = format!("w{round}");
        let (made, deleted) = tokio::join!(set(api, &name, json!({})), delete("key"));
        match (made.status.as_u16(), deleted.status.as_u16()) {
            (201, 409) | (404, 204) => {}
            other => panic!("round {round}: {other:?}"),
        }
        api.call("DELETE", &format!("/v1/webhooks/{name}")).await;
    }
    world.stop().await;
}

#[tokio::test]
async fn data_planes_are_told_each_webhook_with_the_secret_that_is_current() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::on_disk(directory.path()).await;
    let api = &world.api;
    api.create("f").await;
    set_secret(api, "key", "one").await;
    set_secret(api, "unused", "x").await;
    let mut early = data_plane(&world.dialer(), "early", 1).await;
    set(api, "gh", json!({})).await;
    assert_eq!(key(&*told(&mut early).await), Some(&b"one"[..]));
    set_secret(api, "unused", "y").await;
    let used_by =
        async |name: &str| api.call("GET", &format!("/v1/secrets/{name}")).await.json()["used_by"].clone();
    assert_eq!((used_by("key").await, used_by("unused").await), (json!(["webhook gh"]), json!([])));
    set_secret(api, "key", "two").await;
    assert_eq!(key(&*told(&mut early).await), Some(&b"two"[..]), "and nothing was told of the other");
    set_secret(api, "key", "three").await;
    world.stop().await;

    let world = World::on_disk(directory.path()).await;
    let mut late = data_plane(&world.dialer(), "late", 1).await;
    let webhook = told(&mut late).await;
    assert_eq!((webhook.spec.name.as_str(), key(&webhook)), ("gh", Some(&b"three"[..])));
    late.until(|message| matches!(message, ToDataPlane::WebhooksSynced).then_some(())).await;
    world.api.call("DELETE", "/v1/webhooks/gh").await;
    late.until(|message| {
        matches!(message, ToDataPlane::WebhookRemoved(name) if name.as_str() == "gh").then_some(())
    })
    .await;
    world.stop().await;
}
