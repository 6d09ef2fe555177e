//! One control plane on ports of its own, and a client.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_control_plane::{ControlPlane, ControlPlaneError, Handle, Options};
use fanfare_link::Dialer;
use fanfare_store::{MemoryStore, RedbStore, Store};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Longer than anything takes on a busy machine; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that must happen.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it never happened")
}

pub(crate) struct World {
    handle: Handle,
    pub(crate) api: Api,
    shutdown: CancellationToken,
    pub(crate) directory: Option<tempfile::TempDir>,
}

/// Options with free ports and everything below `directory`.
pub(crate) fn options(directory: &Path) -> Options {
    Options {
        api_address: ([127, 0, 0, 1], 0).into(),
        link_address: Some(([127, 0, 0, 1], 0).into()),
        ..Options::new(directory.to_owned())
    }
}

impl World {
    /// A control plane that keeps nothing.
    pub(crate) async fn new() -> World {
        World::with(Arc::new(MemoryStore::new())).await
    }

    pub(crate) async fn with(store: Arc<dyn Store>) -> World {
        let directory = tempfile::tempdir().unwrap();
        let mut world = World::start(options(directory.path()), store).await.unwrap();
        world.directory = Some(directory);
        world
    }

    /// A control plane that keeps everything in `directory`.
    pub(crate) async fn on_disk(directory: &Path) -> World {
        let store = RedbStore::open(&directory.join("store")).unwrap();
        World::start(options(directory), Arc::new(store)).await.unwrap()
    }

    /// With its files in `directory`.
    pub(crate) async fn with_in(directory: &Path, store: Arc<dyn Store>) -> World {
        World::start(options(directory), store).await.unwrap()
    }

    /// One with settings of its own.
    pub(crate) async fn set(change: impl FnOnce(&mut Options)) -> World {
        let directory = tempfile::tempdir().unwrap();
        let mut options = options(directory.path());
        change(&mut options);
        let mut world = World::start(options, Arc::new(MemoryStore::new())).await.unwrap();
        world.directory = Some(directory);
        world
    }

    async fn start(options: Options, store: Arc<dyn Store>) -> Result<World, ControlPlaneError> {
        let shutdown = CancellationToken::new();
        let handle = ControlPlane::start(options, store, shutdown.clone()).await?;
        let api = Api::new(handle.api_address().to_string());
        Ok(World { handle, api, shutdown, directory: None })
    }

    pub(crate) fn dialer(&self) -> Dialer {
        Dialer::in_process(self.handle.hub())
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends it in good order.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        soon(self.handle.wait()).await.unwrap();
    }
}

/// A client of one control plane.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) address: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Api {
    pub(crate) fn new(address: String) -> Api {
        Api { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        Request::builder().method(method).uri(format!("http://{}{path}", self.address))
    }

    pub(crate) async fn open(&self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        soon(self.client.request(request)).await.unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (parts, body) = self.open(request).await.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn call(&self, method: &str, path: &str) -> Answer {
        self.send(self.request(method, path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn call_json(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Answer {
        let request = self.request(method, path).header("content-type", "application/json");
        self.send(request.body(Full::new(body.into())).unwrap()).await
    }

    /// Registers a function of the fake runtime.
    pub(crate) async fn create(&self, name: &str) -> Answer {
        self.call_json("POST", "/v1/functions", fake(name)).await
    }
}

/// A function that needs no code.
pub(crate) fn fake(name: &str) -> String {
    format!(r#"{{"name":"{name}","handler":{{"kind":"fake"}}}}"#)
}
