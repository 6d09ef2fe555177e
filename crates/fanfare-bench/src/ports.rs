//! Addresses that are free at the moment.

use std::net::{SocketAddr, TcpListener};

use crate::error::{Context, Result};

/// So many different loopback addresses, on which nothing listens.
pub(crate) fn free(count: usize) -> Result<Vec<SocketAddr>> {
    // All are held until all are known, so that they differ.
    let listeners: std::io::Result<Vec<_>> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let addresses: std::io::Result<Vec<_>> =
        listeners.context("find free ports")?.iter().map(TcpListener::local_addr).collect();
    addresses.context("find free ports")
}
