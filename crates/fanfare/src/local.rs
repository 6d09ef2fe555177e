//! Control plane, data plane and node in this process, connected without a network.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fanfare_control_plane::{ControlPlane, ControlPlaneError};
use fanfare_data_plane::DataPlane;
use fanfare_link::Dialer;
use fanfare_types::Resources;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::roles::{self, RunningNode};

/// Where the roles keep things and listen.
#[derive(Clone, Debug)]
pub(crate) struct LocalOptions {
    pub(crate) data_dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) capacity: Resources,
    pub(crate) api_address: SocketAddr,
    pub(crate) link_address: Option<SocketAddr>,
    pub(crate) data_plane_address: SocketAddr,
}

impl LocalOptions {
    /// Everything below one directory, on free ports, and nothing for other machines.
    pub(crate) fn temporary(directory: &Path, capacity: Resources) -> Self {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        LocalOptions {
            data_dir: directory.join("data"),
            run_dir: directory.join("run"),
            capacity,
            api_address: free,
            link_address: None,
            data_plane_address: free,
        }
    }
}

/// Longest wait for the node's stream.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at it: it takes a fraction of this.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Resolves when the control plane counts a node as connected: what is deployed before that is refused.
async fn node_connected(api: &str, printer: Printer) -> Result<(), Failure> {
    let client = Client::new(api, printer)?;
    let connected = async {
        while !client.status().await?.nodes.iter().any(|node| node.connected) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connected).await.unwrap_or_else(|_| {
        Err(Failure::new(Exit::Timeout, format!("the node did not connect within {CONNECT_TIMEOUT:?}")))
    })
}

/// The three roles, running.
#[derive(Debug)]
pub(crate) struct Local {
    api_address: SocketAddr,
    link_address: Option<SocketAddr>,
    data_plane: fanfare_data_plane::Handle,
    node: Option<RunningNode>,
    control_plane: JoinHandle<Result<(), ControlPlaneError>>,
    stop_data_plane: CancellationToken,
    stop_control_plane: CancellationToken,
}

impl Local {
    /// Starts the control plane, then the node, then the data plane; returns when functions can be called.
    pub(crate) async fn start(options: LocalOptions, printer: Printer) -> Result<Self, Failure> {
        let store = roles::open_store(&options.data_dir).await?;
        let stop_control_plane = CancellationToken::new();
        // Whatever fails from here on ends what has begun.
        let guard = stop_control_plane.clone().drop_guard();
        let control_options = fanfare_control_plane::Options {
            api_address: options.api_address,
            link_address: options.link_address,
            ..fanfare_control_plane::Options::new(options.data_dir.clone())
        };
        let started = ControlPlane::start(control_options, store, stop_control_plane.clone()).await;
        let control_plane = started.map_err(|e| roles::control_plane_failure(&e))?;
        let (api_address, link_address) = (control_plane.api_address(), control_plane.link_address());
        let dialer = Dialer::in_process(control_plane.hub());
        let control_plane = tokio::spawn(control_plane.wait());

        let stop_data_plane = CancellationToken::new();
        let data_options = fanfare_data_plane::Options {
            listen: options.data_plane_address,
            ..fanfare_data_plane::Options::default()
        };
        let data_plane = DataPlane::start(data_options, dialer.clone(), stop_data_plane.clone())
            .map_err(|e| roles::data_plane_failure(&e))?;
        let data_plane_guard = stop_data_plane.clone().drop_guard();
        let name = roles::host_name();
        let node =
            RunningNode::start(&name, options.capacity, &options.data_dir, &options.run_dir, dialer).await?;
        data_plane.synced().await;
        node_connected(&format!("http://{api_address}"), printer).await?;
        guard.disarm();
        data_plane_guard.disarm();
        Ok(Local {
            api_address,
            link_address,
            data_plane,
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
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        self.stop_data_plane.cancel();
        self.data_plane.stopped().await;
        if let Some(node) = self.node.take() {
            node.stop().await;
        }
        self.stop_control_plane.cancel();
        if self.control_plane.is_finished() {
            // `failed` has told why.
            return Ok(());
        }
        match (&mut self.control_plane).await {
            Ok(result) => result.map_err(|e| roles::control_plane_failure(&e)),
            Err(broken) => Err(Failure::platform(format!("the control plane broke off: {broken}"))),
        }
    }
}
