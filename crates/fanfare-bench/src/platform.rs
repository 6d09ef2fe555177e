//! A `fanfare up` of a bench's own: started in fresh directories on free ports, and gone without a trace.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fanfare_api::SandboxCounts;
use tempfile::TempDir;

use crate::api::Api;
use crate::caller::{Caller, request};
use crate::emulate;
use crate::error::{Context, Error, Result};
use crate::load::{Loader, Once};
use crate::process::Daemon;
use crate::procfs;
use crate::relay::Relay;
use crate::socket::Target;

/// Functions that are prepared at once.
const PREPARING: usize = 8;
/// Names the program instead of the one beside this one.
pub(crate) const PROGRAM_VARIABLE: &str = "FANFARE_BIN";
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for functions to be back at zero.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(PROGRAM_VARIABLE) {
        return Ok(path.into());
    }
    let beside = std::env::current_exe().context("find this program")?.with_file_name("fanfare");
    match beside.exists() {
        true => Ok(beside),
        false => Err(Error::new(format!(
            "{} is missing: `cargo xtask bench` builds it; or set {PROGRAM_VARIABLE}",
            beside.display()
        ))),
    }
}

/// Its directories, which outlive one start.
#[derive(Debug)]
pub(crate) struct Home {
    data: TempDir,
    /// Apart from the data, because socket paths are short.
    run: TempDir,
}

impl Home {
    /// Where data is.
    pub(crate) fn path(&self) -> &Path {
        self.data.path()
    }

    /// Where sockets are; not there yet.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.run.path().join("r")
    }

    /// Fresh ones, the data on the same disk as `below`.
    pub(crate) fn new(below: &Path) -> Result<Home> {
        let data = tempfile::Builder::new().prefix("data-").tempdir_in(below).context(below.display())?;
        let run =
            tempfile::Builder::new().prefix("ffb-").tempdir().context("make a directory for sockets")?;
        Ok(Home { data, run })
    }
}

/// A running platform: control plane, data plane and node in one process.
#[derive(Debug)]
pub(crate) struct Platform {
    daemon: Daemon,
    home: Home,
    functions: Target,
    api_target: Target,
    pub(crate) api: Api,
}

impl Platform {
    /// Starts one with room for many sandboxes, on these CPUs.
    pub(crate) fn start(home: Home, cpus: Option<&[usize]>) -> Result<Platform> {
        let mut command = Command::new(program()?);
        command
            .arg("up")
            .arg("--data-dir")
            .arg(home.data.path())
            .arg("--run-dir")
            .arg(home.run.path().join("r"));
        for flag in ["--listen", "--api-listen", "--grpc-listen"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        // More than the machine has: what is measured is not what fits.
        command.args(["--cpus", "1000", "--memory", "1000GiB"]);
        Platform::run("fanfare up", command, home, cpus)
    }

    /// Starts one whose nodes make nothing, of which there may be many.
    pub(crate) fn emulate(home: Home, nodes: usize, sockets: emulate::Sockets) -> Result<Platform> {
        Platform::emulate_with(home, nodes, sockets, Relay::Off)
    }

    /// As [`Platform::emulate`], with this between control plane and nodes.
    pub(crate) fn emulate_with(
        home: Home,
        nodes: usize,
        sockets: emulate::Sockets,
        relay: Relay,
    ) -> Result<Platform> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command
            .args([emulate::ARGUMENT, sockets.word(), &nodes.to_string()])
            .arg(home.data.path())
            .arg(home.run_dir())
            .arg(relay.word());
        Platform::run("the emulated platform", command, home, None)
    }

    fn run(name: &str, command: Command, home: Home, cpus: Option<&[usize]>) -> Result<Platform> {
        let log = home.data.path().join("log");
        let mut daemon = Daemon::start(name, command, &log, cpus)?;
        let (functions, api_target) = daemon.until("its addresses", START_TIMEOUT, || {
            let text = fs::read_to_string(&log).ok()?;
            Some((address(&text, "functions")?, address(&text, "control API")?))
        })?;
        let (functions, api_target) = (Target::Tcp(functions), Target::Tcp(api_target));
        let api = Api::new(api_target.clone());
        daemon.until("a node and a data plane", START_TIMEOUT, || {
            let status = api.status().ok()?;
            let node = status.nodes.iter().any(|node| node.connected);
            let data_plane = status.data_planes.iter().any(|data_plane| data_plane.connected);
            (node && data_plane).then_some(())
        })?;
        Ok(Platform { daemon, home, functions, api_target, api })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Where functions are called.
    pub(crate) fn functions(&self) -> &Target {
        &self.functions
    }

    /// A connection for calls of functions.
    pub(crate) fn caller(&self) -> Result<Caller> {
        Caller::connect(self.functions.clone())
    }

    /// Connections for calls of functions.
    pub(crate) fn loader(&self, connections: usize) -> Result<Loader> {
        Loader::connect(&self.functions, connections)
    }

    /// Connections to the control API.
    pub(crate) fn api_loader(&self, connections: usize) -> Result<Loader> {
        Loader::connect(&self.api_target, connections)
    }

    /// Has everything of these functions made ready but their sandboxes, of a few at once.
    pub(crate) fn prepare(&self, names: &[String]) -> Result<()> {
        let requests: Vec<_> = names
            .iter()
            .map(|name| request("POST", &format!("/v1/functions/{name}/prepare"), "", b""))
            .collect();
        let mut work = Once::new(&requests, |at, _, answer| match answer.status {
            200..=299 => Ok(()),
            status => Err(Error::new(format!("prepare {}: {status}: {}", names[at], answer.text()))),
        });
        self.api_loader(PREPARING)?.run(&mut work, None).map(drop)
    }

    /// Waits until the sandboxes of every function are as wanted.
    pub(crate) fn until(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&str, SandboxCounts) -> bool,
    ) -> Result<()> {
        let api = &self.api;
        self.daemon.until(what, IDLE_TIMEOUT, || match api.sandboxes() {
            Ok(all) => all.iter().all(|(name, counts)| wanted(name, *counts)).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        })?
    }

