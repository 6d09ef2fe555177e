//! The node daemon's shell: one runtime or several behind a stream to the control plane.
//!
//! [`Node::start`] takes back what an earlier daemon left, then keeps a link to the control plane and does what it
//! says: it starts and stops sandboxes, makes revisions ready, and tells what became of them. Sandboxes live on while
//! the link is down; each new link begins with a full account of them. Code comes through the same control plane and
//! is kept unpacked; logs stay here and are sent to whoever asks.

mod code;
mod daemon;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod logs;
mod node;
mod options;
mod revisions;
mod sandboxes;
mod uplink;

pub use logs::{LogLimits, LogStore, Wanted as WantedLines};
pub use node::{Handle, Node, StartError};
pub use options::{GroupOptions, GroupRuntimeFactory, NodeOptions, RuntimeFactory};

use fanfare_types::{StartFailure, StartFailureKind};

/// Characters of a failure's sentence.
const DETAIL_CHARS_MAX: usize = 300;

/// A failure that the node itself has to report.
fn failure(kind: StartFailureKind, mut detail: String) -> StartFailure {
    if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX) {
        detail.truncate(end);
    }
    StartFailure { kind, detail, log_tail: String::new() }
}
