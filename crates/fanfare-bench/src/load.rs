//! The load generator: one thread, a fixed number of connections, each with one request under way (a closed loop).
//!
//! A closed loop slows down with the server, so its latencies are those of a client that waits, not of arrivals that
//! do not; tables that show them say so. Each latency is from just before a request's first byte is written to just
//! after its answer's last byte was read.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};

use crate::error::{Context, Error, Result};
use crate::socket::{Socket, Target};
use crate::wire::{self, Answer};

/// Silence of every connection after which a run has failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Events taken from the kernel at once.
const EVENTS: usize = 256;
const BUFFER_BYTES: usize = 16 << 10;
/// Nothing comes after what the socket holds.
const ENDED: epoll::EventFlags =
    epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);
/// Longest latency that a histogram holds; longer ones count as this.
const LATENCY_MAX_NS: u64 = 120_000_000_000;

/// What is asked, and what becomes of the answers.
pub(crate) trait Work {
    /// Writes the next request into the empty `out` and names it; `None` when there is none left.
    fn next(&mut self, out: &mut Vec<u8>) -> Option<usize>;

    /// The request of this name was answered.
    fn done(&mut self, id: usize, latency: Duration, answer: Answer<'_>) -> Result<()>;
}

/// Connections with which load is made.
#[derive(Debug)]
pub(crate) struct Loader {
    target: Target,
    epoll: OwnedFd,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: Socket,
    out: Vec<u8>,
    written: usize,
    buffer: Vec<u8>,
    filled: usize,
    /// The request under way, and when it began.
    current: Option<(usize, Instant)>,
}

impl Loader {
    pub(crate) fn connect(target: &Target, connections: usize) -> Result<Loader> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let mut loader =
            Loader { target: target.clone(), epoll, connections: Vec::with_capacity(connections) };
        for _ in 0..connections {
            let connection = loader.open(loader.connections.len())?;
            loader.connections.push(connection);
        }
        Ok(loader)
    }

    fn open(&self, at: usize) -> Result<Connection> {
        let socket = Socket::connect(&self.target)?;
        socket.set_nonblocking().context("make a socket non-blocking")?;
        let flags = ENDED | epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(at as u64), flags).context("epoll")?;
        Ok(Connection {
            socket,
            out: Vec::new(),
            written: 0,
            buffer: vec![0; BUFFER_BYTES],
            filled: 0,
            current: None,
        })
    }

    /// Makes load until `until`, or until there is no more of it; then waits for what is under way. Gives the time from
    /// the first request to the last answer.
    pub(crate) fn run(&mut self, work: &mut impl Work, until: Option<Instant>) -> Result<Duration> {
        let begun = Instant::now();
        let mut under_way = 0_usize;
        for at in 0..self.connections.len() {
            under_way += usize::from(self.connections[at].begin(work)?);
        }
        let mut last = Instant::now();
        let mut events = Vec::with_capacity(EVENTS);
        let mut ready: VecDeque<(usize, bool)> = VecDeque::new();
        while under_way > 0 {
            self.wait(&mut events, STALL_TIMEOUT.saturating_sub(last.elapsed()))?;
            ready.extend(events.iter().map(|event: &epoll::Event| {
                let flags = event.flags;
                (event.data.u64() as usize, flags.intersects(ENDED))
            }));
            if ready.is_empty() && last.elapsed() >= STALL_TIMEOUT {
                let what =
                    format!("{under_way} requests to {} have no answer after {STALL_TIMEOUT:?}", self.target);
                return Err(Error::new(what));
            }
            for (at, ended) in ready.drain(..) {
                let Some(closes) = self.connections[at].advance(work, ended).context(&self.target)? else {
                    continue;
                };
                last = Instant::now();
                under_way -= 1;
                if closes {
                    self.connections[at] = self.open(at)?;
                }
                if until.is_none_or(|until| last < until) {
                    under_way += usize::from(self.connections[at].begin(work)?);
                }
            }
        }
        Ok(last.duration_since(begun))
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, limit: Duration) -> Result<()> {
        let timeout = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("epoll"),
        }
    }
}

impl Connection {
    /// Sends the next request; `false` when there is none.
    fn begin(&mut self, work: &mut impl Work) -> Result<bool> {
        self.out.clear();
        self.written = 0;
        let Some(id) = work.next(&mut self.out) else { return Ok(false) };
        self.current = Some((id, Instant::now()));
        self.flush()?;
        Ok(true)
    }

    fn flush(&mut self) -> Result<()> {
        while self.written < self.out.len() {
            match self.socket.write(&self.out[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("write"),
            }
        }
        Ok(())
    }

    /// Goes on after an event. `Some` when the request under way was answered: whether the server then closes.
    fn advance(&mut self, work: &mut impl Work, ended: bool) -> Result<Option<bool>> {
        if self.current.is_none() {
            return Ok(None);
        }
        self.flush()?;
        loop {
            let room = self.buffer.len() - self.filled;
            match self.socket.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(Error::new("the connection was closed within an answer")),
                Ok(n) => {
                    self.filled += n;
                    if let Some(closes) = self.answered(work)? {
                        return Ok(Some(closes));
                    }
                    // A short read has emptied the socket: the next event comes with the next bytes, if there are any.
                    if n < room {
                        if ended {
                            continue;
                        }
                        return Ok(None);
                    }
                    if self.buffer.len() >= wire::ANSWER_BYTES_MAX {
                        return Err(Error::new("an answer without end"));
                    }
                    self.buffer.resize(self.buffer.len() * 2, 0);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("read"),
            }
        }
    }

    fn answered(&mut self, work: &mut impl Work) -> Result<Option<bool>> {
        let Some(frame) = wire::parse(&self.buffer[..self.filled])? else { return Ok(None) };
        let Some((id, begun)) = self.current.take() else { return Ok(None) };
        if frame.len < self.filled {
            return Err(Error::new("bytes after an answer, though nothing was asked"));
        }
        self.filled = 0;
        work.done(id, begun.elapsed(), Answer::new(frame, &self.buffer))?;
        Ok(Some(frame.closes))
    }
}

/// The same request again and again, which must be answered 200.
#[derive(Debug)]
pub(crate) struct Repeat {
    request: Vec<u8>,
    pub(crate) latencies: Histogram<u64>,
}

impl Repeat {
    pub(crate) fn new(request: Vec<u8>) -> Result<Repeat> {
        Ok(Repeat { request, latencies: histogram()? })
    }
}

impl Work for Repeat {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        out.extend_from_slice(&self.request);
        Some(0)
    }

