//! Calls that data planes are asked to accept, and their answers on the way back to who asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use fanfare_types::{DataPlaneId, EntrustRefusal};
use tokio::sync::{oneshot, watch};

/// What became of a call. An answer that is dropped says that the data plane was asked and has not answered.
#[derive(Debug)]
pub(crate) enum Entrusted {
    /// The data plane's word: the call's id, or why it has not accepted it.
    Said(Result<Arc<str>, EntrustRefusal>),
    /// It is not connected, and was not asked.
    NotAsked,
}

/// Questions that are open, and which data planes can be asked. There are no more than the desk of schedules asks.
#[derive(Debug)]
pub(crate) struct Entrusting {
    last: u64,
    open: BTreeMap<u64, (DataPlaneId, oneshot::Sender<Entrusted>)>,
    connected: watch::Sender<Vec<DataPlaneId>>,
}

impl Entrusting {
    pub(crate) fn new(connected: watch::Sender<Vec<DataPlaneId>>) -> Self {
        Entrusting { last: 0, open: BTreeMap::new(), connected }
    }

    /// A number for a question to this data plane.
    pub(crate) fn open(&mut self, data_plane: DataPlaneId, answer: oneshot::Sender<Entrusted>) -> u64 {
        self.open.retain(|_, (_, answer)| !answer.is_closed());
        self.last += 1;
        self.open.insert(self.last, (data_plane, answer));
        self.last
    }

    /// Passes an answer on, if it is waited for.
    pub(crate) fn answered(
        &mut self,
        data_plane: DataPlaneId,
        number: u64,
        outcome: Result<Arc<str>, EntrustRefusal>,
    ) {
        if self.open.get(&number).is_some_and(|(asked, _)| *asked == data_plane)
            && let Some((_, answer)) = self.open.remove(&number)
        {
            // Whoever asked may have given up.
            let _ = answer.send(Entrusted::Said(outcome));
        }
    }

    /// The data plane's stream is gone, and with it what was not answered.
    pub(crate) fn left(&mut self, data_plane: DataPlaneId) {
        self.open.retain(|_, (asked, _)| *asked != data_plane);
    }

    /// These are connected now.
    pub(crate) fn connected(&self, data_planes: Vec<DataPlaneId>) {
        self.connected.send_if_modified(|known| {
            let changed = *known != data_planes;
            *known = data_planes;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_reach_who_asked_and_a_stream_that_ends_leaves_none_waiting() {
        let (tx, rx) = watch::channel(Vec::new());
        let mut entrusting = Entrusting::new(tx);
        let (a, b) = (DataPlaneId(1), DataPlaneId(2));
        entrusting.connected(vec![a, b]);
        assert_eq!(*rx.borrow(), [a, b]);
        let mut ask = |of| {
            let (answer, answered) = oneshot::channel();
            (entrusting.open(of, answer), answered)
        };
        let ((one, mut first), (two, mut second), (_, mut third)) = (ask(a), ask(a), ask(b));
        entrusting.answered(b, one, Ok("another's".into()));
        assert!(first.try_recv().is_err());
        entrusting.answered(a, one, Ok("id".into()));
        assert!(matches!(first.try_recv(), Ok(Entrusted::Said(Ok(id))) if &*id == "id"));
        entrusting.left(a);
        assert!(matches!(second.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(matches!(third.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        entrusting.answered(a, two, Ok("late".into()));
        drop(third);
        let (answer, _answered) = oneshot::channel();
        entrusting.open(a, answer);
        assert_eq!(entrusting.open.len(), 1, "what nobody waits for makes room");
    }
}
