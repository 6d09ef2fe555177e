//! What every way of running a role shares.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use fanfare_control_plane::ControlPlaneError;
use fanfare_link::Dialer;
use fanfare_node::{GroupOptions, GroupRuntimeFactory, Node, NodeOptions, RuntimeFactory, StartError};
use fanfare_sandbox::Runtime;
use fanfare_sandbox::fake::{FakeListener, FakeOptions, FakeRuntime};
use fanfare_sandbox_process::{Isolation, ProcessOptions, ProcessRuntime};
use fanfare_store::{RedbStore, Store, StoreError};
use fanfare_types::{Resources, peer_name_of};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::exit::Failure;
use crate::ports;

/// What a second platform on this machine needs.
pub(crate) const BESIDE_HINT: &str = "stop the one that is running, or give this one places of its own: --data-dir DIR --run-dir \
                           DIR --listen 127.0.0.1:0 --api-listen 127.0.0.1:0 --grpc-listen 127.0.0.1:0";

/// What a second node on this machine needs, whose data directory and ports may be its own already.
const HELD_HINT: &str = "the directory of that file is the run directory: give this one its own with --run-dir DIR, \
                         beside --data-dir DIR and ports of its own, or stop the other";

/// Opens the embedded store in a data directory.
pub(crate) async fn open_store(data_dir: &Path) -> Result<Arc<dyn Store>, Failure> {
    make_private(data_dir, "--data-dir")?;
    let directory = data_dir.join("store");
    // Opening verifies the file, which blocks.
    let opened = tokio::task::spawn_blocking(move || RedbStore::open(&directory)).await;
    let opened = opened.map_err(|e| Failure::platform(format!("cannot open the store: {e}")))?;
    opened.map(|store| Arc::new(store) as Arc<dyn Store>).map_err(|e| {
        let failure = Failure::platform(e.to_string());
        match e {
            StoreError::InUse { .. } => failure.next(BESIDE_HINT),
            _ => failure,
        }
    })
}

/// Makes a directory for this user alone; one that is there stays as it is.
fn make_private(directory: &Path, flag: &str) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|e| {
        Failure::platform(format!("cannot make {}: {e}", directory.display()))
            .next(format!("choose another directory with {flag}"))
    })
}

/// Which sandboxes a node makes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sandboxes {
    /// Those of the `process` runtime, and of the `fake` one if its options are given.
    Real { fake: Option<FakeOptions> },
    /// Those of the `fake` runtime, on so many nodes.
    Emulated { nodes: usize, fake: FakeOptions },
}

impl Sandboxes {
    /// How many nodes this process stands for.
    pub(crate) fn nodes(self) -> usize {
        match self {
            Sandboxes::Real { .. } => 1,
            Sandboxes::Emulated { nodes, .. } => nodes,
        }
    }
}

/// What a node daemon of this process is told.
#[derive(Clone, Debug)]
pub(crate) struct NodeSettings {
    pub(crate) name: String,
    /// What the node offers, each one when there are several.
    pub(crate) capacity: Resources,
    pub(crate) data_dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) deps_bytes_max: u64,
    pub(crate) sandboxes: Sandboxes,
}

/// A node daemon of this process, or several.
#[derive(Debug)]
pub(crate) struct RunningNode {
    handle: fanfare_node::Handle,
    isolation: Arc<OnceLock<Isolation>>,
    shutdown: CancellationToken,
}

impl RunningNode {
    pub(crate) async fn start(settings: NodeSettings, dialer: Dialer) -> Result<Self, Failure> {
        let isolation = Arc::new(OnceLock::new());
        let shutdown = CancellationToken::new();
        let stopped = shutdown.clone().cancelled_owned();
        let started = match settings.sandboxes {
            Sandboxes::Real { fake } => {
                let options = real_node(settings, fake, isolation.clone())?;
                Node::start(options, dialer, stopped).await
            }
            Sandboxes::Emulated { nodes, fake } => {
                Node::start_group(emulated_nodes(settings, nodes, fake)?, dialer, stopped).await
            }
        };
        let handle = started.map_err(|e| {
            let failure = Failure::platform(format!("cannot start the node: {e}"));
            match &e {
                StartError::Held(_) => failure.next(HELD_HINT),
                _ if e.to_string().contains("is in use by") => failure.next(BESIDE_HINT),
                _ => failure.next("`fanfare doctor` says what this machine lacks"),
            }
        })?;
        Ok(RunningNode { handle, isolation, shutdown })
    }

    /// Resolves when the control plane counts the node, or all of them: what is deployed from then on is placed there.
    pub(crate) async fn welcomed(&self) {
        self.handle.welcomed().await;
    }

    /// What is not enforced here, one sentence each.
    pub(crate) fn missing_isolation(&self) -> Vec<String> {
        let mechanisms =
            self.isolation.get().map(|isolation| isolation.mechanisms.as_slice()).unwrap_or_default();
        let missing = mechanisms.iter().filter(|mechanism| !mechanism.enforced);
        missing.map(|mechanism| format!("no {}: {}", mechanism.name, mechanism.detail)).collect()
    }

    /// Ends every sandbox.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.handle.join().await;
    }
}