    /// Waits until no function has a sandbox.
    pub(crate) fn until_idle(&mut self) -> Result<()> {
        self.until("every function is at zero", |_, counts| counts == SandboxCounts::default())
    }

    /// Waits until there is no sandbox, of however many functions.
    pub(crate) fn until_no_sandboxes(&mut self) -> Result<()> {
        let api = &self.api;
        self.daemon.until("every function is at zero", IDLE_TIMEOUT, || match api.status() {
            Ok(status) => {
                let on_nodes: u32 = status.nodes.iter().map(|node| node.sandboxes).sum();
                (on_nodes == 0 && status.sandboxes == SandboxCounts::default()).then_some(Ok(()))
            }
            Err(error) => Some(Err(error)),
        })?
    }

    /// Waits until there is no function and no sandbox.
    pub(crate) fn until_empty(&mut self) -> Result<()> {
        let api = &self.api;
        self.daemon.until("every sandbox is gone", IDLE_TIMEOUT, || match api.status() {
            Ok(status) => {
                let on_nodes: u32 = status.nodes.iter().map(|node| node.sandboxes).sum();
                let empty =
                    status.functions == 0 && on_nodes == 0 && status.sandboxes == SandboxCounts::default();
                empty.then_some(Ok(()))
            }
            Err(error) => Some(Err(error)),
        })?
    }

    /// Waits until every function has this many ready sandboxes and no others.
    pub(crate) fn until_ready(&mut self, ready: u32) -> Result<()> {
        self.until("sandboxes are ready", |_, counts| counts.ready == ready && counts.starting == 0)
    }

    /// Processes below it whose command line holds `part`.
    pub(crate) fn processes(&self, part: &str) -> Vec<u32> {
        let below = procfs::descendants(self.pid()).into_iter();
        below.filter(|pid| procfs::command(*pid).contains(part)).collect()
    }

    /// Stops it, and fails unless it ends well and leaves nothing behind. Its directories may be used again.
    pub(crate) fn stop(self) -> Result<Home> {
        let below: BTreeMap<u32, String> =
            procfs::descendants(self.pid()).into_iter().map(|pid| (pid, procfs::started(pid))).collect();
        self.daemon.stop(STOP_TIMEOUT)?;
        let left = leftovers(&self.home, &below)?;
        match left.is_empty() {
            true => Ok(self.home),
            false => Err(Error::new(format!("fanfare up left behind: {}", left.join("; ")))),
        }
    }
}

/// What remains of a platform that has ended.
fn leftovers(home: &Home, below: &BTreeMap<u32, String>) -> Result<Vec<String>> {
    let alive = below
        .iter()
        .filter(|(pid, started)| procfs::started(**pid) == **started && procfs::is_running(**pid));
    let mut left: Vec<String> =
        alive.map(|(pid, _)| format!("process {pid}: {}", procfs::command(*pid))).collect();
    let orphans = fanfare_sandbox_process::audit(&home.run_dir()).context("look for what is left")?;
    left.extend(orphans.into_iter().map(|orphan| format!("{} {}", orphan.kind, orphan.what)));
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mounts")?;
    for dir in [home.run.path(), home.data.path()] {
        let below = mounts.lines().filter_map(|line| line.split_whitespace().nth(4));
        left.extend(
            below.filter(|point| Path::new(point).starts_with(dir)).map(|point| format!("mount {point}")),
        );
    }
    Ok(left)
}

/// The address in a line such as `functions    http://127.0.0.1:8080    …`.
fn address(text: &str, what: &str) -> Option<SocketAddr> {
    let line = text.lines().find_map(|line| line.strip_prefix(what))?;
    line.split_whitespace().next()?.strip_prefix("http://")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn addresses_in_the_welcome() {
        let text =
            "functions    http://127.0.0.1:8080    curl x\ncontrol API  http://127.0.0.1:9091    fanfare\n";
        assert_eq!(address(text, "functions"), Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(address(text, "control API"), Some("127.0.0.1:9091".parse().unwrap()));
        assert_eq!(address(text, "streams"), None);
        assert_eq!(address("functions    http://127.0.0.1:80", "functions").map(|a| a.port()), Some(80));
    }

    #[test]
    fn what_lives_on_is_left_over() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path()).unwrap();
        let mut cat = Command::new("cat");
        let mut child = cat.arg("-u").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // What it has echoed it has begun: before, it may not have its name yet.
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        to.write_all(b"x").unwrap();
        from.read_exact(&mut [0]).unwrap();
        let below = BTreeMap::from([(child.id(), procfs::started(child.id()))]);
        let left = leftovers(&home, &below).unwrap();
        assert!(left.len() == 1 && left[0].contains("cat -u"), "{left:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(leftovers(&home, &below).unwrap(), Vec::<String>::new());
    }
}
