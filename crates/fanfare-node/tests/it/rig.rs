//! The control plane and the runtime, in the hands of the test.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fanfare_link::{BlobError, BlobReader, Dialer, Hub, Link, LogRecord};
use fanfare_node::{Handle, LogLimits, Node, NodeOptions, StartError};
use fanfare_sandbox::{Orphan, Outlets, Runtime, Started};
use fanfare_types::{
    CodeDigest, Contract, Epoch, FromDataPlane, FromNode, FunctionId, FunctionName, NodeHello, NodeId,
    Resources, RevisionId, RevisionSpec, SandboxId, SandboxRecord, SandboxUsage, SecretName, SecretValue,
    Sizing, Stages, StartFailure, StopMode, Timeouts, ToDataPlane, ToNode,
};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc, oneshot};

/// Far above anything that a test waits for: reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {PATIENCE:?}"),
    }
}

/// A call of the runtime, to be answered by the test.
#[derive(Debug)]
pub enum Call {
    Create(SandboxId, oneshot::Sender<Result<Started, StartFailure>>),
    Stop(SandboxId, StopMode, oneshot::Sender<()>),
    Prepare(RevisionId, oneshot::Sender<Result<(), StartFailure>>),
    Forget(RevisionId, oneshot::Sender<()>),
    Shutdown(oneshot::Sender<()>),
}

struct Scripted {
    calls: mpsc::UnboundedSender<Call>,
    recovered: Vec<SandboxRecord>,
    usage: Arc<Mutex<Vec<SandboxUsage>>>,
    usage_asked: Arc<Notify>,
    secrets: SecretsTold,
}

/// What the runtime was told of secrets, in order.
pub type SecretsTold = Arc<Mutex<Vec<(RevisionId, Vec<(SecretName, SecretValue)>)>>>;

impl Scripted {
    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(oneshot::Sender<T>) -> Call,
    ) -> BoxFuture<'static, T> {
        let (answer, answered) = oneshot::channel();
        let _ = self.calls.send(call(answer));
        async move {
            match answered.await {
                Ok(answer) => answer,
                // The test dropped the call: the runtime breaks.
                Err(_) => panic!("scripted panic"),
            }
        }
        .boxed()
    }
}

impl Runtime for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn prepare(&self, revision: Arc<RevisionSpec>) -> BoxFuture<'static, Result<(), StartFailure>> {
        self.call(|answer| Call::Prepare(revision.id, answer))
    }

    fn secrets(&self, revision: RevisionId, values: Vec<(SecretName, SecretValue)>) {
        self.secrets.lock().unwrap().push((revision, values));
    }

    fn create(
        &self,
        id: SandboxId,
        _: Arc<RevisionSpec>,
    ) -> BoxFuture<'static, Result<Started, StartFailure>> {
        self.call(|answer| Call::Create(id, answer))
    }

    fn stop(&self, id: SandboxId, mode: StopMode) -> BoxFuture<'static, ()> {
        self.call(|answer| Call::Stop(id, mode, answer))
    }

    fn forget(&self, revision: RevisionId) -> BoxFuture<'static, ()> {
        self.call(|answer| Call::Forget(revision, answer))
    }

    fn recover(&self) -> BoxFuture<'static, Vec<SandboxRecord>> {
        std::future::ready(self.recovered.clone()).boxed()
    }

    fn audit(&self) -> BoxFuture<'static, Vec<Orphan>> {
        std::future::ready(vec![Orphan { kind: "file", what: "left".into() }]).boxed()
    }

    fn usage(&self) -> Vec<SandboxUsage> {
        self.usage_asked.notify_one();
        self.usage.lock().unwrap().clone()
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        self.call(Call::Shutdown)
    }
}

