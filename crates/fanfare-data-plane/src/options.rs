//! Settings of one data plane.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::limits;

use crate::asynchronous::AsyncOptions;
use crate::tls::TlsOptions;
use crate::trace::TraceOptions;

/// Settings of one data plane. [`Options::default`] listens on a free port of the loopback interface.
#[derive(Clone)]
pub struct Options {
    /// Stable across restarts; the control plane keeps its number under it.
    pub name: Arc<str>,
    /// Where it accepts requests; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where clients and other data planes reach it, as `HOST:PORT`; `None` is the address it listens on.
    pub address: Option<Arc<str>>,
    /// The certificate for clients that speak TLS, which the same port takes beside those that do not; `None`: it takes
    /// none.
    pub tls: Option<TlsOptions>,
    /// Threads that serve requests, each with its own listener and runtime; 0 is one per CPU.
    pub threads: usize,
    /// A secret that the data planes of one cluster share, by which they know each other's forwarded requests.
    /// Without it nothing is forwarded, and every function is served here.
    pub cluster_token: Option<Arc<str>>,
    /// Requests held at once, waiting ones included; more are refused with `data-plane-full`.
    pub requests_max: usize,
    /// Connections of clients at once, and never more than three quarters of the descriptors that the process may have.
    /// Beyond that idle ones are closed for new ones, and new ones where none is idle.
    pub connections_max: usize,
    /// How long a client may take to send a request's head, and how long a connection may be idle.
    pub header_read_timeout: Duration,
    /// How long an answer that nobody waits for any more is read on where its end would spare a sandbox with several
    /// slots. That much later a function learns that its client has left.
    pub abandoned_wait: Duration,
    /// How long requests may go on when it shuts down.
    pub drain_timeout: Duration,
    /// Where it offers its listening sockets to a successor: a unix socket for its own user. `None`: nowhere.
    pub handover: Option<PathBuf>,
    /// How asynchronous invocations are kept; `None`: they are not, and calls are refused.
    pub asynchronous: Option<AsyncOptions>,
    /// Where spans of requests are exported to; `None`: nowhere.
    pub tracing: Option<TraceOptions>,
    /// Where `GET /metrics` is answered; `None`: nowhere. Whoever reaches it learns the functions' names.
    pub metrics: Option<SocketAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            name: "data-plane".into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            address: None,
            tls: None,
            threads: 0,
            cluster_token: None,
            requests_max: 100_000,
            connections_max: 65_536,
            header_read_timeout: Duration::from_secs(30),
            abandoned_wait: limits::ABANDONED_WAIT_DEFAULT,
            drain_timeout: limits::DRAIN_TIMEOUT_DEFAULT,
            handover: None,
            asynchronous: None,
            tracing: None,
            metrics: None,
        }
    }
}

impl Options {
    /// Threads that serve requests.
    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }
}

// By hand: the token must appear nowhere.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("listen", &self.listen)
            .field("address", &self.address)
            .field("tls", &self.tls)
            .field("threads", &self.threads)
            .field("cluster_token", &self.cluster_token.as_ref().map(|_| "(secret)"))
            .field("requests_max", &self.requests_max)
            .field("connections_max", &self.connections_max)
            .field("header_read_timeout", &self.header_read_timeout)
            .field("abandoned_wait", &self.abandoned_wait)
            .field("drain_timeout", &self.drain_timeout)
            .field("handover", &self.handover)
            .field("tracing", &self.tracing)
            .field("metrics", &self.metrics)
            .field("asynchronous", &self.asynchronous)
            .finish()
    }
}
