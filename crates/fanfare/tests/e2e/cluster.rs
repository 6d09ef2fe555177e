//! Real clusters of real processes, in both arrangements, each in a directory of its own on ports of its own.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Longer than anything takes on a loaded machine; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How the roles are spread over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// `fanfare up`.
    Together,
    /// `fanfare control-plane`, so many of `fanfare data-plane`, and `fanfare node`.
    Apart { data_planes: usize },
}

/// One process of the cluster, with everything it wrote to standard error.
pub(crate) struct Process {
    pub(crate) role: String,
    pub(crate) child: Child,
    log: Arc<Mutex<String>>,
}

/// A running cluster; stopped, and checked for leftovers by `shut_down`, or killed when dropped.
pub(crate) struct Cluster {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) api: String,
    pub(crate) grpc: String,
    pub(crate) data_planes: Vec<String>,
    pub(crate) processes: Vec<Process>,
    level: Option<&'static str>,
    http: Client<HttpConnector, Full<Bytes>>,
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or("<not utf-8>")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    /// The reason of a platform-made refusal.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.header("x-fanfare-reason")
    }
}

/// Whether sandboxes with full isolation can be made; says so when not.
pub(crate) fn root() -> bool {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        eprintln!("SKIPPED: needs root to make isolated sandboxes");
    }
    uid.is_root()
}

impl Cluster {
    pub(crate) async fn start(arrangement: Arrangement) -> Cluster {
        Cluster::start_with(arrangement, &[]).await
    }

    /// Starts a cluster whose processes say everything.
    pub(crate) async fn start_traced(arrangement: Arrangement) -> Cluster {
        Cluster::start_logging(arrangement, &[], Some("trace")).await
    }

    /// Starts a cluster; `node_args` go to the process that runs the node.
    pub(crate) async fn start_with(arrangement: Arrangement, node_args: &[&str]) -> Cluster {
        Cluster::start_logging(arrangement, node_args, None).await
    }

