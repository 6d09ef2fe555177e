//! The link to the control plane, made again whenever it is lost.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use fanfare_link::{Batch, DialError, Dialer, EpochGate, Link, Receiver, Sender, worth_saying};
use fanfare_types::{FromNode, ToNode};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use crate::daemon::Company;

/// Pause before the first attempt after a loss; doubles to the maximum.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest pause between attempts.
const BACKOFF_MAX: Duration = Duration::from_millis(1_000);

/// One link at a time.
pub(crate) struct Uplink {
    dialer: Dialer,
    gate: EpochGate,
    state: State,
    dials: Arc<Semaphore>,
    speaks: bool,
    /// Attempts since a control plane last made itself known.
    attempts: u32,
    /// It was said that there is no link.
    complained: bool,
}

enum State {
    Dialling(BoxFuture<'static, Result<Link<FromNode, ToNode>, DialError>>),
    Up(Receiver<ToNode>),
}

/// What happened to the link.
pub(crate) enum News {
    Up(Sender<FromNode>),
    Batch(Batch<ToNode>),
    Down,
}

impl Uplink {
    pub(crate) fn new(dialer: Dialer, gate: EpochGate, company: &Company) -> Self {
        let dials = company.dials.clone();
        let state = State::Dialling(dial(dialer.clone(), gate.clone(), dials.clone(), Duration::ZERO));
        Uplink { dialer, gate, state, dials, speaks: company.speaks, attempts: 0, complained: false }
    }

    /// It is said that there is no link.
    pub(crate) fn complain(&mut self) {
        self.complained = true;
    }

    /// Whether that was said since this was last asked.
    pub(crate) fn complained(&mut self) -> bool {
        std::mem::take(&mut self.complained)
    }

    /// Waits for news. Cancel-safe.
    pub(crate) async fn next(&mut self) -> News {
        loop {
            match &mut self.state {
                State::Dialling(dialling) => match dialling.await {
                    Ok(Link { tx, rx }) => {
                        self.state = State::Up(rx);
                        return News::Up(tx);
                    }
                    Err(error) => {
                        let attempts = self.attempts;
                        if self.speaks {
                            self.complained = true;
                            if worth_saying(attempts) {
                                tracing::warn!(%error, attempts, "no link to the control plane; trying on");
                            }
                        }
                        self.redial();
                    }
                },
                State::Up(rx) => match rx.recv().await {
                    Some(batch) => return News::Batch(batch),
                    None => {
                        self.redial();
                        return News::Down;
                    }
                },
            }
        }
    }

    /// The control plane at the other end is one: the next loss is a first one.
    pub(crate) fn confirmed(&mut self) {
        self.attempts = 0;
    }

    /// Cuts the link and begins anew.
    pub(crate) fn redial(&mut self) {
        let pause = backoff(self.attempts, random());
        self.attempts = self.attempts.saturating_add(1);
        let (dialer, gate, dials) = (self.dialer.clone(), self.gate.clone(), self.dials.clone());
        self.state = State::Dialling(dial(dialer, gate, dials, pause));
    }

    /// The receiving half, for an end in good order.
    pub(crate) fn into_receiver(self) -> Option<Receiver<ToNode>> {
        match self.state {
            State::Up(rx) => Some(rx),
            State::Dialling(_) => None,
        }
    }
}

fn dial(
    dialer: Dialer,
    gate: EpochGate,
    dials: Arc<Semaphore>,
    pause: Duration,
) -> BoxFuture<'static, Result<Link<FromNode, ToNode>, DialError>> {
    async move {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        // An error would say that the semaphore was closed, which nobody does.
        let _permit = dials.acquire().await;
        dialer.node(gate).await
    }
    .boxed()
}

/// Between half of and the whole exponential pause: many nodes that lost one leader do not all come at once.
fn backoff(attempts: u32, random: u64) -> Duration {
    let whole = BACKOFF_MIN.saturating_mul(1 << attempts.min(16)).min(BACKOFF_MAX);
    whole / 2 + whole.mul_f64(random as f64 / u64::MAX as f64) / 2
}

/// Different at every call and in every process.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_maximum_and_differ() {
        for (attempts, whole_ms) in [(0, 10), (1, 20), (3, 80), (6, 640), (7, 1_000), (60, 1_000)] {
            let whole = Duration::from_millis(whole_ms);
            assert_eq!(backoff(attempts, 0), whole / 2);
            assert_eq!(backoff(attempts, u64::MAX), whole);
        }
        assert_ne!(random(), random());
    }
}
