//! What a message and its answer cost between two processors without anything in between: the floor of a hop.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::affinity;
use crate::error::{Context, Error, Result};
use crate::socket::{Socket, Target};

/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A thread that sends back what it gets, on one connection.
#[derive(Debug)]
pub(crate) struct Echo {
    socket: Socket,
    thread: JoinHandle<()>,
}

impl Echo {
    /// Over TCP on loopback; the thread runs on `cpus`.
    pub(crate) fn tcp(cpus: Option<&[usize]>, bytes: usize) -> Result<Echo> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
        let target = Target::Tcp(listener.local_addr().context("listen")?);
        Echo::start(&target, cpus, bytes, move || {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            Ok(Socket::Tcp(stream))
        })
    }

    /// Over a unix socket at `path`.
    pub(crate) fn unix(path: &Path, cpus: Option<&[usize]>, bytes: usize) -> Result<Echo> {
        let listener = UnixListener::bind(path).context(path.display())?;
        let accept = move || listener.accept().map(|(stream, _)| Socket::Unix(stream));
        Echo::start(&Target::Unix(path.to_owned()), cpus, bytes, accept)
    }

    fn start(
        target: &Target,
        cpus: Option<&[usize]>,
        bytes: usize,
        accept: impl FnOnce() -> std::io::Result<Socket> + Send + 'static,
    ) -> Result<Echo> {
        let answer = move || {
            let Ok(mut socket) = accept() else { return };
            let mut buffer = vec![0; bytes];
            while socket.read_exact(&mut buffer).is_ok() && socket.write_all(&buffer).is_ok() {}
        };
        let thread = affinity::with(cpus, || {
            std::thread::Builder::new().name("echo".to_owned()).spawn(answer).context("start a thread")
        })?;
        let socket = Socket::connect(target)?;
        socket.set_timeout(ANSWER_TIMEOUT).context("set a timeout")?;
        Ok(Echo { socket, thread })
    }

    /// Sends these bytes, as many as it was started for, and waits until they are back.
    pub(crate) fn once(&mut self, bytes: &[u8], back: &mut [u8]) -> Result<Duration> {
        let begun = Instant::now();
        self.socket.write_all(bytes).and_then(|()| self.socket.read_exact(back)).context("an echo")?;
        let elapsed = begun.elapsed();
        match back == bytes {
            true => Ok(elapsed),
            false => Err(Error::new("an echo of something else")),
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(self) -> Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        }
        .context("end an echo")?;
        self.thread.join().map_err(|_| Error::new("the echo has panicked"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, mut back) = (vec![7; 90], vec![0; 90]);
        for mut echo in [Echo::tcp(None, 90).unwrap(), Echo::unix(&dir.path().join("e"), None, 90).unwrap()] {
            for _ in 0..3 {
                assert!(echo.once(&bytes, &mut back).unwrap() > Duration::ZERO);
                back.fill(0);
            }
            echo.stop().unwrap();
        }
    }
}
