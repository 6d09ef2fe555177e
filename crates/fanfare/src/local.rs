//! Control plane, data plane and node in this process, connected without a network.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fanfare_control_plane::{ControlPlane, ControlPlaneError, Image, MoreMetrics};
use fanfare_data_plane::{AsyncOptions, DataPlane, TlsOptions, TraceOptions};
use fanfare_link::Dialer;
use fanfare_policy::Placement;
use fanfare_types::{Resources, limits};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::roles::{self, NodeSettings, RunningNode, Sandboxes};

/// Where the roles keep things and listen.
#[derive(Clone, Debug)]
pub(crate) struct LocalOptions {
    pub(crate) data_dir: PathBuf,
    pub(crate) secrets_key: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) deps_bytes_max: u64,
    pub(crate) capacity: Resources,
    pub(crate) api_address: SocketAddr,
    pub(crate) link_address: Option<SocketAddr>,
    pub(crate) data_plane_address: SocketAddr,
    pub(crate) placement: Placement,
    pub(crate) sandboxes: Sandboxes,
    /// How asynchronous invocations are kept.
    pub(crate) asynchronous: AsyncOptions,
    /// What clients that speak TLS are shown.
    pub(crate) tls: Option<TlsOptions>,
    /// Where requests are traced.
    pub(crate) tracing: Option<TraceOptions>,
    /// The images that functions may be registered with as Dirigent's.
    pub(crate) dirigent: Option<Vec<Image>>,
}

impl LocalOptions {
    /// Everything below one directory, on free ports, and nothing for other machines.
    pub(crate) fn temporary(directory: &Path, capacity: Resources) -> Self {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        LocalOptions {
            data_dir: directory.join("data"),
            secrets_key: directory.join("data").join("secrets.key"),
            run_dir: directory.join("run"),
            deps_bytes_max: limits::DEPS_BYTES_KEPT_DEFAULT,
            capacity,
            api_address: free,
            link_address: None,
            data_plane_address: free,
            placement: Placement::default(),
            sandboxes: Sandboxes::Real { fake: None },
            asynchronous: AsyncOptions::new(directory.join("data").join("data-plane")),
            tls: None,
            tracing: None,
            dirigent: None,
        }
    }
}

/// Longest wait for the stream of a node …
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// … and so much more for each further one.
const CONNECT_TIMEOUT_EACH: Duration = Duration::from_millis(10);

/// Resolves when the control plane counts every node: what is deployed before that may be refused.
async fn welcomed(node: &RunningNode, count: usize) -> Result<(), Failure> {
    let limit = CONNECT_TIMEOUT + CONNECT_TIMEOUT_EACH * u32::try_from(count).unwrap_or(u32::MAX);
    tokio::time::timeout(limit, node.welcomed()).await.map_err(|_| {
        let who = if count == 1 { "the node".to_owned() } else { format!("{count} nodes") };
        Failure::new(Exit::Timeout, format!("{who} did not connect within {limit:?}"))
    })
}

/// The three roles, running.
#[derive(Debug)]
pub(crate) struct Local {
    api_address: SocketAddr,
    link_address: Option<SocketAddr>,
    data_plane: fanfare_data_plane::Handle,
    tls: bool,
    node: Option<RunningNode>,
    control_plane: JoinHandle<Result<(), ControlPlaneError>>,
    stop_data_plane: CancellationToken,
    stop_control_plane: CancellationToken,
}

