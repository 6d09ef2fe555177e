//! The engines against the conformance suite, against each other, and against `kill -9`.
#![allow(clippy::unwrap_used, reason = "a test speaks by panicking")]

mod conformance;
mod crash;
mod files;
mod model;
