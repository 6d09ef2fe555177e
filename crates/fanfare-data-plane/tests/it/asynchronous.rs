//! Calls that nobody waits for.

mod callbacks;
mod cluster;
mod dirigent;
mod entrusted;
mod lasting;
mod running;
mod taking;

use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use fanfare_async::Limits;
use fanfare_data_plane::{AsyncOptions, CallbackTargets};
use fanfare_types::FunctionRoute;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Answer, Connection};
use crate::rig::{Control, Rig, hello};

/// A data plane with a log, which outlives it.
pub(crate) struct Keeping {
    pub(crate) rig: Rig,
    pub(crate) control: Control,
    log: TempDir,
}

impl Keeping {
    pub(crate) async fn new() -> Self {
        Keeping::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut AsyncOptions)) -> Self {
        let log = tempfile::tempdir().unwrap();
        Keeping::at(log, vec![hello()], change).await
    }

    async fn at(log: TempDir, functions: Vec<FunctionRoute>, change: impl FnOnce(&mut AsyncOptions)) -> Self {
        let mut kept = options(log.path());
        change(&mut kept);
        let (rig, control) = Rig::synced_with(functions, |options| options.asynchronous = Some(kept)).await;
        Keeping { rig, control, log }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.rig.address()
    }

    /// Shuts it down; the log.
    pub(crate) async fn stop(self) -> TempDir {
        self.rig.shutdown.cancel();
        crate::rig::within("the end of the data plane", self.rig.data_plane.stopped()).await;
        self.log
    }
}

fn options(directory: &Path) -> AsyncOptions {
    AsyncOptions {
        callbacks: CallbackTargets::Any,
        limits: Limits::default(),
        ..AsyncOptions::new(directory.to_owned())
    }
}

pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    Connection::open(address).await.call(request.body(Full::new(body.into())).unwrap()).await
}

/// Has a call taken in; its id.
async fn call(address: SocketAddr, path: &str, fields: &[(&str, &str)], body: impl Into<Bytes>) -> String {
    let answer = send(address, "POST", &format!("/async-function/{path}"), fields, body).await;
    assert_eq!(answer.status.as_u16(), 202, "{answer:?}");
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    let id = document["id"].as_str().unwrap().to_owned();
    assert_eq!(answer.headers["x-fanfare-invocation-id"], id.as_str());
    assert_eq!(answer.headers["location"], format!("/async/{id}").as_str());
    id
}

async fn status(address: SocketAddr, id: &str) -> Value {
    let answer = send(address, "GET", &format!("/async/{id}"), &[], "").await;
    assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap()
}

/// The status once it has ended.
pub(crate) async fn ended(address: SocketAddr, id: &str) -> Value {
    let answer = send(address, "GET", &format!("/async/{id}?wait=20s"), &[], "").await;
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    let state = document["state"].as_str().unwrap_or_default();
    assert!(["succeeded", "failed", "dead", "cancelled"].contains(&state), "{document}");
    document
}

pub(crate) async fn result(address: SocketAddr, id: &str) -> Answer {
    send(address, "GET", &format!("/async/{id}/result"), &[], "").await
}

pub(crate) async fn list(address: SocketAddr, query: &str) -> Value {
    let answer = send(address, "GET", &format!("/async{query}"), &[], "").await;
    assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap()
}

pub(crate) fn ids(list: &Value) -> Vec<&str> {
    list["invocations"].as_array().unwrap().iter().map(|call| call["id"].as_str().unwrap()).collect()
}
