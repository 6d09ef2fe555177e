//! Network namespaces made ahead: making one takes longer than everything else about a sandbox together.
//!
//! A namespace is used once and never given back, so nothing can cross from one sandbox to another.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;

use crate::fdmsg::FDS_MAX;
use crate::sys::{self, SingleThreaded};

/// So many are made as soon as nothing else is to be done, for the next few starts; the rest, for a surge, with longer
/// pauses, so that a launcher that lives for a moment only does not spend it on what nobody will use.
const FEW: usize = 32;
/// How long nothing must be asked for before another is made: sandboxes that are starting need the processors more.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// The same once there are a few.
const LONG_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// How long none is made ahead after one could not be made.
const RETRY: Duration = Duration::from_secs(1);

/// Namespaces kept ready, loopback up.
#[derive(Debug)]
pub(crate) struct NetnsPool {
    host: OwnedFd,
    ready: VecDeque<OwnedFd>,
    wanted: usize,
    /// When the last attempt failed.
    failed: Option<Instant>,
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
        Ok(NetnsPool { host: current()?, ready: VecDeque::new(), wanted, failed: None })
    }

    /// How long nothing must be asked for before another is made; `None` when none should be.
    pub(crate) fn pause(&self) -> Option<&'static Timespec> {
        let wants_more = self.ready.len() < self.wanted && self.failed.is_none_or(|at| at.elapsed() >= RETRY);
        wants_more.then_some(if self.ready.len() < FEW { &PAUSE } else { &LONG_PAUSE })
    }

    /// Makes one more. That none can be made now (the machine or this process has too many) is not an error: a
    /// sandbox then makes its own, or says why it cannot.
    ///
    /// # Errors
    /// This process cannot go back to the host's network namespace.
    pub(crate) fn add(&mut self, proof: &SingleThreaded) -> io::Result<()> {
        let made = enter_new(proof).and_then(|()| current());
        enter(&self.host)?;
        self.failed = made.is_err().then(Instant::now);
        if made.is_err() {
            // It may be for want of descriptors, which requests need more.
            self.ready.truncate(self.ready.len().saturating_sub(2 * FDS_MAX));
        }
        self.ready.extend(made);
        Ok(())
    }

    /// Takes one, if one is ready.
    pub(crate) fn take(&mut self) -> Option<OwnedFd> {
        self.ready.pop_front()
    }
}

/// Moves this process into a new network namespace, and brings its loopback interface up.
pub(crate) fn enter_new(proof: &SingleThreaded) -> io::Result<()> {
    sys::unshare(proof, libc::CLONE_NEWNET)?;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sys::loopback_up(socket.as_fd())
}
