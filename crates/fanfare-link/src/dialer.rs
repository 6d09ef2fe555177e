//! How a node or a data plane reaches the control plane.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{CodeDigest, FromDataPlane, FromNode, ToDataPlane, ToNode};
use futures_util::stream::BoxStream;

use crate::grpc::Remote;
use crate::{BlobError, BlobReader, EpochGate, Hub, Link, LogRecord, pair};

/// Why the control plane could not be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The address is not one.
    #[error("not an address of a control plane: {0}")]
    Address(String),
    /// Nobody answers there.
    #[error("the control plane cannot be reached: {0}")]
    Unreachable(String),
    /// Somebody answers, but not as a control plane of this version.
    #[error("the control plane refused: {0}")]
    Refused(String),
}

/// Whether the `attempts`th failure in a row to reach the control plane is worth a line in the log: the first, and then
/// ever fewer.
#[must_use]
pub const fn worth_saying(attempts: u32) -> bool {
    attempts == 0 || attempts >= 16 && attempts.is_power_of_two()
}

/// Opens links to the control plane, in this process or over the network. Cheap to clone.
#[derive(Clone)]
pub struct Dialer {
    to: To,
}

#[derive(Clone)]
enum To {
    InProcess(Arc<dyn Hub>),
    Remote(Arc<Remote>),
}

impl Dialer {
    /// To a control plane in this process.
    #[must_use]
    pub fn in_process(hub: Arc<dyn Hub>) -> Self {
        Dialer { to: To::InProcess(hub) }
    }

    /// To a control plane at `http://HOST:PORT`. Nothing is opened yet.
    ///
    /// # Errors
    /// [`DialError::Address`].
    pub fn grpc(uri: &str) -> Result<Self, DialError> {
        Ok(Dialer { to: To::Remote(Arc::new(Remote::new(uri)?)) })
    }

    /// Links opened from now on ask after a silent control plane only after `silence`, and give it up after as long
    /// again: for many links in one process, whose pings would cost more than all they carry. A control plane that
    /// ends is noticed at once in any case, one that hangs only then. Nothing changes within one process.
    #[must_use]
    pub fn ping_after(&self, silence: Duration) -> Self {
        match &self.to {
            To::InProcess(_) => self.clone(),
            To::Remote(remote) => Dialer { to: To::Remote(Arc::new(remote.ping_after(silence))) },
        }
    }

    /// Opens the link of a node daemon.
    ///
    /// # Errors
    /// [`DialError`]; trying again is the caller's decision.
    pub async fn node(&self, gate: EpochGate) -> Result<Link<FromNode, ToNode>, DialError> {
        match &self.to {
            To::InProcess(hub) => {
                let (ours, theirs) = pair(gate);
                hub.node(theirs);
                Ok(ours)
            }
            To::Remote(remote) => remote.node(gate).await,
        }
    }

    /// Opens the link of a data plane.
    ///
    /// # Errors
    /// [`DialError`]; trying again is the caller's decision.
    pub async fn data_plane(&self, gate: EpochGate) -> Result<Link<FromDataPlane, ToDataPlane>, DialError> {
        match &self.to {
            To::InProcess(hub) => {
                let (ours, theirs) = pair(gate);
                hub.data_plane(theirs);
                Ok(ours)
            }
            To::Remote(remote) => remote.data_plane(gate).await,
        }
    }

    /// Opens a code blob.
    ///
    /// # Errors
    /// [`BlobError`], here or in the middle of the stream.
    pub async fn fetch_blob(&self, digest: CodeDigest) -> Result<BlobReader, BlobError> {
        match &self.to {
            To::InProcess(hub) => hub.blob(digest).await,
            To::Remote(remote) => remote.fetch_blob(digest).await,
        }
    }

    /// Sends log lines under the number that the control plane gave; resolves when the lines end or the receiver
    /// wants no more.
    ///
    /// # Errors
    /// [`DialError`] when the control plane cannot be reached or was lost meanwhile.
    pub async fn push_logs(
        &self,
        transfer: u64,
        lines: BoxStream<'static, LogRecord>,
    ) -> Result<(), DialError> {
        match &self.to {
            To::InProcess(hub) => {
                hub.logs(transfer, lines).await;
                Ok(())
            }
            To::Remote(remote) => remote.push_logs(transfer, lines).await,
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            To::InProcess(_) => f.write_str("Dialer(in process)"),
            To::Remote(remote) => f.debug_tuple("Dialer").field(remote).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn futures_can_be_spawned() {
        fn spawnable<T: Send>(_: impl FnOnce(Dialer) -> T) {}
        spawnable(|dialer| async move { dialer.node(EpochGate::default()).await });
        spawnable(|dialer| async move { dialer.data_plane(EpochGate::default()).await });
        spawnable(|dialer| async move { dialer.fetch_blob(CodeDigest::default()).await });
        spawnable(|dialer| async move {
            dialer.push_logs(1, futures_util::StreamExt::boxed(futures_util::stream::empty())).await
        });
    }
}