/// A transfer's lines, and how the test ends it.
pub type Logs = (u64, BoxStream<'static, LogRecord>, oneshot::Sender<()>);

/// The control plane, as links and transfers reach it.
pub struct TestHub {
    links: mpsc::UnboundedSender<Link<ToNode, FromNode>>,
    logs: mpsc::UnboundedSender<Logs>,
    blobs: Mutex<HashMap<CodeDigest, Bytes>>,
    fetches: AtomicUsize,
}

/// What arrives at a hub.
pub type Arrivals = (mpsc::UnboundedReceiver<Link<ToNode, FromNode>>, mpsc::UnboundedReceiver<Logs>);

impl TestHub {
    pub fn new() -> (Arc<TestHub>, Arrivals) {
        let (to_links, links) = mpsc::unbounded_channel();
        let (to_logs, logs) = mpsc::unbounded_channel();
        let hub =
            TestHub { links: to_links, logs: to_logs, blobs: Mutex::default(), fetches: AtomicUsize::new(0) };
        (Arc::new(hub), (links, logs))
    }
}

impl Hub for TestHub {
    fn node(&self, link: Link<ToNode, FromNode>) {
        let _ = self.links.send(link);
    }

    fn data_plane(&self, _: Link<ToDataPlane, FromDataPlane>) {}

    fn blob(&self, digest: CodeDigest) -> BoxFuture<'static, Result<BlobReader, BlobError>> {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let blob = self.blobs.lock().unwrap().get(&digest).cloned();
        let chunks = |blob: Bytes| {
            let chunks: Vec<_> = blob.chunks(1_000).map(|chunk| Ok(blob.slice_ref(chunk))).collect();
            stream::iter(chunks).boxed()
        };
        std::future::ready(blob.map(chunks).ok_or(BlobError::NotFound(digest))).boxed()
    }

    fn logs(&self, transfer: u64, lines: BoxStream<'static, LogRecord>) -> BoxFuture<'static, ()> {
        let (end, ended) = oneshot::channel();
        let _ = self.logs.send((transfer, lines, end));
        ended.map(|_| ()).boxed()
    }
}

/// How a node is started.
pub struct Setup {
    pub creations_max: usize,
    pub code_bytes_max: u64,
    pub codes_max: usize,
    pub logs: LogLimits,
    pub recovered: Vec<SandboxRecord>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            creations_max: 64,
            code_bytes_max: 1 << 30,
            codes_max: 1_024,
            logs: LogLimits::default(),
            recovered: Vec::new(),
        }
    }
}

/// A node and everything around it.
pub struct Rig {
    pub dir: Arc<TempDir>,
    pub calls: mpsc::UnboundedReceiver<Call>,
    pub outlets: Outlets,
    pub usage: Arc<Mutex<Vec<SandboxUsage>>>,
    /// CPU use is read.
    pub usage_asked: Arc<Notify>,
    /// What the runtime was told of secrets.
    pub secrets: SecretsTold,
    pub node: Handle,
    pub stop: oneshot::Sender<()>,
    links: mpsc::UnboundedReceiver<Link<ToNode, FromNode>>,
    pub logs: mpsc::UnboundedReceiver<Logs>,
    hub: Arc<TestHub>,
}

impl Rig {
    pub async fn start(setup: Setup) -> Self {
        Rig::start_in(Arc::new(tempfile::tempdir().unwrap()), setup).await.unwrap()
    }

    pub async fn start_in(dir: Arc<TempDir>, setup: Setup) -> Result<Self, StartError> {
        let (hub, (links, logs)) = TestHub::new();
        let (calls_tx, calls) = mpsc::unbounded_channel();
        let (outlets_tx, outlets) = oneshot::channel();
        let usage = Arc::new(Mutex::new(Vec::new()));
        let usage_asked = Arc::<Notify>::default();
        let secrets = SecretsTold::default();
        let runtime = Scripted {
            calls: calls_tx,
            recovered: setup.recovered,
            usage: usage.clone(),
            usage_asked: usage_asked.clone(),
            secrets: secrets.clone(),
        };
        let factory = Box::new(move |outlets: Outlets| {
            outlets_tx.send(outlets).unwrap();
            std::future::ready(Ok(vec![Arc::new(runtime) as Arc<dyn Runtime>])).boxed()
        });
        let (data, run) = (dir.path().join("data"), dir.path().join("run"));
        let options = NodeOptions {
            creations_max: setup.creations_max,
            code_bytes_max: setup.code_bytes_max,
            codes_max: setup.codes_max,
            logs: setup.logs,
            ..NodeOptions::new("node-1".into(), Resources::new(2_000, 1 << 30), factory, data, run)
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let node = Node::start(options, Dialer::in_process(hub.clone()), stopped.map(|_| ())).await?;
        let outlets = outlets.await.unwrap();
        Ok(Rig { dir, calls, outlets, usage, usage_asked, secrets, node, stop, links, logs, hub })
    }

    pub fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("data").join(path)
    }

    /// Keeps a blob at the control plane, under its own name or another.
    pub fn keep_blob(&self, digest: CodeDigest, bytes: impl Into<Bytes>) {
        self.hub.blobs.lock().unwrap().insert(digest, bytes.into());
    }

    pub fn fetches(&self) -> usize {
        self.hub.fetches.load(Ordering::Relaxed)
    }

