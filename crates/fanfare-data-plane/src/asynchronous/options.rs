//! Settings of asynchronous invocations.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use fanfare_async::{Limits, limits};

/// How a data plane keeps asynchronous invocations.
#[derive(Clone, Debug)]
pub struct AsyncOptions {
    /// Where the log is; of one data plane alone.
    pub directory: PathBuf,
    /// Bytes of one request's body, and of one result's, up to [`limits::PAYLOAD_BYTES_MAX`].
    pub payload_bytes_max: u64,
    /// What is kept and how much at once.
    pub limits: Limits,
    /// Where callbacks may go.
    pub callbacks: CallbackTargets,
    /// Where the platform itself listens: no callback goes there, whatever `callbacks` says. The data plane adds its own.
    pub own_addresses: Vec<SocketAddr>,
    /// Whether lists are for everyone who can reach the data plane, or for this machine and the other data planes.
    pub lists_for_all: bool,
    /// Whether requests that name a function by their host are taken in as calls, and answered as Dirigent's data planes
    /// do in that mode.
    pub as_dirigent: bool,
}

impl AsyncOptions {
    /// The defaults, in a directory. Callbacks go anywhere but to this machine.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        AsyncOptions {
            directory,
            payload_bytes_max: limits::PAYLOAD_BYTES_DEFAULT,
            limits: Limits::default(),
            callbacks: CallbackTargets::Private,
            own_addresses: Vec::new(),
            lists_for_all: false,
            as_dirigent: false,
        }
    }
}

/// Where callbacks may go. Never to link-local addresses (clouds keep their machines' credentials there), multicast or
/// unspecified ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackTargets {
    /// Nowhere: calls that ask for one are refused.
    None,
    /// To public addresses.
    Public,
    /// To those of private networks, too.
    Private,
    /// To this machine's own, too.
    Any,
}

impl FromStr for CallbackTargets {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(CallbackTargets::None),
            "public" => Ok(CallbackTargets::Public),
            "private" => Ok(CallbackTargets::Private),
            "any" => Ok(CallbackTargets::Any),
            _ => Err("callbacks go to none, public, private or any addresses"),
        }
    }
}
