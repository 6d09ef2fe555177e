//! The control plane over its real API and links, with the real engine; nodes and data planes are scripted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test speaks by panicking")]

mod api;
mod cluster;
mod crash;
mod dirigent;
mod durability;
mod logs;
mod peers;
mod schedules;
mod secrets;
mod webhooks;
mod world;