    fn done(&mut self, _: usize, latency: Duration, answer: Answer<'_>) -> Result<()> {
        if answer.status != 200 {
            return Err(Error::new(format!("answered {}: {}", answer.status, answer.text())));
        }
        self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        Ok(())
    }
}

/// Each of these requests once, in order.
#[derive(Debug)]
pub(crate) struct Once<'a, F> {
    requests: &'a [Vec<u8>],
    next: usize,
    done: F,
}

impl<'a, F: FnMut(usize, Duration, Answer<'_>) -> Result<()>> Once<'a, F> {
    pub(crate) fn new(requests: &'a [Vec<u8>], done: F) -> Self {
        Once { requests, next: 0, done }
    }
}

impl<F: FnMut(usize, Duration, Answer<'_>) -> Result<()>> Work for Once<'_, F> {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let id = self.next;
        out.extend_from_slice(self.requests.get(id)?);
        self.next += 1;
        Some(id)
    }

    fn done(&mut self, id: usize, latency: Duration, answer: Answer<'_>) -> Result<()> {
        (self.done)(id, latency, answer)
    }
}

/// Holds latencies in nanoseconds to three digits.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).context("make a histogram")
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    /// Answers each request with its path, in pieces; `/close` closes after its answer, `/hang up` within.
    fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::io::Result::ok) {
                std::thread::spawn(move || serve(stream));
            }
        });
        address
    }

    fn serve(mut stream: std::net::TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(n) = stream.read(&mut buffer) {
            if n == 0 {
                return;
            }
            seen.extend_from_slice(&buffer[..n]);
            if !seen.ends_with(b"\r\n\r\n") {
                continue;
            }
            let path = String::from_utf8_lossy(&seen).split(' ').nth(1).unwrap().to_owned();
            seen.clear();
            let body = if path == "/large" { "x".repeat(100_000) } else { path.clone() };
            let close = if path == "/close" { "connection: close\r\n" } else { "" };
            let answer = format!("HTTP/1.1 200 OK\r\n{close}content-length: {}\r\n\r\n{body}", body.len());
            let (head, rest) = answer.as_bytes().split_at(20);
            stream.write_all(head).unwrap();
            if path == "/hangup" {
                return;
            }
            stream.write_all(rest).unwrap();
            if path == "/close" {
                return;
            }
        }
    }

    fn all(paths: &[&str], connections: usize) -> Result<Vec<Vec<u8>>> {
        let requests: Vec<_> = paths.iter().map(|path| crate::caller::get(path)).collect();
        let mut bodies = vec![Vec::new(); paths.len()];
        let mut loader = Loader::connect(&Target::Tcp(server()), connections)?;
        loader.run(
            &mut Once::new(&requests, |id, _, answer| {
                bodies[id] = answer.body.to_vec();
                Ok(())
            }),
            None,
        )?;
        Ok(bodies)
    }

    #[test]
    fn every_request_gets_its_own_answer() {
        let paths: Vec<String> = (0..500).map(|n| format!("/{n}")).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        for connections in [1, 7, 64] {
            let bodies = all(&paths, connections).unwrap();
            assert!(bodies.iter().zip(&paths).all(|(body, path)| body == path.as_bytes()), "{connections}");
        }
    }

    #[test]
    fn a_server_may_close_after_an_answer_but_not_within() {
        let bodies = all(&["/close", "/a", "/close", "/b"], 1).unwrap();
        assert_eq!(bodies, [&b"/close"[..], b"/a", b"/close", b"/b"]);
        let error = all(&["/a", "/hangup"], 1).unwrap_err().to_string();
        assert!(error.contains("closed within an answer"), "{error}");
    }

    #[test]
    fn answers_larger_than_the_buffer() {
        assert_eq!(all(&["/large", "/a"], 1).unwrap()[0].len(), 100_000);
    }

    #[test]
    fn a_closed_loop_counts_what_it_did() {
        let mut loader = Loader::connect(&Target::Tcp(server()), 4).unwrap();
        let mut work = Repeat::new(crate::caller::get("/x")).unwrap();
        let span = Duration::from_millis(50);
        let elapsed = loader.run(&mut work, Some(Instant::now() + span)).unwrap();
        assert!(elapsed >= span - Duration::from_millis(1), "{elapsed:?}");
        assert!(work.latencies.len() > 4, "{}", work.latencies.len());
        let fastest = Duration::from_nanos(work.latencies.min());
        assert!(fastest > Duration::from_nanos(500) && fastest < elapsed, "{fastest:?}");
        // The connections are free again.
        loader.run(&mut work, Some(Instant::now() + span)).unwrap();
    }
}
