//! The way out for installations: an HTTP proxy on the loopback interface of their own network namespace.
//!
//! What runs there is partly of the function's author (the set-up scripts of packages), so it must not be in the host's
//! network, where the node's own services, abstract sockets and a cloud's metadata service trust whoever reaches them.
//! The proxy connects to public addresses on the ports of the web, and to what the daemon's own settings for pip or npm name.
//! It speaks what they speak: `CONNECT` (RFC 9110, section 9.3.6) and requests in absolute form.

mod policy;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fanfare_sandbox::LogStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::logs::Log;
use crate::revision::sentence;
pub(crate) use policy::{NPM, PIP, Policy};
use policy::{Route, Target};

/// Where the proxy listens inside.
pub(crate) const PORT: u16 = 3128;
/// Connections at once; more wait.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of a request's head, and its fields.
const HEAD_BYTES_MAX: usize = 16 << 10;
const FIELDS_MAX: usize = 64;
/// How long the head of a request may take, and then the connection to its target.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves until it is dropped. What is refused is said in the log of the installation.
pub(crate) async fn serve(listener: TcpListener, policy: Arc<Policy>, log: Log) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    // Never closed.
    while let Ok(permit) = room.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            // For want of descriptors: some are free once a connection has ended.
            match connections.join_next().await {
                Some(_) => continue,
                None => return,
            }
        };
        while connections.try_join_next().is_some() {}
        let (policy, log) = (policy.clone(), log.clone());
        connections.spawn(async move {
            if let Err(error) = relay(stream, &policy, &log).await {
                tracing::debug!(%error, "a connection of an installation broke off");
            }
            drop(permit);
        });
    }
}

async fn relay(mut client: TcpStream, policy: &Policy, log: &Log) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let request = timeout(STEP_TIMEOUT, Request::read(&mut client)).await.map_err(late)??;
    let (mut server, head) = match policy.connect(&request.target, request.is_tunnel).await {
        Ok(Route::Direct(server)) if request.is_tunnel => {
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            (server, Vec::new())
        }
        Ok(Route::Direct(server)) => (server, request.head(&request.path, "")),
        Ok(Route::Upstream(server, authorization)) => (server, request.head(&request.uri, &authorization)),
        Err(why) => {
            let why = sentence(&format!("no connection to {}: {why}", request.target));
            log.line(LogStream::Platform, why.clone());
            let answer = format!("HTTP/1.1 403 {why}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return client.write_all(answer.as_bytes()).await;
        }
    };
    server.write_all(&head).await?;
    server.write_all(&request.rest).await?;
    copy_bidirectional(&mut client, &mut server).await.map(|_| ())
}

/// A request's head, and what came after it.
struct Request {
    method: String,
    uri: String,
    target: Target,
    /// The URI without its scheme and target.
    path: String,
    is_tunnel: bool,
    fields: Vec<(String, Vec<u8>)>,
    rest: Vec<u8>,
}

impl Request {
    async fn read(client: &mut TcpStream) -> io::Result<Self> {
        let mut bytes = Vec::with_capacity(4096);
        loop {
            if client.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(request) = Request::parse(&bytes).map_err(io::Error::other)? {
                return Ok(request);
            }
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("the head of a request is too long"));
            }
        }
    }

    /// `None`: there is more to come.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, String> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Request::new(&mut fields);
        let len = match head.parse(bytes).map_err(|e| e.to_string())? {
            httparse::Status::Complete(len) => len,
            httparse::Status::Partial => return Ok(None),
        };
        let (method, uri) = (head.method.unwrap_or_default(), head.path.unwrap_or_default());
        let is_tunnel = method == "CONNECT";
        let (authority, path) = match uri.strip_prefix("http://") {
            Some(rest) if !is_tunnel => rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())),
            _ if is_tunnel => (uri, ""),
            _ => return Err("the request names no host".into()),
        };
        let target = Target::parse(authority, 80).ok_or("the request names no host")?;
        let keep = |name: &str| {
            let name = name.to_ascii_lowercase();
            !name.starts_with("proxy-") && name != "connection" && name != "keep-alive"
        };
        let fields = head.headers.iter().filter(|field| keep(field.name));
        Ok(Some(Request {
            method: method.to_owned(),
            uri: uri.to_owned(),
            target,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            is_tunnel,
            fields: fields.map(|field| (field.name.to_owned(), field.value.to_vec())).collect(),
            rest: bytes[len..].to_vec(),
        }))
    }

    /// The head as it goes on. The connection ends with the answer: a next request may be for someone else.
    fn head(&self, uri: &str, authorization: &str) -> Vec<u8> {
        let mut head = format!("{} {uri} HTTP/1.1\r\n", self.method).into_bytes();
        for (name, value) in &self.fields {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(authorization.as_bytes());
        head.extend_from_slice(if self.is_tunnel { b"\r\n" } else { b"Connection: close\r\n\r\n" });
        head
    }
}

/// A head of any bytes: a request with a host and a path, or none.
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok(Some(request)) = Request::parse(bytes) {
        assert!(request.is_tunnel || request.path.starts_with('/'));
        assert!(request.rest.len() < bytes.len());
        let head = request.head(&request.uri, "");
        assert!(head.ends_with(b"\r\n\r\n") && !head.contains(&0));
    }
}

#[cfg(test)]
mod tests;
