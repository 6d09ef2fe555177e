//! The control plane's shell: API, store, streams and timers around the engine.
//!
//! Where to look:
//! - what is registered, and when it is durable: `registry`;
//! - schedules, and what they fire: `schedules`, `entrusting`;
//! - who owns the engine, and what goes in and out: `engine_loop`, `input`;
//! - who is connected: `hub`; who is lost: [`fanfare_engine::liveness`];
//! - how secrets are sealed, and which nodes get them: `vault`, `deliveries`;
//! - the HTTP API: `api`; code blobs: `blobs`; what images stand for: `images`; log lines: `transfers`.
//!
//! Every decision about sandboxes is `fanfare-engine`'s; nothing here decides anything about them.

mod api;
mod barrier;
mod blobs;
mod changes;
mod clock;
mod control_plane;
mod deliveries;
mod engine_loop;
mod entrusting;
mod error;
mod hub;
mod images;
mod input;
mod leader;
mod limits;
mod options;
mod proofs;
mod questions;
mod registry;
mod schedules;
mod transfers;
mod vault;
mod view;
mod webhooks;

pub use api::{openapi_document, routes};
pub use control_plane::{ControlPlane, Handle};
pub use error::ControlPlaneError;
pub use options::{Image, ImageCode, MoreMetrics, Options};
pub use vault::KeyError;
