//! The compiled function whose cold starts are measured: an HTTP server of the standard library alone, on the listener
//! that it inherits or on `$PORT`.
//!
//! `GET /work/N` is answered after N milliseconds, `GET /stamps` with when it was read and when its answer is written
//! (nanoseconds of the machine's monotonic clock), everything else at once; all but stamps with the name of the sandbox.

#[path = "../inherit.rs"]
mod inherit;

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

/// Bytes of a request; it has no body.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Longest work.
const WORK_MAX: Duration = Duration::from_secs(60);

fn main() -> io::Result<()> {
    match inherit::listener() {
        Some(fd) => match UnixListener::from(fd) {
            unix if unix.local_addr().is_ok() => {
                serve(&unix, || unix.accept().map(|(stream, _)| stream.into()))
            }
            other => serve_tcp(&TcpListener::from(OwnedFd::from(other))),
        },
        None => {
            let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok());
            let port: u16 = port.ok_or_else(|| io::Error::other("PORT is not set to a port"))?;
            let listener = TcpListener::bind(("127.0.0.1", port))?;
            io::stdout().write_all(b"listening\n")?;
            serve_tcp(&listener)
        }
    }
}

fn serve_tcp(listener: &TcpListener) -> io::Result<()> {
    serve(listener, || {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(stream.into())
    })
}

/// One thread for all connections: a thread each would cost a cold start more than its answer does.
fn serve(listener: impl AsFd, accept: impl Fn() -> io::Result<OwnedFd>) -> io::Result<()> {
    let mut connections: Vec<(OwnedFd, Vec<u8>)> = Vec::new();
    loop {
        let ready = wait(listener.as_fd(), &connections)?;
        for at in ready.connections.into_iter().rev() {
            let (stream, seen) = &mut connections[at];
            // A connection that fails is closed; its client sees that.
            if !answer(stream, seen).unwrap_or(false) {
                connections.swap_remove(at);
            }
        }
        if ready.listener {
            connections.push((accept()?, Vec::new()));
        }
    }
}

struct Ready {
    listener: bool,
    connections: Vec<usize>,
}

fn wait(listener: BorrowedFd<'_>, connections: &[(OwnedFd, Vec<u8>)]) -> io::Result<Ready> {
    let fds = connections.iter().map(|(stream, _)| PollFd::new(stream, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = fds.chain([PollFd::from_borrowed_fd(listener, PollFlags::IN)]).collect();
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready: Vec<usize> = (0..fds.len()).filter(|at| !fds[*at].revents().is_empty()).collect();
    let listener = ready.pop_if(|at| *at == connections.len()).is_some();
    Ok(Ready { listener, connections: ready })
}

/// Reads what there is and answers a request once it is complete; `false` at the connection's end.
fn answer(stream: &OwnedFd, seen: &mut Vec<u8>) -> io::Result<bool> {
    let mut stream = std::fs::File::from(stream.try_clone()?);
    let mut buffer = [0; 4096];
    let n = stream.read(&mut buffer)?;
    seen.extend_from_slice(&buffer[..n]);
    if n == 0 || seen.len() > REQUEST_BYTES_MAX {
        return Ok(false);
    }
    if !seen.ends_with(b"\r\n\r\n") {
        return Ok(true);
    }
    let read_ns = now_ns();
    let stamps = path(seen) == Some("/stamps");
    work(seen);
    seen.clear();
    let name = rustix::system::uname();
    let body = match stamps {
        true => format!("{read_ns:020} {:020}", now_ns()).into_bytes(),
        false => name.nodename().to_bytes().to_vec(),
    };
    let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(&body);
    stream.write_all(&answer)?;
    Ok(true)
}

/// The same on every processor and in every sandbox.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn path(request: &[u8]) -> Option<&str> {
    request.split(|byte| *byte == b' ').nth(1).and_then(|path| std::str::from_utf8(path).ok())
}

#[allow(clippy::disallowed_methods, reason = "to take time is what this work is")]
fn work(request: &[u8]) {
    let millis =
        path(request).and_then(|path| path.strip_prefix("/work/")).and_then(|text| text.parse().ok());
    if let Some(millis) = millis {
        std::thread::sleep(Duration::from_millis(millis).min(WORK_MAX));
    }
}
