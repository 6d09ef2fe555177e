//! The wire: generated types, and the way from the domain to them and back.
//!
//! A peer is not trusted to be well: whatever it sends is checked here once, and what is wrong ends the stream.

mod common;
mod entrusted;
mod from_data_plane;
mod from_node;
mod log;
mod pack;
mod request;
mod revision;
mod to_data_plane;
mod to_node;
mod webhook;

use fanfare_types::Epoch;
use fanfare_types::limits::LINK_BATCH_MESSAGES_MAX;

pub(crate) use common::digest;
pub(crate) use log::{log_from_wire, log_to_wire};

use crate::{Batch, Message};

/// Generated from `proto/internal.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub(crate) mod proto {
    tonic::include_proto!("fanfare.internal.v1");
}

/// A value shows nowhere.
impl std::fmt::Debug for proto::Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Bytes of one text on the wire. Larger than any that the platform makes.
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// What is wrong with something that a peer sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{what} cannot be {value}")]
    Value { what: &'static str, value: u64 },
    #[error("{0} is not valid")]
    Invalid(&'static str),
    #[error("a record ends too early")]
    Truncated,
    #[error("{what} has {len}; the limit is {limit}")]
    TooMany { what: &'static str, len: usize, limit: usize },
}

/// A message that has a wire form.
pub(crate) trait Wire: Message + Sized {
    /// The frame that carries a batch.
    type Frame: prost::Message + Default + 'static;

    fn encode(batch: Batch<Self>) -> Self::Frame;
    fn decode(frame: Self::Frame) -> Result<Batch<Self>, Malformed>;
}

/// Messages of a frame as they are unpacked, bounded.
struct Messages<M>(Vec<M>);

impl<M> Messages<M> {
    fn new() -> Self {
        Messages(Vec::new())
    }

    fn push(&mut self, message: M) -> Result<(), Malformed> {
        let len = self.0.len() + 1;
        if len > LINK_BATCH_MESSAGES_MAX {
            return Err(Malformed::TooMany { what: "messages", len, limit: LINK_BATCH_MESSAGES_MAX });
        }
        self.0.push(message);
        Ok(())
    }

    /// Unpacks records, each of which is a message, up to the end of `bytes`.
    fn unpack(
        &mut self,
        bytes: &[u8],
        mut record: impl FnMut(&mut pack::Unpacker<'_>) -> Result<M, Malformed>,
    ) -> Result<(), Malformed> {
        let mut unpacker = pack::Unpacker::new(bytes);
        while !unpacker.is_empty() {
            let message = record(&mut unpacker)?;
            self.push(message)?;
        }
        Ok(())
    }

    fn batch(self, epoch: u64, seq: u64) -> Result<Batch<M>, Malformed> {
        if self.0.is_empty() {
            return Err(Malformed::Missing("a message"));
        }
        Ok(Batch { epoch: Epoch(epoch), seq, messages: self.0 })
    }
}

#[cfg(test)]
mod tests;
