//! Streams between the roles: messages, batches, sequence numbers, epochs; over gRPC or in one process.
//!
//! A node daemon or a data plane opens one long-lived [`Link`] to the control plane through a [`Dialer`]; the control
//! plane implements [`Hub`] and receives the other ends, either directly (one process) or through [`serve`].
//! Both transports carry the same messages in the same [`Batch`]es under the same checks, so that one process and a
//! cluster differ in nothing but the wire.
//!
//! A link is all or nothing: overflow, a gap, a malformed or stale batch, a silent peer, or dropping either half
//! closes both directions. Whoever dialled then dials again and states everything it holds, so no message is needed
//! twice and none is repeated by this crate.
//!
//! The wire is gRPC, but no type of it leaves this crate.

mod dialer;
#[doc(hidden)]
pub mod fuzz;
mod grpc;
mod hub;
mod link;
mod log;
mod message;
mod outbox;
mod wire;

pub use dialer::{DialError, Dialer, worth_saying};
pub use fanfare_types::EpochGate;
pub use grpc::serve;
pub use hub::{BlobError, BlobReader, Hub};
pub use link::{Batch, Link, Receiver, SendError, Sender, pair};
pub use log::{LogRecord, LogStream};
pub use message::Message;
