//! What a node is told at its start.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use fanfare_sandbox::{Outlets, Runtime};
use fanfare_types::Resources;
use futures_util::future::BoxFuture;

use crate::LogLimits;

/// Makes the runtimes of a node, given where their news goes and where their code comes from.
pub type RuntimeFactory =
    Box<dyn FnOnce(Outlets) -> BoxFuture<'static, io::Result<Vec<Arc<dyn Runtime>>>> + Send>;

/// Settings of a node daemon.
pub struct NodeOptions {
    /// Stable across restarts; unique in the cluster.
    pub name: Arc<str>,
    /// What it offers.
    pub capacity: Resources,
    /// Makes its runtimes; the first of a name is used.
    pub runtimes: RuntimeFactory,
    /// Code and logs. On a disk; only this daemon's.
    pub data_dir: PathBuf,
    /// What does not outlive a reboot. Only this daemon's.
    pub run_dir: PathBuf,
    /// Sandboxes that are being created at once; more wait in order.
    pub creations_max: usize,
    /// Bytes of unpacked code kept.
    pub code_bytes_max: u64,
    /// Sizes of the logs.
    pub logs: LogLimits,
}

impl NodeOptions {
    /// Settings with the defaults for everything that has one.
    #[must_use]
    pub fn new(
        name: Arc<str>,
        capacity: Resources,
        runtimes: RuntimeFactory,
        data_dir: PathBuf,
        run_dir: PathBuf,
    ) -> Self {
        NodeOptions {
            name,
            capacity,
            runtimes,
            data_dir,
            run_dir,
            creations_max: 64,
            code_bytes_max: 10 << 30,
            logs: LogLimits::default(),
        }
    }
}

impl fmt::Debug for NodeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeOptions")
            .field("name", &self.name)
            .field("capacity", &self.capacity)
            .field("data_dir", &self.data_dir)
            .field("run_dir", &self.run_dir)
            .finish_non_exhaustive()
    }
}
