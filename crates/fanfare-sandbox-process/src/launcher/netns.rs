//! Network namespaces made ahead: making one takes longer than everything else about a sandbox together.
//!
//! A namespace is used once and never given back, so nothing can cross from one sandbox to another.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;

use crate::sys::{self, SingleThreaded};

/// Namespaces kept ready, loopback up.
#[derive(Debug)]
pub(crate) struct NetnsPool {
    host: OwnedFd,
    ready: VecDeque<OwnedFd>,
    wanted: usize,
}

fn current() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/proc/self/ns/net")?.into())
}

/// Moves this process into a network namespace.
pub(crate) fn enter(namespace: impl AsFd) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

impl NetnsPool {
    /// An empty pool that is to hold `wanted`.
    pub(crate) fn new(wanted: usize) -> io::Result<Self> {
        Ok(NetnsPool { host: current()?, ready: VecDeque::new(), wanted })
    }

    /// Whether there is room for another.
    pub(crate) fn wants_more(&self) -> bool {
        self.ready.len() < self.wanted
    }

    /// Makes one more.
    pub(crate) fn add(&mut self, proof: &SingleThreaded) -> io::Result<()> {
        let made = self.make(proof)?;
        self.ready.push_back(made);
        Ok(())
    }

    /// Takes one, if one is ready.
    pub(crate) fn take(&mut self) -> Option<OwnedFd> {
        self.ready.pop_front()
    }

    fn make(&self, proof: &SingleThreaded) -> io::Result<OwnedFd> {
        let made = enter_new(proof).and_then(|()| current());
        enter(&self.host)?;
        made
    }
}

/// Moves this process into a new network namespace, and brings its loopback interface up.
pub(crate) fn enter_new(proof: &SingleThreaded) -> io::Result<()> {
    sys::unshare(proof, libc::CLONE_NEWNET)?;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sys::loopback_up(socket.as_fd())
}