    async fn start_logging(
        arrangement: Arrangement,
        node_args: &[&str],
        level: Option<&'static str>,
    ) -> Cluster {
        let dir = tempfile::Builder::new().prefix("ffe2e").tempdir_in("/tmp").unwrap();
        let mut cluster = Cluster {
            dir,
            api: format!("http://127.0.0.1:{}", free_port()),
            grpc: format!("127.0.0.1:{}", free_port()),
            data_planes: vec![],
            processes: vec![],
            level,
            http: Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1024).build_http(),
        };
        let (api, grpc) = (cluster.api.replace("http://", ""), cluster.grpc.clone());
        let (data, run) = (cluster.path("data"), cluster.path("run"));
        match arrangement {
            Arrangement::Together => {
                let listen = format!("127.0.0.1:{}", free_port());
                let mut args = vec![
                    "up",
                    "--listen",
                    &listen,
                    "--api-listen",
                    &api,
                    "--grpc-listen",
                    &grpc,
                    "--data-dir",
                    &data,
                    "--run-dir",
                    &run,
                ];
                args.extend(node_args);
                cluster.spawn("up", &args);
                cluster.data_planes.push(format!("http://{listen}"));
            }
            Arrangement::Apart { data_planes } => {
                cluster.spawn_control_plane(&api, &grpc);
                let control_plane = format!("http://{grpc}");
                for index in 0..data_planes {
                    let listen = format!("127.0.0.1:{}", free_port());
                    cluster.spawn_data_plane(index, &control_plane, &listen);
                    cluster.data_planes.push(format!("http://{listen}"));
                }
                cluster.spawn_node(node_args);
            }
        }
        cluster.wait_until_complete(cluster.data_planes.len()).await;
        cluster
    }

    pub(crate) fn spawn_control_plane(&mut self, api: &str, grpc: &str) {
        let data = self.path("data");
        self.spawn(
            "control-plane",
            &["control-plane", "--api-listen", api, "--grpc-listen", grpc, "--data-dir", &data],
        );
    }

    pub(crate) fn spawn_data_plane(&mut self, index: usize, control_plane: &str, listen: &str) {
        self.spawn_data_plane_with(index, control_plane, listen, &[]);
    }

    pub(crate) fn spawn_data_plane_with(
        &mut self,
        index: usize,
        control_plane: &str,
        listen: &str,
        more: &[&str],
    ) {
        let (name, run, data) = (format!("d{index}"), self.path("run"), self.path("data-plane-data"));
        let mut args = vec!["data-plane", "--name", &name, "--control-plane", control_plane];
        args.extend(["--listen", listen, "--threads", "2", "--run-dir", &run, "--data-dir", &data]);
        args.extend(more);
        self.spawn(&name, &args);
    }

    /// Kills a role's process at once.
    pub(crate) fn kill(&mut self, role: &str) {
        let index = self.processes.iter().position(|p| p.role == role).unwrap();
        let mut process = self.processes.remove(index);
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }

    /// Starts a killed role's successor.
    pub(crate) fn respawn(&mut self, role: &str) {
        let (api, grpc) = (self.api.replace("http://", ""), self.grpc.clone());
        match role.strip_prefix('d').and_then(|index| index.parse().ok()) {
            Some(index) => {
                let index: usize = index;
                let listen = self.data_planes[index].replace("http://", "");
                self.spawn_data_plane(index, &format!("http://{grpc}"), &listen);
            }
            None if role == "node" => self.spawn_node(&[]),
            None => self.spawn_control_plane(&api, &grpc),
        }
    }

    pub(crate) fn spawn_node(&mut self, node_args: &[&str]) {
        let control_plane = format!("http://{}", self.grpc);
        let (data, run) = (self.path("node-data"), self.path("run"));
        let mut args = vec![
            "node",
            "--name",
            "n0",
            "--control-plane",
            &control_plane,
            "--data-dir",
            &data,
            "--run-dir",
            &run,
        ];
        args.extend(node_args);
        self.spawn("node", &args);
    }

    /// A path in the cluster's own directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn spawn(&mut self, role: &str, args: &[&str]) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fanfare"))
            .args(args)
            .env("RUST_LOG", "info")
            .envs(self.level.map(|level| ("FANFARE_LOG", level)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, sink) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut sink = sink.lock().unwrap();
                sink.push_str(&line);
                sink.push('\n');
            }
        });
        self.processes.push(Process { role: role.to_owned(), child, log });
    }

    /// Waits until the API answers with one node and so many data planes connected.
    pub(crate) async fn wait_until_complete(&mut self, data_planes: usize) {
        let begun = Instant::now();
        loop {
            if let Ok(answer) = self.try_api("GET", "/v1/status", None).await
                && answer.status == 200
            {
                let status = answer.json();
                let connected = |key: &str| {
                    status[key]
                        .as_array()
                        .map_or(0, |all| all.iter().filter(|x| x["connected"] != false).count())
                };
                if connected("nodes") >= 1 && connected("data_planes") >= data_planes {
                    break;
                }
            }
            self.assert_alive();
            assert!(begun.elapsed() < PATIENCE, "the cluster did not come up:\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for data_plane in self.data_planes.clone() {
            self.until("a data plane is synced", async || {
                self.try_send("GET", &format!("{data_plane}/_fanfare/health"), &[], "")
                    .await
                    .is_ok_and(|a| a.status == 200)
            })
            .await;
        }
    }

    pub(crate) fn assert_alive(&mut self) {
        for process in &mut self.processes {
            if let Some(status) = process.child.try_wait().unwrap() {
                let log = process.log.lock().unwrap().clone();
                panic!("{} ended with {status}:\n{log}", process.role);
            }
        }
    }

    /// What every process wrote.
    pub(crate) fn logs(&self) -> String {
        self.processes
            .iter()
            .map(|p| format!("--- {}\n{}", p.role, p.log.lock().unwrap()))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Polls an outside condition of real processes that emits no event to this test.
    pub(crate) async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !condition().await {
            assert!(begun.elapsed() < PATIENCE, "never: {what}\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Runs the CLI against this cluster.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_fanfare"))
            .args(args)
            .env("FANFARE_API", &self.api)
            .env("FANFARE_DATA_PLANE", &self.data_planes[0])
            .env("NO_COLOR", "1")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs the CLI while other things go on.
    pub(crate) async fn cli_later(&self, args: &[&str]) -> Output {
        tokio::process::Command::new(env!("CARGO_BIN_EXE_fanfare"))
            .args(args)
            .env("FANFARE_API", &self.api)
            .env("FANFARE_DATA_PLANE", &self.data_planes[0])
            .env("NO_COLOR", "1")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap()
    }

    /// Runs the CLI and expects success; its standard output.
    pub(crate) fn cli_ok(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success(),
            "fanfare {args:?}: {}\n{out}\n{err}\n{}",
            output.status,
            self.logs()
        );
        out.into_owned()
    }

    /// Writes a file into the cluster's directory; its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Deploys a Python handler under a name.
    pub(crate) fn deploy_python(&self, name: &str, source: &str, settings: &[&str]) {
        let file = self.file(&format!("{name}.py"), source);
        let mut args = vec!["deploy", file.to_str().unwrap(), "--name", name];
        args.extend(settings);
        self.cli_ok(&args);
    }

    /// Calls a function through the first data plane.
    pub(crate) async fn call(&self, name: &str, body: &str) -> Answer {
        self.call_at(0, name, body).await
    }

    /// Calls a function through a given data plane.
    pub(crate) async fn call_at(&self, data_plane: usize, name: &str, body: &str) -> Answer {
        let url = format!("{}/function/{name}", self.data_planes[data_plane]);
        self.try_send("POST", &url, &[], body).await.unwrap_or_else(|e| panic!("{e}\n{}", self.logs()))
    }

    pub(crate) async fn send(&self, method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.try_send(method, url, headers, body).await.unwrap_or_else(|e| panic!("{e}\n{}", self.logs()))
    }

    pub(crate) async fn try_send(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer, String> {
        let mut request = http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request =
            request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).map_err(|e| e.to_string())?;
        let response = tokio::time::timeout(PATIENCE * 2, self.http.request(request)).await;
        let response =
            response.map_err(|_| format!("{method} {url}: no answer"))?.map_err(|e| format!("{e:?}"))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| format!("{e:?}"))?.to_bytes();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    async fn try_api(&self, method: &str, path: &str, body: Option<&str>) -> Result<Answer, String> {
        let url = format!("{}{path}", self.api);
        self.try_send(method, &url, &[("content-type", "application/json")], body.unwrap_or("")).await
    }

    /// Calls the control API.
    pub(crate) async fn api(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        self.try_api(method, path, body).await.unwrap_or_else(|e| panic!("{e}\n{}", self.logs()))
    }

    /// Registers a function of the `process` runtime from its JSON document, without waiting for anything.
    pub(crate) async fn status_of(&self, name: &str) -> serde_json::Value {
        self.api("GET", &format!("/v1/functions/{name}"), None).await.json()
    }

    /// Stops everything with SIGTERM and expects clean exits and nothing left.
    pub(crate) fn shut_down(mut self) {
        self.assert_alive();
        for process in self.processes.iter_mut().rev() {
            let pid = rustix::process::Pid::from_child(&process.child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            let status = wait(&mut process.child);
            let log = process.log.lock().unwrap().clone();
            assert!(status.success(), "{} ended with {status}:\n{log}", process.role);
        }
        let run = self.dir.path().join("run");
        assert_eq!(leftovers(&run), Vec::<String>::new(), "left behind");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

/// Waits for a child's end, with a limit.
pub(crate) fn wait(child: &mut Child) -> std::process::ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            let mut text = String::new();
            if let Some(stderr) = &mut child.stderr {
                let _ = stderr.read_to_string(&mut text);
            }
            panic!("a process did not end in {PATIENCE:?}: {text}");
        }
        std::thread::yield_now();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Mounts, cgroups and sockets whose name holds the run directory's, seen without any help of the platform.
pub(crate) fn leftovers(run: &Path) -> Vec<String> {
    let run = run.to_str().unwrap();
    let mut found = Vec::new();
    for (file, what) in [("/proc/self/mountinfo", "mount"), ("/proc/net/unix", "socket")] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        found.extend(text.lines().filter(|line| line.contains(run)).map(|line| format!("{what}: {line}")));
    }
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(environ) = std::fs::read(process.path().join("environ")) else { continue };
        if String::from_utf8_lossy(&environ).contains(run) {
            found.push(format!("process: {}", process.path().display()));
        }
    }
    found
}