    /// The next call of the runtime.
    pub async fn call(&mut self) -> Call {
        within("a call of the runtime", self.calls.recv()).await.unwrap()
    }

    pub async fn create_call(&mut self) -> (SandboxId, oneshot::Sender<Result<Started, StartFailure>>) {
        match self.call().await {
            Call::Create(id, answer) => (id, answer),
            other => panic!("{other:?} instead of a creation"),
        }
    }

    /// The next link, with the hello it begins with.
    pub async fn link(&mut self) -> (Leader, NodeHello) {
        Leader::accept(&mut self.links).await
    }

    /// A link that is welcomed, and knows revision 1.
    pub async fn ready_link(&mut self) -> Leader {
        let (leader, _) = self.link().await;
        leader.welcome(1);
        leader.tell(ToNode::Revision(spec(1, None)));
        leader
    }

    /// A sandbox that is ready, and told to be.
    pub async fn ready_sandbox(&mut self, leader: &mut Leader, id: u64) {
        leader.create(id, 1);
        let (created, answer) = self.create_call().await;
        assert_eq!(created, SandboxId(id));
        answer.send(Ok(started(id))).unwrap();
        assert_eq!(leader.next().await, ready(id));
    }
}

/// The control plane's end of a link.
pub struct Leader {
    pub link: Link<ToNode, FromNode>,
    messages: std::vec::IntoIter<FromNode>,
}

impl Leader {
    /// The next link, with the hello it begins with.
    pub async fn accept(links: &mut mpsc::UnboundedReceiver<Link<ToNode, FromNode>>) -> (Leader, NodeHello) {
        let link = within("a link", links.recv()).await.unwrap();
        let mut leader = Leader { link, messages: Vec::new().into_iter() };
        match leader.next().await {
            FromNode::Hello(hello) => (leader, hello),
            other => panic!("{other:?} instead of a hello"),
        }
    }

    pub fn tell(&self, message: ToNode) {
        self.link.tx.send(message).unwrap();
    }

    pub fn welcome(&self, epoch: u64) {
        self.link.tx.set_epoch(Epoch(epoch));
        self.tell(ToNode::Welcome { you: NodeId(1), epoch: Epoch(epoch) });
    }

    pub fn create(&self, id: u64, revision: u32) {
        self.tell(ToNode::Create { sandbox: SandboxId(id), revision: rev(revision), waited: true });
    }

    pub fn stop(&self, id: u64, mode: StopMode) {
        self.tell(ToNode::Stop { sandbox: SandboxId(id), mode });
    }

    /// The next message, or `None` when the link is closed. Heartbeats included.
    pub async fn any(&mut self) -> Option<FromNode> {
        loop {
            if let Some(message) = self.messages.next() {
                return Some(message);
            }
            self.messages = within("a message", self.link.rx.recv()).await?.messages.into_iter();
        }
    }

    /// The next message that is not a heartbeat.
    pub async fn next(&mut self) -> FromNode {
        loop {
            match self.any().await.expect("the link is open") {
                FromNode::Heartbeat => {}
                message => return message,
            }
        }
    }

    /// The end of the link, whatever was said before.
    pub async fn closed(&mut self) {
        while self.any().await.is_some() {}
    }
}

pub fn rev(number: u32) -> RevisionId {
    RevisionId { function: FunctionId(5), number }
}

pub fn spec(number: u32, code: Option<CodeDigest>) -> Arc<RevisionSpec> {
    Arc::new(RevisionSpec {
        id: rev(number),
        name: FunctionName::new("f").unwrap(),
        runtime: "scripted".into(),
        contract: Contract::Fake,
        code,
        env: Vec::new(),
        given: fanfare_types::Given::default(),
        sizing: Sizing::default(),
        timeouts: Timeouts::default(),
    })
}

pub fn started(id: u64) -> Started {
    let stages = Stages { create: Duration::from_micros(id), ..Stages::default() };
    Started { endpoint: format!("unix:/sock/{id}").into(), stages }
}

pub fn ready(id: u64) -> FromNode {
    let Started { endpoint, stages } = started(id);
    FromNode::Ready { sandbox: SandboxId(id), endpoint, stages }
}

pub fn digest(bytes: &[u8]) -> CodeDigest {
    CodeDigest(Sha256::digest(bytes).into())
}

/// A tar archive of one file.
pub fn archive(name: &str, bytes: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, name, &vec![b'c'; bytes][..]).unwrap();
    builder.into_inner().unwrap()
}

pub fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}
