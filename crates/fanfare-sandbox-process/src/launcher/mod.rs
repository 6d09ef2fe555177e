//! The launcher: a small process with one thread that starts every sandbox.
//!
//! The daemon has many threads and much memory: forking it would be slow and unsafe. It starts the launcher once, as
//! a fresh execution of the same program, and asks it over a socket. When the socket ends (the daemon was killed), the
//! launcher ends all sandboxes and removes what they owned.

mod init;
mod main;
mod netns;
pub(crate) mod protocol;
mod spawn;
mod userns;

pub use main::launcher_main;
pub use protocol::LAUNCHER_ARGUMENT;