impl Local {
    /// Starts the control plane, then the node, then the data plane; returns when functions can be called.
    pub(crate) async fn start(options: LocalOptions) -> Result<Self, Failure> {
        let store = roles::open_store(&options.data_dir).await?;
        let stop_control_plane = CancellationToken::new();
        // Whatever fails from here on ends what has begun.
        let guard = stop_control_plane.clone().drop_guard();
        let metered: Arc<OnceLock<fanfare_data_plane::Handle>> = Arc::default();
        let shown = metered.clone();
        let more_metrics =
            MoreMetrics(Arc::new(move || shown.get().map(|m| m.metrics()).unwrap_or_default()));
        let control_options = fanfare_control_plane::Options {
            more_metrics: Some(more_metrics),
            api_address: options.api_address,
            link_address: options.link_address,
            placement: options.placement,
            secrets_key: options.secrets_key,
            dirigent: options.dirigent,
            ..fanfare_control_plane::Options::new(options.data_dir.clone())
        };
        let started = ControlPlane::start(control_options, store, stop_control_plane.clone()).await;
        let control_plane = started.map_err(|e| roles::control_plane_failure(&e))?;
        let (api_address, link_address) = (control_plane.api_address(), control_plane.link_address());
        let dialer = Dialer::in_process(control_plane.hub());
        let control_plane = tokio::spawn(control_plane.wait());

        let stop_data_plane = CancellationToken::new();
        let tls = options.tls.is_some();
        let mut asynchronous = options.asynchronous;
        asynchronous.own_addresses.extend([api_address].into_iter().chain(link_address));
        let data_options = fanfare_data_plane::Options {
            listen: options.data_plane_address,
            asynchronous: Some(asynchronous),
            tls: options.tls,
            tracing: options.tracing,
            ..fanfare_data_plane::Options::default()
        };
        let data_plane = DataPlane::start(data_options, dialer.clone(), stop_data_plane.clone())
            .map_err(|e| roles::data_plane_failure(&e))?;
        // Set once: it is empty until here.
        let _ = metered.set(data_plane.clone());
        let data_plane_guard = stop_data_plane.clone().drop_guard();
        let count = options.sandboxes.nodes();
        let settings = NodeSettings {
            name: roles::host_name(),
            capacity: options.capacity,
            data_dir: options.data_dir,
            run_dir: options.run_dir,
            deps_bytes_max: options.deps_bytes_max,
            sandboxes: options.sandboxes,
        };
        let node = RunningNode::start(settings, dialer).await?;
        data_plane.synced().await;
        welcomed(&node, count).await?;
        guard.disarm();
        data_plane_guard.disarm();
        Ok(Local {
            api_address,
            link_address,
            data_plane,
            tls,
            node: Some(node),
            control_plane,
            stop_data_plane,
            stop_control_plane,
        })
    }

    pub(crate) fn api_url(&self) -> String {
        format!("http://{}", self.api_address)
    }

    pub(crate) fn link_url(&self) -> Option<String> {
        self.link_address.map(|address| format!("http://{address}"))
    }

    pub(crate) fn data_plane_url(&self) -> String {
        format!("http://{}", self.data_plane.address())
    }

    /// The same for clients that speak TLS.
    pub(crate) fn data_plane_tls_url(&self) -> Option<String> {
        self.tls.then(|| format!("https://{}", self.data_plane.address()))
    }

    /// The data plane, from which clients are shown a certificate.
    pub(crate) fn data_plane(&self) -> &fanfare_data_plane::Handle {
        &self.data_plane
    }

    /// What isolates sandboxes elsewhere and not here, one sentence each.
    pub(crate) fn missing_isolation(&self) -> Vec<String> {
        self.node.as_ref().map(RunningNode::missing_isolation).unwrap_or_default()
    }

    /// Resolves when a part has ended by itself.
    pub(crate) async fn failed(&mut self) -> Failure {
        tokio::select! {
            ended = &mut self.control_plane => match ended {
                Ok(Err(error)) => roles::control_plane_failure(&error),
                Ok(Ok(())) => Failure::platform("the control plane has ended"),
                Err(broken) => Failure::platform(format!("the control plane broke off: {broken}")),
            },
            () = self.data_plane.stopped() => Failure::platform("the data plane has ended"),
        }
    }

    /// Lets requests finish, then ends every sandbox, then the control plane.
    pub(crate) async fn stop(&mut self, printer: Printer) -> Result<(), Failure> {
        printer.note("stopping: requests under way may finish; Ctrl-C again ends at once");
        self.stop_data_plane.cancel();
        self.data_plane.stopped().await;
        printer.note("drained: no request is left; ending sandboxes");
        if let Some(node) = self.node.take() {
            node.stop().await;
        }
        self.stop_control_plane.cancel();
        if self.control_plane.is_finished() {
            // `failed` has told why.
            return Ok(());
        }
        let ended = (&mut self.control_plane).await;
        printer.note("stopped");
        match ended {
            Ok(result) => result.map_err(|e| roles::control_plane_failure(&e)),
            Err(broken) => Err(Failure::platform(format!("the control plane broke off: {broken}"))),
        }
    }
}
