//! Which leader is still obeyed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Epoch;

/// The newest epoch that a process has seen, shared by all its links: a deposed leader's batch is refused even when
/// the newer leader spoke on another link.
#[derive(Clone, Debug, Default)]
pub struct EpochGate(Arc<AtomicU64>);

impl EpochGate {
    /// A gate that refuses everything older than `newest`.
    #[must_use]
    pub fn new(newest: Epoch) -> Self {
        EpochGate(Arc::new(AtomicU64::new(newest.0)))
    }

    /// Whether a command of this epoch may be obeyed; a newer one closes the gate for all older ones.
    pub fn admit(&self, epoch: Epoch) -> bool {
        self.0.fetch_max(epoch.0, Ordering::AcqRel) <= epoch.0
    }

    /// The newest epoch seen.
    #[must_use]
    pub fn newest(&self) -> Epoch {
        Epoch(self.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_epochs_are_refused_by_every_clone() {
        let gate = EpochGate::new(Epoch(3));
        let other = gate.clone();
        for (epoch, admitted) in [(2, false), (3, true), (5, true), (4, false), (5, true)] {
            assert_eq!(gate.admit(Epoch(epoch)), admitted, "{epoch}");
        }
        assert_eq!(other.newest(), Epoch(5));
        assert!(!other.admit(Epoch(4)));
    }
}
