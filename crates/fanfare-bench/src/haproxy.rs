//! A peer: HAProxy as a keep-alive proxy.

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
const PROGRAM: &str = "/usr/sbin/haproxy";
const START_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A running HAProxy with one process and one thread.
#[derive(Debug)]
pub(crate) struct Haproxy {
    daemon: Daemon,
}

impl Haproxy {
    /// Starts it with a server at each address that forwards everything to the upstream beside it.
    pub(crate) fn start(
        dir: &Path,
        http: Http,
        servers: &[Server],
        cpus: Option<&[usize]>,
    ) -> Result<Haproxy> {
        if !Path::new(PROGRAM).exists() {
            return Err(Error::new(format!(
                "{PROGRAM} is missing; `cargo xtask bench` installs it, as root"
            )));
        }
        let config = dir.join("haproxy.cfg");
        fs::write(&config, configuration(http, servers)).context(config.display())?;
        let mut command = Command::new(PROGRAM);
        command.arg("-db").arg("-f").arg(&config);
        let mut daemon = Daemon::start("haproxy", command, &dir.join("haproxy.log"), cpus)?;
        for Server { address, .. } in servers {
            daemon.until("it listens", START_TIMEOUT, || std::net::TcpStream::connect(address).ok())?;
        }
        Ok(Haproxy { daemon })
    }

    /// CPU time of its process.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        procfs::cpu_time(self.daemon.pid())
    }

    /// Ends it by the signal that has it finish what it has: at SIGTERM it ends as killed.
    pub(crate) fn stop(self) -> Result<()> {
        self.daemon.stop_by(rustix::process::Signal::USR1, STOP_TIMEOUT).map(|_| ())
    }
}

/// Name and version.
pub(crate) fn version() -> String {
    let output = Command::new(PROGRAM).arg("-v").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let number = text.split_whitespace().nth(2).and_then(|version| version.split('-').next());
    format!("HAProxy/{}", number.unwrap_or("?"))
}

fn configuration(http: Http, servers: &[Server]) -> String {
    let mut text = "global\n  nbthread 1\n  maxconn 8192\n  tune.pool-low-fd-ratio 90\n  tune.pool-high-fd-ratio 95\n\
                    defaults\n  mode http\n  option http-keep-alive\n  http-reuse always\n  timeout connect 20s\n  \
                    timeout client 1h\n  timeout server 1h\n"
        .to_owned();
    let spoken = match http {
        Http::One => "",
        Http::Two => " proto h2",
    };
    for (n, Server { address, upstream }) in servers.iter().enumerate() {
        let upstream = match upstream {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(path) => format!("unix@{}", path.display()),
        };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "frontend f{n}\n  bind {address}{spoken} backlog 4096\n  default_backend b{n}\nbackend b{n}\n  \
             server s {upstream} pool-max-conn 512 pool-purge-delay 1h\n"
        );
    }
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
        let haproxy = Haproxy::start(
            dir.path(),
            Http::One,
            &[Server { address, upstream: Target::Unix(socket) }],
            None,
        )
        .unwrap();
        let mut caller = Caller::connect(Target::Tcp(address)).unwrap();
        for _ in 0..3 {
            let (_, answer) = caller.call(&get("/x")).unwrap();
            assert_eq!((answer.status, answer.body), (200, &b"ok"[..]));
        }
        assert!(haproxy.cpu_time().unwrap() > Duration::ZERO);
        assert!(version().starts_with("HAProxy/2") || version().starts_with("HAProxy/3"), "{}", version());
        drop(caller);
        haproxy.stop().unwrap();
    }
}