fn real_node(
    settings: NodeSettings,
    fake: Option<FakeOptions>,
    isolation: Arc<OnceLock<Isolation>>,
) -> Result<NodeOptions, Failure> {
    let NodeSettings { name, capacity, run_dir, .. } = settings;
    let data_dir = settings.data_dir.join("node");
    let deps_bytes_max = settings.deps_bytes_max;
    let process =
        ProcessOptions { deps_bytes_max, ..ProcessOptions::new(&run_dir, data_dir.join("process")) };
    // Before anything is made.
    process.check().map_err(|e| {
        Failure::platform(format!("cannot start the node: {e}"))
            .next("choose another directory with --run-dir")
    })?;
    make_private(&data_dir, "--data-dir")?;
    make_private(&run_dir, "--run-dir")?;
    let fake = fake.map(|options| Ok::<_, Failure>((options, fake_listener()?))).transpose()?;
    let runtimes: RuntimeFactory = Box::new(move |outlets| {
        Box::pin(async move {
            let runtime = ProcessRuntime::start(process, outlets.clone()).await?;
            // Set once: a factory is called once.
            let _ = isolation.set(runtime.isolation().clone());
            let mut runtimes = vec![runtime as Arc<dyn Runtime>];
            if let Some((options, listener)) = fake {
                runtimes.push(Arc::new(FakeRuntime::new(options, listener, outlets)));
            }
            Ok(runtimes)
        })
    });
    Ok(NodeOptions::new(name.into(), capacity, runtimes, data_dir, run_dir))
}

/// Directories of their own: what a real node has left in its own is not theirs to tidy.
fn emulated_nodes(settings: NodeSettings, nodes: usize, fake: FakeOptions) -> Result<GroupOptions, Failure> {
    let (data_dir, run_dir) = (settings.data_dir.join("emulated"), settings.run_dir.join("emulated"));
    make_private(&data_dir, "--data-dir")?;
    make_private(&run_dir, "--run-dir")?;
    let listener = fake_listener()?;
    let runtimes: GroupRuntimeFactory = Box::new(move |outlets| {
        let runtime = FakeRuntime::new(fake, listener.clone(), outlets);
        Box::pin(async move { Ok(vec![Arc::new(runtime) as Arc<dyn Runtime>]) })
    });
    Ok(GroupOptions::new(settings.name.into(), nodes, settings.capacity, runtimes, data_dir, run_dir))
}

fn fake_listener() -> Result<Arc<FakeListener>, Failure> {
    FakeListener::tcp()
        .map_err(|e| Failure::platform(format!("cannot listen on loopback for fake sandboxes: {e}")))
}

/// What a role on this machine is called unless told otherwise.
pub(crate) fn host_name() -> String {
    peer_name_of(&rustix::system::uname().nodename().to_string_lossy())
}

/// What this machine offers unless told otherwise: its CPUs, and three quarters of its memory.
pub(crate) fn machine() -> Resources {
    let whole = whole_machine();
    Resources::new(whole.cpu_milli, whole.memory_bytes / 4 * 3)
}

/// What this machine has.
pub(crate) fn whole_machine() -> Resources {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
    Resources::new(cpus * 1_000, memory)
}

/// The failure of a control plane; of a taken port, who holds it.
pub(crate) fn control_plane_failure(error: &ControlPlaneError) -> Failure {
    match error {
        ControlPlaneError::Listen { address, source } => {
            taken(*address, source, "--api-listen or --grpc-listen")
        }
        _ => Failure::platform(error.to_string()),
    }
}

/// The failure of a data plane; of a taken port, who holds it.
pub(crate) fn data_plane_failure(error: &fanfare_data_plane::StartError) -> Failure {
    match error {
        fanfare_data_plane::StartError::Listen { address, error } => taken(*address, error, "--listen"),
        fanfare_data_plane::StartError::Log(_) => Failure::platform(error.to_string())
            .next("choose another directory with --data-dir, or see to this one"),
        fanfare_data_plane::StartError::Tls(_) => Failure::usage(error.to_string())
            .next("give a certificate and its key with --tls-cert and --tls-key"),
        fanfare_data_plane::StartError::Thread(_) => Failure::platform(error.to_string()),
    }
}

/// Reads the certificate that clients are shown again. Blocks on its files.
pub(crate) fn reload_certificate(data_plane: &fanfare_data_plane::Handle) {
    if let Err(error) = data_plane.reload_certificate() {
        tracing::error!(%error, "the certificate cannot be read again; clients are shown the old one");
    }
}

/// A thread that did so has ended.
pub(crate) fn certificate_reloaded(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the certificate cannot be read again; clients are shown the old one");
    }
}

/// An address that cannot be listened on: who holds it, and which flag chooses another.
fn taken(address: SocketAddr, source: &std::io::Error, flag: &str) -> Failure {
    match ports::owner(address) {
        Some(owner) => Failure::platform(format!("cannot listen on {address}: it is held by {owner}"))
            .next(format!("stop it, or choose another address with {flag}")),
        None => Failure::platform(format!("cannot listen on {address}: {source}"))
            .next(format!("choose another address with {flag}")),
    }
}
