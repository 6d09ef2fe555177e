//! Sandboxes from Linux namespaces, cgroups and seccomp, without an engine or an image.
//!
//! [`ProcessRuntime`] implements [`fanfare_sandbox::Runtime`]. It starts a [launcher](launcher_main) once, a small
//! process that clones every sandbox; the daemon itself never forks. See [`Isolation`] for what is enforced,
//! and [`audit`] for what is left over when everything has been killed.

mod attempts;
mod body;
mod broker;
mod build;
mod cgroup;
mod deps;
mod egress;
mod fdmsg;
#[doc(hidden)]
pub mod fuzz;
mod gate;
mod given;
mod isolation;
mod journal;
mod launch;
mod launcher;
mod link;
mod logs;
mod notify;
mod options;
mod pace;
mod prepare;
mod process;
mod procfs;
mod recover;
mod revision;
mod root;
mod run_dir;
mod runtime;
mod sandbox;
mod seccomp;
mod shared;
mod shims;
mod sys;
mod zygote;

pub use cgroup::CgroupVersion;
pub use isolation::{Isolation, Mechanism};
pub use launcher::{LAUNCHER_ARGUMENT, launcher_main};
pub use options::{LauncherCommand, ProcessOptions};
pub use recover::audit;
pub use runtime::ProcessRuntime;
