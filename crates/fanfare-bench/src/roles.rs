//! The roles in processes of their own, whose nodes are emulated: for what one role costs.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::api::Api;
use crate::error::{Context, Result};
use crate::load::Loader;
use crate::platform::{Home, program};
use crate::ports;
use crate::process::Daemon;
use crate::procfs;
use crate::socket::Target;

const LIMIT: Duration = Duration::from_secs(60);

/// A control plane, a data plane and a process of emulated nodes.
#[derive(Debug)]
pub(crate) struct Roles {
    control_plane: Daemon,
    data_plane: Daemon,
    nodes: Daemon,
    functions: Target,
    pub(crate) api: Api,
    /// Where they keep what they keep, for as long as they run.
    _home: Home,
}

/// Resident bytes of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub(crate) control_plane: f64,
    pub(crate) data_plane: f64,
    pub(crate) nodes: f64,
}

impl Roles {
    pub(crate) fn start(home: Home, nodes: usize) -> Result<Roles> {
        let addresses = ports::free(3)?;
        let [api, link, functions] = [0, 1, 2].map(|n: usize| addresses[n]);
        let start = |role: &str, args: &[&str]| {
            let mut command = Command::new(program()?);
            command.arg(role).args(["--data-dir".into(), home.path().join(role)]).args(args);
            Daemon::start(role, command, &home.path().join(format!("{role}.log")), None)
        };
        let words = [api, link, functions].map(|address: SocketAddr| address.to_string());
        let [api_word, link_word, functions_word] = words.each_ref().map(String::as_str);
        let mut control_plane =
            start("control-plane", &["--api-listen", api_word, "--grpc-listen", link_word])?;
        control_plane.until("it listens", LIMIT, || std::net::TcpStream::connect(link).ok())?;
        let url = format!("http://{link}");
        let run_dirs = ["d", "n"].map(|name| home.run_dir().join(name).to_string_lossy().into_owned());
        let joins = ["--control-plane", &url, "--run-dir"];
        let data_plane =
            start("data-plane", &[&joins[..], &[&run_dirs[0], "--listen", functions_word]].concat())?;
        let number = nodes.to_string();
        let capacity = ["--cpus", "1000", "--memory", "1000GiB", "--emulate", &number];
        let mut nodes_daemon = start("node", &[&joins[..], &[&run_dirs[1]], &capacity].concat())?;
        let (functions, api) = (Target::Tcp(functions), Api::new(Target::Tcp(api)));
        nodes_daemon.until("all nodes and a data plane", LIMIT, || {
            let status = api.status().ok()?;
            let connected = status.nodes.iter().filter(|node| node.connected).count();
            (connected == nodes && status.data_planes.iter().any(|d| d.connected)).then_some(())
        })?;
        Ok(Roles { control_plane, data_plane, nodes: nodes_daemon, functions, api, _home: home })
    }

    /// Connections for calls of functions.
    pub(crate) fn loader(&self, connections: usize) -> Result<Loader> {
        Loader::connect(&self.functions, connections)
    }

    /// Waits until something is so.
    pub(crate) fn until(&mut self, what: &str, wanted: impl Fn(&Api) -> Result<bool>) -> Result<()> {
        let api = &self.api;
        self.control_plane.until(what, LIMIT, || match wanted(api) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        })?
    }

    pub(crate) fn resident(&self) -> Result<Resident> {
        let of = |daemon: &Daemon| procfs::resident_bytes(daemon.pid()).map(|bytes| bytes as f64);
        let (control_plane, data_plane) = (of(&self.control_plane)?, of(&self.data_plane)?);
        Ok(Resident { control_plane, data_plane, nodes: of(&self.nodes)? })
    }

    /// Ends them.
    pub(crate) fn stop(self) -> Result<()> {
        for (daemon, name) in
            [(self.data_plane, "data plane"), (self.nodes, "nodes"), (self.control_plane, "control plane")]
        {
            daemon.stop(LIMIT).context(name)?;
        }
        Ok(())
    }
}
