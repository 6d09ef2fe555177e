//! HTTP/2, on the library that knows its frames (`h2`). The one above it (hyper) would do, but for what it keeps to
//! itself: informational responses in either direction, and streams that were reset rather than ended.

mod body;
mod refusals;
mod sandbox;
mod server;

pub(crate) use body::{Outgoing, Received};
pub(crate) use refusals::Refusals;
pub(crate) use sandbox::{Answer, Failure, Http2};
pub(crate) use server::Connection;
