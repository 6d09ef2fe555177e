//! Who has yet to hear what a caller is told is done: pure bookkeeping.
//!
//! A registration is durable before data planes hear of it. Whoever reads "created" may call the function at once,
//! by any of them: so the answer waits until each connected data plane has said that it took in everything sent to it
//! before. Streams keep their order, so one mark behind the change is enough, and all callers whose changes came in
//! one batch share it.

use std::collections::{BTreeSet, VecDeque};

use fanfare_types::DataPlaneId;
use tokio::sync::oneshot;

/// Marks sent to data planes, and who waits for each.
#[derive(Debug, Default)]
pub(crate) struct Barriers {
    last: u64,
    asked: Vec<oneshot::Sender<()>>,
    /// By number, oldest first.
    open: VecDeque<Barrier>,
}

#[derive(Debug)]
struct Barrier {
    number: u64,
    missing: BTreeSet<DataPlaneId>,
    waiters: Vec<oneshot::Sender<()>>,
}

impl Barriers {
    /// Somebody waits for everything that was sent up to now.
    pub(crate) fn ask(&mut self, waiter: oneshot::Sender<()>) {
        self.asked.push(waiter);
    }

    /// The mark to be sent to `data_planes`, which are all that are connected; `None` when nobody waits for one.
    pub(crate) fn raise(&mut self, data_planes: impl Iterator<Item = DataPlaneId>) -> Option<u64> {
        if self.asked.is_empty() {
            return None;
        }
        let waiters = std::mem::take(&mut self.asked);
        let missing: BTreeSet<_> = data_planes.collect();
        if missing.is_empty() {
            answer(waiters);
            return None;
        }
        self.last += 1;
        self.open.push_back(Barrier { number: self.last, missing, waiters });
        Some(self.last)
    }

    /// The data plane has taken in everything up to this mark.
    pub(crate) fn reached(&mut self, data_plane: DataPlaneId, number: u64) {
        self.strike(data_plane, number);
    }

    /// The data plane's stream is gone: whatever comes next begins with the full state.
    pub(crate) fn left(&mut self, data_plane: DataPlaneId) {
        self.strike(data_plane, u64::MAX);
    }

    fn strike(&mut self, data_plane: DataPlaneId, up_to: u64) {
        for barrier in self.open.iter_mut().take_while(|barrier| barrier.number <= up_to) {
            barrier.missing.remove(&data_plane);
            if barrier.missing.is_empty() {
                answer(std::mem::take(&mut barrier.waiters));
            }
        }
        self.open.retain(|barrier| !barrier.missing.is_empty());
    }
}

fn answer(waiters: Vec<oneshot::Sender<()>>) {
    for waiter in waiters {
        // Whoever asked may have left.
        let _ = waiter.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DataPlaneId = DataPlaneId(1);
    const B: DataPlaneId = DataPlaneId(2);

    fn ask(barriers: &mut Barriers) -> oneshot::Receiver<()> {
        let (tx, rx) = oneshot::channel();
        barriers.ask(tx);
        rx
    }

    fn is_answered(waiter: &mut oneshot::Receiver<()>) -> bool {
        waiter.try_recv().is_ok()
    }

    #[test]
    fn one_mark_serves_all_who_asked_before_it_and_none_who_asked_after() {
        let mut barriers = Barriers::default();
        assert_eq!(barriers.raise([A, B].into_iter()), None, "nobody asked");
        let (mut one, mut two) = (ask(&mut barriers), ask(&mut barriers));
        assert_eq!(barriers.raise([A, B].into_iter()), Some(1));
        let mut three = ask(&mut barriers);
        assert_eq!(barriers.raise([A, B].into_iter()), Some(2));
        barriers.reached(A, 2);
        assert!(!is_answered(&mut one), "B has not heard");
        barriers.reached(B, 1);
        assert!(is_answered(&mut one) && is_answered(&mut two) && !is_answered(&mut three));
        barriers.reached(B, 2);
        assert!(is_answered(&mut three));
        assert!(barriers.open.is_empty());
    }

    #[test]
    fn nobody_waits_for_a_data_plane_that_is_gone_or_was_not_there() {
        let mut barriers = Barriers::default();
        let mut none = ask(&mut barriers);
        assert_eq!(barriers.raise(std::iter::empty()), None);
        assert!(is_answered(&mut none));
        let mut one = ask(&mut barriers);
        assert_eq!(barriers.raise([A, B].into_iter()), Some(1));
        barriers.left(A);
        assert!(!is_answered(&mut one));
        barriers.reached(B, 1);
        assert!(is_answered(&mut one));
    }
}
