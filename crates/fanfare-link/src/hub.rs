//! What the control plane is to the links.

use bytes::Bytes;
use fanfare_types::{CodeDigest, FromDataPlane, FromNode, ToDataPlane, ToNode};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::{Link, LogRecord};

/// Implemented by the control plane; called for everything that a node or a data plane opens.
pub trait Hub: Send + Sync + 'static {
    /// A node has connected. Must not block: hand the link to a task and return. Dropping it refuses the node.
    fn node(&self, link: Link<ToNode, FromNode>);

    /// A data plane has connected. Must not block: hand the link to a task and return. Dropping it refuses it.
    fn data_plane(&self, link: Link<ToDataPlane, FromDataPlane>);

    /// Opens a code blob.
    fn blob(&self, digest: CodeDigest) -> BoxFuture<'static, Result<BlobReader, BlobError>>;

    /// Takes the lines that a node sends under the number of a [`ToNode::Logs`]. The transfer ends when the lines
    /// end, or when the future resolves because nobody wants them any more.
    fn logs(&self, transfer: u64, lines: BoxStream<'static, LogRecord>) -> BoxFuture<'static, ()>;
}

/// A blob's bytes, in order, in chunks of any size.
pub type BlobReader = BoxStream<'static, Result<Bytes, BlobError>>;

/// Why a blob cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// There is no such blob.
    #[error("there is no blob {0}")]
    NotFound(CodeDigest),
    /// It may exist, but cannot be read now.
    #[error("the blob cannot be read: {0}")]
    Unavailable(String),
}
