//! `fanfare-bench __emulate unix|tcp NODES DATA-DIRECTORY RUN-DIRECTORY off|pass|persist`: the platform in one process as `fanfare up` runs it,
//! but with any number of node daemons, whose runtime is the fake one. What is left of a cold start is what deciding,
//! ordering, announcing and carrying it costs.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfare_control_plane::ControlPlane;
use fanfare_data_plane::DataPlane;
use fanfare_link::Dialer;
use fanfare_node::{GroupOptions, GroupRuntimeFactory, Node};
use fanfare_sandbox::Runtime;
use fanfare_sandbox::fake::{FakeListener, FakeOptions, FakeRuntime};
use fanfare_store::{RedbStore, Store};
use fanfare_types::Resources;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::{Context, Error, Result};
use crate::relay::Relay;

/// First argument of this mode.
pub(crate) const ARGUMENT: &str = "__emulate";
/// Name of the threads that run the nodes and their sandboxes, so that their CPU time can be told from that of the
/// control plane and the data plane.
pub(crate) const NODE_THREADS: &str = "emulated";
/// Most nodes.
const NODES_MAX: usize = 10_000;
/// What each node offers.
const CAPACITY: Resources = Resources::new(1_000_000, 1 << 40);

/// Where emulated sandboxes answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// All at one path, which costs least; they do nothing that a request asks for.
    Unix,
    /// Each at an address of its own; they do what requests ask for.
    Tcp,
}

impl Sockets {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Sockets::Unix => "unix",
            Sockets::Tcp => "tcp",
        }
    }
}

/// Runs until SIGTERM.
pub(crate) fn run(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut arg = || {
        args.next()
            .ok_or_else(|| Error::new("usage: unix|tcp NODES DATA-DIRECTORY RUN-DIRECTORY off|pass|persist"))
    };
    let sockets = match arg()?.as_str() {
        "unix" => Sockets::Unix,
        "tcp" => Sockets::Tcp,
        other => return Err(Error::new(format!("{other}: neither unix nor tcp"))),
    };
    let nodes: usize = arg()?.parse().context("the number of nodes")?;
    if !(1..=NODES_MAX).contains(&nodes) {
        return Err(Error::new(format!("{nodes} nodes; 1 to {NODES_MAX} can be emulated")));
    }
    let (data_dir, run_dir) = (PathBuf::from(arg()?), PathBuf::from(arg()?));
    let relay = Relay::of(&arg()?).ok_or_else(|| Error::new("the last word is off, pass or persist"))?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let tokio = builder.enable_all().build().context("start tokio")?;
    let of_nodes = builder.thread_name(NODE_THREADS).build().context("start tokio")?;
    tokio.block_on(serve(nodes, (sockets, relay), &data_dir, &run_dir, of_nodes.handle()))
}

async fn serve(
    nodes: usize,
    (sockets, relay): (Sockets, Relay),
    data_dir: &Path,
    run_dir: &Path,
    of_nodes: &tokio::runtime::Handle,
) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen to signals")?;
    let directory = data_dir.join("store");
    std::fs::create_dir_all(run_dir).context(run_dir.display())?;
    let store =
        tokio::task::spawn_blocking(move || RedbStore::open(&directory)).await.context("open the store")?;
    let store: Arc<dyn Store> = Arc::new(store.context("open the store")?);
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let stop_control_plane = CancellationToken::new();
    let options = fanfare_control_plane::Options {
        api_address: free,
        link_address: None,
        ..fanfare_control_plane::Options::new(data_dir.to_owned())
    };
    let control_plane = ControlPlane::start(options, store.clone(), stop_control_plane.clone())
        .await
        .context("start the control plane")?;
    let hub = relay.before(control_plane.hub(), &store);
    let (api, dialer) = (control_plane.api_address(), Dialer::in_process(hub));
    let control_plane = tokio::spawn(control_plane.wait());

    let stop_data_plane = CancellationToken::new();
    let options = fanfare_data_plane::Options { listen: free, ..fanfare_data_plane::Options::default() };
    let data_plane = DataPlane::start(options, dialer.clone(), stop_data_plane.clone())
        .map_err(|error| Error::new(format!("start the data plane: {error}")))?;
    let stop_nodes = CancellationToken::new();
    let group = of_nodes.spawn(start_nodes(
        nodes,
        sockets,
        data_dir.join("nodes"),
        run_dir.to_owned(),
        dialer,
        stop_nodes.clone().cancelled_owned(),
    ));
    let group = group.await.context("start the nodes")??;
    group.welcomed().await;
    data_plane.synced().await;
    welcome(data_plane.address(), api)?;

    terminate.recv().await;
    stop_data_plane.cancel();
    data_plane.stopped().await;
    stop_nodes.cancel();
    group.join().await;
    stop_control_plane.cancel();
    control_plane.await.context("the control plane")?.context("the control plane")
}

async fn start_nodes(
    nodes: usize,
    sockets: Sockets,
    data_dir: PathBuf,
    run_dir: PathBuf,
    dialer: Dialer,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<fanfare_node::Handle> {
    let listener = match sockets {
        Sockets::Unix => FakeListener::unix(&run_dir.join("fake")),
        Sockets::Tcp => FakeListener::tcp(),
    };
    let listener = listener.context("listen for the fake sandboxes")?;
    let runtimes: GroupRuntimeFactory = Box::new(move |outlets| {
        let runtime = FakeRuntime::new(FakeOptions::default(), listener.clone(), outlets);
        Box::pin(async move { Ok(vec![Arc::new(runtime) as Arc<dyn Runtime>]) })
    });
    let options =
        GroupOptions::new("node".into(), nodes, CAPACITY, runtimes, data_dir, run_dir.join("nodes"));
    Node::start_group(options, dialer, shutdown).await.context("start the nodes")
}

/// The lines by which whoever started this finds it, as `fanfare up` prints them.
fn welcome(functions: SocketAddr, api: SocketAddr) -> Result<()> {
    let text = format!("functions    http://{functions}\ncontrol API  http://{api}\n");
    std::io::stdout().write_all(text.as_bytes()).context("print")
}
