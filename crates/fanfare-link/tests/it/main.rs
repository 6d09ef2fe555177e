//! Links over both transports, and what only the network can do to them.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod rig;
mod suite;
mod wire;
