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

/// Makes the runtimes of one daemon of a group; called once for each.
pub type GroupRuntimeFactory =
    Box<dyn Fn(Outlets) -> BoxFuture<'static, io::Result<Vec<Arc<dyn Runtime>>>> + Send + Sync>;

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
    /// Sandboxes that are being created at once, and up to as many again of functions that have none of these while
    /// requests wait for them; more wait for their turns.
    pub creations_max: usize,
    /// Bytes of unpacked code kept.
    pub code_bytes_max: u64,
    /// Directories of unpacked code kept; more only while they are in use.
    pub codes_max: usize,
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
            codes_max: 1_024,
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

/// Settings of a group of node daemons.
pub struct GroupOptions {
    /// The daemons are called NAME-0, NAME-1 and so on.
    pub name: Arc<str>,
    /// How many.
    pub count: usize,
    /// What each of them offers.
    pub capacity: Resources,
    /// Makes their runtimes, which must need no code.
    pub runtimes: GroupRuntimeFactory,
    /// The logs. Only this group's.
    pub data_dir: PathBuf,
    /// What does not outlive a reboot. Only this group's.
    pub run_dir: PathBuf,
    /// Sandboxes that one daemon creates at once, as [`NodeOptions::creations_max`].
    pub creations_max: usize,
    /// Sizes of the log that they share.
    pub logs: LogLimits,
}

impl GroupOptions {
    /// Settings with the defaults for everything that has one.
    #[must_use]
    pub fn new(
        name: Arc<str>,
        count: usize,
        capacity: Resources,
        runtimes: GroupRuntimeFactory,
        data_dir: PathBuf,
        run_dir: PathBuf,
    ) -> Self {
        let logs = LogLimits::default();
        GroupOptions { name, count, capacity, runtimes, data_dir, run_dir, creations_max: 64, logs }
    }
}

impl fmt::Debug for GroupOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupOptions")
            .field("name", &self.name)
            .field("count", &self.count)
            .field("capacity", &self.capacity)
            .field("data_dir", &self.data_dir)
            .field("run_dir", &self.run_dir)
            .finish_non_exhaustive()
    }
}
