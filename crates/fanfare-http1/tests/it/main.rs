//! The client against scripted peers and against hyper's server.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod framings;
mod fuzz;
mod peer;
mod progress;
mod requests;
mod script;
mod strict;
