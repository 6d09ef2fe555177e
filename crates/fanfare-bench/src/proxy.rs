//! What every proxy that is a peer is told.

use std::net::SocketAddr;

use crate::socket::Target;

/// What clients speak. To upstreams all speak HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http {
    /// HTTP/1.1.
    One,
    /// HTTP/2 without TLS, begun with it.
    Two,
}

/// A server that forwards everything to one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) upstream: Target,
}
