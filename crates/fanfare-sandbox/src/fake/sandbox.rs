//! One fake sandbox: a phase, a meter, and a bell for those who wait for either.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fanfare_types::{ExitCause, FunctionId, RevisionId, SandboxId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::runtime::Inner;

/// What a sandbox has done, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SandboxStats {
    /// Requests in it now.
    pub in_flight: u32,
    /// The most that were in it at once.
    pub in_flight_max: u32,
    /// Requests that were answered or cut off.
    pub served: u64,
}

/// Where a sandbox is in its life. It only moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Ready,
    /// Told to stop gracefully: takes no new requests.
    Ending,
    Gone(ExitCause),
}

struct Life {
    phase: Phase,
    stats: SandboxStats,
    /// Time with requests in it since the last reading of its use, requests counted singly.
    busy: Duration,
    /// Until when `busy` is up to date.
    metered: Instant,
}

impl Life {
    fn meter(&mut self) {
        let now = Instant::now();
        self.busy += (now - self.metered) * self.stats.in_flight;
        self.metered = now;
    }
}

/// A record.
pub(super) struct Sandbox {
    pub(super) id: SandboxId,
    pub(super) revision: RevisionId,
    pub(super) stubborn: bool,
    pub(super) runtime: Weak<Inner>,
    life: Mutex<Life>,
    /// Rung when it is gone, and when it is ending and has become idle.
    bell: Notify,
}

impl Sandbox {
    pub(super) fn new(
        id: SandboxId,
        revision: RevisionId,
        stubborn: bool,
        runtime: Weak<Inner>,
    ) -> Arc<Sandbox> {
        let life = Life {
            phase: Phase::Starting,
            stats: SandboxStats::default(),
            busy: Duration::ZERO,
            metered: Instant::now(),
        };
        Arc::new(Sandbox { id, revision, stubborn, runtime, life: Mutex::new(life), bell: Notify::new() })
    }

    pub(super) fn function(&self) -> FunctionId {
        self.revision.function
    }

    pub(super) fn phase(&self) -> Phase {
        self.life.lock().phase
    }

    pub(super) fn stats(&self) -> SandboxStats {
        self.life.lock().stats
    }

    /// Moves to `next` if that lies ahead; gives the phase it was in.
    pub(super) fn advance(&self, next: Phase) -> Phase {
        let rank = |phase: Phase| match phase {
            Phase::Starting => 0,
            Phase::Ready => 1,
            Phase::Ending => 2,
            Phase::Gone(_) => 3,
        };
        let mut life = self.life.lock();
        let was = life.phase;
        if rank(next) > rank(was) {
            life.phase = next;
        }
        was
    }

    /// Wakes everyone who waits for its phase.
    pub(super) fn ring(&self) {
        self.bell.notify_waiters();
    }

    /// Resolves with how it ended.
    pub(super) async fn gone(&self) -> ExitCause {
        self.wait(|life| match life.phase {
            Phase::Gone(cause) => Some(cause),
            _ => None,
        })
        .await
    }

    /// Resolves when no request is in it, or it is gone.
    pub(super) async fn idle(&self) {
        self.wait(|life| (life.stats.in_flight == 0 || matches!(life.phase, Phase::Gone(_))).then_some(()))
            .await;
    }

    async fn wait<T>(&self, done: impl Fn(&Life) -> Option<T>) -> T {
        loop {
            let rung = self.bell.notified();
            tokio::pin!(rung);
            // Before looking: a bell that rings in between is then not missed.
            rung.as_mut().enable();
            if let Some(value) = done(&self.life.lock()) {
                return value;
            }
            rung.await;
        }
    }

    /// Begins a request; `None` when it takes none.
    pub(super) fn enter(self: &Arc<Self>) -> Option<InFlight> {
        let mut life = self.life.lock();
        if life.phase != Phase::Ready {
            return None;
        }
        life.meter();
        life.stats.in_flight += 1;
        life.stats.in_flight_max = life.stats.in_flight_max.max(life.stats.in_flight);
        Some(InFlight(self.clone()))
    }

    /// Busy time since the last call, requests counted singly.
    pub(super) fn take_busy(&self) -> Duration {
        let mut life = self.life.lock();
        life.meter();
        std::mem::take(&mut life.busy)
    }
}

/// A request in a sandbox; ends when dropped.
pub(super) struct InFlight(Arc<Sandbox>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let last_of_ending = {
            let mut life = self.0.life.lock();
            life.meter();
            life.stats.in_flight -= 1;
            life.stats.served += 1;
            life.stats.in_flight == 0 && life.phase == Phase::Ending
        };
        if last_of_ending {
            self.0.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small() {
        // With its two map entries and its endpoint it stays within a few hundred bytes.
        assert!(size_of::<Sandbox>() <= 192, "{}", size_of::<Sandbox>());
    }
}
