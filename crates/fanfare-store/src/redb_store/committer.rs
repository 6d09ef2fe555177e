//! One thread that writes: takes what has queued, makes it durable at once, answers everyone.

use tokio::sync::{mpsc, oneshot};

use super::engine::Engine;
use crate::limits::{COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_MAX};
use crate::{Committed, StoreError, Txn};

/// A transaction and who waits for it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) txn: Txn,
    pub(crate) answer: oneshot::Sender<Result<Committed, StoreError>>,
}

/// Runs until every sender is gone and the queue is empty.
pub(crate) fn run(mut engine: Engine, mut jobs: mpsc::Receiver<Job>) {
    let mut batch = Vec::new();
    while let Some(first) = jobs.blocking_recv() {
        let mut bytes = first.txn.bytes();
        batch.push(first);
        while batch.len() < COMMIT_BATCH_MAX && bytes < COMMIT_BATCH_BYTES_MAX {
            let Ok(job) = jobs.try_recv() else { break };
            bytes += job.txn.bytes();
            batch.push(job);
        }
        let applied = engine.apply(batch.iter().map(|job| &job.txn));
        if let Err(error) = &applied {
            tracing::error!(%error, transactions = batch.len(), "the store could not be written");
        }
        let mut verdicts = applied.map(Vec::into_iter);
        for job in batch.drain(..) {
            let answer = match &mut verdicts {
                // The engine gives one verdict for each transaction.
                Ok(verdicts) => verdicts.next().unwrap_or(Err(StoreError::Closed)),
                Err(error) => Err(error.clone()),
            };
            // Whoever asked may have left; the transaction stands.
            let _ = job.answer.send(answer);
        }
    }
}
