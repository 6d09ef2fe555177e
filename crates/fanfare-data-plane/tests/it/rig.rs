//! One data plane, and the control plane's end of its link in the test's hand.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fanfare_data_plane::{DataPlane, Handle, Options, Sockets};
use fanfare_link::{BlobError, BlobReader, Dialer, Hub, Link, LogRecord};
use fanfare_types::{
    Balance, CodeDigest, DataPlaneHello, DataPlaneId, Epoch, ExitCause, FromDataPlane, FromNode, FunctionId,
    FunctionLoad, FunctionName, FunctionRoute, GoneCause, NodeId, SandboxId, Stages, ToDataPlane, ToNode,
};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Far above anything that a test waits for: reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const F: FunctionId = FunctionId(1);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

pub(crate) type DataPlaneLink = Link<ToDataPlane, FromDataPlane>;

struct TestHub(mpsc::UnboundedSender<DataPlaneLink>);

impl Hub for TestHub {
    fn node(&self, _: Link<ToNode, FromNode>) {}

    fn data_plane(&self, link: DataPlaneLink) {
        let _ = self.0.send(link);
    }

    fn blob(&self, digest: CodeDigest) -> BoxFuture<'static, Result<BlobReader, BlobError>> {
        Box::pin(std::future::ready(Err(BlobError::NotFound(digest))))
    }

    fn logs(&self, _: u64, _: BoxStream<'static, LogRecord>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The control plane's end of one link.
pub(crate) struct Control {
    link: DataPlaneLink,
    inbox: VecDeque<FromDataPlane>,
}

impl Control {
    pub(crate) fn say(&self, message: ToDataPlane) {
        self.link.tx.send(message).unwrap();
    }

    async fn next(&mut self) -> FromDataPlane {
        loop {
            if let Some(message) = self.inbox.pop_front() {
                return message;
            }
            let batch = within("a message", self.link.rx.recv()).await.expect("the link is up");
            self.inbox.extend(batch.messages);
        }
    }

    /// The next message that `wanted` takes; others are passed over.
    pub(crate) async fn hear<T>(&mut self, wanted: impl Fn(&FromDataPlane) -> Option<T>) -> T {
        loop {
            if let Some(value) = wanted(&self.next().await) {
                return value;
            }
        }
    }

    pub(crate) async fn hello(&mut self) -> DataPlaneHello {
        match self.next().await {
            FromDataPlane::Hello(hello) => hello,
            other => panic!("{other:?} before the hello"),
        }
    }

    /// A demand with this many waiting.
    pub(crate) async fn demand(&mut self, queued: u32) -> FunctionLoad {
        self.hear(|m| match m {
            FromDataPlane::Demand(load) if load.queued == queued => Some(*load),
            _ => None,
        })
        .await
    }

    pub(crate) async fn released(&mut self) -> (u64, u32, bool) {
        self.hear(|m| match m {
            FromDataPlane::Released { sandbox, slots, retired } => Some((sandbox.0, *slots, *retired)),
            _ => None,
        })
        .await
    }

    pub(crate) async fn condemned(&mut self) -> (u64, fanfare_types::Condemned) {
        self.hear(|m| match m {
            FromDataPlane::Condemned { sandbox, why } => Some((sandbox.0, *why)),
            _ => None,
        })
        .await
    }

    /// What was said up to the next report, which is at most a second away.
    pub(crate) async fn until_report(&mut self) -> Vec<FromDataPlane> {
        let mut heard = Vec::new();
        loop {
            match self.next().await {
                FromDataPlane::Report(_) => return heard,
                other => heard.push(other),
            }
        }
    }

    /// The state of a control plane that knows these functions.
    pub(crate) fn sync(&self, functions: Vec<FunctionRoute>) {
        self.say(ToDataPlane::Welcome { you: DataPlaneId(1), epoch: Epoch(1) });
        self.say(ToDataPlane::Functions(functions));
        self.say(ToDataPlane::Synced);
    }

    pub(crate) fn grant(&self, sandbox: u64, endpoint: &str, slots: u32, stages: Option<Stages>) {
        self.grant_revision(1, sandbox, endpoint, slots, stages);
    }

    pub(crate) fn grant_revision(
        &self,
        revision: u32,
        sandbox: u64,
        endpoint: &str,
        slots: u32,
        stages: Option<Stages>,
    ) {
        self.say(ToDataPlane::Grant {
            function: F,
            revision,
            sandbox: SandboxId(sandbox),
            node: NodeId(1),
            endpoint: endpoint.into(),
            slots,
            stages,
        });
    }

    pub(crate) fn gone(&self, sandbox: u64, exit: ExitCause, log_tail: &str) {
        let cause = GoneCause { exit, log_tail: log_tail.into() };
        self.say(ToDataPlane::Gone { sandbox: SandboxId(sandbox), cause });
    }

    /// Waits until the data plane has taken in what was said so far: a lease of a function that does not exist is
    /// given back at once.
    pub(crate) async fn settle(&mut self) {
        const NOBODYS: u64 = 99;
        self.say(ToDataPlane::Grant {
            function: FunctionId(99),
            revision: 1,
            sandbox: SandboxId(NOBODYS),
            node: NodeId(1),
            endpoint: "unix:/x".into(),
            slots: 1,
            stages: None,
        });
        let given_back = |m: &FromDataPlane| {
            matches!(m, FromDataPlane::Released { sandbox, .. } if sandbox.0 == NOBODYS).then_some(())
        };
        self.hear(given_back).await;
    }

    pub(crate) fn cut(self) {}
}

/// The function `hello`, with one slot per sandbox.
pub(crate) fn hello() -> FunctionRoute {
    FunctionRoute {
        id: F,
        revision: 1,
        name: FunctionName::new("hello").unwrap(),
        concurrency: 1,
        request_timeout: Duration::from_secs(30),
        idle_timeout: None,
        queue_limit: 100,
        balance: Balance::Knative,
        reach: Default::default(),
    }
}

/// Starts a data plane at an address, without waiting for anything.
pub(crate) fn start_at(
    listen: SocketAddr,
    links: mpsc::UnboundedSender<DataPlaneLink>,
) -> Result<Handle, fanfare_data_plane::StartError> {
    let options = Options { listen, ..Options::default() };
    DataPlane::start(options, Dialer::in_process(Arc::new(TestHub(links))), CancellationToken::new())
}

/// Starts a data plane with a log, without waiting for anything.
pub(crate) fn start_at_with(
    kept: fanfare_data_plane::AsyncOptions,
) -> Result<Handle, fanfare_data_plane::StartError> {
    let options = Options { asynchronous: Some(kept), ..Options::default() };
    DataPlane::start(options, nowhere(), CancellationToken::new())
}

/// The way to a control plane that says nothing.
pub(crate) fn nowhere() -> Dialer {
    let (links, _) = mpsc::unbounded_channel();
    Dialer::in_process(Arc::new(TestHub(links)))
}

pub(crate) struct Rig {
    pub(crate) data_plane: Handle,
    pub(crate) shutdown: CancellationToken,
    links: mpsc::UnboundedReceiver<DataPlaneLink>,
    dir: TempDir,
}

impl Rig {
    pub(crate) fn new(change: impl FnOnce(&mut Options)) -> Self {
        Rig::on(Sockets::Own, change)
    }

    pub(crate) fn on(sockets: Sockets, change: impl FnOnce(&mut Options)) -> Self {
        let (to_links, links) = mpsc::unbounded_channel();
        let mut options = Options { name: "test".into(), threads: 1, ..Options::default() };
        change(&mut options);
        let shutdown = CancellationToken::new();
        let dialer = Dialer::in_process(Arc::new(TestHub(to_links)));
        let data_plane = DataPlane::start_on(sockets, options, dialer, shutdown.clone()).unwrap();
        Rig { data_plane, shutdown, links, dir: tempfile::tempdir().unwrap() }
    }

    /// A data plane that knows these functions.
    pub(crate) async fn synced(functions: Vec<FunctionRoute>) -> (Self, Control) {
        Self::synced_with(functions, |_| {}).await
    }

    pub(crate) async fn synced_with(
        functions: Vec<FunctionRoute>,
        change: impl FnOnce(&mut Options),
    ) -> (Self, Control) {
        let mut rig = Rig::new(change);
        let mut control = rig.control().await;
        control.hello().await;
        control.sync(functions);
        within("sync", rig.data_plane.synced()).await;
        (rig, control)
    }

    /// The next link that the data plane opens.
    pub(crate) async fn control(&mut self) -> Control {
        let link = within("a link", self.links.recv()).await.unwrap();
        Control { link, inbox: VecDeque::new() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.data_plane.address()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
