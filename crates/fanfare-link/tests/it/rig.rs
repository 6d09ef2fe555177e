//! A control plane that hands its links to the test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fanfare_link::{BlobError, BlobReader, Dialer, EpochGate, Hub, Link, LogRecord, serve};
use fanfare_types::{CodeDigest, FromDataPlane, FromNode, ToDataPlane, ToNode};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::JoinHandle;

/// Far above anything that a test waits for: reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {PATIENCE:?}"),
    }
}

type Inbox<T> = AsyncMutex<mpsc::UnboundedReceiver<T>>;
/// A transfer's lines, and how the test ends it from the receiver's side.
pub type Logs = (u64, BoxStream<'static, LogRecord>, oneshot::Sender<()>);

pub struct TestHub {
    to_nodes: mpsc::UnboundedSender<Link<ToNode, FromNode>>,
    to_data_planes: mpsc::UnboundedSender<Link<ToDataPlane, FromDataPlane>>,
    to_logs: mpsc::UnboundedSender<Logs>,
    pub nodes: Inbox<Link<ToNode, FromNode>>,
    pub data_planes: Inbox<Link<ToDataPlane, FromDataPlane>>,
    pub logs: Inbox<Logs>,
    pub blobs: Mutex<HashMap<CodeDigest, Vec<Result<Bytes, BlobError>>>>,
}

impl TestHub {
    pub fn new() -> Arc<Self> {
        let (to_nodes, nodes) = mpsc::unbounded_channel();
        let (to_data_planes, data_planes) = mpsc::unbounded_channel();
        let (to_logs, logs) = mpsc::unbounded_channel();
        Arc::new(TestHub {
            to_nodes,
            to_data_planes,
            to_logs,
            nodes: AsyncMutex::new(nodes),
            data_planes: AsyncMutex::new(data_planes),
            logs: AsyncMutex::new(logs),
            blobs: Mutex::default(),
        })
    }
}

impl Hub for TestHub {
    fn node(&self, link: Link<ToNode, FromNode>) {
        let _ = self.to_nodes.send(link);
    }

    fn data_plane(&self, link: Link<ToDataPlane, FromDataPlane>) {
        let _ = self.to_data_planes.send(link);
    }

    fn blob(&self, digest: CodeDigest) -> BoxFuture<'static, Result<BlobReader, BlobError>> {
        let blob = self.blobs.lock().unwrap().get(&digest).cloned();
        let blob = blob.map(|chunks| stream::iter(chunks).boxed()).ok_or(BlobError::NotFound(digest));
        std::future::ready(blob).boxed()
    }

    fn logs(&self, transfer: u64, lines: BoxStream<'static, LogRecord>) -> BoxFuture<'static, ()> {
        let (end, ended) = oneshot::channel();
        let _ = self.to_logs.send((transfer, lines, end));
        ended.map(|_| ()).boxed()
    }
}

/// One control plane and a way to it.
pub struct Rig {
    pub hub: Arc<TestHub>,
    pub dialer: Dialer,
    pub gate: EpochGate,
    pub server: Option<Server>,
}

pub struct Server {
    pub address: std::net::SocketAddr,
    pub stop: oneshot::Sender<()>,
    pub task: JoinHandle<std::io::Result<()>>,
}

impl Rig {
    pub async fn in_process() -> Self {
        let hub = TestHub::new();
        Rig { dialer: Dialer::in_process(hub.clone()), hub, gate: EpochGate::default(), server: None }
    }

    pub async fn grpc() -> Self {
        let hub = TestHub::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(listener, hub.clone(), stopped.map(|_: Result<(), _>| ())));
        let dialer = Dialer::grpc(&format!("http://{address}")).unwrap();
        Rig { hub, dialer, gate: EpochGate::default(), server: Some(Server { address, stop, task }) }
    }

    /// Both ends of a node's link.
    pub async fn node(&self) -> (Link<FromNode, ToNode>, Link<ToNode, FromNode>) {
        let ours = within("dialling", self.dialer.node(self.gate.clone())).await.unwrap();
        (ours, within("the hub's end", self.hub.next_node()).await)
    }

    /// Both ends of a data plane's link.
    pub async fn data_plane(&self) -> (Link<FromDataPlane, ToDataPlane>, Link<ToDataPlane, FromDataPlane>) {
        let ours = within("dialling", self.dialer.data_plane(self.gate.clone())).await.unwrap();
        let theirs = within("the hub's end", async { self.hub.data_planes.lock().await.recv().await }).await;
        (ours, theirs.unwrap())
    }
}

impl TestHub {
    pub async fn next_node(&self) -> Link<ToNode, FromNode> {
        self.nodes.lock().await.recv().await.unwrap()
    }
}
