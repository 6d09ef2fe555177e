//! Settings of the runtime.

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use fanfare_types::limits;

use crate::launcher::LAUNCHER_ARGUMENT;

/// Bytes of a run directory's path: socket paths below it must fit the kernel's 107.
const RUN_DIR_LEN_MAX: usize = 60;

/// How to start a launcher: a program that calls [`crate::launcher_main`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LauncherCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

impl Default for LauncherCommand {
    /// This program again, with [`LAUNCHER_ARGUMENT`] as its first argument. By way of `/proc`, so that it is the same
    /// file even when the program has been replaced on disk since.
    fn default() -> Self {
        LauncherCommand { program: "/proc/self/exe".into(), args: vec![LAUNCHER_ARGUMENT.into()] }
    }
}

/// Settings of a [`crate::ProcessRuntime`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessOptions {
    /// Sockets and the journal; best on a file system in memory. Absolute, at most 60 bytes long. One runtime at a
    /// time uses it.
    pub run_dir: PathBuf,
    /// What outlives a restart: installed dependencies and compiled shims.
    pub data_dir: PathBuf,
    /// How to start the launcher.
    pub launcher: LauncherCommand,
    /// Interpreter of Python functions. Must be below a directory that sandboxes see (`/usr`).
    pub python: PathBuf,
    /// Interpreter of Node.js functions. Must be below a directory that sandboxes see (`/usr`).
    pub node: PathBuf,
    /// User numbers for revisions, each of which has one of its own. The host's other users must not be among them.
    pub uids: Range<u32>,
    /// Network namespaces kept ready, 40 to 80 KiB of kernel memory each: as many starts at once wait for none to be made.
    pub netns_pool: usize,
    /// Bytes of installed dependencies that are kept: of those that no revision here uses, what has not been used for
    /// longest makes way.
    pub deps_bytes_max: u64,
}

impl ProcessOptions {
    /// The defaults, with these directories.
    #[must_use]
    pub fn new(run_dir: impl Into<PathBuf>, data_dir: impl Into<PathBuf>) -> Self {
        ProcessOptions {
            run_dir: run_dir.into(),
            data_dir: data_dir.into(),
            launcher: LauncherCommand::default(),
            python: "/usr/bin/python3".into(),
            node: "/usr/bin/node".into(),
            uids: 1_879_048_192..1_879_048_192 + 65_536,
            netns_pool: 256,
            deps_bytes_max: limits::DEPS_BYTES_KEPT_DEFAULT,
        }
    }

    /// Whether a runtime can be started with these, as far as that can be told without touching anything.
    ///
    /// # Errors
    /// Of the kind `InvalidInput`: the run directory's path is too long, not absolute or not UTF-8, or there are no
    /// user numbers, or root's is among them.
    pub fn check(&self) -> io::Result<()> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let dir = &self.run_dir;
        if !dir.is_absolute() || dir.to_str().is_none() || dir.as_os_str().len() > RUN_DIR_LEN_MAX {
            return refuse(format!(
                "run directory {} must be an absolute UTF-8 path of at most {RUN_DIR_LEN_MAX} bytes: socket paths are short",
                dir.display()
            ));
        }
        if self.uids.is_empty() || self.uids.contains(&0) {
            return refuse(format!("user numbers {:?} must be some, without root's", self.uids));
        }
        Ok(())
    }
}
