//! A node daemon with a scripted runtime, between a scripted control plane and real directories.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod code;
mod daemon;
mod group;
mod link;
mod logs;
mod rig;
