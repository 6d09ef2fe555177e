//! What was found of revisions' starts, on its way from the engine's thread to the store: kept whether or not anybody
//! still waits for it, so that a restart does not forget what cannot work.

use fanfare_types::{FunctionName, RevisionId};
use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::input::Prepared;
use crate::limits::{PROOFS_IN_FLIGHT_MAX, PROOFS_QUEUE_MAX};
use crate::registry::{Change, Found, Registry};

/// Something that was found.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) name: FunctionName,
    pub(crate) revision: RevisionId,
    pub(crate) found: Found,
    /// Who is told when it is kept.
    pub(crate) waiters: Vec<oneshot::Sender<Prepared>>,
    pub(crate) answer: Prepared,
}

impl Proof {
    /// Tells those who wait. That nobody does any more is no loss.
    fn tell(self) {
        for waiter in self.waiters {
            let _ = waiter.send(self.answer.clone());
        }
    }
}

/// Where the engine's thread puts what was found.
#[derive(Clone, Debug)]
pub(crate) struct Proofs(mpsc::Sender<Proof>);

impl Proofs {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Proof>) {
        let (tx, rx) = mpsc::channel(PROOFS_QUEUE_MAX);
        (Proofs(tx), rx)
    }

    /// Never waits: where too much is to be kept, or nothing any more, those who wait are told all the same.
    pub(crate) fn keep(&self, proof: Proof) {
        if let Err(error) = self.0.try_send(proof) {
            let proof = match error {
                mpsc::error::TrySendError::Full(proof) | mpsc::error::TrySendError::Closed(proof) => proof,
            };
            tracing::warn!(function = %proof.name, "what was proved of its start is not kept: too much is to be");
            proof.tell();
        }
    }
}

/// Keeps what comes, until the engine's thread has ended or the control plane stops.
pub(crate) async fn run(
    mut proofs: mpsc::Receiver<Proof>,
    registry: Registry,
    shutdown: CancellationToken,
) -> Result<(), crate::ControlPlaneError> {
    let coming = futures_util::stream::poll_fn(move |context| proofs.poll_recv(context));
    let keeping = coming.for_each_concurrent(PROOFS_IN_FLIGHT_MAX, |proof| keep(&registry, proof));
    tokio::select! {
        () = keeping => shutdown.cancelled().await,
        () = shutdown.cancelled() => {}
    }
    Ok(())
}

async fn keep(registry: &Registry, proof: Proof) {
    let change = Change::Proved(proof.name.clone(), proof.revision, proof.found.clone());
    if let Err(error) = registry.change(change).await {
        // What is wrong with the store is told to those who change something.
        tracing::debug!(%error, function = %proof.name, "what was proved of its start is not kept");
    }
    proof.tell();
}
