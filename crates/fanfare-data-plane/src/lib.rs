//! The data plane's shell: sockets and timers around the dispatcher.
//!
//! A [`DataPlane`] is a few threads, each with its own listener and event loop, and one more for the stream to the
//! control plane. A request is served on the thread that accepted it. Each function's state machine
//! (`fanfare-dispatch`) is behind a short lock that no thread holds while it waits; what the machine orders (a slot
//! for a request, an answer, a message to the control plane) is done by this crate.
//!
//! One port takes HTTP/1 and HTTP/2, and with a certificate TLS too: what a client says first decides.
//!
//! Clients name a function by host (`Host: NAME` or `NAME.anything`) or by path (`/function/NAME/…`); path, query
//! and body reach it byte for byte. Every answer has `X-Request-Id` and `Server-Timing`; every refusal has
//! `X-Fanfare-Reason` and a problem document that says why and what to do.
//!
//! `/async-function/NAME/…` takes the same request for later: 202 and an id, once it is durable. `/async…` answers for
//! what was taken so.

mod activity;
mod asynchronous;
mod body;
mod client_stream;
mod clock;
mod connection;
mod control;
mod core;
mod crowd;
mod data_plane;
mod deadlines;
mod directory;
mod endpoint;
mod failures;
mod find;
mod form;
mod function;
#[doc(hidden)]
pub mod fuzz;
mod handover;
mod headers;
mod http2;
mod incoming;
mod interim;
mod invoke;
mod invoke_http2;
mod lease;
mod listener;
mod metrics;
mod metrics_server;
mod names;
mod options;
mod outlet;
mod payload;
mod peers;
mod problem;
mod progress;
mod proof;
mod records;
mod replay;
mod request;
mod request_id;
mod seldom;
mod shared;
mod stats;
mod stream;
mod timing;
mod tls;
mod trace;
mod trail;
mod transport;
mod upgrade;
mod uploader;
mod upstream;
mod wait;
mod webhook;

pub use asynchronous::{AsyncOptions, CallbackTargets, LogError};
pub use data_plane::{DataPlane, Handle, Sockets, StartError};
pub use handover::Inheritance;
pub use options::Options;
pub use stats::{FunctionStats, Stats};
pub use tls::{TlsError, TlsOptions};
pub use trace::TraceOptions;
