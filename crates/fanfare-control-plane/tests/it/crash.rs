//! `kill -9` of a control plane that registers as fast as it is asked to.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::Value;

use crate::world::{Api, World};

const DIRECTORY: &str = "FANFARE_CONTROL_PLANE_CRASH_DIRECTORY";

/// Not a test of its own: the process that is killed. It prints where its API listens.
#[test]
fn victim() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let world = World::on_disk(directory.as_ref()).await;
        println!("listening {}", world.api.address);
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn acknowledged_registrations_outlive_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<Value> = Vec::new();
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::victim", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The harness prints on the same pipe.
        let address =
            lines.find_map(|line| line.unwrap().split_once("listening ").map(|(_, a)| a.to_owned()));
        let api = Api::new(address.expect("the victim ended early"));
        let mut creates = stream::iter(0..200)
            .map(|i| {
                let api = api.clone();
                async move { api.create(&format!("f{round}-{i}")).await.json() }
            })
            .buffer_unordered(16);
        for _ in 0..100 {
            acknowledged.push(creates.next().await.unwrap());
        }
        // SIGKILL, while the next ones are under way.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let world = World::on_disk(directory.path()).await;
    assert_eq!(world.handle().epoch().0, 4);
    let mut ids = std::collections::BTreeSet::new();
    for before in &acknowledged {
        let after = world
            .api
            .call("GET", &format!("/v1/functions/{}", before["name"].as_str().unwrap()))
            .await
            .json();
        assert_eq!((&after["id"], &after["revision"]), (&before["id"], &before["revision"]));
        assert!(ids.insert(after["id"].to_string()), "{after}");
    }
    world.stop().await;
}
