//! What is to be done.

use std::sync::Arc;

use fanfare_types::{FromNode, FunctionId, RevisionId, RevisionSpec, SandboxId, StopMode};

/// An order to the shell. Runtimes are named by their place in the list that the roster was made with.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Tell the control plane, if there is a stream. What it misses, the next hello makes up for.
    Say(FromNode),
    /// Start a sandbox; answered by [`crate::Roster::created`].
    Create {
        /// The runtime.
        runtime: usize,
        /// Its id.
        sandbox: SandboxId,
        /// What it runs.
        spec: Arc<RevisionSpec>,
        /// Note first which code the revision uses, so that a later daemon that finds the sandbox knows what not to
        /// remove.
        note: bool,
    },
    /// End a sandbox; answered by [`crate::Roster::stopped`], and before that by its end.
    Stop {
        /// The runtime.
        runtime: usize,
        /// Which.
        sandbox: SandboxId,
        /// How.
        mode: StopMode,
    },
    /// Prove that a sandbox of the revision starts; answered by [`crate::Roster::prepared`].
    Prepare {
        /// The runtime.
        runtime: usize,
        /// What.
        spec: Arc<RevisionSpec>,
        /// As with [`Order::Create`].
        note: bool,
    },
    /// Release what is kept for a revision; answered by [`crate::Roster::forgotten`].
    Forget {
        /// The runtime.
        runtime: usize,
        /// Which.
        revision: RevisionId,
        /// Its code is noted: take the note back.
        noted: bool,
    },
    /// Nothing of a deleted function is left to write.
    Deleted(FunctionId),
    /// Nothing is to be done: this should not have happened, and is worth a line in the log.
    Odd {
        /// The sandbox.
        sandbox: SandboxId,
        /// What happened.
        what: &'static str,
    },
}
