//! The data plane over real sockets: a control plane played by the test, sandboxes on unix sockets.

#![allow(clippy::unwrap_used, reason = "a test speaks by panicking")]

mod abandoned;
mod answers;
mod asynchronous;
mod client;
mod control;
mod cores;
mod early;
mod ends;
mod failures;
mod fidelity;
mod fields;
mod grpc;
mod h2c;
mod handover;
mod interim;
mod leases;
mod peers;
mod protocol;
mod rig;
mod sandbox;
mod smuggling;
mod streaming;
mod timeouts;
mod tls;
mod traces;
mod traffic;
mod warm;
mod webhooks;
