//! A peer: nginx as a keep-alive proxy.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::process::Daemon;
use crate::procfs;
use crate::proxy::{Http, Server};
use crate::socket::Target;

/// Where Debian puts it.
const PROGRAM: &str = "/usr/sbin/nginx";
const START_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A running nginx with one worker.
#[derive(Debug)]
pub(crate) struct Nginx {
    daemon: Daemon,
    workers: Vec<u32>,
}

impl Nginx {
    /// Starts it with a server at each address that forwards everything to the upstream beside it.
    pub(crate) fn start(dir: &Path, http: Http, servers: &[Server], cpus: Option<&[usize]>) -> Result<Nginx> {
        if !Path::new(PROGRAM).exists() {
            return Err(Error::new(format!(
                "{PROGRAM} is missing; `cargo xtask bench` installs it, as root"
            )));
        }
        let config = dir.join("nginx.conf");
        let root = rustix::process::geteuid().is_root();
        fs::write(&config, configuration(dir, http, servers, root)).context(config.display())?;
        let mut command = Command::new(PROGRAM);
        command.arg("-c").arg(&config).arg("-p").arg(dir).arg("-e").arg("stderr");
        let mut daemon = Daemon::start("nginx", command, &dir.join("nginx.log"), cpus)?.with_children();
        for Server { address, .. } in servers {
            daemon.until("it listens", START_TIMEOUT, || std::net::TcpStream::connect(address).ok())?;
        }
        let pid = daemon.pid();
        let workers = daemon.until("its worker", START_TIMEOUT, || {
            let workers: Vec<u32> = procfs::descendants(pid).into_iter().collect();
            (workers.len() == 1).then_some(workers)
        })?;
        Ok(Nginx { daemon, workers })
    }

    /// CPU time of all its processes.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let pids = self.workers.iter().copied().chain([self.daemon.pid()]);
        pids.map(procfs::cpu_time).sum()
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.daemon.stop(STOP_TIMEOUT).map(|_| ())
    }
}

/// What `nginx -v` says.
pub(crate) fn version() -> String {
    let output = Command::new(PROGRAM).arg("-v").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    text.trim().rsplit_once(": ").map_or_else(|| "nginx".to_owned(), |(_, version)| version.to_owned())
}

fn configuration(dir: &Path, http: Http, servers: &[Server], root: bool) -> String {
    let dir = dir.display();
    let mut text = String::new();
    if root {
        // Its worker must reach a socket in a directory that only root may enter.
        text.push_str("user root;\n");
    }
    let _ = write!(
        text,
        "daemon off;\nworker_processes 1;\npid {dir}/nginx.pid;\nworker_rlimit_nofile 16384;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n  access_log off;\n  keepalive_timeout 1h;\n  keepalive_requests 1000000000;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(text, "  {kind}_temp_path {dir}/{kind};");
    }
    let spoken = match http {
        Http::One => "",
        Http::Two => " http2",
    };
    for (n, Server { address, upstream }) in servers.iter().enumerate() {
        let upstream = match upstream {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(path) => format!("unix:{}", path.display()),
        };
        let _ = write!(
            text,
            "  upstream u{n} {{ server {upstream}; keepalive 512; keepalive_requests 1000000000; \
             keepalive_timeout 1h; }}\n  \
             server {{ listen {address}{spoken} backlog=4096; location / {{ proxy_pass http://u{n}; \
             proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}\n"
        );
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::caller::{Caller, get};

    #[test]
    fn it_forwards_and_keeps_connections() {
        if !Path::new(PROGRAM).exists() {
            eprintln!("skipped: {PROGRAM} is missing");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("up");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        // One connection is accepted, ever: a second request that needed another would get no answer.
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            while stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
            }
        });
        let address = crate::ports::free(1).unwrap()[0];
        let nginx =
            Nginx::start(dir.path(), Http::One, &[Server { address, upstream: Target::Unix(socket) }], None)
                .unwrap();
        let mut caller = Caller::connect(Target::Tcp(address)).unwrap();
        for _ in 0..3 {
            let (_, answer) = caller.call(&get("/x")).unwrap();
            assert_eq!((answer.status, answer.body), (200, &b"ok"[..]));
        }
        assert!(nginx.cpu_time().unwrap() > Duration::ZERO);
        nginx.stop().unwrap();
    }
}
