//! Dirigent's forms, as its load generator sends them.

use std::io::{Seek, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_api::{FunctionDocument, HandlerDocument};
use fanfare_control_plane::{Image, ImageCode, Options};
use fanfare_types::{CodeDigest, FromDataPlane, ToDataPlane};
use http_body_util::Full;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::peers::{DataPlane, data_plane};
use crate::world::{Answer, Api, World};

const FORM: &str = "application/x-www-form-urlencoded";

fn image(names: &[&str]) -> Image {
    let document = FunctionDocument::new("image", HandlerDocument::Fake {});
    Image { names: names.iter().map(|name| (*name).to_owned()).collect(), document, code: None }
}

/// A control plane that takes forms, and a data plane.
async fn world() -> (World, DataPlane) {
    let images = vec![image(&["dirigent_empty_function"]), image(&["registry.example/own:1"])];
    let world = World::set(|options| options.dirigent = Some(images)).await;
    let data_plane = connected(&world).await;
    (world, data_plane)
}

async fn connected(world: &World) -> DataPlane {
    let mut data_plane = data_plane(&world.dialer(), "d", 1).await;
    data_plane.until(|message| (*message == ToDataPlane::Synced).then_some(())).await;
    data_plane
}

async fn post(api: &Api, path: &str, form: &str, more: &[(&str, &str)]) -> Answer {
    let mut request = api.request("POST", path).header("content-type", FORM);
    for (name, value) in more {
        request = request.header(*name, *value);
    }
    api.send(request.body(Full::new(Bytes::from(form.to_owned()))).unwrap()).await
}

fn text(answer: &Answer) -> (u16, &str) {
    (answer.status.as_u16(), std::str::from_utf8(&answer.body).unwrap())
}

#[tokio::test]
async fn forms_register_on_any_path_and_are_answered_with_data_planes() {
    let (world, _data_plane) = world().await;
    let api = &world.api;
    let form = "cold_start_sweep=true&image=docker.io%2Fcvetkovic%2Fdirigent_empty_function%3Alatest&name=cold-function-0-1\
                &port_forwarding=80&port_forwarding=tcp&requested_cpu=10&requested_memory=204&scaling_lower_bound=0\
                &scaling_upper_bound=1";
    assert_eq!(api.call("GET", "/check?name=cold-function-0-1").await.status, 404);
    for path in ["/", "/registerService", "/v1", "/any/path?with=query"] {
        assert_eq!(text(&post(api, path, form, &[]).await), (200, "127.0.0.1:8080"), "{path}");
    }
    assert_eq!(text(&api.call("GET", "/check?name=cold-function-0-1").await).0, 200);
    for (query, field, says) in
        [("", "name", "name is missing"), ("?name=", "name", "NAME"), ("?nmae=f", "nmae", "there are: name")]
    {
        let answer = api.call("GET", &format!("/check{query}")).await;
        let problem = answer.json();
        assert_eq!((answer.status.as_u16(), &problem["field"]), (422, &json!(field)), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
    let found = api.call("GET", "/v1/functions/cold-function-0-1").await.json();
    assert_eq!(
        (&found["revision"], &found["function"]["scaling"]["max"]),
        (&json!(1), &json!(1)),
        "said again is unchanged"
    );
    assert_eq!(found["function"]["scaling"]["stable_window"], json!(6));

    let changed = form.replace("scaling_upper_bound=1", "scaling_upper_bound=2");
    assert_eq!(text(&post(api, "/", &changed, &[]).await).0, 200);
    let patch = "function=cold-function-0-1&stable_window_width=60&panic_window_width=6";
    assert_eq!(text(&post(api, "/patch", patch, &[]).await), (200, "changed\n"));
    assert_eq!(text(&post(api, "/patch", patch, &[]).await), (200, "unchanged\n"));
    let found = api.call("GET", "/v1/functions/cold-function-0-1").await.json();
    assert_eq!((&found["revision"], &found["function"]["scaling"]["max"]), (&json!(3), &json!(2)));
    assert_eq!(found["function"]["scaling"]["stable_window"], json!(60));
    assert_eq!(api.call("GET", "/health").await.status, 200);
    world.stop().await;
}

#[tokio::test]
async fn forms_that_cannot_be_taken_are_refused_with_a_reason() {
    let (world, _data_plane) = world().await;
    let api = &world.api;
    let good = "name=f&image=own";
    let large =
        format!("name=f&image=own&env_vars=A%3D{}", "x".repeat(fanfare_types::limits::FORM_BYTES_MAX));
    type Fields = &'static [(&'static str, &'static str)];
    let cases: Vec<(&str, &str, Fields, u16, &str)> = vec![
        ("/", "name=f", &[], 422, "invalid-field"),
        ("/", "name=f&image=nobodys", &[], 422, "invalid-field"),
        ("/", "name=f&image=registry.example%2Fown%3A2", &[], 422, "invalid-field"),
        ("/", "name=f&image=dirigent_empty_function&program_args=x", &[], 422, "fields-disagree"),
        ("/", &large, &[], 413, "too-large"),
        ("/workflow", good, &[], 404, "route-not-found"),
        ("/patch", "function=nobody", &[], 404, "function-not-found"),
        ("/patch", "stable_window_width=6", &[], 422, "invalid-field"),
        ("/check", good, &[], 405, "method-not-allowed"),
        ("/v1/functions", good, &[], 415, "unsupported-media-type"),
        ("/", good, &[("origin", "http://evil.example")], 403, "forbidden"),
        ("/", good, &[("origin", "null")], 403, "forbidden"),
        ("/", good, &[("sec-fetch-site", "same-origin")], 403, "forbidden"),
        ("/patch", "function=f", &[("sec-fetch-site", "none")], 403, "forbidden"),
        ("/", good, &[("host", "rebound.example:9091")], 403, "forbidden"),
    ];
    for (path, form, more, status, reason) in cases {
        let answer = post(api, path, form, more).await;
        let shown = form.get(..60).unwrap_or(form);
        assert_eq!(
            (answer.status.as_u16(), answer.header("x-fanfare-reason")),
            (status, reason),
            "{path} {shown} {more:?}"
        );
    }
    let json = api.call_json("POST", "/", "{}").await;
    assert_eq!((json.status.as_u16(), json.header("x-fanfare-reason")), (404, "route-not-found"));
    assert_eq!(api.call("GET", "/v1/functions").await.json()["functions"], json!([]));
    world.stop().await;
}

#[tokio::test]
async fn patches_at_once_lose_nothing() {
    let (world, _data_plane) = world().await;
    let api = &world.api;
    let fields = [
        ("scaling_upper_bound=7", "max", 7.0),
        ("scaling_lower_bound=3", "min", 3.0),
        ("initial_scale=2", "initial", 2.0),
        ("panic_threshold_percentage=300", "panic_threshold", 3.0),
        ("stable_window_width=61", "stable_window", 61.0),
    ];
    for round in 0..8 {
        let name = format!("f{round}");
        post(api, "/", &format!("name={name}&image=dirigent_empty_function"), &[]).await;
        let patch = async |field: &str| post(api, "/patch", &format!("function={name}&{field}"), &[]).await;
        let answers = futures_util::future::join_all(fields.map(|(field, ..)| patch(field))).await;
        for answer in answers {
            assert_eq!(text(&answer), (200, "changed\n"));
        }
        let found = api.call("GET", &format!("/v1/functions/{name}")).await.json();
        assert_eq!(found["revision"], 6, "a revision for each");
        for (field, key, value) in fields {
            assert_eq!(found["function"]["scaling"][key].as_f64(), Some(value), "{field}: {found}");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn forms_are_taken_only_where_that_was_asked_for() {
    let world = World::new().await;
    for path in ["/", "/registerService", "/patch"] {
        let answer = post(&world.api, path, "name=f&image=trace", &[]).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("x-fanfare-reason")),
            (404, "route-not-found"),
            "{path}"
        );
    }
    assert_eq!(world.api.call("GET", "/check?name=f").await.status, 404);
    world.stop().await;
}

#[tokio::test]
async fn without_a_data_plane_nothing_is_registered() {
    let world = World::set(|options| options.dirigent = Some(vec![image(&["own"])])).await;
    let answer = post(&world.api, "/", "name=f&image=own", &[]).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-fanfare-reason")), (503, "unavailable"));
    assert_eq!(world.api.call("GET", "/check?name=f").await.status, 404);
    world.stop().await;
}

#[tokio::test]
async fn every_data_plane_that_takes_requests_is_named() {
    let (world, one) = world().await;
    let mut two = data_plane(&world.dialer(), "e", 2).await;
    two.until(|message| (*message == ToDataPlane::Synced).then_some(())).await;
    let form = "name=f&image=dirigent_empty_function";
    assert_eq!(text(&post(&world.api, "/", form, &[]).await), (200, "127.0.0.1:8080;127.0.0.1:8080"));
    one.tx.send(FromDataPlane::Draining).unwrap();
    crate::world::soon(async {
        while text(&post(&world.api, "/", form, &[]).await) != (200, "127.0.0.1:8080") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn the_code_of_an_image_is_there_before_its_first_function_and_stays() {
    let code = b"an archive";
    let digest = CodeDigest(Sha256::digest(code).into());
    let mut archive = tempfile::tempfile().unwrap();
    archive.write_all(code).unwrap();
    archive.rewind().unwrap();
    let handler = HandlerDocument::Python { file: "a.py".to_owned(), handler: "handler".to_owned() };
    let mut python = Image { document: FunctionDocument::new("image", handler), ..image(&["python"]) };
    python.code = Some(ImageCode { digest, archive: Arc::new(archive) });
    let collected = |options: &mut Options| {
        options.dirigent = Some(vec![python]);
        options.blob_grace = Duration::ZERO;
        options.blob_collect_interval = Duration::from_millis(5);
    };
    let world = World::set(collected).await;
    let _data_plane = connected(&world).await;
    let blob = format!("/v1/blobs/{digest}");
    // Code that nobody refers to is gone within two rounds, as the second upload shows.
    let other = b"nobody's";
    let other_blob = format!("/v1/blobs/{}", CodeDigest(Sha256::digest(other).into()));
    let upload = world.api.request("PUT", &other_blob).body(Full::new(Bytes::from_static(other))).unwrap();
    assert!(world.api.send(upload).await.status.is_success());
    crate::world::soon(async {
        while world.api.call("HEAD", &other_blob).await.status != 404 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(world.api.call("HEAD", &blob).await.status, 200);
    assert_eq!(text(&post(&world.api, "/", "name=f&image=python", &[]).await).0, 200);
    let found = world.api.call("GET", "/v1/functions/f").await.json();
    assert_eq!(found["function"]["code"], json!(digest.to_string()));
    world.stop().await;
}
