//! Asynchronous invocations: accepted once they are durable, executed as synchronous ones are, and answered for.
//!
//! What happens to a call is decided by [`fanfare_async::Calls`], which one thread of its own keeps ([`keeper`]). It
//! makes what that orders durable ([`log`]), and only then does what that orders to be done: attempts ([`attempt`])
//! go through the functions' queues like every request, callbacks ([`callback`]) go out by a client of their own. The
//! cores take calls in ([`accept`]) and answer questions about them ([`api`]) by asking the keeper through the
//! [`Door`].

pub(crate) mod accept;
pub(crate) mod api;
mod attempt;
mod callback;
mod cluster;
pub(crate) mod dirigent;
pub(crate) mod door;
pub(crate) mod entrust;
pub(crate) mod intake;
mod keeper;
mod log;
pub(crate) mod message;
mod options;
pub(crate) mod route;
mod session;
mod stored;
pub(crate) mod targets;

pub(crate) use door::Door;
pub(crate) use keeper::{Keeper, Opening};
pub use log::LogError;
pub use options::{AsyncOptions, CallbackTargets};

use http::header::HeaderName;

/// Names an asynchronous call, on its answers, its attempts and its callbacks.
pub(crate) const INVOCATION_ID: HeaderName = HeaderName::from_static("x-fanfare-invocation-id");
/// The attempt's number, from 1.
pub(crate) const ATTEMPT: HeaderName = HeaderName::from_static("x-fanfare-attempt");
/// From accepted to ended in microseconds, on what is the function's answer.
pub(crate) const DURATION_US: HeaderName = HeaderName::from_static("x-fanfare-duration-us");
/// The call's state, on what is the function's answer.
pub(crate) const STATE: HeaderName = HeaderName::from_static("x-fanfare-state");
